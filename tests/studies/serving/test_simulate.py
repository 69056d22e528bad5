"""`simulate`: what goes in comes out, chance is the same for all, and an interrupt leaves a sound partial run."""

import json
import os
import re
import signal

import paceline
import pytest
from paceline.base.errors import ArgumentError
from paceline.runs.serving import read_serving
from paceline.studies.serving import BrokenWorkloadError, simulate
from paceline.traces.errors import TraceFormatError

from ...data_folder import data_files

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


@pytest.mark.parametrize("policy", ["plain", "draft:4/target", "draft:3/mid:6/target", "adaptive", "ngram"])
def test_accounting_closes(policy, mine):
    found = simulate(LOAD, policy, cluster=mine)
    finished, rejected, unfinished = closes(found.log)
    assert (finished + rejected, unfinished, found.log.meta.stopped) == (60, 0, "")
    metrics = found.rows[0].runs[0].metrics
    assert (metrics.requests, metrics.finished, metrics.rejected) == (60, finished, rejected)
    assert f"{finished}" in repr(found)
    assert set(found.log.requests["replica"].tolist()) == {0, 1, 2}


def test_policies_meet_the_same_requests_and_the_same_luck():
    runs = [simulate(LOAD, policy, cluster="h100").log.requests for policy in ("draft:4/target", "mid:2/target")]
    for column in ("request_id", "arrived_at_ps", "prompt_tokens", "output_tokens", "tag"):
        assert runs[0][column].tolist() == runs[1][column].tolist()
    other = simulate(LOAD, "plain", cluster="h100", seed=1).log.requests
    assert other["arrived_at_ps"].tolist() != runs[0]["arrived_at_ps"].tolist()


def test_a_run_is_what_its_folder_says(tmp_path, mine):
    found = paceline.simulate(LOAD, "draft:4/target", cluster=mine, out=tmp_path / "run", slo={"ttft": 1, "tpot": 0.1})
    again = paceline.metrics(tmp_path / "run", slo={"ttft": 1, "tpot": 0.1})
    assert again.to_json() == found.to_json()
    about = read_serving(tmp_path / "run").meta.about
    assert about.policy == "draft:4/target on h100; draft:3/mid:6/target on own"
    replicas = about.setting.pop("replicas")
    asked = {"trace": "pico", "router": "least-loaded", "stale_s": 0.001, "horizon_s": 50}
    assert about.setting == asked | {"deadlines": {"": [1, 0.1]}}
    assert {name: told["count"] for name, told in replicas.items()} == {"h100": 2, "own": 1}
    with pytest.raises(ValueError, match="exists already"):
        found.write(tmp_path / "run")


def test_an_overloaded_run_ends_by_its_horizon():
    found = simulate("poisson:rate=1e6,requests=400", "plain", cluster="h100", horizon_s=0.012)
    finished, rejected, unfinished = closes(found.log)
    assert found.log.meta.stopped == "horizon"
    assert min(finished, unfinished) > 0
    assert (rejected, found.log.meta.ended_at_ps) == (0, 12 * 10**9)
    assert "stopped at 0.012 s (horizon)" in repr(found)


def test_seconds_asked_for_are_those_of_every_replica(mine):
    def seconds(**options):
        return simulate(LOAD, "plain", cluster=mine, **options).rows[0].runs[0].metrics.members[-1]

    own, slower, timed = seconds(), seconds(scale={"target": 2.0}), seconds(cost="cpu")
    assert slower.busy_s / slower.forwards > 1.5 * own.busy_s / own.forwards
    assert timed.busy_s > slower.busy_s


def test_what_a_policy_decides_takes_time():
    quick, slow = (
        simulate("poisson:rate=1,requests=5", "plain", cluster="h100", decide_s=seconds).rows[0].mean("tpot_s_mean")
        for seconds in (0.0, 0.01)
    )
    assert slow == pytest.approx(quick + 0.01)


class Interrupting:
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

    def learn(self, outcome):
        pass


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
        ({"tag": "no such"}, "no request of the recording has the tag 'no such'"),
        ({"policy": None}, "`policy` must be given: replica h100 of h100 has none"),
        ({"policy": "oracle-window"}, "must not see ahead under load"),
        ({"horizon_s": 0.0}, "`horizon_s` must be in"),
        ({"slo": {"ttl": 1.0}}, "`slo` must name one of"),
        ({"slo": {"chat": {"ttl": 1.0}}}, "`slo` must name one of ttft, tpot, e2e, queue, got 'chat:ttl'"),
        ({"slo": {"chat": {"ttft": 0}}}, "`slo` chat:ttft must be > 0 and finite, got 0"),
        ({"slo": {"chat": {"ttft": 1.0}}}, "`slo` must name a class of the requests (none), got 'chat'"),
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
    with pytest.raises(
        ArgumentError, match="`policy` must be left out: every replica of own has its own, got adaptive"
    ):
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
    (tmp_path / "all.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "all.toml").write_text("".join(tables.values()))
    found = simulate(tmp_path / "all.jsonl", "plain", cluster=tmp_path / "all.toml").log
    assert found.meta.about.policy == "draft:4/target on short; draft:3/mid:6/target on long; plain on plain"
    drafted = {member: [replica.members[level].forwards for replica in found.meta.replicas]
               for level, member in enumerate(found.meta.members)}  # fmt: skip
    assert [bool(count) for count in drafted["draft"]] == [True, True, False]
    assert [bool(count) for count in drafted["mid"]] == [False, True, False]
    for place, name in enumerate(CHAINS):
        (tmp_path / "own.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows[place::3]))
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


def test_prefill_and_decode_apart(tmp_path):
    (tmp_path / "apart.toml").write_text(APART)
    found = simulate(LOAD, "draft:4/target", cluster=tmp_path / "apart.toml", out=tmp_path / "run")
    assert closes(found.log) == (60, 0, 0)
    transfers = found.rows[0].runs[0].metrics.transfers
    sent = found.log.requests["prompt_tokens"][found.log.requests["output_tokens"] > 1]
    assert (transfers.handed_over, transfers.bytes) == (len(sent), 22_528 * sent.sum())
    forwards = [[member.forwards for member in replica.members] for replica in found.log.meta.replicas]
    names = found.log.meta.members
    assert forwards[0][names.index("draft")] == 0
    assert all(replica[names.index("draft")] > 0 for replica in forwards[1:])
    assert f"{len(sent)} requests handed over" in " ".join(repr(found).split())
    again = paceline.metrics(tmp_path / "run")
    assert again.to_json()["rows"][0]["runs"][0]["transfers"]["handed_over"] == len(sent)
    told = again.rows[0].about.setting
    assert told["transfer"] == {"bytes_per_s": 25e9, "latency_s": 2e-5, "token_bytes": 22_528}
    assert {name: replicas["role"] for name, replicas in told["replicas"].items()} == {
        "reads": "prefill",
        "writes": "decode",
    }


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
    (tmp_path / "again.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
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


def test_requests_that_are_too_long_are_counted_together(tmp_path):
    (tmp_path / "small.toml").write_text('[[replicas]]\ndevice = "h100"\nkv_blocks = 8\n')
    rows = [{"arrives_s": 0, "prompt_tokens": prompt, "output_tokens": 8} for prompt in (120, 121, 500)]
    (tmp_path / "long.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    metrics = simulate(tmp_path / "long.jsonl", "plain", cluster=tmp_path / "small.toml").rows[0].runs[0].metrics
    assert (metrics.finished, metrics.rejected) == (1, 2)
    assert metrics.rejected_for == {"longer than the 128 tokens that KV memory of draft holds": 2}


def test_an_id_that_is_there_twice_is_refused_when_it_comes_again(tmp_path):
    path = tmp_path / "twice.jsonl"
    row = {"request_id": "a", "arrives_s": 0, "prompt_tokens": 5, "output_tokens": 5}
    path.write_text(f"{json.dumps(row)}\n{json.dumps(row)}\n")
    with pytest.raises(BrokenWorkloadError, match=r"line 2: request_id: must be .*twice\.jsonl: line 1, got 'a'"):
        simulate(path, "plain", cluster="h100", out=tmp_path / "run")
    assert read_serving(tmp_path / "run").requests["request_id"].tolist() == ["a"]


def test_a_row_that_breaks_its_format_is_told_by_its_line(tmp_path):
    path = tmp_path / "back.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,3\n0.25,20,5\n")
    with pytest.raises(ValueError, match=r"back\.csv: line 3: arrival: must not go back in time"):
        simulate(path, "plain", cluster="h100")


@pytest.mark.skipif(not data_files("azure_llm_2023", "*conv*"), reason="the shared data is not there")
@pytest.mark.parametrize("policy", ["draft:4/target", "draft:3/mid:6/target"])
def test_real_arrivals(policy):
    (path,) = data_files("azure_llm_2023", "*conv*")
    found = simulate(path, policy, cluster="h100", limit=500)
    assert sum(closes(found.log)) == 500
    assert found.rows[0].runs[0].metrics.finished == 500


CLASSES = "".join(
    json.dumps({"request_id": str(n), "arrives_s": n / 400, "prompt_tokens": 20, "output_tokens": 8, "slo": name})
    + "\n"
    for n, name in enumerate(("chat", "batch", "", "chat") * 5)
)


class Listens:
    """Notes what it sees of classes and deadlines."""

    seen = set()  # noqa: RUF012 - of all that are built

    def __init__(self, pool):
        self.target = pool.target

    def decide(self, seen):
        self.seen.add((seen.slo, seen.deadline_s is not None))
        return paceline.policies.Verify(self.target)

    def learn(self, outcome):
        pass


def test_classes_have_promises_and_deadlines_of_their_own(tmp_path):
    load = tmp_path / "load.jsonl"
    load.write_text(CLASSES, encoding="utf-8")
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
    ("row", "error", "told"),
    [
        ({"arrives_s": 1.0, "prompt_tokens": 0, "output_tokens": 8}, TraceFormatError, "prompt_tokens"),
        ({"arrives_s": 0.001, "prompt_tokens": 9, "output_tokens": 8}, TraceFormatError, "must not go back in time"),
        (
            {"arrives_s": 0.05, "prompt_tokens": 9, "output_tokens": 8, "request_id": "3"},
            TraceFormatError,
            "line 21: request_id: must be unique",
        ),
        ({"arrives_s": 1.0, "prompt_tokens": 9, "output_tokens": 8, "tag": "no"}, ArgumentError, "has the tag 'no'"),
    ],
)
@pytest.mark.parametrize("policy", ["plain", "draft:4/target", "adaptive"])
def test_what_came_before_a_row_that_is_wrong_is_kept(tmp_path, row, error, told, policy):
    """The same as if the workload were stopped at that instant, whichever path works the steps out."""
    load = tmp_path / "load.jsonl"
    load.write_text(CLASSES + json.dumps({"request_id": "late", **row}) + "\n", encoding="utf-8")
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
    load.write_text(CLASSES, encoding="utf-8")
    whole = simulate(load, policy, cluster="h100").log
    ended = broken.log.requests["ended_at_ps"]
    # The last that came is the latest instant that is simulated.
    done = (whole.requests["ended_at_ps"] <= broken.log.meta.ended_at_ps).tolist()
    assert [at if early else -1 for at, early in zip(whole.requests["ended_at_ps"].tolist(), done, strict=True)] == (
        ended.tolist()
    )


def test_a_first_row_that_is_wrong_is_refused(tmp_path):
    load = tmp_path / "load.jsonl"
    load.write_text(json.dumps({"arrives_s": 0, "prompt_tokens": 0, "output_tokens": 1}) + "\n", encoding="utf-8")
    with pytest.raises(TraceFormatError, match="prompt_tokens"):
        simulate(load, "plain", cluster="h100", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_seconds_of_one_device_beside_the_memory_of_another_are_refused():
    asked = {"workload": "poisson:rate=2,requests=3", "policy": "plain", "cluster": "h100"}
    assert simulate(**asked, cost="h100").log.meta.about.cluster == "h100"
    with pytest.raises(ValueError, match=r"`cost` must be left out, or the device of `cluster`, h100: .* got h200"):
        simulate(**asked, cost="h200")
