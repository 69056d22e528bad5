"""Decodes for real and notes every operation: what its forwards took, and what all else until its end did.

Letters: R requests of an operation.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ...decoding.ledger import DRAFT, VERIFY
from ...decoding.policy import Policy
from ...decoding.results import Drafted, DraftResults, VerifyResults
from ...decoding.session import Session
from ...decoding.world import DraftItem, VerifyItem
from ..pools.pool import ModelPool
from ..prompts import Prompt
from ..run import Run, sessions_of
from ..world import TorchWorld


class ProbedForward(NamedTuple):
    """A forward of an operation.

    Attributes:
        level: of its member.
        num_rows: R, or those still drafting.
        new_tokens: over all rows.
        context_tokens: held before it over all rows, nearly: rows that end their draft early are still counted.
        seconds: measured.
    """

    level: int
    num_rows: int
    new_tokens: int
    context_tokens: int
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


class ProbedWorld(TorchWorld):
    """A world that notes its operations in `ops`; `begin` before each run."""

    def sessions(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[Session]:
        """The requests that prompts are."""
        assert isinstance(self.pool, ModelPool)
        return sessions_of(self.pool, prompts, max_new_tokens)

    def begin(self, run: Run) -> None:
        """Note the operations of a run that is about to start."""
        self.ops: list[ProbedOp] = []
        self._run = run
        self._before = self._reading()

    def draft(self, level: int, items: Sequence[DraftItem]) -> DraftResults:
        """See `TorchWorld`."""
        held = self._held(level, [session.request_id for session, _ in items])
        results = super().draft(level, items)
        written = sum(len(row.tokens) for row in results.rows if isinstance(row, Drafted))
        self._note(DRAFT, level, len(items), written, held, results)
        return results

    def verify(self, level: int, items: Sequence[VerifyItem]) -> VerifyResults:
        """See `TorchWorld`."""
        judged = sum(len(session.tokens) - session.first_unjudged(level) + 1 for session, _ in items)
        held = self._held(level, [session.request_id for session, _ in items])
        results = super().verify(level, items)
        self._note(VERIFY, level, len(items), judged, held, results)
        return results

    def _held(self, level: int, request_ids: Sequence[str]) -> int:
        cache = self.manager.caches.get(level)
        return 0 if cache is None else sum(cache.length(one) for one in request_ids if one in cache.rows)

    def _reading(self) -> tuple[float, int, float]:
        timed = self._run.timed
        return self.clock.now_s(), timed.decisions, timed.seconds

    def _note(
        self, kind: int, level: int, num_rows: int, num_tokens: int, held: int, results: DraftResults | VerifyResults
    ) -> None:
        forwards = []
        for rows, new_tokens, _, seconds in results.forwards:
            forwards.append(ProbedForward(level, rows, new_tokens, held, seconds))
            held += new_tokens
        before, self._before = self._before, self._reading()
        now_s, decisions, policy_s = (now - then for now, then in zip(self._before, before, strict=True))
        beside_s = now_s - policy_s - sum(forward.seconds for forward in forwards)
        self.ops.append(
            ProbedOp(kind, level, num_rows, num_tokens, tuple(forwards), beside_s, int(decisions), policy_s)
        )


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
