"""Carries out a Verify: one forward over the pending tokens a member has not judged, and the verdict on them.

Letters: B requests, K judged tokens of one, N = sum of K + 1 contexts, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from ..decoding.results import Deferred, Failed, Judged
from ..decoding.session import Session
from ..decoding.steps import Verify
from ..decoding.world import VerifyItem
from .distances import Distances, Judgement, NonFiniteLogitsError, OpDistances, without_room
from .executor import Executor, RollbackProcessor, kept_last
from .pools.members import LoadedMember
from .sampler import Judging, Verdict
from .state import PendingView, RequestState

# A request, and how many tokens of its text a member reads after those that it holds; nobody judges them.
Chunk = tuple[Session, int]


class _Fed(NamedTuple):
    """What a request is fed in a forward, and how many of its last contexts are looked at."""

    state: RequestState
    tokens: list[int]
    num_kept: int


class Row(NamedTuple):
    """One request's part in a verification under way.

    Attributes:
        session: read only.
        step: the verification.
        state: of the request.
        feed: tokens its forward reads.
        first: index of the first pending token that is judged.
        views: `[K]` of the judged tokens.
    """

    session: Session
    step: Verify
    state: RequestState
    feed: list[int]
    first: int
    views: list[PendingView]


class ContextReader(Protocol):
    """A member that reads texts in several forwards."""

    def contexts(self, states: Sequence[RequestState], feeds: Sequence[list[int]], counts: Sequence[int]) -> Tensor:
        """`[N, V]` logits after the last tokens of each request, so many, in the order of the cache's rows."""


class VerifyProcessor:
    """Mutates caches, request states and pending views, no session.

    Args:
        members: by level.
        executor: runs them.
        rollback: prepares and cleans up caches.
        readers: by level, the member that reads the target's states, if there is one.
    """

    def __init__(
        self,
        members: Sequence[LoadedMember],
        executor: Executor,
        rollback: RollbackProcessor,
        *,
        readers: Mapping[int, ContextReader] | None = None,
    ) -> None:
        self._members = members
        self._executor = executor
        self._manager = executor.manager
        self._rollback = rollback
        self._readers = readers or {}

    def run(
        self, level: int, items: Sequence[VerifyItem], chunks: Sequence[Chunk] = ()
    ) -> list[Judged | Failed | Deferred]:
        """`[B]` the verdict on each request, or why there is none.

        Chunks are fed in the same forward; raises MemoryError where one has no room.
        """
        results: dict[str, Judged | Failed | Deferred] = {}
        for wave in [items] if chunks else self._executor.sharing.waves(level, items):
            results |= self._run_wave(level, wave, chunks, frozenset(results))
        return [results[session.request_id] for session, _ in items]

    def _run_wave(
        self, level: int, items: Sequence[VerifyItem], chunks: Sequence[Chunk], kept: frozenset[str]
    ) -> dict[str, Judged | Failed | Deferred]:
        """What one forward gives; requests of `kept` ran before it in the same operation."""
        sharing = self._executor.sharing
        found = sharing.find(level, [session for session, _ in items])
        rows, read = self._rows(level, items), self._reads(level, chunks)
        fed = [(row.state, len(row.feed)) for row in rows] + [(state, len(tokens)) for state, tokens in read]
        refused = sharing.begin(level, found, fed, kept=kept)
        for state, tokens in read:
            if state.request_id in refused:
                raise MemoryError(f"request {state.request_id}: no room to read {len(tokens)} tokens")
        ready = [row for row in rows if row.state.request_id not in refused]
        results: dict[str, Judged | Failed | Deferred] = {
            request_id: without_room(error) for request_id, error in refused.items()
        }
        if ready:
            results |= self._verdicts(level, ready, read)
        elif read:
            self._feed(level, [_Fed(state, tokens, 0) for state, tokens in read])
        return results

    def _verdicts(
        self, level: int, rows: Sequence[Row], read: Sequence[tuple[RequestState, list[int]]]
    ) -> dict[str, Judged | Failed | Deferred]:
        """Run the forward, and judge."""
        asked = [row.state for row in rows]
        order = self._manager.cache(level).in_order([state.request_id for state in asked])
        rows = [rows[index] for index in order]
        logits = self._logits(level, rows, read)
        if self._executor.sharing.on:
            broken = _broken(rows, logits)
            self._executor.sharing.absorb(level, asked, broken)
        start_s = self._executor.clock.now_s()
        results = self._judge(level, rows, logits)
        self._executor.phases.sampling_s += self._executor.clock.now_s() - start_s
        return results

    def _rows(self, level: int, items: Sequence[VerifyItem]) -> list[Row]:
        feeds = self._rollback.before(items, level, verify=True)
        rows = []
        for (session, step), feed in zip(items, feeds, strict=True):
            state = self._manager.states[session.request_id]
            first = session.first_unjudged(level)
            rows.append(
                Row(session, step, state, feed, first, [state.views[place] for place in session.places[first:]])
            )
        return rows

    def _reads(self, level: int, chunks: Sequence[Chunk]) -> list[tuple[RequestState, list[int]]]:
        """The tokens that chunks feed."""
        read = []
        for session, num_tokens in chunks:
            held = session.cached[level]
            state = self._manager.states[session.request_id]
            self._manager.roll_back(state, level, held)
            read.append((state, session.tail(held)[:num_tokens]))
        return read

    def _logits(self, level: int, rows: Sequence[Row], read: Sequence[tuple[RequestState, list[int]]]) -> Tensor:
        """`[N, V]` distributions at all contexts of `rows`, which are in the order of the cache's."""
        fed = [_Fed(row.state, row.feed, len(row.views) + 1) for row in rows]
        reader = self._readers.get(level)
        if reader is not None and not read:
            logits = reader.contexts([one.state for one in fed], [one.tokens for one in fed], [one[2] for one in fed])
            return self._executor.sampler.distributions(logits)
        fed += [_Fed(state, tokens, 0) for state, tokens in read]
        return self._executor.sampler.distributions(self._feed(level, fed))

    def _feed(self, level: int, fed: Sequence[_Fed]) -> Tensor:
        """`[N, V]` logits after the last tokens of each request that are kept, in the order of the cache's rows."""
        order = self._manager.cache(level).in_order([one.state.request_id for one in fed])
        fed = [fed[index] for index in order]
        states, feeds = [one.state for one in fed], [one.tokens for one in fed]
        keep = kept_last(self._executor.device(level), feeds, [one.num_kept for one in fed])
        return self._executor.feed(level, states, feeds, keep)

    def _judge(self, level: int, rows: Sequence[Row], logits: Tensor) -> dict[str, Judged | Failed | Deferred]:
        """Results by request from `[N, V]` distributions."""
        own = None if self._executor.sampler.rewrites else level
        judgements: list[Judgement] = []
        distances = OpDistances(logits, judgements)
        judgings: list[Judging] = []
        start = 0
        for number, row in enumerate(rows):
            position = len(row.session.emitted) + row.first
            apart = Distances(distances, number, len(row.views))
            judges = row.session.judges[row.first :]
            endorsed = [view.judge for view in row.views]
            judgements.append(Judgement(start, endorsed, [judge == own for judge in judges]))
            judgings.append(Judging(row.state, row.step.rule, row.views, start, position, apart, judges))
            start += len(row.views) + 1
        verdicts = self._executor.sampler.verdicts(logits, judgings)
        results: dict[str, Judged | Failed | Deferred] = {}
        for row, judging, verdict in zip(rows, judgings, verdicts, strict=True):
            request_id = row.state.request_id
            if verdict is None:
                name = self._members[level].name
                results[request_id] = Failed(NonFiniteLogitsError(name, request_id, judging.position))
            else:
                results[request_id] = self._judged(level, row, judging, verdict, logits)
        return results

    def _judged(self, level: int, row: Row, judging: Judging, verdict: Verdict, logits: Tensor) -> Judged:
        """Note who endorses the kept tokens now, and roll every cache back to them."""
        accepted, own_token, escalated, laws = verdict
        always = self._executor.sampler.rewrites
        own = PendingView(own_token, logits[judging.start + accepted])
        if laws is not None:
            for view, law in zip([*row.views[:accepted], own], laws, strict=True):
                view.judge = law
        else:
            for index, view in enumerate(row.views[:accepted]):
                # A larger member that endorses the token goes on doing so; so does whoever wrote an escalated one.
                if index not in escalated and (always or judging.judges[index] <= level):
                    view.judge = logits[judging.start + index]
        by_target = level == len(self._members) - 1
        self._rollback.after(row.state, row.session.num_prompt + judging.position + accepted, by_target=by_target)
        tvd = judging.distances.first(accepted + 1)
        return Judged(accepted, own_token, row.state.add(own), tvd, escalated=escalated)


def _broken(rows: Sequence[Row], logits: Tensor) -> list[str]:
    """The requests whose `[N, V]` logits are not finite."""
    sound = logits.amax(dim=-1).isfinite().tolist()
    broken, start = [], 0
    for row in rows:
        end = start + len(row.views) + 1
        if not all(sound[start:end]):
            broken.append(row.state.request_id)
        start = end
    return broken
