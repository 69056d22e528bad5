"""Charges of drafters that cost by the round: a measured gain comes out as measured, and windows in the right order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.prefixes import PrefixCacheSize
from paceline.decoding.seen import Start
from paceline.policies import Draft, Verify, make_policy
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.base import CostRangeError, DraftTerms
from paceline.sim.cost.files import CostLine, DrafterFigures, FileCost
from paceline.sim.cost.measured import TimedCost
from paceline.sim.cost.what_if import scaled
from paceline.sim.recorded import recorded_pool
from paceline.sim.rounds import RoundsTables
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.meta import DraftBlock

from .rounds.small_rounds import one_request, recording_of, rounds_of
from .tries.small_traces import THREE, Script, replay, request_of, table, trace_of

PLAIN_S, ROUND_S, WINDOW = 0.020, 0.008, 6
DRAFTS = ("kind", "entered_blocks", "new_tokens", "duration_s")
KEPT = (6, 1, 6, 4, 0, 6, 2, 6, 5, 3) * 4


def measured():
    """A block drafter: 8 ms a round whatever it drafts, 20 ms a step of the target, alone or verifying."""
    starts = [sum(KEPT[:index]) + index for index in range(len(KEPT))]
    rows = [(start, kept, WINDOW) for start, kept in zip(starts, KEPT, strict=True)]
    rounds = rounds_of(*rows, seconds=[(ROUND_S, PLAIN_S)] * len(rows))
    tokens = sum(KEPT) + len(KEPT)
    request = one_request({"": tokens, "block": tokens}, {"block": rounds}, wall_s={"": tokens * PLAIN_S})
    return recording_of(request, drafters=(("block", False, WINDOW),))


def speed_up(recording, cost, policy):
    tables = RoundsTables(recording)
    plain, drafted = (
        sum(
            seconds
            for (seconds,) in table(simulate(scenario, make_policy(name, tables.pool), name), "ops", "duration_s")
        )
        for name, scenario in ((name, Scenario(tables=tables, cost=cost)) for name in ("plain", policy))
    )
    return plain / drafted


def entered(**draft):
    """The measurement in a cost file, with the drafter's figures as given."""
    terms = DraftTerms(draft.get("per_round_s", 0.0), draft.get("per_token_s"))
    figures = (
        CostLine(intercept_s=draft["per_forward_s"])
        if "per_forward_s" in draft
        else DrafterFigures(terms=terms, forwards=None)
    )
    return FileCost("mine.json", {"block": figures, "target": CostLine(intercept_s=PLAIN_S)})


def test_a_measured_gain_comes_out_as_measured():
    recording = measured()
    truth = speed_up(recording, TimedCost(recording), f"block:{WINDOW}/target")
    by_round = speed_up(recording, entered(per_round_s=ROUND_S, per_token_s=0.0), f"block:{WINDOW}/target")
    by_forward = speed_up(recording, entered(per_forward_s=ROUND_S), f"block:{WINDOW}/target")
    assert by_round == pytest.approx(truth, rel=0.01)
    assert by_forward < truth * 2 / 3


def test_windows_come_in_the_right_order():
    recording = measured()
    windows = [f"block:{window}/target" for window in (1, 2, 3, 4, WINDOW)]
    by_round = [speed_up(recording, entered(per_round_s=ROUND_S, per_token_s=0.0), name) for name in windows]
    by_forward = [speed_up(recording, entered(per_forward_s=ROUND_S), name) for name in windows]
    assert by_round == sorted(by_round)
    assert by_forward != sorted(by_forward)


@given(per_round=st.floats(1e-3, 10.0), per_token=st.floats(0.0, 10.0), window=st.integers(1, 6))
def test_a_draft_costs_its_round_and_its_tokens(per_round, per_token, window):
    recording = measured()
    tables = RoundsTables(recording)
    cost = entered(per_round_s=per_round, per_token_s=per_token)
    scenario = Scenario(tables=tables, cost=cost)
    log = simulate(scenario, Script(tables.pool, [Draft("block", window), Verify("target")]), "p")
    (kind, forwards, new_tokens, seconds) = table(log, "ops", "kind", "num_forwards", "new_tokens", "duration_s")[0]
    assert (kind, forwards, new_tokens) == (0, 1, window)
    assert seconds == pytest.approx(per_round + window * per_token)


VIEWS = {(): (10, 10, 10), (10,): (11, 11, 11), (10, 11): (12, 12, 12), (10, 11, 12): (1, 1, 1)}


def batched(figures, windows):
    """Durations and forwards of one batched draft, a window for each row."""
    trace = trace_of(*(request_of(VIEWS, request_id=f"r{row}") for row in range(len(windows))), models=THREE)
    line = CostLine(intercept_s=0.25)
    cost = FileCost("f", {"draft": figures, "mid": line, "target": line})
    asked = iter(windows)

    class Each:
        def decide(self, seen):
            if seen.num_pending or seen.num_emitted:
                return Verify("target")
            return Draft("draft", next(asked))

        def learn(self, outcome):
            pass

    recorded_pool(trace)
    log, _ = replay(trace, Each(), cost=cost, batch=len(windows), start=Start.draft)
    return table(log, "ops", "num_rows", "num_forwards", "new_tokens", "duration_s")[0]


def test_a_batch_drafts_side_by_side():
    """Once for all rows, and by the longest of them."""
    figures = DrafterFigures(terms=DraftTerms(8.0, 1.0), forwards=None)
    assert batched(figures, (3, 1)) == (2, 1, 4, 8.0 + 3 * 1.0)


def test_seconds_by_the_round_come_on_top_of_forwards():
    figures = DrafterFigures(terms=DraftTerms(8.0, None), forwards=CostLine(intercept_s=0.5))
    rows, forwards, _, seconds = batched(figures, (3, 1))
    assert (rows, forwards) == (2, 3)
    assert seconds == 8.0 + 3 * 0.5


class BlockCost(FileCost):
    """A second for each new token of a forward, and the drafter writes 4 tokens in one."""

    def __init__(self, block=4, fed="text"):
        line = CostLine(intercept_s=0.25, per_new_token_s=1.0, per_kv_token_s=0.125)
        super().__init__("f", dict.fromkeys(("draft", "mid", "target"), line))
        self._block = DraftBlock(tokens=block, fed=fed)

    def draft_terms(self, model):
        return DraftTerms(0.0, None, self._block) if model == "draft" else None


def drafts_of(cost, policy="draft:3/target", *, requests=1, **options):
    tables = TrieTables(trace_of(*(request_of(VIEWS, request_id=f"r{row}") for row in range(requests)), models=THREE))
    scenario = Scenario(tables=tables, cost=cost, **options)
    ops = table(simulate(scenario, make_policy(policy, tables.pool), "p"), "ops", "kind", "num_rows", "num_forwards",
                "new_tokens", "duration_s")  # fmt: skip
    return [op[1:] for op in ops if op[0] == 0]


def test_a_whole_draft_is_one_forward_over_all_that_it_drafts():
    """A first draft of three tokens, after a prompt of three."""
    for fed, new, held in (
        ("text", 5, 0),  # the prompt, and two masks after it
        ("block", 4, 2),  # its last token, and three masks: of the others the target's states are held
        ("last", 1, 2),  # the target's state of the last
    ):
        rows, forwards, new_tokens, seconds = drafts_of(BlockCost(fed=fed), start=Start.draft)[0]
        assert (rows, forwards, new_tokens) == (1, 1, new)
        assert seconds == 0.25 + new * 1.0 + held * 0.125


def test_rows_of_a_whole_draft_are_in_one_forward_with_and_without_a_prefix_cache():
    rows, forwards, new_tokens, seconds = drafts_of(BlockCost(), requests=3, batch=3, start=Start.draft)[0]
    assert (rows, forwards, new_tokens) == (3, 1, 15)
    assert seconds == 0.25 + 15 * 1.0
    cache = PrefixCacheSize(num_blocks=64, block_tokens=1)
    kept = drafts_of(BlockCost(), requests=3, prefixes=cache)
    alone = drafts_of(BlockCost(), requests=3)
    assert [op[:2] for op in kept] == [op[:2] for op in alone]
    assert sum(op[2] for op in kept) <= sum(op[2] for op in alone)
    assert all(seconds >= 0.25 + new for _, _, new, seconds in kept)


@pytest.mark.parametrize("options", [{}, {"prefixes": PrefixCacheSize(num_blocks=64, block_tokens=1)}])
def test_a_draft_longer_than_a_forward_drafts_is_refused(options):
    with pytest.raises(
        CostRangeError, match="draft drafts 2 tokens in one forward, asked for 3; use a window of 2"
    ) as told:
        drafts_of(BlockCost(2), **options)
    assert "\n" not in str(told.value)


def test_a_whole_draft_is_scaled_and_stays_whole():
    terms = scaled(BlockCost(), {"draft": 2.0}, target="target").draft_terms("draft")
    assert terms == (0.0, None, DraftBlock(tokens=4))


def test_a_prefix_cache_spares_forwards_beside_what_a_round_costs():
    """The drafter is fed as much as where its forwards are all that it costs."""
    line, cache = CostLine(intercept_s=0.5), PrefixCacheSize(num_blocks=64, block_tokens=1)
    tables = TrieTables(trace_of(*(request_of(VIEWS, request_id=f"r{row}") for row in range(3)), models=THREE))
    found = []
    for draft in (line, DrafterFigures(terms=DraftTerms(8.0, None), forwards=line)):
        cost = FileCost("f", {"draft": draft, "mid": line, "target": line})
        scenario = Scenario(tables=tables, cost=cost, prefixes=cache)
        ops = table(simulate(scenario, make_policy("draft:2/target", tables.pool), "p"), "ops", *DRAFTS)
        found.append([op for op in ops if op[0] == 0])
    forwards, rounds = found
    assert sum(entered for _, entered, *_ in forwards) > 0
    assert [op[:3] for op in rounds] == [op[:3] for op in forwards]
    assert [seconds - 8.0 for *_, seconds in rounds] == [seconds for *_, seconds in forwards]


def test_policies_that_plan_see_what_a_round_costs():
    """With a drafter that costs by the round the window that adapts goes to the longest, and stays short otherwise."""
    recording = measured()
    tables = RoundsTables(recording)
    lengths = {}
    for name, cost in (
        ("round", entered(per_round_s=2 * PLAIN_S, per_token_s=0.0)),
        ("token", entered(per_forward_s=2 * PLAIN_S / 3)),
    ):
        policy = make_policy("two-level,start=3,most=6,warmup=2,every=2", tables.pool)
        log = simulate(Scenario(tables=tables, cost=cost), policy, name)
        drafts = [asked for kind, asked in table(log, "steps", "kind", "asked") if kind == 0]
        lengths[name] = drafts[len(drafts) // 2 :]
    assert max(lengths["round"]) > max(lengths["token"])


class Lookout:
    """Drafts of several lengths, and the seconds it was told of each."""

    def __init__(self, pool):
        self._windows = iter([1, 4, 2, 4, 3])
        self.told = {}

    def decide(self, seen):
        return Verify("target") if seen.num_pending else Draft("block", next(self._windows, 1))

    def learn(self, outcome):
        if isinstance(outcome.step, Draft):
            self.told[outcome.num_drafted] = outcome.duration_s


def test_policies_are_told_what_whole_drafts_take():
    tables = RoundsTables(measured())
    policy = Lookout(tables.pool)
    simulate(Scenario(tables=tables, cost=entered(per_round_s=8.0, per_token_s=1.0)), policy, "p")
    assert policy.told == {1: 9.0, 2: 10.0, 3: 11.0, 4: 12.0}


def test_policies_are_told_what_a_round_takes_with_its_forwards():
    tables = RoundsTables(measured())
    policy = Lookout(tables.pool)
    figures = DrafterFigures(terms=DraftTerms(8.0, None), forwards=CostLine(intercept_s=0.5))
    cost = FileCost("f", {"block": figures, "target": CostLine(intercept_s=1.0)})
    simulate(Scenario(tables=tables, cost=cost), policy, "p")
    assert policy.told == {tokens: 8.0 + 0.5 * tokens for tokens in (1, 2, 3, 4)}
