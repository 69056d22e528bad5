"""Under load: the best of a full sweep is found, what misses says by how much, and every candidate can be run again."""

import json
from importlib import import_module
from itertools import pairwise
from types import SimpleNamespace

import pytest
from paceline import compare_under_load, find_rates, open_recording, recommend, recommend_under_load, simulate
from paceline.base.errors import ArgumentError
from paceline.reports.limits import Limit
from paceline.reports.rates import Crossing
from paceline.reports.recommendation_under_load import PaysUpTo, missed
from paceline.runs.observed import write_observed
from paceline.studies.recommend_again import compare_again, simulate_again
from paceline.studies.recommend_under_load import _crossing
from paceline.studies.tune import split_recording
from paceline.traces import SyntheticSpec, make_trace
from paceline.traces.errors import TraceFormatError

from ..cli.command_line import done, refused
from .test_validated import observed

LOAD = "poisson:requests=20"


@pytest.fixture(scope="module")
def cost(tmp_path_factory):
    """A forward of the target takes 10 ms, and 0.5 ms for each token fed; one of the draft 1 ms."""
    path = tmp_path_factory.mktemp("cost") / "known.json"
    target = {"intercept_s": 0.010, "per_new_token_s": 0.0005}
    path.write_text(json.dumps({"draft": {"intercept_s": 0.001}, "target": target}))
    return path


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "made.trace"
    done("trace", "make", path, "--requests", 40, "--tokens", 40, "--models", "draft,target", "--acceptance", 0.8)
    return path


@pytest.fixture(scope="module")
def asked(cost):
    return {"workload": LOAD, "cluster": "h100", "cost": str(cost), "rate": 2.0, "most": 3, "seeds": 2}


@pytest.fixture(scope="module")
def found(recording, asked):
    return recommend_under_load(recording, slo="p99_ttft < 0.1, p99_tpot < 0.05", present=1, **asked)


@pytest.mark.slow
def test_the_choice_is_the_best_of_a_full_sweep(found, recording, asked):
    """On the requests that had no part in it, to 1%, and its figures are those of a comparison there."""
    half = split_recording(open_recording(recording), 0.5, 0)[1]
    given = {name: asked[name] for name in ("workload", "cluster", "cost", "seeds")}
    policies = [one.policy for one in found.candidates]
    (swept,) = compare_under_load(half, policies, rates=[2.0], **given).rates
    seconds = {row.about.policy: row.mean("in_system_s") for row in swept.rows}
    assert {one.policy: one.in_system_s for one in found.candidates} == seconds
    assert seconds[found.chosen] <= 1.01 * min(seconds.values())
    assert {"plain", *(f"draft:{k}/target" for k in range(1, 4))} <= seconds.keys()
    assert found.setting is not None
    assert found.crossing is not None
    assert all(one.standing == "feasible" for one in found.candidates)
    assert all(one.highest.rate.mean > 2.0 for one in found.candidates), "each keeps the limits at this rate"
    assert "x as fast as the present draft:1/target" in next(iter(found.lines()))


@pytest.mark.slow
def test_every_candidate_runs_again_to_the_bit(found, tmp_path):
    path = tmp_path / "recommendation.json"
    found.write(path)
    ledger = json.loads(path.read_text())["candidates"]
    assert [one["number"] for one in ledger] == list(range(1, len(ledger) + 1))
    for one in (ledger[0], ledger[1], next(each for each in ledger if each["policy"] == "plain"), ledger[-1]):
        name = f"{path}#{one['number']}"
        again = compare_again(name)
        assert again.equal, again.differing
        if one["batch"] is None:
            assert simulate_again(name).equal
    assert "all figures are those of" in done("simulate", "--from", f"{path}#1")
    assert "all figures are those of" in done("compare", "--from", f"{path}#{len(ledger)}")
    ledger[0]["by_seed"]["0"]["ttft_s_p99"] += 1e-9
    changed = json.loads(path.read_text()) | {"candidates": ledger}
    path.write_text(json.dumps(changed))
    assert set(simulate_again(f"{path}#1").differing) == {"ttft_s_p99"}


def test_a_batch_candidate_runs_again(recording, cost, tmp_path):
    path = tmp_path / "recommendation.json"
    recommend(recording, cost=str(cost), batches=[1, 4], most=2).write(path)
    for one in json.loads(path.read_text())["candidates"]:
        assert compare_again(f"{path}#{one['number']}").equal
    with pytest.raises(ArgumentError, match="was replayed without arrivals: paceline compare --from"):
        simulate_again(f"{path}#1")
    cost_text = cost.read_text()
    cost.write_text(cost_text + "\n")
    try:
        with pytest.raises(ArgumentError, match=r"was made of another .*known\.json than there is now"):
            compare_again(f"{path}#1")
    finally:
        cost.write_text(cost_text)
    moved = cost.rename(cost.with_suffix(".moved"))
    try:
        with pytest.raises(ArgumentError, match=r"was made of .*known\.json, which is not to be found from"):
            compare_again(f"{path}#1")
    finally:
        moved.rename(cost)


@pytest.mark.parametrize(
    ("quickest", "order", "ends", "words", "rate"),
    [
        ("d", None, None, "d pays at every rate looked at, 1 to 9 arrivals/s", None),
        ("plain", None, None, "d pays at no rate looked at, 1 to 9 arrivals/s", None),
        ("d", ("d", "plain"), (3.0, 5.0), "d stops paying at 4 arrivals/s (3 to 5)", 4.0),
        ("d", ("d", "plain"), (3.0, None), "d stops paying at 4 arrivals/s, which may be chance", 4.0),
        ("plain", ("plain", "d"), (4, 4), "d starts paying at 4 arrivals/s, up to 9, the highest rate looked at", None),
        (
            "plain",
            ("plain", "d", "plain"),
            (4, 4),
            "d starts paying at 4 arrivals/s and stops paying at 5 arrivals/s",
            5.0,
        ),
    ],
)
def test_it_pays_where_the_order_says(quickest, order, ends, words, rate):
    crossings = [
        Crossing(below=below, above=above, rate=rate, low=ends[0], high=ends[1])
        for rate, (below, above) in enumerate(pairwise(order or ()), start=4)
    ]
    rates = SimpleNamespace(looked_at=(1.0, 9.0), rows=[..., ...], quickest=quickest, crossings=crossings)
    question = SimpleNamespace(limits=["p99_ttft < 1"], highest=lambda policies: rates)
    assert _crossing(question, "d", ()) == PaysUpTo(words=words, rate=rate)


def test_what_nobody_keeps_says_by_how_much(recording, asked, monkeypatch):
    """The target alone needs 10.5 ms a token; its highest rate is looked for once."""
    looked_for = []

    def counting(half, policies, **options):
        looked_for.append(policies)
        return find_rates(half, policies, **options)

    monkeypatch.setattr(import_module("paceline.studies.recommend_under_load"), "find_rates", counting)
    found = recommend_under_load(recording, slo="p50_tpot < 0.001", **{**asked, "most": 2})
    assert (found.chosen, found.setting) == (None, None)
    head, *others = found.lines()
    assert head == "no candidate keeps p50_tpot < 0.001 at this rate, so no setting is named"
    (plain,) = (line for line in others if line.startswith("plain is infeasible: p50_tpot is 0.01"))
    assert plain.endswith("times the limit 0.001")
    assert all(one.highest.rate is None and "holds at no rate" in one.highest.reason for one in found.candidates)
    assert looked_for.count(["plain"]) == 1


def test_a_limit_that_is_just_missed_is_not_told_as_kept():
    row = SimpleNamespace(by_seed=lambda figure: {0: 0.0 if figure == "rejected" else 0.2})
    for sign, bound, told in (("<", 0.2, "not below"), ("<=", 0.1999, "above")):
        limit = Limit(figure="ttft_s_p99", sign=sign, bound=bound)
        assert missed(row, [limit]) == f"p99_ttft is 0.2, {told} the limit {bound}"


def test_policies_that_break_stand_in_the_ledger(tmp_path, asked):
    """One policy fails at its first step; a recording in memory must be given again."""
    policy = tmp_path / "broken.py"
    policy.write_text(
        "class Broken:\n    def __init__(self, pool): pass\n    def learn(self, outcome): pass\n"
        "    def decide(self, seen): return None\n"
    )
    made = make_trace(SyntheticSpec(requests=20, tokens=24, acceptance=(0.8,)))
    given = {**asked, "most": 1, "seeds": 1, "workload": "poisson:requests=10"}
    found = recommend_under_load(made, [f"{policy}:Broken"], **given)
    (broken,) = (one for one in found.candidates if "Broken" in one.policy)
    assert broken.standing == "failed"
    assert "not a step" in broken.reason
    assert any("Broken is failed: policy" in line for line in found.lines())
    (line,) = (one for one in found.ledger.candidates if "Broken" in one.policy)
    assert not line.by_seed
    found.write(tmp_path / "r.json")
    with pytest.raises(ArgumentError, match="was never run"):
        simulate_again(f"{tmp_path / 'r.json'}#{line.number}")
    best = next(one.number for one in found.ledger.candidates if one.policy == "plain")
    with pytest.raises(ArgumentError, match="`recording` must be given"):
        simulate_again(f"{tmp_path / 'r.json'}#{best}")
    assert simulate_again(f"{tmp_path / 'r.json'}#{best}", made).equal


def test_one_seed_tells_nothing_apart(recording, asked):
    """Where arrivals are drawn."""
    found = recommend_under_load(recording, **asked | {"most": 1, "seeds": 1})
    assert found.chosen != "plain"
    assert "plain" in found.tied
    assert found.setting is None
    assert "these seeds do not tell" in found.open_because
    assert not any("in brackets" in remark for remark in found.tables()[0].remarks)


def test_an_engine_with_one_k_gets_the_best_of_those(tmp_path):
    """K by running requests is served all the same, and came out best."""
    costs = tmp_path / "cost.json"
    costs.write_text('{"draft": {"intercept_s": 0.001}, "target": {"intercept_s": 0.01, "per_new_token_s": 0.002}}')
    made = make_trace(SyntheticSpec(requests=40, tokens=24, acceptance=(0.8,)))
    given = {"workload": "poisson:requests=24,prompt=20,output=20", "cluster": "h100", "cost": str(costs)}
    asked = given | {"rate": 30.0, "most": 2, "seeds": 2}
    vllm, llamacpp = (recommend_under_load(made, paste_into=engine, **asked) for engine in ("vllm", "llamacpp"))
    assert vllm.chosen == llamacpp.chosen == "off-under-load,table=1:2/8:1,draft=draft"
    assert vllm.setting.decision.schedule == ((1, 2), (8, 1))
    assert llamacpp.setting.decision.schedule == ((1, 1),)
    assert llamacpp.advice == (f"llama.cpp does not run {vllm.chosen}; the best that it does: draft:1/target",)


ON_DEVICE = {"cluster": "h100", "models": ["target=llama-3.1-8b", "draft=llama-3.2-1b"], "seeds": 3}


def test_gains_and_their_ranges_are_those_of_a_comparison_under_load(recording):
    given = {**ON_DEVICE, "workload": "poisson:requests=12"}
    found = recommend_under_load(recording, **given, rate=60.0, most=1)
    (own,) = (one for one in found.to_json()["served"] if one["policy"] == "draft:1/target")
    _, reported = split_recording(open_recording(recording), 0.5, 0)
    compared = compare_under_load(reported, ["draft:1/target"], **given, rates=[60.0]).to_json()
    (row,) = (one for one in compared["rows"] if one["policy"] == "draft:1/target")
    for figure in ("gain", "gain_ci", "gain_range"):
        assert own[figure] == row[figure]


def test_nothing_is_best_where_every_request_is_rejected(recording):
    given = {**ON_DEVICE, "workload": "poisson:requests=3,rate=2,prompt=900000,output=20"}
    found = recommend_under_load(recording, **given, most=1, present=1)
    assert found.lines()[:2] == [
        "no candidate serves every request, so no setting is named",
        "plain is infeasible: 3 requests a run are rejected",
    ]
    assert {(one["gain"], one["gain_range"]) for one in found.to_json()["served"]} == {(None, None)}
    compared = compare_under_load(recording, ["draft:1/target"], **given)
    assert {(one["gain"], one["gain_range"]) for one in compared.to_json()["rows"]} == {(None, None)}
    assert "range of cost" in repr(compared)


def test_a_device_whose_rounds_may_cost_too_much_names_no_setting(recording):
    """They are known between bounds wider than what speculation gains."""
    shapes = ["target=llama-3.1-8b", "draft=llama-3.2-1b"]
    given = {"workload": "poisson:requests=40", "cluster": "h100", "engine": "trtllm", "models": shapes, "rate": 1.0}
    given |= {"most": 1, "seeds": 3}
    found = recommend_under_load(recording, **given)
    low, high = next(one.range_of_cost for one in found.candidates if one.policy == "draft:1/target")
    assert low < 1 < high
    assert found.setting is None
    assert "the cost does not tell" in next(iter(found.lines()))
    assert any("paceline observe URL" in line for line in found.lines())
    by_name = {one.policy: one for one in found.candidates}
    assert by_name["plain"].kv_tokens > by_name["draft:1/target"].kv_tokens > 0, "a drafter takes memory"


def test_kv_tokens_are_those_of_a_replica_that_decodes(tmp_path):
    """The one for prompts alone has less memory for them."""
    (tmp_path / "apart.toml").write_text(
        '[[replicas]]\nname = "p"\ndevice = "a100-40gb"\nrole = "prefill"\n'
        '[[replicas]]\nname = "d"\ndevice = "h200"\nrole = "decode"\n'
        "[transfer]\nbytes_per_s = 1e11\nlatency_s = 1e-3\n"
    )
    made = make_trace(SyntheticSpec(requests=20, tokens=24, acceptance=(0.8,)))
    given = {"workload": "poisson:requests=4", "rate": 1.0, "most": 1, "seeds": 1}
    shapes = ["target=llama-3.1-8b", "draft=llama-3.2-1b"]
    rooms = [
        recommend_under_load(made, cluster=cluster, models=shapes, **given).candidates[0].kv_tokens
        for cluster in (tmp_path / "apart.toml", "h200")
    ]
    assert rooms[0] == rooms[1]


def test_limits_that_a_slower_device_of_this_kind_misses_are_told():
    """They are kept at the cost as it stands, which is known to a third or so."""
    made = make_trace(SyntheticSpec(requests=20, tokens=24, acceptance=(0.8,)))
    given = {"workload": "poisson:requests=10", "cluster": "h100", "rate": 1.0, "most": 1, "seeds": 1}
    shapes = ["target=llama-3.1-8b", "draft=eagle3"]
    said = {
        bound: recommend_under_load(made, slo=f"p99_tpot < {bound}", models=shapes, **given) for bound in (0.005, 0.05)
    }
    assert {found.chosen for found in said.values()} == {"draft:1/target"}
    (told,) = (line for line in said[0.005].lines() if line.startswith("if seconds are as slow as nine in ten"))
    assert "it misses: p99_tpot is 0.00" in told
    assert told.endswith("times the limit 0.005")
    assert not said[0.05].at_slow_end


def test_the_present_setting_is_held_against_what_was_observed(recording, asked, tmp_path):
    """A run that the simulator made itself, told as a client's, is simulated without an error."""
    given = {name: asked[name] for name in ("cluster", "cost", "rate")}
    made = simulate("poisson:requests=15", "draft:1/target", recording, **given)
    write_observed(observed(made.log), tmp_path / "run")
    short = {**asked, "workload": "poisson:requests=10", "most": 1, "seeds": 1}
    found = recommend_under_load(recording, observed=tmp_path / "run", present=1, **short)
    assert found.observed.within
    assert "the present setting, simulated and observed:" in found.lines()
    assert found.to_json()["observed"] is not None
    slow = recommend_under_load(recording, observed=tmp_path / "run", present=1, scale={"target": 2.0}, **short)
    assert slow.observed.meta["cost"].endswith("target x2")
    assert not slow.observed.within


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--workload", LOAD), "--workload goes with --cluster"),
        (("--slo", "p99_ttft < 1"), "--slo goes with --workload"),
        (("--workload", LOAD, "--cluster", "h100", "--batch", 2), "--batch does not apply to --workload"),
        (("--workload", LOAD, "--cluster", "h100", "--slo", "p99_tft < 1"), "--slo knows no figure 'p99_tft'"),
        (("--workload", LOAD, "--cluster", "h100", "--slo", "slo_share > 0.9"), "--slo must name latencies here"),
        (("--workload", LOAD, "--cluster", "h100", "--observed", "run"), "--observed goes with --present"),
        (("--workload", LOAD, "--cluster", "h100", "--paste-into", "tgi"), "--paste-into must be one of vllm"),
    ],
)
def test_what_will_not_do(words, told):
    assert told in refused("recommend", *words)


def test_what_is_no_ledger(tmp_path):
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(TraceFormatError, match="format: must be 'paceline-recommendation'"):
        compare_again(f"{path}#1")
    for text in ("other.json", "#1", f"{path}#x"):
        with pytest.raises(ArgumentError, match="must be FILE#N"):
            compare_again(text)
    assert "--trace does not apply to --from" in refused("compare", "--from", f"{path}#1", "--trace", "pico")
    assert "simulate takes --workload and --cluster" in refused("simulate", "--policy", "plain")


def test_k_by_running_requests_is_that_of_the_devices_of_a_cluster_file(recording, tmp_path):
    path = tmp_path / "two.toml"
    path.write_text('[[replicas]]\ndevice = "h100"\ntensor_parallel = 2\n')
    shapes = ["target=llama-3.1-8b", "draft=llama-3.2-1b"]
    asked = {"workload": LOAD, "cluster": str(path), "rate": 2.0, "most": 2, "seeds": 1, "models": shapes}
    found = recommend_under_load(recording, **asked)
    alone = recommend(recording, cost="h100", tensor_parallel=2, most=2, seeds=1, models=shapes)
    assert found.by_batch.to_json()["batches"] == alone.to_json()["batches"]
    assert not any("is no candidate" in one for one in found.remarks)
    out = tmp_path / "found.json"
    found.write(out)
    last = json.loads(out.read_text())["candidates"][-1]
    assert last["batch"] is not None
    assert compare_again(f"{out}#{last['number']}").equal


def test_a_load_that_was_never_steady_is_named(recording, asked):
    found = recommend_under_load(recording, **{**asked, "rate": 200.0, "most": 1, "seeds": 1})
    assert sum("the load was never steady, and more requests would tell more" in one for one in found.remarks) == 1
