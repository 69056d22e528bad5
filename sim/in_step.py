"""A recording replayed without a loop, under a policy that decides only by pending tokens.

The steps of a request under such a policy depend neither on other requests nor on seconds: they are played once for
each policy and seed, for any batch and cost. Requests of a batch wait for each other at the target, so the operations
follow from the members that they need. Seconds of operations are computed for whole columns. The log equals that of the
loop to the bit.

Letters: N requests, S steps of all of them, M operations, F forwards.
"""

from array import array
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import innermost, is_foreign
from ..decoding.legal_steps import Policy
from ..decoding.pool import Pool
from ..decoding.results import DRAFT, VERIFY
from ..policies.about import decides_by_pending
from ..runs.log import RunLedger, TextQuality
from ..traces.profile import DecideSeconds
from .cost.base import CostModel, DraftTerms
from .rounds_once import Automaton, Fixed, Lead, are_equal
from .world import RecordedWorld

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Columns = dict[str, NDArray[Any]]

# Of a step: the columns of the log, then tokens that its member is fed first, and those that it holds then.
STEP = ("kind", "level", "asked", "drafted", "judged", "accepted", "own", "emitted", "modelled", "prefill")
COLUMNS = (*STEP, "new", "held")
MOST_PLAYED = 1 << 21  # steps that are kept for other batches and costs, some 100 MB
MOST_PRICED = 1 << 18  # seconds of forwards that are kept, some 60 MB
MOST_COSTS = 4  # of as many costs: the middle and the ends of a range
MOST_NOTED = 1 << 17  # steps in memory as columns at a time, some 50 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The steps of all requests, in the order of the recording, and how their texts compare with recorded ones."""

    requests: list[tuple[str, str, int]]  # `[N]` id, tag and tokens of the prompt
    texts: list[list[int]]  # `[N]` tokens of the answers
    ends: Ints  # `[N]` steps up to the end of each request, earlier requests included
    columns: dict[str, NDArray[np.int32]]  # `[S]` each, see `COLUMNS`
    divergent: dict[str, int]  # both as of `RecordedWorld`
    quality: dict[str, TextQuality]
    drawn: bool  # whether another seed may give other steps


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetting:
    """How a recording of any form is replayed."""

    cost: CostModel  # seconds
    batch: int = 1  # requests running at a time, 1 to 1,000,000 (a closed loop: one finishes, the next starts)
    seed: int = 0  # of modelled decisions
    strict: bool = False  # raise for what is not recorded instead of modelling it


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedInStep:
    """A run without a loop."""

    policy: Policy  # to play
    name: str  # of it, for errors
    setting: RunSetting
    prefill_before: tuple[bool, ...]  # as in `Session`
    decide_s: DecideSeconds  # seconds that the policy is charged for each step

    @property
    def waits(self) -> bool:
        """Whether requests begin with the target's prefill."""
        return all(self.prefill_before)


class InStepReplay:
    """Replays a recording in step, in worlds made as by `ReplayTables.world`, and keeps played steps."""

    def __init__(self, pool: Pool, make_world: Callable[..., RecordedWorld]) -> None:
        self._pool, self._make_world = pool, make_world
        self._played: list[tuple[Policy, tuple[Any, ...], Played]] = []
        # By id of the cost, which is kept so that its id stays unique; the latest ones.
        self._priced: dict[int, tuple[CostModel, dict[tuple[int, ...], float]]] = {}

    def why_looped(self, asked: AskedInStep) -> str:
        """Why a run needs the loop, in words; "" if it does not."""
        cost, pool = asked.setting.cost, self._pool
        if not decides_by_pending(asked.policy):
            return f"policy {asked.name} does not say that pending tokens alone decide"
        if cost.knows_operations:
            return f"cost {cost.name} knows more of operations than their forwards"
        if any(terms.stop_s for name in pool.names if (terms := cost.draft_terms(name)) is not None):
            return f"cost {cost.name} charges what reads a draft's probabilities"
        if cost.longest and asked.setting.batch > 1:
            return f"cost {cost.name} charges each row of a batch as the longest one"
        if not asked.decide_s.is_constant:
            return f"what a decision of policy {asked.name} takes depends on how many requests run"
        if any(asked.prefill_before) != asked.waits:
            return "some members wait for the prefill, and some do not"
        if cost.knows_rounds:
            return f"cost {cost.name} knows recorded rounds"
        if pool.feature_level is not None:
            return f"what {pool.names[pool.feature_level]} drafts depends on what the target has judged"
        return ""

    def run(self, asked: AskedInStep, ledger: RunLedger, outputs: dict[str, list[int]] | None) -> Played | None:
        """Replay all requests into the ledger; None if an answer is not recorded to its end: that needs the loop.

        `outputs` takes the committed tokens of every request by its id; None drops them.

        Raises:
            Exception: any error of a step or a forward, which does not name its request.
        """
        played = self._once(asked)
        if played is None:
            return None
        self._note(asked, played, ledger)
        if outputs is not None:
            for (request_id, _, _), text in zip(played.requests, played.texts, strict=True):
                outputs[request_id] = text.copy()
        return played

    def _play(self, asked: AskedInStep) -> Played | None:
        """The steps of all requests; None if an answer is not recorded to its end."""
        setting = asked.setting
        world = self._make_world(setting.cost, seed=setting.seed, strict=setting.strict)
        automaton = Automaton(Fixed(asked.policy, asked.name, self._pool))
        leads, before = array("i"), array("i")  # of each step its number, and tokens committed before its round
        requests, texts, ends = list[tuple[str, str, int]](), list[list[int]](), list[int]()
        for session in world.sessions(asked.prefill_before):
            world.open(session)
            paths = world.paths(automaton, session)
            if paths is None:
                return None
            committed = session.num_prompt
            for path in paths:
                for lead in path:
                    leads.append(lead.number)
                    before.append(committed)
                committed += path[-1].emitted
            world.close(session)
            requests.append((session.request_id, session.tag, session.num_prompt))
            ends.append(len(leads))
            texts.append(session.emitted)
        rows, number = np.array([_row(lead) for lead in automaton.leads], np.int32).T, np.array(leads)
        columns = {name: row[number] for name, row in zip((*COLUMNS, "whole"), rows, strict=True)}
        whole, counted = columns.pop("whole").astype(np.bool_), np.array(before)
        columns["new"] += np.where(whole, counted, 0)
        columns["held"] += np.where(whole, 0, counted)
        return Played(
            requests=requests,
            texts=texts,
            ends=np.array(ends),
            columns=columns,
            divergent=world.num_divergent,
            quality=world.quality,
            drawn=world.was_drawn(columns["modelled"]),
        )

    def _once(self, asked: AskedInStep) -> Played | None:
        key = asked.setting.seed, asked.setting.strict, asked.prefill_before
        for policy, other, played in self._played:
            if other == key and are_equal(policy, asked.policy):
                return played
        found = self._play(asked)
        # A foreign class may behave differently in two runs, with equal attributes.
        if found is not None and not is_foreign(type(asked.policy)):
            self._played.append((deepcopy(asked.policy), key, found))
            while len(self._played) > 1 and sum(int(one.ends[-1]) for _, _, one in self._played) > MOST_PLAYED:
                del self._played[0]
        return found

    def _note(self, asked: AskedInStep, played: Played, ledger: RunLedger) -> None:
        """Write requests, operations and steps into the ledger, in order of time."""
        cost, batch = asked.setting.cost, asked.setting.batch
        turns = order_of(played, batch, waits=asked.waits)
        requests = zip(played.requests, turns.begun.tolist(), strict=True)
        decide_s, now_s, last = asked.decide_s.each_s(batch), 0.0, np.cumsum(turns.rows)
        coming, first = next(requests, None), 0
        while first < len(last):
            before = int(last[first - 1]) if first else 0
            end = max(first + 1, int(np.searchsorted(last, before + MOST_NOTED, "right")))
            rows, order = turns.rows[first:end], turns.order[before : int(last[end - 1])]
            columns = {name: column[order] for name, column in played.columns.items()}
            ops = self._ops(cost, columns, rows)
            start_s, end_s = _clock(now_s, ops["duration_s"], turns.asked[first:end], decide_s)
            while coming is not None and coming[1] < end:
                (request_id, tag, num_prompt), begun = coming
                at_s = now_s if begun == first else float(end_s[begun - first - 1])
                ledger.note_admitted(request_id, tag=tag, num_prompt=num_prompt, arrived_at_s=at_s, now_s=at_s)
                coming = next(requests, None)
            op = np.repeat(np.arange(len(rows)), rows)
            steps: Columns = {name: columns[name] for name in STEP}
            steps["refused"] = columns["accepted"] < columns["judged"]
            steps["request"] = np.searchsorted(played.ends, order, "right")
            ledger.note_block({**ops, "start_s": start_s}, {**steps, "op": op, "end_s": end_s[op]})
            first, now_s = end, float(end_s[-1])

    def _ops(self, cost: CostModel, steps: Columns, rows: Ints) -> Columns:
        """`[M]` operations, of `rows` of the `[S]` steps each, in order of time, in which forwards are computed.

        Forwards and seconds are those of `charges`.
        """
        first, num_ops, names = np.cumsum(rows) - rows, len(rows), self._pool.names
        kind, level = steps["kind"][first], steps["level"][first]
        judging = np.flatnonzero(kind == VERIFY)
        fed, held = (np.add.reduceat(steps[name], first, dtype=np.int64)[judging] for name in ("new", "held"))
        forwards = [_Forwards(judging, level[judging], rows[judging], fed, held, np.ones(len(judging), np.int64))]
        seconds, counts, new_tokens = np.zeros(num_ops), np.zeros(num_ops, np.int64), np.zeros(num_ops, np.int64)
        op = np.repeat(np.arange(num_ops), rows)
        for drafter in np.unique(level[kind == DRAFT]).tolist():
            ops = np.flatnonzero((kind == DRAFT) & (level == drafter))
            own = np.flatnonzero((steps["kind"] == DRAFT) & (steps["level"] == drafter))
            drafts = _Drafts(op[own], *(steps[name][own] for name in ("new", "held", "drafted")))
            terms = cost.draft_terms(names[drafter])
            if drafter < self._pool.num_free:
                seconds[ops] = [cost.lookups_s(count) for count in rows[ops].tolist()]
            elif terms is not None and terms.per_token_s is not None:  # a draft in one forward, as wide as the draft
                longest = np.maximum.reduceat(steps["drafted"], first)[ops]
                seconds[ops] = list(map(terms.seconds, longest.tolist(), rows[ops].tolist()))
                new_tokens[ops] = np.add.reduceat(steps["drafted"], first, dtype=np.int64)[ops]
                counts[ops] = new_tokens[ops] > 0
            elif terms is not None and terms.block is not None:
                forwards.append(drafts.as_blocks(names[drafter], terms).first(drafter, num_ops))
            else:
                if terms is not None:
                    seconds[ops] = [terms.seconds(0, count) for count in rows[ops].tolist()]
                forwards += [drafts.first(drafter, num_ops), *drafts.later(drafter, num_ops)]
        ran = _Forwards(*(np.concatenate(columns) for columns in zip(*forwards, strict=True)))
        ran = _Forwards(*(column[np.argsort(ran.op, kind="stable")] for column in ran))
        np.add.at(seconds, ran.op, ran.repeats * self._seconds(cost, ran))  # added in order, as in `charges.total_s`
        counts += np.bincount(ran.op, ran.repeats, num_ops).astype(np.int64)
        new_tokens += np.bincount(ran.op, ran.repeats * ran.new, num_ops).astype(np.int64)
        return {
            "kind": kind, "level": level, "num_rows": rows, "num_forwards": counts, "new_tokens": new_tokens,
            "duration_s": seconds,
        }  # fmt: skip

    def _seconds(self, cost: CostModel, forwards: "_Forwards") -> Floats:
        """`[F]`; each shape of a forward is computed once."""
        if is_foreign(type(innermost(cost))) or sum(len(known) for _, known in self._priced.values()) > MOST_PRICED:
            self._priced.clear()
        _, known = self._priced.setdefault(id(cost), (cost, {}))
        if len(self._priced) > MOST_COSTS:
            del self._priced[next(iter(self._priced))]
        names, seconds = self._pool.names, list[float]()
        shapes = (forwards.level, forwards.rows, forwards.new, forwards.held)
        for shape in zip(*(column.tolist() for column in shapes), strict=True):
            each_s = known.get(shape)
            if each_s is None:
                level, num_rows, new, held = shape
                each_s = cost.forward_s(names[level], num_rows=num_rows, new_tokens=new, context_tokens=held)
                known[shape] = each_s
            seconds.append(each_s)
        return np.array(seconds, np.float64)


class StepOrder(NamedTuple):
    """The operations of steps, and their order."""

    order: Ints  # `[S]` indices of steps, in the loop's order
    rows: Ints  # `[M]` number of steps in each operation
    asked: Ints  # `[M]` decisions just before it
    begun: Ints  # `[N]` operations that end before each request begins


def order_of(played: Played, batch: int, *, waits: bool) -> StepOrder:
    """The order with `batch` requests at a time: each starts in its turn, as soon as an earlier one has ended.

    The next operation is that of the smallest member needed, a draft before a verification: see
    `decoding.world.WaitingOps`. `waits`: requests begin with their prefill, without a decision.
    """
    starts, count = _starts(played.ends), int(played.ends[-1])
    columns = played.columns
    if batch == 1:
        return StepOrder(np.arange(count), np.ones(count, np.int64), 1 - columns["prefill"].astype(np.int64), starts)
    keys = (2 * columns["level"] + (columns["kind"] == VERIFY)).tolist()
    is_last = np.zeros(count, np.bool_)
    is_last[played.ends - 1] = True
    ends, coming = is_last.tolist(), iter(starts.tolist())
    order, rows, asked, begun = array("q"), array("q"), array("q"), array("q")
    waiting: dict[int, list[int]] = {}
    ready, places = list[int](), batch
    while True:
        new = list(islice(coming, places))
        begun.extend([len(rows)] * len(new))
        if not waits:
            ready += new
        elif new:  # the target has just run, or nothing has
            waiting[keys[new[0]]] = new
        for step in ready:
            key = keys[step]
            if key in waiting:
                waiting[key].append(step)
            else:
                waiting[key] = [step]
        if not waiting:
            return StepOrder(*map(np.array, (order, rows, asked, begun)))
        steps = waiting.pop(min(waiting))
        order.extend(steps)
        rows.append(len(steps))
        asked.append(len(ready))
        ready = [step + 1 for step in steps if not ends[step]]
        places = len(steps) - len(ready)


class _Forwards(NamedTuple):
    """Forwards, `[F]` each."""

    op: Ints  # index of the operation
    level: Ints  # of the member
    rows: Ints  # requests in it
    new: Ints  # tokens that they are fed
    held: Ints  # tokens that they hold
    repeats: Ints  # in a row


class _Drafts(NamedTuple):
    """Drafts of one member, one for each of its steps."""

    op: Ints  # index of the operation
    new: Ints  # tokens that the first forward is fed
    held: Ints  # tokens that the cache holds then
    drafted: Ints  # tokens drafted

    def first(self, level: int, num_ops: int) -> _Forwards:
        """The first forward of each operation, without rows that draft nothing."""
        writes = self.drafted > 0
        op = self.op[writes]
        rows = np.bincount(op, minlength=num_ops)
        ops = np.flatnonzero(rows)
        fed, held = (np.bincount(op, one[writes], num_ops)[ops].astype(np.int64) for one in (self.new, self.held))
        return _Forwards(ops, np.full(len(ops), level), rows[ops], fed, held, np.ones(len(ops), np.int64))

    def later(self, level: int, num_ops: int) -> list[_Forwards]:
        """Those after it, one per token while any row still drafts; see `charges.later_forwards`."""
        found, done, held = list[_Forwards](), np.ones(num_ops, np.int64), self.new + self.held
        for length in range(2, int(self.drafted.max()) + 1):
            ops = np.flatnonzero(np.bincount(self.op[self.drafted == length], minlength=num_ops))
            if not len(ops):
                continue
            going, repeats = self.drafted >= length, length - done[ops]
            rows = np.bincount(self.op[going], minlength=num_ops)[ops]
            context = np.bincount(self.op[going], held[going], num_ops)[ops].astype(np.int64)
            context, half = np.divmod(2 * context + rows * (2 * done[ops] + repeats - 3), 2)
            done[ops] = length
            # Of a middle between two whole numbers half the forwards hold each, as in `charges.around_middle`.
            times = np.where(half, repeats // 2, repeats)
            run = _Forwards(ops, np.full(len(ops), level), rows, rows, context, times)
            found += [run, _Forwards(*(column[half > 0] for column in run._replace(held=context + 1)))]
        return found

    def as_blocks(self, model: str, terms: DraftTerms) -> "_Drafts":
        """For a member whose whole draft is one forward, the tokens fed and held; raises CostRangeError."""
        assert terms.block is not None
        terms.check_fits(model, int(self.drafted.max()))
        fed = [
            terms.block.forward(new, held, count) if count else (0, 0)
            for new, held, count in zip(self.new.tolist(), self.held.tolist(), self.drafted.tolist(), strict=True)
        ]
        new, held = np.array(fed).T
        return self._replace(new=new, held=held)


def _row(lead: Lead) -> tuple[int, ...]:
    """Of `COLUMNS`, and whether its member reads the whole text."""
    op = lead.op
    kind, judged = (DRAFT, 0) if op.drafts else (VERIFY, op.judged)
    # fmt: off
    return (
        kind, op.level, op.window, op.drafted, judged, op.accepted, op.own, lead.emitted, op.modelled, lead.due.prefill,
        lead.new_tokens, lead.held, lead.whole,
    )
    # fmt: on


def _starts(ends: Ints) -> Ints:
    return np.concatenate([[0], ends[:-1]])


def _clock(now_s: float, duration_s: Floats, num_asked: Ints, decide_s: float) -> tuple[Floats, Floats]:
    """`[M]` when operations start and end; before each, the policy decides for `num_asked` requests in turn."""
    if not decide_s:
        at_s = np.add.accumulate(np.concatenate([[now_s], duration_s]))
        return at_s[:-1], at_s[1:]
    lasts = np.cumsum(num_asked + 1) - 1
    clock = np.full(int(lasts[-1]) + 1, decide_s)
    clock[lasts] = duration_s
    at_s = np.add.accumulate(np.concatenate([[now_s], clock]))
    return at_s[lasts], at_s[lasts + 1]
