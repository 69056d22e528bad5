"""Runs a Verify: one forward over the pending tokens a member has not judged, and the verdict on them.

Letters: B requests, K judged tokens of one, N = sum of K + 1 contexts, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from ..decoding.results import Deferred, Failed, Judged, Rows
from ..decoding.session import Session
from ..decoding.steps import PolicyError, Verify
from ..decoding.world import VerifyItem
from .distances import Distances, Judgement, NonFiniteLogitsError, OpDistances, broken, without_room
from .draft import FeatureReader
from .executor import Executor, RollbackProcessor, kept_last
from .pools.members import LoadedMember
from .sampler import Judging, Verdict
from .state import PendingView, RequestState

# A request, and how many tokens of its text a member reads after those in its cache; they are not judged.
Chunk = tuple[Session, int]


class JudgedRow(NamedTuple):
    """One request's part in the current verification."""

    session: Session
    step: Verify
    state: RequestState
    feed: list[int]  # tokens its forward reads
    first: int  # index of the first pending token that is judged
    views: list[PendingView]  # `[K]` of the judged tokens


class VerifyProcessor:
    """Mutates caches, request states and pending views, no session.

    `readers` holds by level the member that reads the target's states, if there is one.
    """

    def __init__(
        self,
        members: Sequence[LoadedMember],
        executor: Executor,
        rollback: RollbackProcessor,
        *,
        readers: Mapping[int, FeatureReader] | None = None,
    ) -> None:
        self._members = members
        self._executor = executor
        self._manager = executor.manager
        self._rollback = rollback
        self._readers = readers or {}

    def run(self, level: int, items: Sequence[VerifyItem], chunks: Sequence[Chunk] = ()) -> Rows[Judged]:
        """`[B]` the verdict on each request, or why there is none.

        Chunks are fed in the same forward; raises MemoryError where one has no room.
        """
        executor, sharing = self._executor, self._executor.sharing
        results: dict[str, Judged | Failed | Deferred] = {}
        for wave in [items] if chunks else sharing.waves(level, items):
            found = sharing.find(level, [session for session, _ in wave])
            rows, read = self._rows(level, wave), self._reads(level, chunks)
            counts = [(row.state, len(row.feed)) for row in rows] + [(state, len(tokens)) for state, tokens in read]
            refused = sharing.begin(level, found, counts, kept=frozenset(results))
            for state, tokens in read:
                if state.request_id in refused:
                    raise MemoryError(f"request {state.request_id}: no room to read {len(tokens)} tokens")
            results |= {request_id: without_room(error) for request_id, error in refused.items()}
            asked = [row for row in rows if row.state.request_id not in refused]
            fed = [(row.state, row.feed, len(row.views) + 1) for row in asked]
            fed += [(state, tokens, 0) for state, tokens in read]
            if not fed:
                continue
            order = self._manager.cache(level).in_order([state.request_id for state, *_ in fed])
            states, feeds, kept = zip(*[fed[index] for index in order], strict=True)
            rows = [asked[index] for index in order if index < len(asked)]
            if level in self._readers and not read:
                logits = self._readers[level].contexts(states, feeds, kept)
            else:
                keep = kept_last(executor.device(level), feeds, kept)
                logits = executor.feed(level, states, feeds, keep)
            if asked:
                results |= self._judge(level, rows, asked, logits)
        return [results[session.request_id] for session, _ in items]

    def _rows(self, level: int, items: Sequence[VerifyItem]) -> list[JudgedRow]:
        feeds = self._rollback.before(items, level, verify=True)
        rows = []
        for (session, step), feed in zip(items, feeds, strict=True):
            state = self._manager.states[session.request_id]
            first = session.first_unjudged(level)
            rows.append(
                JudgedRow(session, step, state, feed, first, [state.views[place] for place in session.places[first:]])
            )
        return rows

    def _reads(self, level: int, chunks: Sequence[Chunk]) -> list[tuple[RequestState, list[int]]]:
        read = []
        for session, num_tokens in chunks:
            held = session.cached[level]
            state = self._manager.states[session.request_id]
            self._manager.roll_back(state, level, held)
            read.append((state, session.tail(held)[:num_tokens]))
        return read

    def _judge(
        self, level: int, rows: Sequence[JudgedRow], asked: Sequence[JudgedRow], logits: Tensor
    ) -> dict[str, Judged | Failed | Deferred]:
        """Results by request from `[N, V]` logits.

        `asked` are the rows in the order of the operation, in which blocks enter the prefix caches.
        """
        sampler, clock = self._executor.sampler, self._executor.clock
        contexts = [row.state for row in rows for _ in range(len(row.views) + 1)]
        logits = sampler.distributions(logits, contexts)
        if self._executor.sharing.on:
            names = [state.request_id for state in contexts]
            self._executor.sharing.absorb(level, [row.state for row in asked], broken(names, logits))
        start_s = clock.now_s()
        own = None if sampler.rewrites else level
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
            judgings.append(Judging(row.state, row.step, row.views, start, position, apart, judges))
            start += len(row.views) + 1
        verdicts = sampler.verdicts(logits, judgings)
        results: dict[str, Judged | Failed | Deferred] = {}
        for row, judging, verdict in zip(rows, judgings, verdicts, strict=True):
            request_id = row.state.request_id
            if verdict is None:
                name = self._members[level].name
                results[request_id] = Failed(NonFiniteLogitsError(name, request_id, judging.position))
            elif isinstance(verdict, PolicyError):
                results[request_id] = Failed(verdict)
            else:
                results[request_id] = self._judged(level, row, judging, verdict, logits)
        self._executor.phases.sampling_s += clock.now_s() - start_s
        return results

    def _judged(self, level: int, row: JudgedRow, judging: Judging, verdict: Verdict, logits: Tensor) -> Judged:
        """Note the accepted tokens' endorser, and roll every cache back to them."""
        accepted, own_token, escalated, laws = verdict
        always = self._executor.sampler.rewrites
        said = None if laws is not None else self._executor.said.get(level)
        own = PendingView(own_token, logits[judging.start + accepted], said)
        if laws is not None:
            for view, law in zip([*row.views[:accepted], own], laws, strict=True):
                view.judge = law
        else:
            for index, view in enumerate(row.views[:accepted]):
                # A larger member that endorses the token still does; so does the writer of an escalated one.
                if index not in escalated and (always or judging.judges[index] <= level):
                    view.judge = logits[judging.start + index]
        by_target = level == len(self._members) - 1
        self._rollback.after(row.state, row.session.num_prompt + judging.position + accepted, by_target=by_target)
        judging.distances.cut(accepted + 1)
        return Judged(accepted, own_token, row.state.add(own), judging.distances, escalated=escalated)
