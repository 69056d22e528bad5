"""Simulated serving: what goes in comes out, chance is the same for all, an interrupt leaves a sound partial run."""

import json
import os
import re
import signal

import paceline
import pytest
from paceline.base.errors import ArgumentError
from paceline.decoding.legal_steps import Policy
from paceline.runs.serving import read_serving
from paceline.studies.load import compare_under_load
from paceline.studies.serving import BrokenWorkloadError, simulate
from paceline.traces import SyntheticSpec, make_trace, write_trace
from paceline.traces.errors import TraceFormatError

from ..data_folder import data_files
from ..sim.cost import kernel_folders
from ..traces.importers.foreign_files import write_lines

MINE = """
horizon_s = 50

[router]
name = "least-loaded"
stale_s = 0.001

[[replicas]]
count = 2
device = "h100"
max_num_seqs = 4
token_budget = 64
kv_blocks = 24

[[replicas]]
name = "own"
device = "rtx4090"
policy = "draft:3/mid:6/target"
"""
LOAD = "poisson:rate=400,requests=60"


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MINE, encoding="utf-8")
    return path


def closes(log):
    """Requests in are requests out, and tokens of those that finished are all there."""
    requests, finished = log.requests, log.finished
    rejected, unfinished = requests["rejected"] != "", requests["ended_at_ps"] == -1
    assert (finished.astype(int) + rejected + unfinished == 1).all()
    assert (requests["emitted_tokens"][finished] == requests["output_tokens"][finished]).all()
    return int(finished.sum()), int(rejected.sum()), int(unfinished.sum())


def test_policies_meet_the_same_requests_and_the_same_luck():
    runs = [simulate(LOAD, policy, cluster="h100").log.requests for policy in ("draft:4/target", "mid:2/target")]
    for column in ("request_id", "arrived_at_ps", "prompt_tokens", "output_tokens", "tag"):
        assert runs[0][column].tolist() == runs[1][column].tolist()
    other = simulate(LOAD, "plain", cluster="h100", seed=1).log.requests
    assert other["arrived_at_ps"].tolist() != runs[0]["arrived_at_ps"].tolist()


def test_a_run_is_what_its_folder_says(tmp_path, mine):
    found = paceline.simulate(LOAD, "draft:4/target", cluster=mine, out=tmp_path / "run", slo={"ttft": 1, "tpot": 0.1})
    again = paceline.metrics(tmp_path / "run", slo={"ttft": "1s", "tpot": "100ms"})
    told, retold = found.to_json(), again.to_json()
    # What the cost leaves open is of the run that was served again; a folder holds one.
    assert told["rows"][0].pop("range")
    assert retold["rows"][0].pop("range") == {}
    assert retold == told
    about = read_serving(tmp_path / "run").meta.about
    assert about.policy == "draft:4/target on h100; draft:3/mid:6/target on own"
    replicas = about.setting.pop("replicas")
    asked = {"trace": "pico", "router": "least-loaded", "stale_s": 0.001, "horizon_s": 50}
    assert about.setting == asked | {"deadlines": {"": [1, 0.1]}}
    assert {name: told["count"] for name, told in replicas.items()} == {"h100": 2, "own": 1}
    with pytest.raises(ValueError, match="exists already"):
        found.write(tmp_path / "run")


class Interrupting(Policy):
    """Plain decoding that presses Ctrl-C once, after a while."""

    def __init__(self, pool, after=50):
        self._target = pool.target
        self._after = after

    def decide(self, seen):
        from paceline.policies import Verify

        self._after -= 1
        if not self._after:
            os.kill(os.getpid(), signal.SIGINT)
        return Verify(self._target)


def test_an_interrupt_leaves_what_was_simulated(tmp_path):
    found = simulate(LOAD, Interrupting, cluster="h100", out=tmp_path / "run")
    assert found.interrupted
    finished, rejected, unfinished = closes(read_serving(tmp_path / "run"))
    assert unfinished > 0
    assert finished + rejected + unfinished < 60
    assert "(interrupted)" in repr(found)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rate": 0.0, "workload": "poisson:requests=3"}, "`rate` must be in"),
        ({"out": 5}, "`out` must be a valid string, got 5"),
        ({"workload": 5}, "`workload` must be a valid string, got 5"),
        (
            {"tag": "no such"},
            "has the tag 'no such'; it has 6 tags: code, dialogue, edit, math, prose, translation; `tag` '' is",
        ),
        ({"policy": None}, "`policy` must be given: replica h100 of h100 has none"),
        ({"policy": "oracle-window"}, "must not see ahead under load"),
        ({"horizon_s": 0.0}, "`horizon_s` must be in"),
        ({"slo": {"ttl": 1.0}}, "`slo` must name one of"),
        ({"slo": {"chat": {"ttl": 1.0}}}, "`slo` must name one of ttft, tpot, e2e, queue, got 'chat:ttl'"),
        ({"slo": {"chat": {"ttft": 0}}}, "`slo` chat:ttft must be > 0 and finite, got 0"),
        ({"slo": {"ttft": -1}}, "`slo` ttft must be > 0 and finite, got -1"),
        ({"slo": {"ttft": float("nan")}}, "`slo` ttft must have seconds as its bound, as in 0.2 or 200ms, got 'nan'"),
        ({"slo": {"ttft": float("inf")}}, "`slo` ttft must have seconds as its bound, as in 0.2 or 200ms, got 'inf'"),
        ({"slo": {"chat": {"ttft": 1.0}}}, "`slo` must name a class of the requests (none), got 'chat'"),
        ({"slo": {"": {"ttft": 1.0}}}, "`slo` must name a class of the requests (none), got ''"),
        ({"slo": {"ttft": 200}}, "`slo` ttft must say its unit above 10: 200ms or 200s, got 200"),
        ({"extrapolate": True}, "`extrapolate` goes with `cost`"),
        ({"scale": {"no": 2.0}}, "`scale` must name a model"),
        ({"seeds": 3}, "no keyword `seeds`"),
        ({"decide_s": -1.0}, "`decide_s` must be in"),
        ({"cluster": "a9000"}, "unknown cluster 'a9000'"),
    ],
)
def test_what_will_not_do_is_one_line(asked, said):
    given = {"workload": LOAD, "policy": "plain", "cluster": "h100"} | asked
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        simulate(**given)
    assert "\n" not in str(raised.value)


def test_a_policy_that_no_replica_would_play_is_refused(tmp_path):
    (tmp_path / "own.toml").write_text('[[replicas]]\ndevice = "h100"\npolicy = "plain"\n')
    told = "`policy` must be left out: every replica of own has its own, got adaptive"
    with pytest.raises(ArgumentError, match=told):
        simulate(LOAD, "adaptive", cluster=tmp_path / "own.toml")
    assert simulate(LOAD, cluster=tmp_path / "own.toml").log.meta.about.policy == "plain"


CHAINS = {
    "short": ("h100", "draft:4/target"),
    "long": ("h200", "draft:3/mid:6/target"),
    "plain": ("rtx4090", None),
}


def test_replicas_with_chains_and_devices_of_their_own_are_what_they_are_alone(tmp_path):
    """What comes out of each replica is what a cluster of it alone makes of its requests."""
    tables = {
        name: f'[[replicas]]\nname = "{name}"\ndevice = "{device}"\n' + (f'policy = "{policy}"\n' if policy else "")
        for name, (device, policy) in CHAINS.items()
    }
    rows = [
        {"request_id": f"q{n}", "arrives_s": n / 100, "prompt_tokens": 9 + n, "output_tokens": 40} for n in range(30)
    ]
    write_lines(tmp_path / "all.jsonl", *rows)
    (tmp_path / "all.toml").write_text("".join(tables.values()))
    found = simulate(tmp_path / "all.jsonl", "plain", cluster=tmp_path / "all.toml").log
    assert found.meta.about.policy == "draft:4/target on short; draft:3/mid:6/target on long; plain on plain"
    for member, drafts in (("draft", [True, True, False]), ("mid", [False, True, False])):
        level = found.meta.members.index(member)
        assert [replica.members[level].forwards > 0 for replica in found.meta.replicas] == drafts
    for place, name in enumerate(CHAINS):
        write_lines(tmp_path / "own.jsonl", *rows[place::3])
        (tmp_path / "own.toml").write_text(tables[name])
        asked = None if CHAINS[name][1] else "plain"
        own = simulate(tmp_path / "own.jsonl", asked, cluster=tmp_path / "own.toml").log
        for column in ("request_id", "first_token_at_ps", "ended_at_ps"):
            assert own.requests[column].tolist() == found.requests[column][place::3].tolist()
        assert own.meta.replicas[0].members == found.meta.replicas[place].members


APART = """
[[replicas]]
name = "reads"
role = "prefill"
device = "h100"

[[replicas]]
name = "writes"
role = "decode"
count = 2
device = "rtx4090"

[transfer]
bytes_per_s = 25e9
latency_s = 2e-5
"""


def test_a_policy_of_decoders_is_that_of_the_run(tmp_path):
    """Replicas that prefill ask no policy, so the run needs none where all others have their own."""
    own = APART.replace('role = "decode"\n', 'role = "decode"\npolicy = "draft:4/target"\n')
    for name, text in (("apart", APART), ("own", own)):
        (tmp_path / f"{name}.toml").write_text(text)
    told = simulate(LOAD, "draft:4/target", cluster=tmp_path / "apart.toml").log
    found = simulate(LOAD, cluster=tmp_path / "own.toml").log
    assert found.meta.about.policy == told.meta.about.policy == "draft:4/target"
    assert found.requests["ended_at_ps"].tolist() == told.requests["ended_at_ps"].tolist()
    (tmp_path / "asked.toml").write_text(own.replace('role = "prefill"\n', 'role = "prefill"\npolicy = "plain"\n'))
    rule = r"replicas\[0\]\.policy must be left out on replicas of role prefill, which ask none, got 'plain'"
    with pytest.raises(ValueError, match=rule):
        simulate(LOAD, cluster=tmp_path / "asked.toml")


KV_BYTES = {"draft": 512, "target": 22_528}


def test_blocks_go_to_the_host_and_come_back(tmp_path):
    """Five prompts of four units, again and again, where memory holds two."""
    rows = [{"workload": "again", "unit_tokens": 32}]
    for number in range(20):
        blocks = [number % 5 * 4 + place for place in range(4)]
        rows.append({"arrives_s": number / 10, "prompt_tokens": 100, "output_tokens": 8, "blocks": blocks})
    write_lines(tmp_path / "again.jsonl", *rows)
    (tmp_path / "host.toml").write_text(
        '[[replicas]]\ndevice = "h100"\nkv_blocks = 16\noffload = { host_bytes = 1e9, bytes_per_s = 1e9 }\n'
    )
    found = simulate(tmp_path / "again.jsonl", "draft:4/target", cluster=tmp_path / "host.toml", out=tmp_path / "run")
    assert closes(found.log) == (20, 0, 0)
    host = paceline.metrics(tmp_path / "run").rows[0].runs[0].metrics.host
    assert {name for name, count in host.loaded.items() if count} == set(KV_BYTES)
    assert host.load_s == pytest.approx(sum(host.loaded[name] * size * 16 / 1e9 for name, size in KV_BYTES.items()))
    assert "blocks to host memory: draft" in repr(found)


def test_a_cluster_file_that_was_changed_makes_another_row(tmp_path):
    path = tmp_path / "same.toml"
    for most in (4, 8):
        path.write_text(f'[[replicas]]\ndevice = "h100"\nmax_num_seqs = {most}\n')
        simulate(LOAD, "plain", cluster=path, out=tmp_path / f"run{most}")
    first, second = paceline.metrics([tmp_path / "run4", tmp_path / "run8"]).rows
    assert first.about.setting != second.about.setting
    assert [row.runs[0].metrics.requests for row in (first, second)] == [60, 60]


def test_an_id_that_is_there_twice_is_refused_when_it_comes_again(tmp_path):
    row = {"request_id": "a", "arrives_s": 0, "prompt_tokens": 5, "output_tokens": 5}
    path = write_lines(tmp_path / "twice.jsonl", row, row)
    with pytest.raises(BrokenWorkloadError, match=r"line 2: request_id: must be .*twice\.jsonl: line 1, got 'a'"):
        simulate(path, "plain", cluster="h100", out=tmp_path / "run")
    assert read_serving(tmp_path / "run").requests["request_id"].tolist() == ["a"]


@pytest.mark.slow
@pytest.mark.skipif(not data_files("azure_llm_2023", "*conv*"), reason="the shared data is not there")
def test_real_arrivals():
    (path,) = data_files("azure_llm_2023", "*conv*")
    found = simulate(path, "draft:3/mid:6/target", cluster="h100", limit=500)
    assert sum(closes(found.log)) == 500
    assert found.rows[0].runs[0].metrics.finished == 500


CLASSES = [
    {"request_id": str(n), "arrives_s": n / 400, "prompt_tokens": 20, "output_tokens": 8, "slo": name}
    for n, name in enumerate(("chat", "batch", "", "chat") * 5)
]


class Listens(Policy):
    """Notes what it sees of classes and deadlines."""

    seen = set()  # noqa: RUF012 - of all that are built

    def __init__(self, pool):
        self.target = pool.target

    def decide(self, seen):
        self.seen.add((seen.slo, seen.deadline_s is not None))
        return paceline.policies.Verify(self.target)


def test_classes_have_promises_and_deadlines_of_their_own(tmp_path):
    load = write_lines(tmp_path / "load.jsonl", *CLASSES)
    slo = {"chat": {"ttft": 0.5, "tpot": 1e-9}, "batch": {"e2e": 60.0}, "ttft": 1, "tpot": 1}
    Listens.seen.clear()
    found = simulate(load, Listens, cluster="h100", slo=slo)
    assert Listens.seen == {("chat", True), ("batch", False), ("", True)}
    (run,) = found.to_json()["rows"][0]["runs"]
    shares = {name: one["slo_share"] for name, one in run["classes"].items()}
    assert shares == {"chat": 0.0, "batch": 1.0, "": 1.0}
    assert (run["slo_met"], run["slo_share"]) == (10, 0.5)
    assert found.to_json()["slo_by_class"] == {"chat": {"ttft": 0.5, "tpot": 1e-9}, "batch": {"e2e": 60.0}}
    assert "classes of requests" in repr(found)
    with pytest.raises(ArgumentError, match=r"`slo` must name a class of the requests \(batch, chat\), got 'chta'"):
        simulate(load, "plain", cluster="h100", slo={"chta": {"ttft": 1.0}})
    with pytest.raises(ArgumentError, match="got 'chta'"):
        paceline.metrics(found.log, slo={"chta": {"ttft": 1.0}})


def test_a_class_of_which_no_request_came_before_the_horizon_may_have_a_promise(tmp_path):
    late = {"arrives_s": 9.0, "prompt_tokens": 10, "output_tokens": 4, "slo": "late"}
    load = write_lines(tmp_path / "load.jsonl", *CLASSES, late)
    slo = {"late": {"ttft": 1.0}}
    found = simulate(load, "plain", cluster="h100", slo=slo, horizon_s=5.0, out=tmp_path / "run")
    assert (
        paceline.metrics(tmp_path / "run", slo=slo).to_json()["slo_by_class"] == found.to_json()["slo_by_class"] == slo
    )
    with pytest.raises(ArgumentError, match=r"a class of the requests \(batch, chat, late\), got 'chta'"):
        paceline.metrics(tmp_path / "run", slo={"chta": {"ttft": 1.0}})
    load.write_text(load.read_text() + "{}\n")  # a row that the run does not come to
    assert simulate(load, "plain", cluster="h100", horizon_s=5.0).log.meta.about.classes == ("batch", "chat", "late")


def test_seconds_that_a_cost_does_not_know_are_refused_with_what_can_be_done_under_load():
    told = (
        "cost cpu: target was measured for 1 to 2048 new tokens a forward, asked for 3000; lower max_num_seqs or "
        "token_budget of the cluster, use a smaller window or another cost, or give `cost` with `extrapolate`"
    )
    load = "poisson:rate=4,requests=2,prompt=3000,output=2"
    with pytest.raises(ArgumentError) as raised:
        simulate(load, "plain", cluster="h100", cost="cpu")
    assert str(raised.value) == told
    assert simulate(load, "plain", cluster="h100", cost="cpu", extrapolate=True).log.finished.all()


@pytest.mark.parametrize(
    ("row", "error", "told", "policy"),
    [
        ({"arrives_s": 1.0, "prompt_tokens": 0}, TraceFormatError, "prompt_tokens", "plain"),
        ({"arrives_s": 0.001, "prompt_tokens": 9}, TraceFormatError, "must not go back in time", "draft:4/target"),
        (
            {"arrives_s": 0.05, "prompt_tokens": 9, "request_id": "3"},
            TraceFormatError,
            "line 21: request_id: must be u",
            "adaptive",
        ),
        ({"arrives_s": 1.0, "prompt_tokens": 9, "tag": "no"}, ArgumentError, "has the tag 'no'", "draft:4/target"),
        ({"arrives_s": 1.0, "prompt_tokens": 9, "tag": "no"}, ArgumentError, "has the tag 'no'", "plain"),
    ],
)
def test_what_came_before_a_row_that_is_wrong_is_kept(tmp_path, row, error, told, policy):
    """The same as if the workload were stopped at that instant, whichever path works the steps out."""
    load = write_lines(tmp_path / "load.jsonl", *CLASSES, {"request_id": "late", "output_tokens": 8, **row})
    with pytest.raises(BrokenWorkloadError, match=told) as raised:
        simulate(load, policy, cluster="h100", out=tmp_path / "run")
    broken = raised.value
    assert isinstance(broken.error, error)
    assert broken.log.meta.stopped == "error in the workload"
    written = read_serving(tmp_path / "run")
    assert written.requests["ended_at_ps"].tolist() == broken.log.requests["ended_at_ps"].tolist()
    assert str(broken) in written.meta.about.notes
    assert "partial, stopped at" in repr(broken.run)
    finished, rejected, unfinished = closes(broken.log)
    assert (finished + rejected + unfinished, finished > 0) == (20, True)
    write_lines(load, *CLASSES)
    whole = simulate(load, policy, cluster="h100").log
    ended = broken.log.requests["ended_at_ps"]
    # The last that came is the latest instant that is simulated.
    done = (whole.requests["ended_at_ps"] <= broken.log.meta.ended_at_ps).tolist()
    assert [at if early else -1 for at, early in zip(whole.requests["ended_at_ps"].tolist(), done, strict=True)] == (
        ended.tolist()
    )


def test_a_first_row_that_is_wrong_is_refused(tmp_path):
    load = write_lines(tmp_path / "load.jsonl", {"arrives_s": 0, "prompt_tokens": 0, "output_tokens": 1})
    with pytest.raises(TraceFormatError, match="prompt_tokens"):
        simulate(load, "plain", cluster="h100", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_seconds_of_one_device_beside_the_memory_of_another_are_refused(tmp_path):
    asked = {"workload": "poisson:rate=2,requests=3", "policy": "plain", "cluster": "h100"}
    assert simulate(**asked, cost="h100").log.meta.about.cluster == "h100"
    with pytest.raises(ValueError, match=r"`cost` must be left out, or the device of `cluster`, h100: .* got h200"):
        simulate(**asked, cost="h200")
    with pytest.raises(ValueError, match=r"`on` must be left out, or the device of `cluster`, h100: .* got h200"):
        simulate(**asked, cost="cpu", on="h200", measured_on="h100", extrapolate=True)
    asked["cluster"] = tmp_path / "two.toml"
    asked["cluster"].write_text('[[replicas]]\ndevice = "h100"\ntensor_parallel = 2\n')
    rule = r"`tensor_parallel` must be that of every replica of two \(2\), or `cost` be left out: .* got 1"
    with pytest.raises(ValueError, match=rule):
        simulate(**asked, cost="h100")
    with pytest.raises(ValueError, match=rule):
        simulate(**asked, cost="cpu", on="h100", measured_on="a100-80gb", extrapolate=True)
    assert simulate(**asked, cost="h100", tensor_parallel=2).log.meta.about.cluster == "two"
    kernels = f"kernels:{kernel_folders.folder(tmp_path / 'h100')}"
    for cluster in ("h100", "h100-sxm"):
        simulate(**asked | {"cluster": cluster}, cost=kernels, models=["target=llama-3.1-8b"])
    with pytest.raises(ValueError, match=r"`cost` must be left out, or the device of `cluster`, h200: "):
        simulate(**asked | {"cluster": "h200"}, cost=kernels, models=["target=llama-3.1-8b"])


def test_devices_of_the_sheet_are_split_over_as_in_a_file(tmp_path):
    shapes = ["target=llama-3.1-8b", "slim=llama-3.1-8b", "mid=llama-3.2-3b", "draft=llama-3.2-1b"]
    asked = {"workload": "poisson:rate=2,requests=3", "policy": "draft:2/target", "models": shapes}
    path = tmp_path / "two.toml"
    path.write_text('[[replicas]]\nname = "h100"\ndevice = "h100"\ntensor_parallel = 2\n')
    one, two, file, priced = (
        simulate(**asked, **more).log
        for more in (
            {"cluster": "h100"},
            {"cluster": "h100", "tensor_parallel": 2},
            {"cluster": path},
            {"cluster": "h100", "cost": "h100", "tensor_parallel": 2},
        )
    )
    ends = [log.requests["ended_at_ps"].tolist() for log in (two, file, priced, one)]
    assert ends[0] == ends[1] == ends[2] != ends[3]
    blocks = [[member.num_blocks for member in log.meta.replicas[0].members] for log in (two, file, priced, one)]
    assert blocks[0] == blocks[1] == blocks[2] != blocks[3]
    with pytest.raises(ValueError, match="`tensor_parallel` goes with `cost`: without it a cluster has seconds of its"):
        simulate(**asked, cluster=path, tensor_parallel=2)
    with pytest.raises(ValueError, match=r"`tensor_parallel` must be in \[1, 1024\], got 4096"):
        simulate(**asked, cluster="h100", tensor_parallel=4096)


POISSON = "poisson:requests=40"
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


def test_the_best_policy_changes_with_the_rate(costs, tmp_path):
    found = compare_under_load(
        None, ["plain", "draft:4/target"], workload=POISSON, cluster="h100", rates=[3000, 2], cost=costs, seeds=3,
        log=tmp_path / "log",
    )  # fmt: skip
    assert [(one.rate, len(one.rows)) for one in found.rates] == [(2, 2), (3000, 2)]
    assert [best.policy for best in found.best] == ["draft:4/target", "plain"]
    said = "between 2 arrivals/s and 3000 arrivals/s the best policy changes from draft:4/target to plain"
    assert said in repr(found).replace("\n", " ")
    for row in found.to_json()["rows"]:
        assert [run["seed"] for run in row["runs"]] == [0, 1, 2]
        assert all(run["finished"] + run["rejected"] + run["unfinished"] == 40 for run in row["runs"])
    assert len(found.to_dicts()) == 12
    logs = {path.name: read_serving(path) for path in (tmp_path / "log").iterdir()}
    assert len(logs) == 12
    plain, chain = (logs[f"{name}-2-seed1"].requests for name in ("plain", "draft_4_target"))
    assert plain["arrived_at_ps"].tolist() == chain["arrived_at_ps"].tolist()
    assert plain["output_tokens"].tolist() == chain["output_tokens"].tolist()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rates": [1, 0]}, "`rates` must be in"),
        ({"rates": []}, "`rates` must hold at least one"),
        ({"rates": [4, 4]}, "`rates` must differ, got 4 twice"),
        ({"start": "draft"}, "`start` must be prefill under a workload"),
        ({"policies": ["plain", "oracle-chain"]}, "must not see ahead"),
        ({"seeds": 0}, "`seeds` must be in"),
        ({"batch": 4}, "no keyword `batch`"),
        ({"rates": 5}, "`rates` must be .*, got 5$"),
        ({"recording": []}, r"^`recording` must be a path or an opened recording, got \[\]$"),
        ({"cluster": None}, "`cluster` must be .*, got None$"),
        ({"log": 5}, "`log` must be .*, got 5$"),
    ],
)
def test_what_cannot_be_compared_under_load(asked, said):
    given = {"policies": "plain", "workload": POISSON, "cluster": "h100", "rates": [4]} | asked
    with pytest.raises(ArgumentError, match=said):
        paceline.compare_under_load(**given)


@pytest.mark.parametrize("policies", [None, "plain"])
def test_a_cluster_that_leaves_no_policy_open_has_nothing_to_compare(policies, tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('[[replicas]]\ndevice = "h100"\npolicy = "plain"\n')
    with pytest.raises(ArgumentError, match="`cluster` must leave the policy of some replica open"):
        compare_under_load(None, policies, workload=POISSON, cluster=path, rates=[4])


REQUESTS = (
    {"request_id": "a", "arrives_s": 0, "prompt_tokens": 6, "output_tokens": 9, "tag": "math"},
    {"request_id": "c", "arrives_s": 0, "prompt_tokens": 5, "output_tokens": 3, "tag": "code"},
    {"request_id": "b", "arrives_s": 0, "prompt_tokens": 20, "output_tokens": 1, "tag": "code"},
)
ONE_REPLICA = """
[[replicas]]
device = "h100"
cost = "costs.json"
token_budget = 16
"""
US = 10**6  # picoseconds of a microsecond


def cost_line(intercept_us, new_us, held_us=0):
    return {"intercept_s": intercept_us / 1e6, "per_new_token_s": new_us / 1e6, "per_kv_token_s": held_us / 1e6}


@pytest.fixture
def step_by_hand(tmp_path):
    """The step that docs/serving.md works out: a chunk of a prefill, a decode and a verification in one forward."""
    lines = {"draft": cost_line(1000, 100), "target": cost_line(10_000, 1000, 100)}
    costs = lines | {name: cost_line(2000, 200) for name in ("mid", "slim")}
    (tmp_path / "costs.json").write_text(json.dumps(costs))
    (tmp_path / "step.toml").write_text(ONE_REPLICA)
    write_lines(tmp_path / "step.jsonl", *REQUESTS)
    return paceline.simulate(
        tmp_path / "step.jsonl", "per-tag,default=plain,math=draft:2/target", cluster=tmp_path / "step.toml"
    )


def test_every_time_is_as_by_hand(step_by_hand):
    requests = step_by_hand.log.requests
    first = dict(zip(requests["request_id"], requests["first_token_at_ps"].tolist(), strict=True))
    ended = dict(zip(requests["request_id"], requests["ended_at_ps"].tolist(), strict=True))
    step1 = 10_000 + (6 + 5 + 5) * 1000  # a and c whole, five tokens of b
    draft1 = (1000 + 7 * 100) + (1000 + 100)  # a's prompt and first token, then the first drafted one
    step2 = 10_000 + (3 + 1 + 12) * 1000 + (6 + 5 + 5) * 100  # a verifies, c decodes, b reads on
    draft2 = 2 * (1000 + 100)  # one of two was kept: the cache lacks the own token only
    step3 = 10_000 + (3 + 1 + 3) * 1000 + (8 + 6 + 17) * 100
    draft3 = (1000 + 2 * 100) + (1000 + 100)  # both were kept: it lacks the second one too
    step4 = 10_000 + 3 * 1000 + 11 * 100
    at3 = step1 + draft1 + step2 + draft2 + step3
    assert first == {"a": step1 * US, "c": step1 * US, "b": at3 * US}
    assert ended == {"a": (at3 + draft3 + step4) * US, "c": at3 * US, "b": at3 * US}
    assert (at3, at3 + draft3 + step4) == (78_700, 95_100)  # as the page says


@pytest.mark.parametrize("options", [{}, {"active_sessions": 2}, {"events": True}])
@pytest.mark.parametrize(
    "load",
    [
        "persistent-agent:turns=3,prompt=60,output=9,sessions=5,wait=2",
        "react:sessions=4,steps=2,prompt=90,output=7,observation=30",
    ],
)
def test_a_session_takes_from_its_first_arrival_to_its_last_end(load, options):
    run = simulate(load, "draft:2/target", cluster="h100", **options)
    (one,), requests = run.rows[0].runs, run.log.requests
    by_session = {}
    for name, arrived, ended in zip(
        *(requests[key].tolist() for key in ("request_id", "arrived_at_ps", "ended_at_ps")), strict=True
    ):
        began, last = by_session.get(name.partition("/")[0], (arrived, ended))
        by_session[name.partition("/")[0]] = (min(began, arrived), max(last, ended))
    assert len(by_session) == int(load.partition("sessions=")[2].partition(",")[0])
    took = [last - began for began, last in sorted(by_session.values())]
    assert list(one.meta.sessions_ps) == took
    assert one.flat["session_s_mean"] == pytest.approx(sum(took) / len(took) / 1e12)
    assert any("session" in row for grid in run.tables() for row in grid.rows)


def test_lone_requests_and_sessions_that_have_not_ended_have_no_time():
    run = simulate("closed:concurrency=3,requests=9,prompt=20,output=5", "plain", cluster="h100").rows[0].runs[0]
    assert run.meta.sessions_ps == ()
    assert "session_s" not in run.metrics.to_json()
    load = "persistent-agent:turns=2,prompt=20,output=5,sessions=2,wait=2"
    cut = simulate(load, "plain", cluster="h100", horizon_s=1.0).rows[0].runs[0]
    assert (cut.meta.stopped, cut.meta.sessions_ps) == ("horizon", ())


def test_a_made_recording_is_called_so(tmp_path):
    write_trace(make_trace(SyntheticSpec(requests=2, tokens=8)), tmp_path / "made.trace")
    found = simulate("poisson:rate=4,requests=3", "plain", tmp_path / "made.trace", cluster="h100")
    assert found.rows[0].about.notes[0] == "SYNTHETIC trace synthetic"
    assert "SYNTHETIC trace synthetic" in str(found)
    recorded = simulate("poisson:rate=4,requests=3", "plain", cluster="h100")
    assert not any("trace pico" in note for note in recorded.rows[0].about.notes)
