"""An imported recording replayed without a loop, under a fixed window of one drafter or under the target alone.

All requests of a batch go in step there: those that run draft together, then the target judges all of them, and reads
the prompts of those that have just begun. So a request's rounds depend neither on who runs beside it nor on seconds:
they are played once for each seed and window, whatever the batch and the cost. What runs together, and what it takes,
is worked out for whole columns. The log is the same to the bit.

Letters: N requests, R rounds of all of them, T beats (a draft by those that draft, then a verification), M operations.
"""

from array import array
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decoding.legal_steps import Policy
from ..decoding.pool import Pool
from ..decoding.results import DRAFT, VERIFY
from ..policies.about import about_of, decides_by_pending
from ..policies.fixed import Chain, Plain
from ..runs.log import RunLedger
from ..traces.rounds.recording import RoundsRecording
from .cost.base import CostModel
from .hazard import Hazard
from .rounds_answers import Decided, RequestRounds, RoundDrafts

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Columns = dict[str, NDArray[Any]]

# Of a round: tokens drafted, accepted, of the target's own and committed; decisions modelled in the draft and in the
# verification; tokens that the drafter and the target are fed first, and those that they hold then.
COLUMNS = ("drafted", "accepted", "own", "emitted", "drawn", "drawn_after", "draft_new", "draft_held", "new", "held")
USUAL = 32  # tokens that a round drafts at most, as a rule
MOST_DECIDED = 1 << 21  # tokens of answers, over seeds, of which what was drawn is kept for other windows
MOST_PLAYED = 1 << 22  # rounds that are kept for other batches and costs
MOST_PRICED = 1 << 20  # seconds of forwards that are kept


def drafter_of(policy: Policy, pool: Pool) -> tuple[int, int] | None:
    """(level of the drafter, window) of a policy whose requests go in step; (-1, 0) of the target alone.

    None for any other policy.
    """
    about = about_of(policy)
    if type(policy) not in (Chain, Plain) or about is None or about.observes or not decides_by_pending(policy):
        return None
    spec = policy.spec if isinstance(policy, Chain) else None
    if spec is None or not spec.windows:
        return -1, 0
    level = pool.level(spec.members[0])
    return None if len(spec.members) > 2 or pool.members[level].model_free else (level, spec.windows[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The rounds of all requests, in the order of the recording."""

    num_rounds: Ints  # `[N]`
    columns: dict[str, NDArray[np.int32]]  # `[R]` each, see `COLUMNS`
    divergent: list[int]  # `[N]` as of `RecordedWorld`


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A run in step."""

    level: int  # of the drafter, -1 for none
    window: int  # tokens that it drafts in a round, 0 for none
    cost: CostModel  # seconds
    batch: int  # requests at a time
    seed: int  # of decisions that are modelled
    waits: bool  # whether requests begin with their prompt
    decide_s: float  # seconds that the policy is charged for each step


class RoundsInStep:
    """Plays an imported recording in step; keeps what it played.

    `num_free` counts model-free members, which come first in the pool; `fitted` is reseeded for each seed.
    """

    def __init__(self, trace: RoundsRecording, pool: Pool, num_free: int, fitted: Hazard) -> None:
        self._trace, self._pool, self._num_free, self._fitted = trace, pool, num_free, fitted
        self._most_decided = MOST_DECIDED // sum(max(one.num_tokens.values()) for one in trace.requests)  # seeds
        self._prompts = np.array([max(len(one.prompt) or one.prompt_tokens, 1) for one in trace.requests])  # `[N]`
        self._played: dict[tuple[int, int, int, bool], Played] = {}
        self._num_kept = 0
        self._decided: dict[tuple[int, int], tuple[RoundDrafts, list[Decisions]]] = {}
        self._fresh: dict[tuple[int, bool], RequestRounds] = {}
        # By cost, which is kept so that no other takes its id, and member.
        self._priced: dict[tuple[int, str], tuple[CostModel, dict[tuple[int, int, int], float]]] = {}
        self._num_priced = 0

    def asked(
        self,
        policy: Policy,
        cost: CostModel,
        *,
        batch: int,
        seed: int,
        prefill_before: tuple[bool, ...],
        decide_s: float,
    ) -> Asked | None:
        """A run, if its requests go in step: then neither members, nor rows, nor recorded seconds part them."""
        found = drafter_of(policy, self._pool)
        if found is None or self._pool.feature_level is not None or any(prefill_before) != all(prefill_before):
            return None
        if cost.knows_operations or cost.knows_rounds or cost.longest:
            return None
        level, window = found
        if window and cost.draft_terms(self._pool.names[level]) is not None:
            return None
        return Asked(
            level=level, window=window, cost=cost, batch=batch, seed=seed, waits=any(prefill_before), decide_s=decide_s
        )

    def run(self, asked: Asked, ledger: RunLedger, outputs: dict[str, list[int]] | None) -> dict[str, int]:
        """Replay all requests, tell the ledger, and return the divergent tokens of each, as of `RecordedWorld`.

        `outputs` takes the committed tokens of every request by its id; None drops them.

        Raises:
            Exception: whatever a cost or the recording refuses, with no word on where that was.
        """
        waits = asked.waits
        played = self._play(asked.seed, asked.level, asked.window, waits)
        beats = Beats.of(played, asked.batch, prefills=waits)
        self._note(asked, beats, ledger)
        if outputs is not None:
            emitted = np.bincount(beats.request, beats.column("emitted"), len(played.num_rounds)).astype(int).tolist()
            for index, request in enumerate(self._trace.requests):
                outputs[request.request_id] = self._begun(index, waits).trunk[: emitted[index]]
        return {one.request_id: count for one, count in zip(self._trace.requests, played.divergent, strict=True)}

    # -- rounds, request by request

    def _play(self, seed: int, level: int, window: int, waits: bool) -> Played:
        key = (seed, level, window, waits)
        found = self._played.get(key)
        if found is None:
            found = self._play_all(seed, level, window, waits)
            self._played[key] = found
            self._num_kept += int(found.num_rounds.sum())
            while self._num_kept > MOST_PLAYED:
                gone = self._played.pop(next(iter(self._played)))
                self._num_kept -= int(gone.num_rounds.sum())
        return found

    def _play_all(self, seed: int, level: int, window: int, waits: bool) -> Played:
        drafts, known = self._decided.get((seed, level)) or (
            RoundDrafts(self._trace, self._fitted.reseeded(seed)),
            [Decisions() for _ in self._trace.requests],
        )
        self._decided[seed, level] = drafts, known
        while len(self._decided) > self._most_decided:
            self._decided.pop(next(iter(self._decided)))
        rows, num_rounds, divergent = array("i"), [], []
        for index in range(len(self._trace.requests)):
            state, before = self._begun(index, waits).anew(), len(rows)
            emitted = _play_request(
                state, drafts, level - self._num_free, self._pool.names[level] if window else "", window,
                known[index], rows,
            )  # fmt: skip
            num_rounds.append((len(rows) - before) // len(COLUMNS))
            divergent.append(abs(state.num_tokens - emitted))
        table = np.array(rows, np.int32).reshape(-1, len(COLUMNS)).T.copy()
        return Played(
            num_rounds=np.array(num_rounds), columns=dict(zip(COLUMNS, table, strict=True)), divergent=divergent
        )

    def _begun(self, index: int, waits: bool) -> RequestRounds:
        found = self._fresh.get((index, waits))
        if found is None:
            found = RequestRounds(self._trace.requests[index], self._trace.meta, waits=waits)
            if self._most_decided:
                self._fresh[index, waits] = found
        return found

    # -- operations, for all requests

    def _note(self, asked: Asked, beats: "Beats", ledger: RunLedger) -> None:
        """Tell the ledger of requests, operations and steps, in the order of time."""
        judging, drafting = self._judging(asked, beats), self._drafting(asked, beats)
        ops, steps = (_joined(first, second) for first, second in zip(judging, drafting, strict=True))
        ops = _sorted(ops, np.argsort(ops["at"]))
        steps = _sorted(steps, np.argsort(steps["at"], kind="stable"))  # rows of an operation keep their order
        start_s, end_s = _clock(ops["duration_s"], ops["asked_before"], asked.decide_s)
        begun_s = np.concatenate([[0.0], end_s[ops["kind"] == VERIFY]])[beats.start].tolist()
        for request, at_s, num_prompt in zip(self._trace.requests, begun_s, self._prompts.tolist(), strict=True):
            ledger.note_admitted(
                request.request_id, tag=request.tag, num_prompt=num_prompt, arrived_at_s=at_s, now_s=at_s
            )
        op = np.searchsorted(ops["at"], steps["at"])
        ledger.note_block({**ops, "start_s": start_s}, {**steps, "op": op, "end_s": end_s[op]})

    def _judging(self, asked: Asked, beats: "Beats") -> tuple[Columns, Columns]:
        """`[T]` the target's operations, one in each beat, and `[rows]` their steps; `at` tells their time."""
        target, rows = self._pool.target_level, beats.num_rows
        fed = beats.summed(np.where(beats.prefill, self._prompts[beats.request], beats.column("new")))
        seconds = self._forward_s(asked.cost, self._pool.names[target], rows, fed, beats.summed(beats.column("held")))
        ops: Columns = {
            "at": 2 * np.arange(len(rows)) + 1, "asked_before": beats.num_drafting, "duration_s": seconds,
            "kind": np.full(len(rows), VERIFY), "level": np.full(len(rows), target), "num_rows": rows,
            "num_forwards": np.ones(len(rows), np.int64), "new_tokens": fed,
        }  # fmt: skip
        count, judged, accepted = len(beats.beat), beats.column("drafted"), beats.column("accepted")
        steps: Columns = {
            "at": 2 * beats.beat + 1, "request": beats.request, "prefill": beats.prefill,
            "kind": np.full(count, VERIFY), "level": np.full(count, target), "judged": judged, "accepted": accepted,
            "own": beats.column("own"), "emitted": beats.column("emitted"), "modelled": beats.column("drawn_after"),
            "refused": accepted < judged,
        }  # fmt: skip
        return ops, steps

    def _drafting(self, asked: Asked, beats: "Beats") -> tuple[Columns, Columns]:
        """As `_judging`, of the drafter, in beats in which somebody drafts; nothing of the target alone.

        Forwards and seconds are as `charges.rows_draft_forwards` has them.
        """
        drafts = ~beats.prefill if asked.window else np.zeros(len(beats.beat), np.bool_)
        level, num_rows, drafted = asked.level, beats.counted(drafts), beats.column("drafted")
        writes, fed, held = drafted > 0, beats.column("draft_new"), beats.column("draft_held")
        rows, new = beats.counted(writes), beats.summed(np.where(writes, fed, 0))
        context, seconds, some = beats.summed(np.where(writes, held, 0)), np.zeros(len(rows)), rows > 0
        model = self._pool.names[level]
        seconds[some] = self._forward_s(asked.cost, model, rows[some], new[some], context[some])
        num_forwards, done = some.astype(np.int64), np.ones(len(rows), np.int64)
        for length in range(2, asked.window + 1):
            ends = np.flatnonzero(beats.counted(drafted == length))
            if not len(ends):
                continue
            going, repeats = drafted >= length, length - done[ends]
            rows = beats.counted(going)[ends]
            context = beats.summed(np.where(going, fed + held, 0))[ends] + rows * (2 * done[ends] + repeats - 3) // 2
            seconds[ends] += repeats * self._forward_s(asked.cost, model, rows, rows, context)
            num_forwards[ends] += repeats
            new[ends] += repeats * rows
            done[ends] = length
        runs = np.flatnonzero(num_rows)
        ops: Columns = {
            "at": 2 * runs, "asked_before": num_rows[runs], "duration_s": seconds[runs],
            "kind": np.full(len(runs), DRAFT), "level": np.full(len(runs), level), "num_rows": num_rows[runs],
            "num_forwards": num_forwards[runs], "new_tokens": new[runs],
        }  # fmt: skip
        count = int(drafts.sum())
        steps: Columns = {
            "at": 2 * beats.beat[drafts], "request": beats.request[drafts],
            "kind": np.full(count, DRAFT), "level": np.full(count, level), "asked": np.full(count, asked.window),
            "drafted": drafted[drafts], "modelled": beats.column("drawn")[drafts],
        }  # fmt: skip
        return ops, steps

    def _forward_s(self, cost: CostModel, model: str, rows: Ints, new: Ints, held: Ints) -> Floats:
        """`[M]` seconds of forwards, each of which is asked for once."""
        if self._num_priced > MOST_PRICED:
            self._priced.clear()
            self._num_priced = 0
        _, known = self._priced.setdefault((id(cost), model), (cost, {}))
        before = len(known)
        table, index = _once(rows, new, held)
        seconds = []
        for key in table:
            each_s = known.get(key)
            if each_s is None:
                num_rows, new_tokens, context_tokens = key
                each_s = known[key] = cost.forward_s(
                    model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens
                )
            seconds.append(each_s)
        self._num_priced += len(known) - before
        return np.array(seconds, np.float64)[index]


def _once(rows: Ints, new: Ints, held: Ints) -> tuple[list[tuple[int, int, int]], Ints]:
    """(each shape of a forward once, `[M]` index of each forward's shape)."""
    most_rows, most_new = int(rows.max(initial=0)) + 1, int(new.max(initial=0)) + 1
    if (int(held.max(initial=0)) + 1) * most_rows * most_new >= 1 << 62:
        return list(zip(rows.tolist(), new.tolist(), held.tolist(), strict=True)), np.arange(len(rows))
    key, index = np.unique((held * most_new + new) * most_rows + rows, return_inverse=True)
    rest, rows = np.divmod(key, most_rows)
    held, new = np.divmod(rest, most_new)
    return list(zip(rows.tolist(), new.tolist(), held.tolist(), strict=True)), index


def _joined(first: Columns, second: Columns) -> Columns:
    """Rows of both; what the second has not, or the first, is 0 there."""
    sizes = [len(next(iter(columns.values()))) for columns in (first, second)]
    none = [np.zeros(size, np.int64) for size in sizes]
    return {
        name: np.concatenate([first.get(name, none[0]), second.get(name, none[1])])
        for name in dict.fromkeys((*first, *second))
    }


def _sorted(columns: Columns, order: Ints) -> Columns:
    return {name: column[order] for name, column in columns.items()}


def _clock(duration_s: Floats, num_asked: Ints, decide_s: float) -> tuple[Floats, Floats]:
    """`[M]` when operations start and end; before each, its policy decides for so many requests, one after another."""
    if not decide_s:
        end_s = np.add.accumulate(duration_s)
        return np.concatenate([[0.0], end_s[:-1]]), end_s
    lasts = np.cumsum(num_asked + 1) - 1
    clock = np.full(int(lasts[-1]) + 1, decide_s)
    clock[lasts] = duration_s
    at_s = np.add.accumulate(np.concatenate([[0.0], clock]))
    return at_s[lasts], at_s[lasts + 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beats:
    """Which request is judged when; a row for each, by beat, and within it in the order of the loop."""

    start: Ints  # `[N]` first beat of each request
    beat: Ints  # `[rows]`
    request: Ints  # `[rows]` its index
    prefill: NDArray[np.bool_]  # `[rows]` whether the target reads its prompt, and writes a token
    num_rows: Ints  # `[T]` rows of each beat
    num_drafting: Ints  # `[T]` of these, those whose policy was asked
    _place: Ints  # `[rows]` its round, -1 of a prefill
    _columns: dict[str, NDArray[np.int32]]

    @classmethod
    def of(cls, played: Played, batch: int, *, prefills: bool) -> "Beats":
        """Requests start in their order, as soon as an earlier one has ended; `prefills`: each with its prompt."""
        lasts = played.num_rounds + prefills
        count = len(lasts)
        start, ends = np.zeros(count, np.int64), lasts[:batch].tolist()
        heapify(ends)
        for index in range(batch, count):
            start[index] = ends[0]
            heapreplace(ends, ends[0] + int(lasts[index]))
        request = np.repeat(np.arange(count), lasts)
        place = np.arange(len(request)) - np.repeat(np.cumsum(lasts) - lasts, lasts)
        beat = start[request] + place
        # A prompt is read by the operation that the next ones join; else who has just begun is asked last.
        rank = np.empty(count, np.int64)
        rank[np.lexsort((np.arange(count), -start if prefills else np.zeros(count, np.int64)))] = np.arange(count)
        order = np.argsort(beat * count + rank[request])
        prefill = (place == 0) if prefills else np.zeros(len(place), np.bool_)
        firsts = np.cumsum(played.num_rounds) - played.num_rounds
        at = np.where(prefill, -1, firsts[request] + place - prefills)
        beat, prefill = beat[order], prefill[order]
        return cls(
            start=start, beat=beat, request=request[order], prefill=prefill, num_rows=np.bincount(beat),
            num_drafting=np.bincount(beat[~prefill], minlength=int(beat[-1]) + 1), _place=at[order],
            _columns=played.columns,
        )  # fmt: skip

    def column(self, name: str) -> Ints:
        """`[rows]` of rounds; the target writes a token of its own where it reads a prompt."""
        values = self._columns[name].astype(np.int64)
        found: Ints = np.append(values, int(name in ("own", "emitted")))[self._place]
        return found

    def summed(self, values: Ints) -> Ints:
        """`[T]` sums over the rows of each beat."""
        return np.bincount(self.beat, values, len(self.num_rows)).astype(np.int64)

    def counted(self, where: NDArray[np.bool_]) -> Ints:
        """`[T]` rows of each beat of which something holds."""
        return np.bincount(self.beat[where], minlength=len(self.num_rows))


@dataclass(slots=True, eq=False)
class Decisions:
    """What was decided of the drafts of one request, for all windows; added to."""

    runs: list[int] | None = None  # as of `RoundDrafts.runs`
    most: int = 0  # tokens of a round that `runs` looks at
    by_start: dict[int, Decided] = field(default_factory=dict)  # where the log says something

    def runs_of(self, drafts: RoundDrafts, state: RequestRounds, drafter: int, window: int) -> list[int] | None:
        """`runs` of rounds of a window at least."""
        if self.most < window:
            self.most = max(window, USUAL)
            self.runs = drafts.runs(state, drafter, self.most)
        return self.runs

    def draft(
        self, drafts: RoundDrafts, state: RequestRounds, drafter: int, start: int, asked: int
    ) -> tuple[int, int, int]:
        """As `RoundDrafts.draft` of a round's first tokens: (drafted, kept, modelled)."""
        stops, modelled = drafts.stops(state, drafter, start, asked)
        wanted = min(asked, stops)
        found = self.by_start.get(start)
        if found is None:
            found = self.by_start[start] = drafts.decided(state, drafter, start, 0, wanted)
        elif found.reached < wanted and not found.refused:
            more = drafts.decided(state, drafter, start, found.reached, wanted - found.reached)
            found = self.by_start[start] = more._replace(drawn=found.drawn | more.drawn)
        kept, drawn = drafts.cut(state, drafter, start, 0, wanted, found)
        return wanted, kept, modelled + drawn


def _play_request(
    state: RequestRounds,
    drafts: RoundDrafts,
    drafter: int,
    name: str,
    window: int,
    decisions: Decisions,
    rows: "array[int]",
) -> int:
    """Play a request to its end, a row of `COLUMNS` for each round; returns the tokens that it committed.

    `window` is 0 of the target alone.
    """
    num_prompt, budget = len(state.prompt), len(state.trunk)
    position, cached, all_drawn = 0, 0, False
    if state.waits:
        position = 1
        if state.ending([0], 0) is not None:
            return position
    runs = None
    if window:
        state.begin(name)
        all_drawn = state.drawn
        runs = decisions.runs_of(drafts, state, drafter, window)
    ends_at = state.num_tokens
    drafted = kept = drawn = 0
    while True:
        before, held = num_prompt + position, num_prompt + position - 1 if position else 0
        if window:
            asked = min(window, budget - position)
            if runs is None:
                drafted, kept, drawn = decisions.draft(drafts, state, drafter, position, asked)
            else:  # nobody looks at what is drafted after the end of the answer
                judged = min(asked, ends_at - position)
                drafted, kept = asked, min(runs[position], judged) if judged > 0 else 0
                drawn = min(kept + 1, judged) if judged > 0 else 0
        position += kept
        own = 1 if position < budget else 0
        emitted, done = kept + own, position + own == budget
        position += own
        if position >= ends_at:
            dropped = min(position - ends_at, emitted - 1)
            emitted, position, done = emitted - dropped, position - dropped, True
            own = 0 if dropped else own
        drawn_after = 0
        if all_drawn:
            drawn, drawn_after = max(drawn, drafted), min(kept + 1, drafted) + 1
        draft_new = before - cached
        rows.extend((drafted, kept, own, emitted, drawn, drawn_after, draft_new, cached, before + drafted - held, held))
        if done:
            return position
        if drafted:
            cached = before + min(drafted - 1, kept)
