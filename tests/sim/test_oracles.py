"""Oracles do what they planned, and nothing in their set does better."""

from dataclasses import replace
from functools import cache
from itertools import product
from math import inf
from pathlib import Path
from random import Random

import paceline
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.decoding.seen import Start
from paceline.policies import PolicyError, make_policy
from paceline.policies.fixed import Chain
from paceline.policies.oracles import OracleChain, OracleWindow
from paceline.reports import summarise_run
from paceline.sim import Scenario, TableCost, TrieTables, make_cost, recorded_pool, simulate
from paceline.sim.cost.base import CostModel, DraftTerms
from paceline.sim.cost.files import CostLine, DrafterFigures, FileCost
from paceline.sim.rounds import RoundsTables
from paceline.sim.simulate import foresight_of
from paceline.traces import SyntheticSpec, TrieRecording, make_trace, open_recording
from paceline.traces.meta import CostTable
from paceline.traces.rounds.rounds import StatedAcceptance

from ..strategies import synthetic_traces, traces
from ..unit_cost import UnitCost
from .rounds.small_rounds import one_request, recording_of, sequential
from .tries.small_traces import easy_cost, replay, table, trunk_of, with_ngram

STARTS = pytest.mark.parametrize("start", [Start.prefill, Start.draft])
FEW = settings(max_examples=10)
CLOSE = 1e-9


class AnyCost(CostModel):
    """Seconds that follow no rule, the same for the same forward: wider may be cheaper, and so may a late cache."""

    name = "any"
    lookup_s = 1 / 64

    def __init__(self, seed):
        self._seed = seed

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        return Random(f"{self._seed} {model} {num_rows} {new_tokens} {context_tokens}").uniform(0.5, 1.5)


class InTurn:
    """Rounds of these chains in turn, the target alone after the last one."""

    def __init__(self, pool, specs):
        self._chains = [Chain(pool, spec) for spec in specs]
        self._alone = Chain(pool, pool.target)
        self._rounds = 0

    def decide(self, seen):
        chain = self._chains[self._rounds] if self._rounds < len(self._chains) else self._alone
        return chain.decide(seen)

    def learn(self, outcome):
        self._rounds += bool(outcome.num_emitted)


def seconds_of(log):
    return float(log.ops["duration_s"].sum())


def run_s(trace, policy, cost, **scenario):
    return seconds_of(replay(trace, policy, cost=cost, **scenario)[0])


def planned_s(trace, policy, cost, start=Start.prefill):
    tables = TrieTables(trace)
    return sum(policy.foresee(foresight_of(tables, cost, tables.prefill_before(start))).values())


def short_trace(seed, *, tokens, models=("draft", "target"), acceptance=(0.6,)):
    spec = {"requests": 1, "prompt_tokens": 3, "vocab_size": 64, "reach": 8, "run": 8}
    return make_trace(SyntheticSpec(**spec, tokens=tokens, models=models, acceptance=acceptance, seed=seed))


def brute_force_s(trace, specs, cost, start):
    """The least seconds of any sequence of rounds of these chains, each sequence run."""
    rounds = trace.requests[0].max_new_tokens
    pool = recorded_pool(trace)
    return min(run_s(trace, InTurn(pool, chosen), cost, start=start) for chosen in product(specs, repeat=rounds))


@cache
def pico():
    folder = Path(paceline.__file__).parent / "recordings" / "pico.trace"
    whole = open_recording(folder)
    tags = {request.tag: request for request in whole.requests}
    return TrieRecording(meta=whole.meta, requests=tuple(tags.values()))


@STARTS
@pytest.mark.parametrize(
    ("seed", "cost"), [(0, None), (1, 0), *(pytest.param(2, n, marks=pytest.mark.slow) for n in range(3))]
)
def test_every_sequence_of_windows_was_tried(seed, cost, start):
    trace = short_trace(seed, tokens=4 if seed < 2 else 5)
    price = easy_cost(trace) if cost is None else AnyCost(cost)
    least = brute_force_s(trace, ["target", "draft:1/target", "draft:2/target", "draft:3/target"], price, start)
    assert run_s(trace, OracleWindow(recorded_pool(trace), most=3), price, start=start) == pytest.approx(
        least, abs=CLOSE
    )


@STARTS
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_every_sequence_of_chains_was_tried(seed, start):
    models = ("draft", "mid", "target")
    trace = short_trace(seed, tokens=3, models=models, acceptance=(0.5, 0.8))
    flat = [f"{name}:{window}/target" for name in models[:2] for window in (1, 2)]
    tall = [f"draft:{lower}/mid:{upper}/target" for lower, upper in product((1, 2), repeat=2)]
    price = easy_cost(trace)
    least = brute_force_s(trace, ["target", *flat, *tall], price, start)
    assert run_s(trace, OracleChain(recorded_pool(trace), most=2), price, start=start) == pytest.approx(
        least, abs=CLOSE
    )


@FEW
@given(
    trace=synthetic_traces(),
    seed=st.integers(0, 9),
    ngram=st.booleans(),
    tall=st.booleans(),
    start=st.sampled_from([Start.prefill, Start.draft]),
)
def test_a_plan_comes_true_to_the_second(trace, seed, ngram, tall, start):
    trace = with_ngram(trace) if ngram else trace
    pool, cost = recorded_pool(trace), AnyCost(seed)
    policy = OracleChain(pool, most=3) if tall else OracleWindow(pool, most=4)
    log, outputs = replay(trace, policy, cost=cost, start=start)
    assert seconds_of(log) == pytest.approx(planned_s(trace, policy, cost, start), abs=CLOSE)
    assert outputs == trunk_of(trace)
    assert not log.steps["modelled"].any()


@FEW
@given(trace=synthetic_traces(max_models=3), window=st.integers(1, 6), member=st.integers(0, 1))
def test_no_window_beats_the_best_ones(trace, window, member):
    pool, cost = recorded_pool(trace), easy_cost(trace)
    draft = pool.names[min(member, pool.target_level - 1)]
    chain = make_policy(f"{draft}:{window}/{pool.target}", pool)
    oracle = run_s(trace, OracleWindow(pool, draft=draft, most=6), cost)
    assert oracle <= run_s(trace, chain, cost) + CLOSE
    assert oracle <= run_s(trace, make_policy("plain", pool), cost) + CLOSE


@FEW
@given(trace=traces(), batch=st.integers(1, 3))
def test_tries_of_any_shape_are_followed_to_their_end(trace, batch):
    pool = recorded_pool(trace)
    if not pool.target_level:
        return
    _, outputs = replay(trace, OracleChain(pool, most=2), cost=UnitCost(), batch=batch)
    assert {name: len(tokens) for name, tokens in outputs.items()} == {
        request.request_id: request.max_new_tokens for request in trace.requests
    }


def test_chains_on_the_shipped_recording():
    trace, pool = some_of_pico(3), recorded_pool(pico())
    cost = make_cost("cpu", trace)
    log, outputs = replay(trace, OracleChain(pool), cost=cost)
    oracle = seconds_of(log)
    assert outputs == trunk_of(trace)
    for draft in pool.names[:-1]:
        assert oracle <= run_s(trace, OracleWindow(pool, draft=draft), cost) + CLOSE
    pairs = [("ngram", "mid"), ("ngram", "slim"), ("draft", "mid"), ("draft", "slim"), ("mid", "slim")]
    for (low, high), (lower, upper) in product(pairs, ((1, 10), (6, 2))):
        assert oracle <= run_s(trace, make_policy(f"{low}:{lower}/{high}:{upper}/target", pool), cost) + CLOSE


def test_windows_of_drafters_that_cost_by_the_round():
    trace, pool = some_of_pico(6), recorded_pool(pico())
    line = {name: CostLine(intercept_s=0.001) for name in pool.names if name != "target"}
    line["target"] = CostLine(intercept_s=0.01, per_new_token_s=0.001)
    for terms in (DraftTerms(0.004, 0.0), DraftTerms(0.0, 0.002), DraftTerms(0.004, None)):
        whole = DrafterFigures(terms=terms, forwards=line["draft"] if terms.per_token_s is None else None)
        cost = FileCost("rounds", {**line, "draft": whole})
        policy = OracleWindow(pool, draft="draft")
        log, _ = replay(trace, policy, cost=cost)
        assert seconds_of(log) == pytest.approx(planned_s(trace, policy, cost), abs=CLOSE)
        for window in (1, 3, 6):
            assert seconds_of(log) <= run_s(trace, make_policy(f"draft:{window}/target", pool), cost) + CLOSE


def test_chains_of_four_members_are_in_the_set_if_asked():
    trace, pool = some_of_pico(1, -1), recorded_pool(pico())
    cost = make_cost("cpu", trace)
    taller = run_s(trace, OracleChain(pool, most=4, levels=4), cost)
    assert taller <= run_s(trace, OracleChain(pool, most=4), cost) + CLOSE
    for lower, middle, upper in ((1, 2, 3), (2, 4, 4), (4, 2, 4)):
        chain = f"ngram:{lower}/draft:{middle}/mid:{upper}/target"
        assert taller <= run_s(trace, make_policy(chain, pool), cost) + CLOSE


def test_a_batch_follows_the_plans_of_each_request_alone():
    trace = pico()
    policy = OracleWindow(recorded_pool(trace))
    cost = make_cost("cpu", trace)
    columns = ("request", "kind", "level", "asked", "judged", "emitted")
    alone, together = (replay(trace, policy, cost=cost, batch=batch)[0] for batch in (1, 6))
    assert sorted(table(alone, "steps", *columns)) == sorted(table(together, "steps", *columns))


def test_a_strict_run_needs_nothing_beyond_the_record():
    trace = some_of_pico(99)
    replay(trace, OracleChain(recorded_pool(trace)), cost=make_cost("cpu", trace), strict=True)


def test_a_round_that_leaves_the_record_is_not_foreseen():
    tables = TrieTables(short_trace(0, tokens=16))  # it holds 8 tokens off the trunk
    foresight = foresight_of(tables, easy_cost(tables.trace), tables.prefill_before(Start.prefill))
    for window, is_known in ((8, True), (16, False)):
        chain = Chain(tables.pool, f"draft:{window}/target")
        found = [foresight.round_of(foresight.request_ids[0], position, chain) for position in range(1, 8)]
        assert all(found) == is_known


def test_what_an_oracle_asks_is_not_among_the_notes_of_the_run():
    table = CostTable(new_tokens=(1, 6), seconds=(1.0, 1.5))
    trace = short_trace(0, tokens=6)
    cost = TableCost("cpu", {"draft": table, "target": table}, extrapolate=True)
    replay(trace, make_policy("draft:1/target", recorded_pool(trace)), cost=cost)
    before = cost.notes()
    planned_s(trace, OracleWindow(recorded_pool(trace), most=8), cost)
    assert cost.notes() == before
    assert not any("beyond" in note for note in before)


def test_a_catch_up_beyond_what_was_measured_is_not_planned():
    table = CostTable(new_tokens=(1, 6), seconds=(1.0, 1.5))
    trace = short_trace(0, tokens=6)
    cost = TableCost("cpu", {"draft": table, "target": table})
    policy = OracleWindow(recorded_pool(trace), most=3)
    assert run_s(trace, policy, cost) == pytest.approx(planned_s(trace, policy, cost))


def test_seconds_that_nobody_knows():
    table = CostTable(new_tokens=(1, 2), seconds=(1.0, 1.5))
    trace, longer = (short_trace(0, tokens=tokens) for tokens in (2, 4))
    tables = TrieTables(trace)
    foresight = foresight_of(tables, UnitCost(), tables.prefill_before(Start.prefill))
    foresight.forward_s = lambda level, new_tokens, held_tokens: 1.0 if new_tokens < 3 else inf
    with pytest.raises(ValueError, match="does not know the seconds of any way through the answer"):
        OracleWindow(recorded_pool(trace), most=1).foresee(foresight)
    with pytest.raises(ValueError, match="was measured for 1 to 2 new tokens"):
        replay(
            longer,
            OracleWindow(recorded_pool(longer), most=4),
            cost=TableCost("cpu", {"draft": table, "target": table}),
        )


def coins(num_requests, *, tokens=30, window=4):
    """Logged rounds of two drafters, one of each kind, over texts of coins, with ends and beginnings left out."""
    draws = Random(5)
    requests = []
    for index in range(num_requests):
        rounds = {
            name: sequential([draws.random() < rate for _ in range(tokens)], window)
            for name, rate in (("feature", 0.7), ("tokens", 0.6))
        }
        requests.append(one_request({"": tokens}, rounds, request_id=f"r{index}"))
    return recording_of(*requests, drafters=(("feature", True, window), ("tokens", False, window)))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_oracles_of_imported_recordings_are_never_slower(seed):
    tables = RoundsTables(coins(3))
    seconds = {}
    for name in (
        *("oracle-chain,most=6", "oracle-window,draft=feature,most=6", "plain", "adaptive,draft=feature,most=6"),
        *("feature:2/target", "feature:4/target", "feature:6/target", "tokens:4/target", "tokens:6/target"),
    ):
        scenario = Scenario(tables=tables, cost=UnitCost(), seed=seed)
        log = simulate(scenario, make_policy(name, tables.pool), name)
        seconds[name] = summarise_run(log).duration_s
        if name.startswith("oracle"):
            assert 0 < summarise_run(log).exact_share < 1
    chain, window = seconds.pop("oracle-chain,most=6"), seconds.pop("oracle-window,draft=feature,most=6")
    slack = 1 + 1e-9
    assert chain <= slack * min(window, *seconds.values())
    assert window <= slack * min(took for name, took in seconds.items() if not name.startswith("tokens"))


def test_a_strict_oracle_plans_with_what_is_recorded_only():
    tables = RoundsTables(coins(2))
    scenario = Scenario(tables=tables, cost=UnitCost(), strict=True)
    log = simulate(scenario, make_policy("oracle-chain,most=6", tables.pool), "oracle-chain")
    assert summarise_run(log).exact_share == 1
    assert summarise_run(log).acceptance_length > 1


def test_an_oracle_of_stated_rates_beats_their_windows():
    stated = StatedAcceptance(hazards=(0.8, 0.7, 0.6))
    recording = recording_of(*(one_request({"": 50}, {}, request_id=f"r{index}") for index in range(3)))
    info = recording.meta.drafters[0].model_copy(update={"stated": stated, "prefilled": True})
    meta = recording.meta.model_copy(update={"drafters": (info,), "form": "rates"})
    tables = RoundsTables(replace(recording, meta=meta))
    scenario = Scenario(tables=tables, cost=UnitCost(), seed=7)
    took = {
        name: summarise_run(simulate(scenario, make_policy(name, tables.pool), name))
        for name in ("oracle-window,most=8", "feature:2/target", "feature:3/target", "feature:8/target")
    }
    oracle = took.pop("oracle-window,most=8")
    assert oracle.duration_s <= min(summary.duration_s for summary in took.values())
    assert oracle.exact_share < 0.02


def some_of_pico(step, start=0):
    return TrieRecording(meta=pico().meta, requests=pico().requests[start::step])


def test_an_oracle_that_nobody_shows_anything_and_one_that_cannot_be_shown_it():
    trace = short_trace(0, tokens=2)
    policy = OracleWindow(recorded_pool(trace))
    policy.__class__ = type("Blind", (OracleWindow,), {"about": None})
    with pytest.raises(PolicyError, match="an oracle sees ahead, which only a recording allows"):
        replay(trace, policy)
    plain = make_policy("plain", recorded_pool(trace))
    deaf = type("Deaf", (type(plain),), {"about": OracleWindow.about})(recorded_pool(trace))
    with pytest.raises(ValueError, match="policy policy says it is an oracle, but has no method foresee"):
        replay(trace, deaf)
