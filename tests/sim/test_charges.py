"""What operations cost, to the last token and second, on recordings small enough to do it in the head."""

from dataclasses import replace
from math import inf
from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.prefix_cache import PrefixCacheSize
from paceline.decoding.results import DRAFT, VERIFY, Drafted
from paceline.decoding.seen import Start
from paceline.decoding.session import Session
from paceline.policies import ConfidenceBelow, Draft, Verify, make_policy
from paceline.sim.charges import OperationCharges, fed_forward, rows_draft_forwards
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.base import CostRangeError, DraftTerms
from paceline.sim.cost.files import CostLine, DrafterFigures, FileCost
from paceline.sim.cost.measured import ProfiledCost, TimedCost
from paceline.sim.cost.what_if import scaled
from paceline.sim.recorded import recorded_pool
from paceline.sim.replay_tables import tables_of
from paceline.sim.rounds import RoundCharges, RoundsTables
from paceline.sim.rounds_answers import RequestRounds
from paceline.sim.simulate import Scenario, simulate
from paceline.traces import SyntheticSpec, make_trace
from paceline.traces.importers import read_recording
from paceline.traces.meta import DraftBlock
from paceline.traces.profile import BatchShape

from ..data_folder import data_files
from ..profiles.profiles import made_profile
from ..strategies import synthetic_traces
from .rounds.small_rounds import one_request, recording_of, rounds_of
from .tries.small_traces import THREE, Anything, Script, easy_cost, replay_bare, request_of, table, trace_of, with_ngram

OP = ("kind", "level", "num_rows", "num_forwards", "new_tokens")
STEP = ("kind", "level", "asked", "drafted", "judged", "accepted", "own", "emitted")
EOS = 63
# Written by draft, mid and target. The trunk is 10, 11, ... 17.
VIEWS = {
    (): (10, 10, 10),
    (10,): (11, 11, 11),
    (10, 11): (20, 12, 12),
    (10, 11, 20): (21, 22, 23),
    (10, 11, 12): (13, 13, 13),
    (10, 11, 12, 13): (30, 31, 14),
    (10, 11, 12, 13, 14): (15, 15, 15),
    (10, 11, 12, 13, 14, 15): (16, 40, 16),
    (10, 11, 12, 13, 14, 15, 16): (17, 17, 17),
    (10, 11, 12, 13, 14, 15, 16, 17): (1, 1, 1),
}
STEPS = [
    Draft("draft", 3),  # 10 11 20: reads the 3 tokens of the prompt, then its own first two
    Verify("mid"),  # keeps 10 11, writes 12: reads prompt and draft
    Draft("draft", 1),  # 13: still holds prompt, 10, 11; reads 12
    Verify("target"),  # keeps all four, writes 14: reads 7 tokens
    Draft("mid", 2),  # 15 40: holds prompt, 10, 11; sat out 12 13 14
    Verify("target"),  # keeps 15, writes 16: reads 14 (its own), 15 and 40
    Verify("target"),  # 17: reads 16
]


def three_models():
    return trace_of(request_of(VIEWS), models=THREE)


def test_every_token_that_is_fed():
    trace = three_models()
    log, outputs = replay_bare(trace, Script(recorded_pool(trace), STEPS), strict=True)
    assert outputs == {"r0": [10, 11, 12, 13, 14, 15, 16, 17]}
    assert table(log, "ops", *OP) == [
        (DRAFT, 0, 1, 3, 3 + 2),
        (VERIFY, 1, 1, 1, 3 + 3),
        (DRAFT, 0, 1, 1, 1),
        (VERIFY, 2, 1, 1, 3 + 4),
        (DRAFT, 1, 1, 2, 3 + 1),
        (VERIFY, 2, 1, 1, 1 + 2),
        (VERIFY, 2, 1, 1, 1),
    ]
    assert table(log, "steps", *STEP) == [
        (DRAFT, 0, 3, 3, 0, 0, 0, 0),
        (VERIFY, 1, 0, 0, 3, 2, 1, 0),
        (DRAFT, 0, 1, 1, 0, 0, 0, 0),
        (VERIFY, 2, 0, 0, 4, 4, 1, 5),
        (DRAFT, 1, 2, 2, 0, 0, 0, 0),
        (VERIFY, 2, 0, 0, 2, 1, 1, 2),
        (VERIFY, 2, 0, 0, 0, 0, 1, 1),
    ]


def test_every_second():
    """Durations by hand: base of the level + new / 16 + held / 1024, once per forward."""
    trace = three_models()
    log, _ = replay_bare(trace, Script(recorded_pool(trace), STEPS), decide_s=1 / 8)
    durations = [
        (1 + 3 / 16 + 0) + (1 + 1 / 16 + 3 / 1024) + (1 + 1 / 16 + 4 / 1024),
        2 + 6 / 16,
        1 + 1 / 16 + 5 / 1024,
        3 + 7 / 16,
        (2 + 3 / 16 + 5 / 1024) + (2 + 1 / 16 + 8 / 1024),
        3 + 3 / 16 + 7 / 1024,
        3 + 1 / 16 + 9 / 1024,
    ]
    assert log.ops["duration_s"].tolist() == durations
    ends = np.cumsum(np.array(durations) + 1 / 8)
    assert log.ops["start_s"].tolist() == (ends - durations).tolist()
    assert log.steps["end_s"].tolist() == ends.tolist()
    assert log.requests["first_token_at_s"].tolist() == [ends[3]]
    assert log.requests["finished_at_s"].tolist() == [ends[-1]]


def test_a_lookup_costs_seconds_and_no_forward():
    views = {(): (1, 2), (2,): (1, 3), (2, 3): (1, 9), (2, 3, 9): (1, 1)}
    trace = trace_of(request_of(views, prompt=(1, 2, 3, 1), budget=3), ngram=True)
    pool = recorded_pool(trace)
    log, outputs = replay_bare(trace, Script(pool, [Draft("ngram", 2), Verify("target")]), strict=True)
    assert outputs == {"r0": [2, 3, 9]}
    assert table(log, "ops", *OP, "duration_s") == [(DRAFT, 0, 1, 0, 0, 1 / 64), (VERIFY, 2, 1, 1, 6, 2 + 6 / 16)]
    assert log.steps["accepted"].tolist() == [0, 2]


def ends_after(length, request_id, prompt):
    """A request whose draft model writes the end of the text as token `length`; the target never does."""
    written = [*range(20, 19 + length), EOS]
    views = {tuple(written[:index]): (written[index], 10) for index in range(length)}
    return request_of(views, request_id=request_id, prompt=prompt)


def test_rows_that_end_earlier():
    trace = trace_of(
        ends_after(2, "r0", (1, 2, 3)), ends_after(4, "r1", (1, 2, 3, 4, 5)), ends_after(2, "r2", (1,)), eos=EOS
    )
    pool, cost = recorded_pool(trace), easy_cost(trace)
    log, _ = replay_bare(trace, Script(pool, [Draft("draft", 6), Verify("target")]), cost=cost, batch=3)
    assert log.steps["drafted"][:3].tolist() == [2, 4, 2]
    assert cost.asked[:5] == [
        ("draft", 3, 9, 0),  # 3 + 5 + 1 tokens of prompts
        ("draft", 3, 3, 9),
        ("draft", 1, 1, 6),  # the row that still runs
        ("draft", 1, 1, 7),
        ("target", 3, 9 + 8, 0),
    ]
    assert table(log, "ops", *OP)[:2] == [(DRAFT, 0, 3, 1 + 1 + 2, 9 + 3 + 2), (VERIFY, 1, 3, 1, 17)]
    first, second, last = 1 + 9 / 16, 1 + 3 / 16 + 9 / 1024, 1 + 1 / 16 + 6.5 / 1024
    assert log.ops["duration_s"][0] == first + second + 2 * last


def test_a_row_that_stops_at_its_own_rule():
    views = {tuple(20 + i for i in range(n)): (20 + n, 10) for n in range(6)}
    trace = trace_of(request_of(views), request_of(views, request_id="r1"))
    steps = {"r0": [Draft("draft", 5, ConfidenceBelow(0.7))], "r1": [Draft("draft", 3)]}
    log, _ = replay_bare(trace, Script(recorded_pool(trace), steps), batch=2)
    assert log.steps["drafted"][:2].tolist() == [1, 3]  # a probability of exp(-0.5) is below 0.7
    assert table(log, "ops", *OP)[0] == (DRAFT, 0, 2, 3, 6 + 2)


@given(lengths=st.lists(st.integers(1, 8), min_size=1, max_size=5))
def test_ragged_drafts_feed_every_token_once(lengths):
    trace = trace_of(*(ends_after(length, f"r{row}", (1, 2)) for row, length in enumerate(lengths)), eos=EOS)
    cost = easy_cost(trace)
    log, _ = replay_bare(trace, Script(recorded_pool(trace), [Draft("draft", 8)]), cost=cost, batch=len(lengths))
    assert log.steps["drafted"][: len(lengths)].tolist() == lengths
    fed = 2 * len(lengths) + sum(lengths) - len(lengths)
    assert table(log, "ops", *OP)[0] == (DRAFT, 0, len(lengths), max(lengths), fed)
    rows = [rows for model, rows, _, _ in cost.asked if model == "draft"]
    assert rows == sorted(rows, reverse=True)


def test_the_middle_of_a_draft_stands_for_it():
    """The tokens held grow by one a forward; their mean is charged, also where it is no whole number."""
    for length in range(1, 9):
        trace = trace_of(ends_after(length, "r0", (1, 2, 3)), eos=EOS)
        log, _ = replay_bare(trace, Script(recorded_pool(trace), [Draft("draft", length)]))
        exact = 1 + 3 / 16 + sum(1 + 1 / 16 + held / 1024 for held in range(3, 3 + length - 1))
        assert log.ops["duration_s"][0] == exact


class Bookkeeper:
    """What every member's cache holds, followed from the steps alone."""

    def __init__(self, num_levels, num_prompt):
        self.held = [0] * num_levels
        self.context = num_prompt

    def drafted(self, level, count):
        """Tokens fed for a draft of `count`."""
        fed = self.context - self.held[level] + count - 1
        self.context += count
        self.held[level] = self.context - 1
        return fed

    def judged(self, level, judged, accepted, own):
        """Tokens fed for a verification: it needs the position before each token it judges once more."""
        fed = self.context - min(self.held[level], self.context - judged - 1)
        kept = self.context - judged + accepted
        self.held = [min(held, kept) for held in self.held]
        self.held[level] = kept
        self.context = kept + own
        return fed


@given(trace=synthetic_traces(), seed=st.integers(0, 99), ngram=st.booleans())
def test_whoever_sat_out_catches_up(trace, seed, ngram):
    trace = with_ngram(trace) if ngram else trace
    pool = recorded_pool(trace)
    log, _ = replay_bare(trace, Anything(pool, seed))
    books = {index: Bookkeeper(len(pool.names), n) for index, n in enumerate(log.requests["prompt_tokens"].tolist())}
    names = ("op", "request", "kind", "level", "drafted", "judged", "accepted", "own")
    for op, request, kind, level, drafted, judged, accepted, own in table(log, "steps", *names):
        if kind == VERIFY:
            fed = books[request].judged(level, judged, accepted, own)
        elif pool.members[level].model_free:
            books[request].context += drafted
            fed = 0
        else:
            fed = books[request].drafted(level, drafted)
        assert log.ops["new_tokens"][op] == fed


@given(
    trace=synthetic_traces(), seed=st.integers(0, 99), batch=st.integers(1, 4), decide_s=st.sampled_from([0.0, 0.25])
)
def test_seconds_are_conserved(trace, seed, batch, decide_s):
    policy = Anything(recorded_pool(trace), seed)
    log, _ = replay_bare(trace, policy, batch=batch, decide_s=decide_s)
    start, duration = log.ops["start_s"], log.ops["duration_s"]
    ends = start + duration
    assert start[0] == decide_s * min(batch, len(trace.requests))
    assert (start[1:] >= ends[:-1]).all()
    makespan = log.requests["finished_at_s"].max()
    assert makespan == ends[-1] == log.steps["end_s"][-1]
    assert makespan == pytest.approx(duration.sum() + decide_s * len(log.steps["op"]))
    assert (duration > 0).all()


SMALL, LARGE = range(2)


class Seen(ProfiledCost):
    """Notes the shapes that are charged."""

    def __init__(self, profile):
        super().__init__(profile, "seen", ["draft", "target"])
        self.shapes, self.away = [], []

    def batch_s(self, model, shape, *, first):
        self.shapes.append(shape)
        return super().batch_s(model, shape, first=first)

    def reloads_s(self, model, new_tokens, away):
        self.away.append((model, list(away)))
        return super().reloads_s(model, new_tokens, away)


def charges_of(cost, now_s=lambda: 0.0):
    return OperationCharges(cost, SimpleNamespace(names=("draft", "target"), feature_level=None), now_s)


def rows(*names, new=1, held=10, pending=0):
    """Items of an operation, of which only what is charged is there."""
    fed = {"feed": lambda level, verify: (new, held), "first_unjudged": lambda level: 0, "tokens": [0] * pending}
    return [(SimpleNamespace(request_id=name, **fed), SimpleNamespace(stop=None)) for name in names]


def drafted(*counts):
    return [SimpleNamespace(tokens=[0] * count) for count in counts]


def test_a_draft_is_a_forward_for_each_token_while_any_row_writes():
    cost = Seen(made_profile())
    items = rows("a", new=3) + rows("b", held=20) + rows("c")
    forwards, seconds = charges_of(cost).draft(SMALL, items, drafted(3, 1, 2))
    assert cost.shapes == [
        BatchShape(3, 5, 3, 21),
        BatchShape(2, 2, 1, 14, apart=True),  # b stopped, and its row stands between
        BatchShape(1, 1, 1, 15),
    ]
    beside = made_profile().meta.members[0].drafting
    assert seconds == pytest.approx(beside.seconds(3, 3, 6) + sum(each_s for *_, each_s in forwards))
    assert charges_of(cost).draft(SMALL, rows("a"), drafted(0)) == ([], pytest.approx(beside.seconds(0, 1, 0)))


def test_a_new_request_takes_the_first_free_row():
    cost = Seen(made_profile())
    charges = charges_of(cost)
    charges.verify(LARGE, rows("a", "b", "c"))
    charges.close("a")
    for names in ("bc", "bd", "dc"):
        charges.verify(LARGE, rows(*names))
    assert [shape.apart for shape in cost.shapes] == [False, False, False, True]


def short_trace():
    return make_trace(SyntheticSpec(models=("draft", "target"), requests=2, tokens=12, acceptance=(0.5,)))


@pytest.mark.parametrize(("chain", "decide_s"), [("draft:4/target", 0.125), ("plain", 0.0)])
def test_all_that_takes_time_in_a_run_keeps_weights_away(chain, decide_s):
    """Between forwards of the target lies what the log says was between them, drafts and decisions among it."""
    cost, tables = Seen(made_profile()), TrieTables(short_trace())
    log = simulate(Scenario(tables=tables, cost=cost, decide_s=decide_s), make_policy(chain, tables.pool), chain)
    beside_s = made_profile().meta.members[-1].verifying
    judges = log.ops["kind"] == VERIFY
    start_s, end_s = log.ops["start_s"][judges], (log.ops["start_s"] + log.ops["duration_s"])[judges]
    judged = np.bincount(log.steps["op"], log.steps["judged"] + 1, minlength=len(judges))[judges]
    seen = [away_s for name, ((_, away_s),) in cost.away if name == "target"]
    assert seen[0] == inf, "it never ran before"
    for place in range(1, len(seen)):
        forwards_end_s = end_s[place - 1] - beside_s.seconds(1, 1, int(judged[place - 1]))
        assert seen[place] == pytest.approx(start_s[place] - forwards_end_s)
    assert len(seen) == len(start_s) > 4
    assert median(seen[1:]) > decide_s  # only a prefill is not decided upon


def test_outside_a_run_nothing_keeps_weights_away_but_what_is_charged():
    clock = SimpleNamespace(now_s=0.0)
    tried, run = Seen(made_profile()), Seen(made_profile())
    for cost, now_s in ((tried, None), (run, lambda: clock.now_s)):
        charges = charges_of(cost, now_s)
        for _ in range(3):
            clock.now_s += charges.draft(SMALL, rows("a"), drafted(2))[1]
            clock.now_s += charges.lookup_s(1)
            clock.now_s += charges.verify(LARGE, rows("a", pending=2))[1]
    assert [name for name, _ in tried.away] == [name for name, _ in run.away] == ["draft", "target"] * 3
    seconds, expected = ([away_s for _, ((_, away_s),) in cost.away] for cost in (tried, run))
    assert seconds == pytest.approx(expected)
    assert 0 < min(seconds) < max(seconds[2:]) < 1


def test_an_oracle_of_operations_is_as_good_as_any_of_its_chains():
    tables = TrieTables(short_trace())

    def total_s(name):
        scenario = Scenario(tables=tables, cost=Seen(made_profile()), decide_s=0.0)
        return float(simulate(scenario, make_policy(name, tables.pool), name).requests["finished_at_s"].max())

    assert total_s("oracle-window") <= min(map(total_s, ("plain", "draft:1/target", "draft:4/target"))) * (1 + 1e-9)


PLAIN_S, ROUND_S, WINDOW = 0.020, 0.008, 6
KEPT = (6, 1, 6, 4, 0, 6, 2, 6, 5, 3) * 4


def measured():
    """A block drafter: 8 ms a round whatever it drafts, 20 ms a step of the target, alone or verifying."""
    starts = [sum(KEPT[:index]) + index for index in range(len(KEPT))]
    columns = [(start, kept, WINDOW) for start, kept in zip(starts, KEPT, strict=True)]
    rounds = rounds_of(*columns, seconds=[(ROUND_S, PLAIN_S)] * len(columns))
    tokens = sum(KEPT) + len(KEPT)
    request = one_request({"": tokens, "block": tokens}, {"block": rounds}, wall_s={"": tokens * PLAIN_S})
    return recording_of(request, drafters=(("block", False, WINDOW),))


def entered(draft, **others):
    """The measurement in a cost file, with the drafter's figures as given."""
    figures = draft if isinstance(draft, CostLine) else DrafterFigures(terms=DraftTerms(*draft), forwards=None)
    return FileCost("mine.json", {"block": figures, "target": CostLine(intercept_s=PLAIN_S)} | others)


def test_a_measured_gain_comes_out_as_measured():
    recording = measured()
    tables = RoundsTables(recording)

    def speed_up(cost):
        plain_s, drafted_s = (
            simulate(Scenario(tables=tables, cost=cost), make_policy(name, tables.pool), name).ops["duration_s"].sum()
            for name in ("plain", f"block:{WINDOW}/target")
        )
        return plain_s / drafted_s

    truth = speed_up(TimedCost(recording))
    assert speed_up(entered((ROUND_S, 0.0))) == pytest.approx(truth, rel=0.01)
    assert speed_up(entered(CostLine(intercept_s=ROUND_S))) < truth * 2 / 3


ON_TOP = DrafterFigures(terms=DraftTerms(8.0, None), forwards=CostLine(intercept_s=0.5))
TRUNK = {(): (10, 10, 10), (10,): (11, 11, 11), (10, 11): (12, 12, 12), (10, 11, 12): (1, 1, 1)}


def of_trunk(requests):
    return trace_of(*(request_of(TRUNK, request_id=f"r{row}") for row in range(requests)), models=THREE)


@pytest.mark.parametrize(
    ("figures", "wanted"),
    [  # rows draft 3 tokens and 1: once for all rows, and by the longest of them; or on top of its forwards
        (DrafterFigures(terms=DraftTerms(8.0, 1.0), forwards=None), (2, 1, 4, 8.0 + 3 * 1.0)),
        (ON_TOP, (2, 3, 8, 8.0 + 3 * 0.5)),
    ],
)
def test_a_batch_drafts_side_by_side(figures, wanted):
    line, asked = CostLine(intercept_s=0.25), iter((3, 1))

    class Each(Script):
        def decide(self, seen):
            return Verify("target") if seen.num_pending or seen.num_emitted else Draft("draft", next(asked))

    trace = of_trunk(2)
    cost = FileCost("f", {"draft": figures, "mid": line, "target": line})
    log, _ = replay_bare(trace, Each(recorded_pool(trace), []), cost=cost, batch=2)
    assert table(log, "ops", "num_rows", "num_forwards", "new_tokens", "duration_s")[0] == wanted


class BlockCost(FileCost):
    """A second for each new token of a forward, and the drafter writes 4 tokens in one."""

    def __init__(self, block=4, fed="text"):
        line = CostLine(intercept_s=0.25, per_new_token_s=1.0, per_kv_token_s=0.125)
        super().__init__("f", dict.fromkeys(THREE, line))
        self._block = DraftBlock(tokens=block, fed=fed)

    def draft_terms(self, model):
        return DraftTerms(0.0, None, self._block) if model == "draft" else None


DRAFTS = ("kind", "num_rows", "num_forwards", "new_tokens", "duration_s", "entered_blocks")
CACHE = PrefixCacheSize(num_blocks=64, block_tokens=1)


def drafts_of(cost, policy="draft:3/target", *, requests=1, **options):
    tables = TrieTables(of_trunk(requests))
    scenario = Scenario(tables=tables, cost=cost, **options)
    ops = table(simulate(scenario, make_policy(policy, tables.pool), "p"), "ops", *DRAFTS)
    return [op[1:] for op in ops if op[0] == DRAFT]


@pytest.mark.parametrize(
    ("fed", "new", "held"),
    [
        ("text", 5, 0),  # the prompt of three, and two masks after it
        ("block", 4, 2),  # its last token, and three masks: of the others the target's states are held
        ("last", 1, 2),  # the target's state of the last
    ],
)
def test_a_whole_draft_is_one_forward_over_all_that_it_drafts(fed, new, held):
    assert drafts_of(BlockCost(fed=fed), start=Start.draft)[0] == (1, 1, new, 0.25 + new + held * 0.125, 0)


def test_rows_of_a_whole_draft_are_in_one_forward_with_and_without_a_prefix_cache():
    assert drafts_of(BlockCost(), requests=3, batch=3, start=Start.draft)[0] == (3, 1, 15, 0.25 + 15, 0)
    kept, alone = (drafts_of(BlockCost(), requests=3, prefixes=cache) for cache in (CACHE, None))
    assert [op[:2] for op in kept] == [op[:2] for op in alone]
    assert sum(op[2] for op in kept) <= sum(op[2] for op in alone)
    assert all(seconds >= 0.25 + new for _, _, new, seconds, _ in kept)
    for cache in (CACHE, None):
        with pytest.raises(
            CostRangeError, match="draft drafts 2 tokens in one forward, asked for 3; use a window of 2"
        ):
            drafts_of(BlockCost(2), prefixes=cache)
    doubled = scaled(BlockCost(), {"draft": 2.0}, target="target")
    assert doubled.draft_terms("draft") == DraftTerms(0.0, None, DraftBlock(tokens=4))


def test_a_prefix_cache_spares_forwards_beside_what_a_round_costs():
    line = CostLine(intercept_s=0.5)
    forwards, rounds = (
        drafts_of(FileCost("f", {"draft": draft, "mid": line, "target": line}), "draft:2/target", requests=3,
                  prefixes=CACHE)
        for draft in (line, DrafterFigures(terms=DraftTerms(8.0, None), forwards=line))
    )  # fmt: skip
    assert sum(op[-1] for op in forwards) > 0
    assert [(*op[:3], op[3] - 8.0, op[4]) for op in rounds] == forwards


@pytest.mark.parametrize(("draft", "each_s"), [((8.0, 1.0), 1.0), (ON_TOP, 0.5)])
def test_policies_are_told_what_a_draft_takes(draft, each_s):
    told, windows = {}, iter([1, 4, 2, 4, 3])

    class Lookout(Script):
        def decide(self, seen):
            return Verify("target") if seen.num_pending else Draft("block", next(windows, 1))

        def learn(self, outcome):
            if isinstance(outcome.step, Draft):
                told[outcome.num_drafted] = outcome.duration_s

    tables = RoundsTables(measured())
    cost = entered((1.0, 1.0), block=draft) if isinstance(draft, DrafterFigures) else entered(draft)
    simulate(Scenario(tables=tables, cost=cost), Lookout(tables.pool, []), "p")
    assert told == {tokens: 8.0 + each_s * tokens for tokens in (1, 2, 3, 4)}


SECONDS = ((0.25, 1.0), (0.5, 2.0), (0.75, 4.0))


def timed_rounds(factor=1.0):
    """Three rounds of 3 drafted tokens, the first and second with a refusal."""
    return rounds_of((0, 2, 3), (3, 1, 3), (5, 3, 3), seconds=[(factor * d, factor * v) for d, v in SECONDS])


def timed(**rest):
    request = one_request({"": 9, "feature": 9}, {"feature": timed_rounds()}, **rest)
    return recording_of(request, drafters=(("feature", True, 3),))


def durations(recording, policy, *, extrapolate=False, **scenario):
    tables, cost = RoundsTables(recording), TimedCost(recording, extrapolate=extrapolate)
    policy = make_policy(policy, tables.pool) if isinstance(policy, str) else Script(tables.pool, policy)
    log = simulate(Scenario(tables=tables, cost=cost, **scenario), policy, "p")
    return log.ops["duration_s"].tolist(), log.ops["new_tokens"][log.ops["kind"] == VERIFY].tolist()


def test_recorded_rounds_cost_their_own_seconds():
    seconds, fed = durations(timed(prefill_s={"feature": 8.0}), "feature:3/target")
    assert (seconds, fed) == ([8.25, 1.0, 0.5, 2.0, 0.75, 4.0], [4, 4, 4])
    alone = timed(wall_s={"": 13.5, "feature": 9.0}, prefill_s={"": 4.5})
    assert durations(alone, "plain")[0] == [5.5] + [1.0] * 8


def test_other_rounds_cost_the_means():
    steps = [Draft("feature", 3), Draft("feature", 1), Verify("target"), Draft("feature", 3), Verify("target")]
    seconds, _ = durations(timed(), steps, extrapolate=True)
    # A second draft of one token: the mean of nine; then the verification is not the round's own.
    assert seconds[:5] == pytest.approx([0.25, 1.5 / 9, 7 / 3, 0.5, 2.0])


def test_means_are_taken_as_a_request_compares_to_them():
    requests = [
        one_request({"": 9, "feature": 9}, {"feature": timed_rounds(factor)}, request_id=name)
        for name, factor in (("quick", 1.0), ("slow", 3.0))
    ]
    recording = recording_of(*requests, drafters=(("feature", True, 3),))
    cost = TimedCost(recording, extrapolate=True)
    assert cost.round_scale("quick", "feature") == pytest.approx((0.5, 0.5, inf))
    assert cost.round_scale("slow", "feature") == pytest.approx((1.5, 1.5, inf))
    # Two drafted tokens at the mean of (1.5 + 4.5) / 18 seconds, in the request that takes half of it.
    assert durations(recording, "feature:2/target", extrapolate=True)[0][0] == pytest.approx(2 * (6.0 / 18) / 2)


@pytest.mark.parametrize("window", [10, pytest.param(19, marks=pytest.mark.slow)])
def test_windows_beside_that_of_a_drafter_that_ends_its_drafts_cost_about_as_much(window):
    """Of SpS the log says what a round took, not how much was drafted: a window of 19 is hardly one of 20."""
    files = data_files("specbench_yukiki", "*.jsonl.gz")
    if not files:
        pytest.skip("PACELINE_DATA has no specbench_yukiki")
    recording = read_recording("spec-bench", files)
    recording = replace(recording, requests=recording.requests[::8])
    recorded, beside = (sum(durations(recording, f"sps:{tokens}/target")[0]) for tokens in (20, window))
    assert beside == pytest.approx(recorded, rel=0.05)


def test_what_was_measured_one_at_a_time_is_not_batched():
    two = recording_of(timed().requests[0], one_request({"": 4}, {}, request_id="r1"), drafters=(("feature", True, 3),))
    with pytest.raises(CostRangeError, match="one request at a time, asked for 2"):
        durations(two, "feature:3/target", batch=2)


def charged(emitted):
    """(charges, a session that has so many tokens, the level of the drafter)."""
    recording = timed()
    pool, state = RoundsTables(recording).pool, RequestRounds(recording.requests[0], recording.meta)
    session = Session(pool=pool, request_id="r0", tag="a", prompt=state.prompt, budget=9, eos=frozenset())
    session.emitted, session.cached = [1] * emitted, [9 if emitted else 0] * len(pool.members)
    return RoundCharges(TimedCost(recording), pool, recording.meta, {"r0": state}), session, pool.level("feature")


def test_a_round_that_is_cut_by_the_end_of_the_answer_costs_what_was_asked_for():
    charges, session, level = charged(7)  # where no round was recorded, two tokens before the end
    step, row, cost = Draft("feature", 3), Drafted([1, 1], [1, 1]), TimedCost(timed())
    assert session.room == 2
    assert charges.draft(level, [(session, step)], [row])[1] == pytest.approx(3 * 1.5 / 9)
    session.drafted(step, level, row, duration_s=0.0, num_rows=1)
    wide_s = cost.forward_s("target", num_rows=1, new_tokens=4, context_tokens=0)
    assert charges.verify(session.pool.target_level, [(session, None)])[1] == pytest.approx(wide_s)
    with pytest.raises(CostRangeError):
        cost.forward_s("target", num_rows=1, new_tokens=3, context_tokens=0)


def test_a_draft_in_which_nothing_was_found_costs_what_was_recorded():
    charges, session, level = charged(0)
    assert charges.draft(level, [(session, Draft("feature", 3))], [Drafted([], [])]) == ([(1, 0, 1, 0.25)], 0.25)
    assert charges.verify(session.pool.target_level, [(session, None)])[1] == 1.0


@pytest.mark.parametrize("drafter", ["eagle", "hsd"])
def test_what_was_recorded_can_be_replayed_whatever_is_drawn(drafter):
    files = data_files("hsd_eagle3_h100", "h100*.gz")
    if not files:
        pytest.skip("no hsd_eagle3_h100: set PACELINE_DATA")
    recording = read_recording("eagle-timed", files)
    recording = replace(recording, requests=tuple(each for each in recording.requests if drafter in each.rounds))
    tables, cost = RoundsTables(recording), TimedCost(recording)
    measured_s = sum(
        sum(map(sum, (cost.round_s(each.request_id, start, drafter) for start in each.rounds[drafter].start.tolist())))
        + cost.prefill_s(each.request_id, drafter)
        for each in recording.requests
    )
    for seed in range(2):
        scenario = Scenario(tables=tables, cost=cost, seed=seed)
        log = simulate(scenario, make_policy(f"{drafter}:6/target", tables.pool), drafter)
        assert log.ops["duration_s"].sum() == pytest.approx(measured_s, rel=2e-3)


def test_a_draft_costs_for_each_of_its_rows_where_it_is_said():
    """For two rows of which the longest has three tokens: once, for each row, and for each token of the longest."""
    terms = DraftTerms(8.0, 1.0, None, 0.25)
    assert terms.seconds(3, 2) == 8.0 + 2 * 0.25 + 3 * 1.0
    assert rows_draft_forwards(entered(terms), "block", [(1, 0, 3), (1, 0, 1)]) == [(2, 4, 1, 8.0 + 2 * 0.25 + 3 * 1.0)]


@given(held=st.lists(st.integers(0, 50), min_size=1, max_size=5))
def test_rows_count_as_long_as_the_longest_where_the_cost_says_so(held):
    """Whatever the forward: of a verification or a draft, and what comes after its first one."""
    line = {"intercept_s": 1.0, "per_kv_token_s": 1.0}
    summed, longest = (FileCost("f", {"block": CostLine(**line, context=context)}) for context in ("sum", "longest"))
    fed, count = [(1, tokens) for tokens in held], len(held)
    assert fed_forward(summed, "block", fed)[3] == 1.0 + sum(held)
    assert fed_forward(longest, "block", fed)[3] == 1.0 + count * max(held)
    first, later = rows_draft_forwards(longest, "block", [(1, tokens, 2) for tokens in held])
    assert first[3] == 1.0 + count * max(held)
    assert later[3] == 1.0 + count * (max(held) + 1)
    assert not longest.knows_reads


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("prefixes", [None, PrefixCacheSize(num_blocks=64)], ids=["", "prefix cache"])
def test_a_stop_takes_time_for_each_token_that_it_reads(batch, prefixes):
    """Of rows side by side the longest one counts; drafts without a stop cost what they did."""
    trace = make_trace(SyntheticSpec(requests=6, tokens=24))
    tables = tables_of(trace)

    def ran(policy, stop_s):
        figures = {name: CostLine(intercept_s=1.0) for name in tables.pool.names}
        terms = DraftTerms(0.0, None, stop_s=stop_s)
        figures["draft"] = DrafterFigures(terms=terms, forwards=figures["draft"])
        scenario = Scenario(tables=tables, cost=FileCost("f", figures), batch=batch, prefixes=prefixes)
        return simulate(scenario, make_policy(policy, tables.pool), policy)

    for policy, stops in (("confident", True), ("draft:4/target", False)):
        without, log = ran(policy, 0.0), ran(policy, 0.125)
        reads = [
            log.steps["drafted"][(log.steps["op"] == op) & (log.steps["kind"] == DRAFT)].max(initial=0)
            for op in range(len(log.ops["duration_s"]))
        ]
        more = log.ops["duration_s"] - without.ops["duration_s"]
        assert more.tolist() == [stops * 0.125 * count for count in reads]
        assert log.ops["num_forwards"].tolist() == without.ops["num_forwards"].tolist()
        assert sum(reads) > 20
