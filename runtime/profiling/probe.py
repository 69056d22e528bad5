"""Decodes for real and notes every operation: what its forwards took, and what all else until its end did.

Letters: R requests of an operation.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from ...arguments import ArgumentError
from ...decoding.ledger import DRAFT, VERIFY
from ...decoding.policy import Policy
from ...decoding.results import Drafted, DraftResults, VerifyResults
from ...decoding.session import Session
from ...decoding.world import DraftItem, VerifyItem
from ...profiles.batch_shape import BatchShape
from ...traces.meta import Sampling
from ..executor.verify_processor import Chunk
from ..forward.model_forward import ModelForward
from ..kv.member_kv import MemberKV
from ..kv.placement import Placement
from ..pools.loaded_members import LoadedMembers
from ..pools.pool import ModelPool
from ..prompts import Prompt
from ..run import Run, sessions_of
from ..timing.clock import Clock
from ..world import TorchWorld


class ProbedForward(NamedTuple):
    """A forward of an operation.

    Attributes:
        level: of its member.
        shape: of its rows.
        ended_s: when it was done, by the world's clock.
        seconds: it took, with placing its tokens.
    """

    level: int
    shape: BatchShape
    ended_s: float
    seconds: float


class ProbedOp(NamedTuple):
    """An operation.

    Attributes:
        kind: DRAFT or VERIFY.
        level: of the member.
        num_rows: R.
        num_tokens: drafted, or judged and written, over all rows.
        forwards: what it ran; none of a model-free member.
        beside_s: from the end of the operation before it to its own, without forwards and without the policy.
        decisions: steps the policy was asked for meanwhile.
        policy_s: what the policy took for them.
    """

    kind: int
    level: int
    num_rows: int
    num_tokens: int
    forwards: tuple[ProbedForward, ...]
    beside_s: float
    decisions: int
    policy_s: float


class _WatchedForward:
    """A forward that notes the shapes it was called with, and when it was done."""

    def __init__(self, forward: ModelForward, clock: Clock, ran: list[tuple[BatchShape, float]]) -> None:
        self.name, self.kv_shape, self.slot_cache = forward.name, forward.kv_shape, forward.slot_cache
        self.whole_draft, self.whole_verify = forward.whole_draft, forward.whole_verify
        self._forward = forward
        self._clock = clock
        self._ran = ran

    def __call__(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice) -> Tensor:
        """See `ModelForward`."""
        logits = self._forward(ids, placement, cache, keep)
        self._note(placement)
        return logits

    def with_states(
        self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice
    ) -> tuple[Tensor, Tensor]:
        """See `ModelForward`."""
        both = self._forward.with_states(ids, placement, cache, keep)
        self._note(placement)
        return both

    def _note(self, placement: Placement) -> None:
        counts, apart = placement.counts, not isinstance(placement.rows, slice)
        shape = BatchShape(len(counts), sum(counts), max(counts), placement.num_slots, apart)
        self._ran.append((shape, self._clock.now_s()))


def check_probed(pool: LoadedMembers) -> None:
    """Raises ArgumentError for a pool whose operations are more than forwards over all that is fed."""
    if pool.feature_level is not None:
        name = pool.members[pool.feature_level].name
        raise ArgumentError(f"`pool` must not have a member that reads the target's states to be profiled, got {name}")


class ProbedWorld(TorchWorld):
    """A world that notes its operations in `ops`; `begin` before each run."""

    def __init__(self, *, pool: LoadedMembers, sampling: Sampling) -> None:
        check_probed(pool)
        self._ran: list[tuple[BatchShape, float]] = []
        super().__init__(pool=pool, sampling=sampling, watch=self._watched)

    def sessions(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[Session]:
        """The requests that prompts are."""
        assert isinstance(self.pool, ModelPool)
        return sessions_of(self.pool, prompts, max_new_tokens)

    def _watched(self, forward: ModelForward) -> ModelForward:
        return _WatchedForward(forward, self.clock, self._ran)

    def begin(self, run: Run) -> None:
        """Note the operations of a run that is about to start."""
        self.ops: list[ProbedOp] = []
        self._timed = run.timed
        self._before = self._reading()

    def draft(self, level: int, items: Sequence[DraftItem]) -> DraftResults:
        """See `TorchWorld`."""
        results = super().draft(level, items)
        written = sum(len(row.tokens) for row in results.rows if isinstance(row, Drafted))
        self._note(DRAFT, level, len(items), written, results)
        return results

    def verify(self, level: int, items: Sequence[VerifyItem], chunks: Sequence[Chunk] = ()) -> VerifyResults:
        """See `TorchWorld`."""
        judged = sum(len(session.tokens) - session.first_unjudged(level) + 1 for session, _ in items)
        results = super().verify(level, items, chunks)
        self._note(VERIFY, level, len(items), judged, results)
        return results

    def _shapes(self, level: int, results: DraftResults | VerifyResults) -> list[tuple[BatchShape, float]]:
        """What forwards noted; for operations that ran as one, which are not seen forward by forward, even rows."""
        if len(self._ran) == len(results.forwards):
            return self._ran
        cache, now_s = self.manager.cache(level), self.clock.now_s()
        num_slots = max(cache.length(request_id) for request_id in cache.rows)
        return [(BatchShape(rows, new, -(-new // rows), num_slots), now_s) for rows, new, _, _ in results.forwards]

    def _reading(self) -> tuple[float, int, float]:
        return self.clock.now_s(), self._timed.decisions, self._timed.seconds

    def _note(
        self, kind: int, level: int, num_rows: int, num_tokens: int, results: DraftResults | VerifyResults
    ) -> None:
        forwards = tuple(
            ProbedForward(level, shape, ended_s, seconds)
            for (shape, ended_s), (_, _, _, seconds) in zip(self._shapes(level, results), results.forwards, strict=True)
        )
        self._ran.clear()
        before, self._before = self._before, self._reading()
        now_s, decisions, policy_s = (now - then for now, then in zip(self._before, before, strict=True))
        beside_s = now_s - policy_s - sum(forward.seconds for forward in forwards)
        self.ops.append(ProbedOp(kind, level, num_rows, num_tokens, forwards, beside_s, int(decisions), policy_s))


def probe(
    world: ProbedWorld,
    policy: Policy,
    prompts: Sequence[Prompt],
    *,
    name: str,
    batch: int,
    max_new_tokens: int,
) -> list[ProbedOp]:
    """Decode prompts, `batch` at a time, and return the operations.

    Raises:
        ValueError: a request failed.
    """
    run = Run(world, policy, name=name)
    sessions = world.sessions(prompts, max_new_tokens)
    world.begin(run)
    for _ in run.driver.run(sessions, batch):
        pass
    for request_id, error in run.driver.failed.items():
        raise ValueError(f"request {request_id} failed while profiling: {error}")
    return world.ops
