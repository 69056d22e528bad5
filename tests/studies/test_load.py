"""Under load: what a cost leaves open, the gain over the target alone, and where gains go."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from paceline.base.errors import ArgumentError
from paceline.base.terminal import Interrupts
from paceline.decoding.steps import PolicyError
from paceline.reports.intervals import geometric_interval
from paceline.reports.serving import Promises
from paceline.reports.serving_tables import ServingReport
from paceline.reports.waterfall_under_load import LOSSES_UNDER_LOAD, SpentUnderLoad, waterfall_under_load
from paceline.studies.load import LoadRuns, compare_under_load
from paceline.studies.options import SimulateOptions
from paceline.studies.rates import find_rates
from paceline.studies.recommend_under_load import recommend_under_load
from paceline.studies.serving import serving_setting, simulate

from ..cli.command_line import done
from ..golden.book import INPUTS

LOAD = "poisson:rate=100,requests=30,prompt=100,output=24"
LARGE = {"models": ["target=llama-3.1-8b", "draft=eagle3"], "cost": "h100", "cluster": "h100"}
BY_DEVICE = {"workload": LOAD, "seeds": 2, **LARGE}


@pytest.fixture(scope="module")
def found():
    return compare_under_load("pico", ["draft:4/target", "draft:1/target"], **BY_DEVICE, why=True)


def test_the_target_alone_is_served_beside_policies_once(found):
    (at_rate,) = found.rates
    assert [row.about.policy for row in at_rate.rows] == ["draft:4/target", "draft:1/target"]
    assert at_rate.alone.about.policy == "plain"
    for row in at_rate.rows:
        pairs = zip(at_rate.alone.by_seed("in_system_s").values(), row.by_seed("in_system_s").values(), strict=True)
        assert at_rate.gain(row) == geometric_interval([alone / own for alone, own in pairs])
    with_plain = compare_under_load("pico", ["plain", "draft:4/target"], **BY_DEVICE).rates[0]
    assert with_plain.alone is with_plain.rows[0]
    assert with_plain.gain(with_plain.rows[1]) == at_rate.gain(at_rate.rows[0])
    assert with_plain.gain(with_plain.rows[0]).bounds == (1, 1)
    assert with_plain.gain_range(with_plain.rows[0]) == (1, 1)


def test_replicas_with_a_policy_of_their_own_keep_it_in_every_row_which_a_line_says(tmp_path):
    cluster = tmp_path / "two.toml"
    table = '[[replicas]]\nname = "{}"\ndevice = "h100"\n'
    cluster.write_text(table.format("fast") + 'policy = "draft:2/target"\n' + table.format("open"))
    asked = {"workload": LOAD, "cluster": cluster, "cost": "h100", "models": LARGE["models"], "seeds": 1}
    compared = compare_under_load("pico", ["draft:4/target"], **asked, why=True)
    (at_rate,) = compared.rates
    assert [row.about.policy for row in at_rate.rows] == ["draft:4/target"]
    waterfall = compared.why[None].policies["draft:4/target"]
    assert waterfall.speed_up == pytest.approx(at_rate.gain(at_rate.rows[0]).mean)
    kept = "draft:2/target on fast in every run: policies, and the target alone, are those of the other replicas"
    assert kept in compared.remarks
    with pytest.raises(ArgumentError, match="open, for K to be chosen there, got draft:2/target on fast"):
        recommend_under_load("pico", **asked, drafter="draft")


def test_ranges_are_of_the_same_requests_at_the_ends_of_the_cost(found):
    """A run at an end is the run of a cluster whose cost is that end."""
    (at_rate,) = found.rates
    asked = SimulateOptions(workload=LOAD, cluster="h100", cost="h100", models=LARGE["models"])
    ends = serving_setting("pico", LOAD, "h100", asked).ends()
    assert len(ends) == len(at_rate.alone.ends) == 4
    fast, *_, slow = at_rate.alone.ends
    assert fast.metrics.tpot_s.mean < at_rate.alone.runs[0].metrics.tpot_s.mean < slow.metrics.tpot_s.mean
    for row in at_rate.rows:
        assert all(end.metrics.finished == row.runs[0].metrics.finished for end in row.ends)
        for figure in ("ttft_s_mean", "tpot_s_p99", "output_tokens_per_s"):
            low, high = row.cost_range(figure)
            factors = [end.flat[figure] / row.runs[0].flat[figure] for end in row.ends]
            assert low == pytest.approx(row.mean(figure) * min(factors))
            assert high == pytest.approx(row.mean(figure) * max(factors))
        low, high = at_rate.gain_range(row)
        assert low < at_rate.gain(row).mean < high
        # Both at the same end: a slower device alone is in no gain, so the range is narrower than of each by itself.
        own, alone = row.cost_range("in_system_s"), at_rate.alone.cost_range("in_system_s")
        assert high - low < alone[1] / own[0] - alone[0] / own[1]


def test_one_run_has_the_fast_and_the_slow_end():
    one = simulate(LOAD, "draft:4/target", "pico", **LARGE)
    (row,) = one.rows
    assert len(row.ends) == 2
    low, high = row.cost_range("tpot_s_mean")
    assert low < row.mean("tpot_s_mean") < high
    # A factor on the mean, so the last digit may differ.
    assert [low, high] == pytest.approx([end.flat["tpot_s_mean"] for end in row.ends], rel=1e-12)
    assert one.to_json()["rows"][0]["range"]["tpot_s_mean"] == [low, high]
    measured = simulate(LOAD, "draft:4/target", "pico", cluster="h100", cost="cpu", extrapolate=True)
    assert measured.rows[0].ends == ()
    assert measured.to_json()["rows"][0]["range"] == {}


def test_who_does_as_the_target_alone_is_not_left_open_by_the_cost():
    policies = ["plain", "per-tag,math=draft:4/target,default=plain"]
    found = compare_under_load("pico", policies, workload=f"{LOAD},tag=code", **LARGE)
    assert any("did exactly as well as" in line for line in found.lines())
    assert not any("by this cost" in line for line in found.lines())


def test_who_cannot_be_told_apart_by_the_cost_is_named(found):
    (at_rate,) = found.rates
    open_to = [
        row.about.policy for row in at_rate.rows if at_rate.gain_range(row)[0] <= 1 <= at_rate.gain_range(row)[1]
    ]
    assert at_rate.gain_open == open_to
    told = [line for line in found.lines() if "from the target alone by this cost" in line]
    assert len(told) == bool(open_to)
    assert all(policy in told[0] for policy in open_to)
    (best,) = found.best
    rows = {row.about.policy: row for row in at_rate.rows}
    for policy, row in rows.items():
        ends = zip(rows[best.policy].ends, row.ends, strict=True)
        is_open = any(other.flat["in_system_s"] < own.flat["in_system_s"] for own, other in ends)
        assert (policy in best.by_cost) == (is_open and policy not in best.tied)


def test_the_picture_has_the_gains_of_the_table():
    found = compare_under_load("pico", ["plain", "draft:4/target"], **BY_DEVICE | {"seeds": 3})
    (at_rate,) = found.rates
    (panel,) = (
        panel for part in found.sections() for panel in part.panels if panel.title.startswith("Speed-up over plain")
    )
    drawn = dict(zip(panel.names, panel.values, strict=True))
    assert drawn == {row.about.policy: at_rate.gain(row).mean for row in at_rate.rows}


def test_the_detailed_tables_set_every_other_policy_against_the_best(found):
    own, *_ = found.tables()
    (behind,) = (grid for grid in found.tables(detail=True) if grid.title.startswith("behind the best"))
    best = found.best[0].policy
    others = [f"own: {row.about.policy}" for row in found.rates[0].rows if row.about.policy != best]
    assert [row[0] for row in behind.rows] == others
    for grid in (own, behind):
        assert not any("goodput" in column.heading for column in grid.columns)  # nothing was promised


def test_a_rate_at_which_a_policy_is_missing_has_no_best_one(found):
    (at_rate,) = found.rates
    cut = replace(found, rates=(at_rate, replace(at_rate, rate=9.0, rows=at_rate.rows[:1])))
    assert cut.best == found.best


def test_json_has_all_of_it(found):
    written = json.loads(json.dumps(found.to_json()))
    row = written["rows"][0]
    assert row["gain_ci"][0] < row["gain"] < row["gain_ci"][1]
    assert row["gain_range"][0] < row["gain"] < row["gain_range"][1]
    assert row["range"]["ttft_s_p99"][0] < row["range"]["ttft_s_p99"][1]
    assert written["best"][0]["tied_by_cost"] == list(found.best[0].by_cost)
    assert [one["policy"] for one in written["why"]] == ["draft:4/target", "draft:1/target"]
    assert set(written["why"][0]["lost_to"]) == set(LOSSES_UNDER_LOAD)


ALONE = SpentUnderLoad(
    in_rounds=100,
    calls=100,
    judged=0,
    accepted=0,
    queue_s=1.0,
    prompts_s=2.0,
    rounds_s=11.0,
    target_s=10.0,
    width_s=0.0,
    below_s=0.0,
)
RUN = replace(ALONE, calls=40, judged=160, accepted=60, queue_s=1.5, rounds_s=7.0, target_s=4.5, width_s=0.4, below_s=2)


def test_a_waterfall_by_hand():
    found = waterfall_under_load(RUN, ALONE)
    seconds = [3 + 2, 3 + 4, 3 + 4 + 2, 3 + 4 + 2 + 0.4, 3 + 2 + 4.5, 3 + 7, 3 + 7, 1.5 + 2 + 7]
    gains = [14 / each for each in seconds]
    assert found.perfect == pytest.approx(gains[0])
    lost = [before - after for before, after in pairwise(gains)]
    assert list(found.losses.values()) == pytest.approx(lost)
    assert found.speed_up == pytest.approx(14 / 10.5)
    assert waterfall_under_load(None, ALONE) is waterfall_under_load(RUN, None) is None


def adds_up(found):
    for one in found.rates:
        for policy, each in found.why[one.rate].policies.items():
            row = next(row for row in one.rows if row.about.policy == policy)
            assert each.perfect - sum(each.losses.values()) == pytest.approx(each.speed_up, rel=1e-9)
            own, alone = (each.runs[0].metrics.in_system_s for each in (row, one.alone))
            assert each.speed_up == pytest.approx(alone / own, rel=1e-9)
            yield each


def test_drafts_count_where_they_run_if_others_read_the_prompts(tmp_path):
    """Requests that never meet lose the same on one replica and on two with a link that takes no time."""
    table = '[[replicas]]\nname = "{0}"\nrole = "{0}"\ndevice = "h100"\n'
    apart = tmp_path / "apart.toml"
    apart.write_text(table.format("prefill") + table.format("decode") + "[transfer]\nbytes_per_s = 1e21\n")
    asked = BY_DEVICE | {"seeds": 1, "workload": "constant:rate=1,requests=3,prompt=100,output=24", "why": True}
    one, two = (
        compare_under_load("pico", ["draft:4/target"], **asked | {"cluster": cluster})
        .why[None]
        .policies["draft:4/target"]
        for cluster in ("h100", apart)
    )
    assert one.losses["drafting"] > 0.1
    assert two.perfect == pytest.approx(one.perfect, rel=1e-3)
    assert two.losses == pytest.approx(one.losses, abs=1e-3)


PAIR = """
[[replicas]]
count = 2
device = "h100"
max_num_seqs = 4
kv_blocks = 24
"""


@pytest.mark.parametrize("options", [{}, {"seed": 3, "decide_s": 1e-3}, {"cluster": "pair"}])
def test_terms_add_up(tmp_path, options):
    (tmp_path / "pair.toml").write_text(PAIR, encoding="utf-8")
    asked = BY_DEVICE | {"seeds": 1, "workload": "poisson:requests=12,prompt=100,output=24"} | options
    if "cluster" in options:
        asked["cluster"] = tmp_path / "pair.toml"
    policies = ["plain", "draft:2/mid:4/target", "adaptive"]
    models = [*LARGE["models"], "mid=llama-3.2-1b"]
    found = compare_under_load("pico", policies, **asked | {"models": models}, rates=[20, 400], why=True)
    lost = list(adds_up(found))
    assert len(lost) == 4
    for each in lost:
        assert each.losses["acceptance"] > 0
        assert each.losses["drafting"] >= 0
        assert each.losses["width"] > 0
        # What is beside the target's and the other members' forwards is deciding.
        assert ("decide_s" in options) == (each.losses["rest"] > 0.01)


def test_terms_of_an_imported_log_add_up(tmp_path):
    models = ["target=llama-3.1-8b", "drafter=eagle3-llama-3.1-8b"]
    log = INPUTS / "responses.jsonl"
    done(
        "trace", "import", "vllm-detailed", log, "--out", tmp_path / "log.trace", *[f"--models={one}" for one in models]
    )
    asked = {"workload": LOAD, "cluster": "h100", "cost": "h100", "seeds": 1}
    found = compare_under_load(tmp_path / "log.trace", ["drafter:2/target", "drafter:3/target"], **asked, why=True)
    assert len(list(adds_up(found))) == 2


def test_an_interrupt_before_the_first_row_ends_the_study(monkeypatch):
    monkeypatch.setattr(Interrupts, "heard", lambda _: True)
    with pytest.raises(KeyboardInterrupt):
        recommend_under_load("pico", **BY_DEVICE, drafter="draft")


def test_what_did_not_finish_is_not_known():
    found = compare_under_load("pico", ["draft:4/target"], **BY_DEVICE, why=True, horizon_s=0.05)
    assert found.why[None].policies == {"draft:4/target": None}
    assert "did not finish" in str(found)


def test_the_screen():
    asked = ["compare", "--workload", LOAD, "--cluster", "h100", "--policy", "draft:4/target", "--seeds", "1", "--why"]
    printed = done(*asked)
    assert "range of cost" in printed
    assert "where the gain goes, at the first seed" in printed
    assert "requests wait longer for a place" in printed


def test_a_run_too_short_for_steady_load_is_named():
    asked = {"cluster": "h100", "cost": "h100", "models": ["target=llama-3.1-8b"], "seeds": 1}
    load, told = "poisson:requests=60", "the load was never steady, and more requests would tell more"
    short = compare_under_load(None, ["plain"], workload=load, rates=[5.0, 500.0], **asked)
    (remark,) = [one for one in short.remarks if told in one]
    run = short.rates[1].rows[0].runs[0].metrics
    assert remark.startswith(
        f"plain served {load} at 500/s in {run.duration_s / run.e2e_s.mean:.1f} times its mean E2E"
    )
    for other in ({"workload": load, "rates": [5.0]}, {"workload": "closed:concurrency=60,requests=60"}):
        found = compare_under_load(None, ["plain"], **other, **asked)
        assert not any(told in one for one in found.remarks)
    highest = find_rates(None, ["plain"], workload=load, limits="p99_ttft < 0.03", **asked)
    assert any(told in one for one in highest.remarks)
    once = {name: value for name, value in asked.items() if name != "seeds"}
    assert remark in simulate(load, "plain", rate=500.0, **once).tables()[0].remarks
    closed = simulate("closed:concurrency=60,requests=60", "plain", **once)
    assert not any(told in one for one in closed.tables()[0].remarks)


def test_a_policy_that_drafts_nothing_at_the_first_seed_is_run_at_all_the_same(tmp_path):
    """Requests without a tag stand for others at each seed, and some policies draft for few of these."""
    load, policy = tmp_path / "load.jsonl", "per-tag,default=plain,math=draft:4/target"
    load.write_text('{"arrives_s": 0.0, "prompt_tokens": 20, "output_tokens": 9}\n')
    (at_rate,) = compare_under_load(None, [policy, "plain"], workload=load, cluster="h100", seeds=5).rates
    by_tag, alone = at_rate.rows
    drafted = [run.meta.levels[-1].judged > 0 for run in by_tag.runs]
    assert (len(drafted), drafted[0], any(drafted)) == (5, False, True)
    assert len(alone.runs) == 1


@pytest.fixture(scope="module")
def too_long(tmp_path_factory):
    """Every other request is longer than the draft's memory, not than the target's."""
    folder = tmp_path_factory.mktemp("memory")
    cluster, load = folder / "tight.toml", folder / "load.jsonl"
    cluster.write_text('[[replicas]]\ndevice = "h100"\nmembers.draft = { kv_blocks = 40 }\n')
    rows = [
        {"arrives_s": turn / 50, "prompt_tokens": 900 if turn % 2 else 100, "output_tokens": 20} for turn in range(12)
    ]
    load.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"workload": load, "cluster": cluster, "seeds": 2, "models": LARGE["models"]}


def test_who_rejects_requests_that_another_serves_is_not_best_by_the_times_of_the_rest(too_long):
    found = compare_under_load(None, ["draft:2/target", "plain"], **too_long)
    (at_rate,), (best,) = found.rates, found.best
    drafting, alone = at_rate.rows
    assert (drafting.mean("rejected"), alone.mean("rejected")) == (6, 0)
    assert drafting.mean("in_system_s") < alone.mean("in_system_s")
    assert (best.policy, best.rejecting) == ("plain", ("draft:2/target",))
    assert at_rate.gain(drafting) is None
    told = "draft:2/target rejects requests that plain serves: their times are not compared"
    assert f"at the workload's own rate {told}" in found.lines()
    less_best = found.to_json()["rows"][0]["less_best"]
    assert "in_system_s" not in less_best
    assert "output_tokens_per_s" in less_best
    promised = compare_under_load(None, ["draft:2/target", "plain"], **too_long, slo={"e2e": "1000000s"})
    assert promised.best[0].policy == "plain"  # a rejected request has missed its promise


def test_no_run_has_the_least_latency_on_a_page_where_one_rejects_what_another_serves(too_long):
    (at_rate,) = compare_under_load(None, ["draft:2/target", "plain"], **too_long).rates
    best, *_ = ServingReport(rows=at_rate.rows, promised=Promises()).answer()
    assert best == "most output tokens/s: plain"
    (alike,) = compare_under_load(None, ["draft:2/target", "plain"], **{**too_long, "cluster": "h100"}).rates
    best, *_ = ServingReport(rows=alike.rows, promised=Promises()).answer()
    assert best.endswith("; least E2E at the 99th percentile: draft:2/target")


def test_who_rejects_requests_that_another_serves_has_no_highest_rate(too_long):
    found = find_rates(None, ["draft:2/target", "plain"], **too_long, limits="p99_ttft < 0.03")
    assert [row.policy for row in found.rows] == ["plain"]
    assert "draft:2/target is left out: it rejects 6 requests a run, others 0" in found.remarks
    alone = find_rates(None, ["draft:2/target"], **too_long, limits="p99_ttft < 0.03")
    assert [row.policy for row in alone.rows] == ["draft:2/target"]
    assert any("requests 12 rejected (longer than the 640 tokens" in remark for remark in alone.remarks)


TREES = """
from paceline.policies import DraftTree, Verify, tree_shape

class Trees:
    def __init__(self, pool):
        self.tree, self.verify = DraftTree("draft", tree_shape("2x1")), Verify(pool.target)

    def decide(self, seen):
        return self.verify if seen.num_pending or not seen.has_room else self.tree

    def learn(self, outcome):
        pass
"""


@pytest.mark.parametrize(
    "study",
    [
        lambda asked: compare_under_load("pico", asked, workload="poisson:rate=9,requests=9", **LARGE),
        lambda asked: find_rates("pico", asked, workload="poisson:requests=9", limits="p90_ttft < 1", **LARGE),
    ],
)
def test_a_tree_that_no_policy_declared_is_refused_before_any_row(tmp_path, monkeypatch, study):
    """Rows of the policies before it were lost."""
    (tmp_path / "trees.py").write_text(TREES)
    monkeypatch.setattr(LoadRuns, "run", lambda *_, **__: pytest.fail("a row was run"))
    with pytest.raises(PolicyError, match="token trees are not known here"):
        study(["plain", f"{tmp_path / 'trees.py'}:Trees"])
