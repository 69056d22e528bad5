"""`compare_under_load`: rows by rate and policy over the same requests, seeds where chance has a part, crossovers."""

import json

import paceline
import pytest
from paceline.base.errors import ArgumentError
from paceline.runs.serving import read_serving
from paceline.studies.load import compare_under_load

LOAD = "poisson:requests=40"
# Seconds under which a batch of a hundred makes a draft's verification dear.
COSTS = {
    name: {"intercept_s": 1e-3 * weight, "per_new_token_s": 2e-4 * weight, "per_kv_token_s": 0.0}
    for name, weight in {"draft": 0.2, "mid": 0.4, "slim": 0.4, "target": 1.0}.items()
}


@pytest.fixture
def costs(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(COSTS))
    return path


@pytest.fixture
def listed(tmp_path):
    path = tmp_path / "listed.jsonl"
    rows = [{"arrives_s": index / 10, "prompt_tokens": 20, "output_tokens": 12} for index in range(10)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_the_best_policy_changes_with_the_rate(costs, tmp_path):
    found = compare_under_load(
        None, ["plain", "draft:4/target"], workload=LOAD, cluster="h100", rates=[3000, 2], cost=costs, seeds=3,
        log=tmp_path / "log",
    )  # fmt: skip
    assert [(one.rate, len(one.rows)) for one in found.rates] == [(2, 2), (3000, 2)]
    assert [best.policy for best in found.best] == ["draft:4/target", "plain"]
    assert "between 2 arrivals/s and 3000 arrivals/s the best policy changes from draft:4/target to plain" in repr(
        found
    ).replace("\n", " ")
    for row in found.to_json()["rows"]:
        assert [run["seed"] for run in row["runs"]] == [0, 1, 2]
        assert all(run["finished"] + run["rejected"] + run["unfinished"] == 40 for run in row["runs"])
    assert len(found.to_dicts()) == 12
    logs = {path.name: read_serving(path) for path in (tmp_path / "log").iterdir()}
    assert len(logs) == 12
    plain, chain = (logs[f"{name}-2-seed1"].requests for name in ("plain", "draft_4_target"))
    assert plain["arrived_at_ps"].tolist() == chain["arrived_at_ps"].tolist()
    assert plain["output_tokens"].tolist() == chain["output_tokens"].tolist()


def test_seeds_are_run_where_chance_has_a_part(listed):
    found = compare_under_load(
        None, ["plain", "draft:4/target"], workload=listed, cluster="h100", rates=[1, 100], seeds=2
    )
    assert [[len(row.runs) for row in one.rows] for one in found.rates] == [[1, 2], [1, 2]]
    assert found.rates[0].rows[0].interval("ttft_s_mean") is None


def test_a_workload_has_a_rate_of_its_own(listed):
    found = compare_under_load(None, "plain", workload=listed, cluster="h100", slo={"ttft": 1.0})
    assert (found.rates[0].rate, found.best[0].policy, found.aim.figure) == (None, "plain", "slo_share")
    assert "own: plain" in repr(found)
    assert found.lines() == ()


def test_shifted_acceptance_helps(costs):
    at = {"workload": "poisson:rate=2,requests=30", "cluster": "h100", "cost": costs, "seeds": 2}
    rates = [
        compare_under_load(None, "draft:4/target", **at, **more).rates[0].rows[0].mean("members_target_acceptance_rate")
        for more in ({}, {"shift_acceptance": {"draft": 0.2}})
    ]
    assert rates[1] > rates[0] + 0.1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rates": [1, 0]}, "`rates` must be in"),
        ({"rates": []}, "`rates` must hold at least one"),
        ({"rates": [4, 4]}, "`rates` must differ, got 4 twice"),
        ({"start": "draft"}, "`start` must be prefill under a workload"),
        ({"policies": ["plain", "oracle-chain"]}, "must not see ahead"),
        ({"seeds": 1}, "`seeds` must be in"),
        ({"batch": 4}, "no keyword `batch`"),
        ({"rates": 5}, "`rates` must be .*, got 5$"),
        ({"recording": []}, r"^`recording` must be a path or an opened recording, got \[\]$"),
        ({"cluster": None}, "`cluster` must be .*, got None$"),
        ({"log": 5}, "`log` must be .*, got 5$"),
    ],
)
def test_what_will_not_do_is_one_line(asked, said):
    given = {"policies": "plain", "workload": LOAD, "cluster": "h100", "rates": [4]} | asked
    with pytest.raises(ArgumentError, match=said):
        paceline.compare_under_load(**given)


@pytest.mark.parametrize("policies", [None, "plain"])
def test_a_cluster_that_leaves_no_policy_open_has_nothing_to_compare(policies, tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('[[replicas]]\ndevice = "h100"\npolicy = "plain"\n')
    with pytest.raises(ArgumentError, match="`cluster` must leave the policy of some replica open"):
        compare_under_load(None, policies, workload=LOAD, cluster=path, rates=[4])
