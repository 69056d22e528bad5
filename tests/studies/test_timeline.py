"""Timelines: a file of the trace-event format whose slices nest in every lane, and which says what the runs say."""

import gzip
import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import paceline
import pytest
from paceline.base.errors import ArgumentError
from paceline.decoding.results import DRAFT, VERIFY
from paceline.runs.observed import write_observed
from paceline.runs.operations import READ, KeptOperations
from paceline.runs.serving import read_serving, write_serving
from paceline.traces.errors import TraceFormatError

from ..cli.command_line import done, refused
from ..runs.making import OBSERVED, observed_run

COSTS = {
    name: {"intercept_s": at, "per_new_token_s": at / 300, "per_kv_token_s": 1e-8}
    for name, at in (("draft", 0.0007), ("mid", 0.0018), ("slim", 0.0024), ("target", 0.0048))
}
CLUSTERS = {
    "one": '[[replicas]]\ndevice = "h100"\ncost = "costs.json"\n',
    "short": '[[replicas]]\ndevice = "h100"\ncost = "costs.json"\nkv_blocks = 40\nprefix_cache = false\n',
    "two": '[[replicas]]\ndevice = "h100"\ncost = "costs.json"\ncount = 2\n',
    "apart": (
        '[[replicas]]\nname = "p"\ndevice = "h100"\ncost = "costs.json"\nrole = "prefill"\n'
        '[[replicas]]\nname = "d"\ndevice = "h100"\ncost = "costs.json"\nrole = "decode"\n'
        "[transfer]\nbytes_per_s = 1e11\n"
    ),
}
POLICIES = [
    "draft:4/target",
    "draft:3/mid:6/target",
    "plain",
    "specrouter",
    "per-tag,default=plain,math=draft:2/target",
]
WORKLOAD = "poisson:rate=60,requests=30"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("costs.json").write_text(json.dumps(COSTS))
    for name, text in CLUSTERS.items():
        Path(f"{name}.toml").write_text(text)
    return tmp_path


def served(cluster, policy, out, *, events=True, **options):
    return paceline.simulate(WORKLOAD, policy, cluster=f"{cluster}.toml", out=out, events=events, **options).log


def events_of(path):
    data = Path(path).read_bytes()
    found = json.loads(gzip.decompress(data) if path.endswith(".gz") else data)
    assert set(found) == {"displayTimeUnit", "traceEvents"}
    return found["traceEvents"]


def ns(microseconds):
    return round(microseconds * 1000)


def checked(path):
    """The events of a file, by its format's rules; slices of a lane that begin together stand outermost first."""
    events = events_of(path)
    lanes = defaultdict(list)
    names = {}
    for event in events:
        assert event.keys() >= {"ph", "pid", "name"}
        assert isinstance(event["pid"], int)
        if event["ph"] == "M":
            if event["name"] == "process_name":
                assert event["pid"] not in names
                names[event["pid"]] = event["args"]["name"]
            continue
        assert event["ph"] in "XC"
        assert event["ts"] >= 0
        if event["ph"] == "C":
            assert len(event["args"]) == 1
            assert all(isinstance(value, int | float) for value in event["args"].values())
            continue
        assert event["dur"] >= 0
        begin = ns(event["ts"])
        lanes[event["pid"], event["tid"]].append((begin, begin + ns(event["dur"]), event["name"]))
    for slices in lanes.values():
        open_ends = []
        for begin, end, name in sorted(slices, key=lambda one: one[0]):
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], name
            open_ends.append(end)
    assert {event["pid"] for event in events if event["ph"] in "XC"} <= names.keys()
    return events, names


def slices(events, name):
    return [event for event in events if event["ph"] == "X" and event["name"] == name]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.one_in(4)
def test_events_change_no_figure_and_add_up_to_them(folder, cluster, policy):
    if cluster == "apart" and policy == "specrouter":
        pytest.skip("a policy of every replica")
    kept = served(cluster, policy, "kept")
    plain = served(cluster, policy, "plain", events=False)
    for name, values in plain.requests.items():
        assert np.array_equal(kept.requests[name], values), name
    assert np.array_equal(kept.preemptions["at_ps"], plain.preemptions["at_ps"])
    assert kept.meta.levels == plain.meta.levels
    assert plain.operations is None
    ops, rows = kept.operations.ops, kept.operations.rows
    emitted = np.bincount(rows["request"], weights=rows["emitted"], minlength=len(kept.requests["replica"]))
    assert np.array_equal(emitted, kept.requests["emitted_tokens"])
    level = ops["level"][rows["operation"]]
    for member, sums in enumerate(kept.meta.levels):
        judging = (rows["kind"] == VERIFY) & (level == member)
        assert rows["tokens"][judging].sum() == sums.judged
        assert rows["accepted"][judging].sum() == sums.accepted
        assert judging.sum() == sums.verifications
    for index, replica in enumerate(kept.meta.replicas):
        for member, sums in enumerate(replica.members):
            own = (ops["replica"] == index) & (ops["level"] == member) & (ops["forwards"] > 0)
            assert (ops["end_ps"] - ops["start_ps"])[own].sum() == sums.busy_ps
            assert ops["forwards"][own].sum() == sums.forwards
    # Of one device, no two operations at once.
    for index in range(len(kept.meta.replicas)):
        own = ops["replica"] == index
        assert (ops["start_ps"][own][1:] >= ops["end_ps"][own][:-1]).all()


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_served_run_is_a_sound_file(folder, cluster):
    log = served(cluster, "draft:4/target", "kept")
    found = paceline.timeline("kept", "t.json.gz")
    events, names = checked("t.json.gz")
    assert {row["run"]: row["events"] for row in found.runs} == {"kept": sum(event["ph"] in "XC" for event in events)}
    replicas = [replica.name for replica in log.meta.replicas]
    titles = [f"kept (simulated): {name if len(replicas) > 1 else 'members'}" for name in replicas]
    assert list(names.values()) == [*titles, "kept (simulated): requests"]
    for name, ended, arrived in zip(
        log.requests["request_id"], log.requests["ended_at_ps"], log.requests["arrived_at_ps"], strict=True
    ):
        (one,) = slices(events, name)
        assert (ns(one["ts"]), ns(one["dur"])) == (arrived // 1000, ended // 1000 - arrived // 1000)
        assert one["args"]["outcome"] == "finished"
    rows = log.operations.rows
    assert len(slices(events, "prefill, target")) == (rows["kind"] == READ).sum()
    assert len(slices(events, "draft, draft")) == (rows["kind"] == DRAFT).sum()
    judged = (rows["kind"] == VERIFY) & (rows["tokens"] > 0)
    verified = slices(events, "verify, target")
    assert len(verified) == judged.sum()
    assert sum(one["args"]["accepted"] for one in verified) == rows["accepted"][judged].sum()
    rounds = slices(events, "round")
    assert sum(one["args"]["judged"] for one in rounds) == rows["tokens"][judged].sum()
    assert len(slices(events, "put back")) == len(log.preemptions["request"])
    assert bool(len(log.preemptions["request"])) is (cluster == "short")
    counted = Counter(event["name"] for event in events if event["ph"] == "C")
    assert counted.keys() >= {
        "running requests",
        "waiting requests",
        "KV tokens, target",
        "acceptance, last 20 operations",
        "tokens of texts",
    }
    texts = [event for event in events if event["name"] == "tokens of texts"]
    assert texts[-1]["args"] == {"tokens": 0}  # all have ended


def test_blocks_of_a_group_of_layers_are_not_counted_as_tokens(folder):
    served("one", "plain", "kept", events=False)
    meta = json.loads(Path("kept/meta.json").read_text())
    (replica,) = meta["about"]["setting"]["replicas"].values()
    replica["kv"]["target"]["window"] = {"tokens": 1024, "whole": 1, "near": 5, "most_new": 8192}
    Path("kept/meta.json").write_text(json.dumps(meta))
    paceline.timeline("kept", "t.json")
    assert {event["name"] for event in events_of("t.json") if "KV" in event["name"]} == {"KV blocks, target"}


def test_a_run_without_events_has_requests_and_counters(folder):
    served("one", "draft:4/target", "plain", events=False)
    found = paceline.timeline("plain", "t.json")
    events, _ = checked("t.json")
    assert {event["name"] for event in events if event["ph"] == "X"} >= {"wait", "prefill", "decode"}
    assert found.lines()[0] == "plain kept no operations (simulate --events): requests and counters alone"


def test_a_run_that_is_cut_ends_there(folder):
    log = served("one", "draft:4/target", "kept", horizon_s=0.2)
    assert log.meta.stopped
    paceline.timeline("kept", "t.json")
    events, _ = checked("t.json")
    assert max(ns(one["ts"] + one["dur"]) for one in events if one["ph"] == "X") == 200_000_000
    assert {one["args"]["outcome"] for one in events if one["ph"] == "X" and "outcome" in one.get("args", {})} >= {
        "unfinished"
    }


@pytest.mark.parametrize(
    ("policy", "batch"), [("draft:4/target", 1), ("pearl", 4), ("pipespec", 1), ("early-commit", 4)]
)
def test_a_replay_is_a_sound_file(folder, policy, batch):
    paceline.compare(paceline.open_recording(), [policy], batch=batch, log="logged", seeds=1)
    (run,) = Path("logged").iterdir()
    paceline.timeline(run, "t.json")
    events, names = checked("t.json")
    assert list(names.values()) == [f"{run.name} (simulated): members", f"{run.name} (simulated): requests"]
    # Who works ahead drafts while the target judges, and has no rounds one after the other.
    assert bool(slices(events, "round")) is (policy not in {"pearl", "pipespec"})
    assert slices(events, "verify, target")


def test_both_worlds_stand_side_by_side_in_the_same_words(folder):
    pytest.importorskip("torch")
    prompts = Path(paceline.__file__).parent / "pools" / "pico" / "prompts.jsonl"
    done(
        "run",
        "--prompts",
        prompts,
        "--limit",
        "3",
        "--max-new-tokens",
        "8",
        "--policy",
        "draft:3/target",
        "--out",
        "ran",
    )
    paceline.compare(paceline.open_recording(), ["draft:3/target"], log="logged", seeds=1)
    (replayed,) = Path("logged").iterdir()
    out = done("timeline", "ran", replayed, "--out", "t.json.gz")
    assert "measured" in out
    assert "simulated" in out
    events, names = checked("t.json.gz")
    assert [title.rpartition(": ")[2] for title in names.values()] == ["members", "requests"] * 2
    words = defaultdict(set)
    for event in events:
        if event["ph"] != "M" and "-0" not in event["name"]:
            words[names[event["pid"]].partition(" ")[0]].add(event["name"])
    measured, simulated = words.values()
    assert measured <= simulated | {"wait"}
    assert {"round", "draft", "verify", "prefill", "draft, draft", "verify, target"} <= measured


def test_an_observed_run_is_seen_from_outside(folder):
    times = {"due_at_ps": 1_000_000, "sent_at_ps": 2_000_000, "ended_at_ps": 7_000_000}
    answered = replace(OBSERVED, request_id="a", outputs_at_ps=(5_000_000, 7_000_000), **times)
    lost = replace(answered, request_id="b", outputs_at_ps=(), failed="no answer", ended_at_ps=9_000_000)
    write_observed(observed_run(answered, lost), Path("seen"))
    found = paceline.timeline("seen", "t.json")
    events, names = checked("t.json")
    assert list(names.values()) == ["seen (observed): counters", "seen (observed): requests"]
    spans = {(one["name"], ns(one["ts"]), ns(one["dur"])) for one in events if one["ph"] == "X" and one["tid"] == 1}
    assert spans == {("a", 1000, 6000), ("wait", 1000, 1000), ("prefill", 2000, 3000), ("decode", 5000, 2000)}
    (failed,) = slices(events, "b")
    assert failed["args"]["outcome"] == "no answer"
    (told,) = found.lines()  # nothing is said to be missing
    assert told.endswith(f": {-(-found.num_bytes // 1000):,} kB; open it at https://ui.perfetto.dev")


def test_a_window_keeps_what_is_under_way_in_it(folder):
    served("one", "draft:4/target", "kept")
    paceline.timeline("kept", "all.json")
    (counts,) = paceline.timeline("kept", "some.json", from_s=0.1, until_s=0.2).to_dicts()
    every, some = ([event for event in checked(name)[0] if event["ph"] in "XC"] for name in ("all.json", "some.json"))
    starts: dict[tuple[int, str], list[int]] = {}
    for one in every:
        starts.setdefault((one["pid"], one["name"]), []).append(ns(one["ts"]))

    def until(one):
        """Its end; of a counter's value, when the next one begins."""
        later = (at for at in starts[one["pid"], one["name"]] if at > ns(one["ts"]))
        return ns(one["ts"] + one["dur"]) if one["ph"] == "X" else min(later, default=10**18)

    assert some == [one for one in every if until(one) >= 10**8 and ns(one["ts"]) <= 2 * 10**8]
    before = {one["name"] for one in some if one["ph"] == "C" and ns(one["ts"]) < 10**8}
    assert before >= {"running requests", "waiting requests", "tokens of texts"}  # what they were as it begins
    assert 0 < len(some) < len(every)
    assert counts["events"] == len(some)
    assert counts["operations"] == sum("forwards" in event.get("args", {}) for event in some)
    assert counts["requests"] == sum("prompt_tokens" in event.get("args", {}) for event in some)


def test_the_same_runs_give_the_same_bytes(folder):
    served("one", "draft:4/target", "kept")
    for name in ("a.json.gz", "b.json.gz"):
        paceline.timeline("kept", name)
    assert Path("a.json.gz").read_bytes() == Path("b.json.gz").read_bytes()


def test_odd_names_of_requests_are_texts(folder):
    names = ['a"b', "\\", "</script>", "é€\U0001f600"]
    lines = [json.dumps({"request_id": name, "arrives_s": 0, "prompt_tokens": 5, "output_tokens": 3}) for name in names]
    Path("odd.jsonl").write_text("\n".join(lines))
    paceline.simulate("odd.jsonl", "draft:4/target", cluster="one.toml", out="kept", events=True)
    paceline.timeline("kept", "t.json")
    events, _ = checked("t.json")
    assert {name for name in names if slices(events, name)} == set(names)


REFUSED = [
    (["kept", "--out", "t.txt"], "--out must end in .json or .json.gz, got 't.txt'"),
    (["kept", "kept", "--out", "t.json"], "`runs` must be different folders, got kept 2 times"),
    (["nothing", "--out", "t.json"], "nothing: run: must be the folder of a run, got 'no such folder'"),
    (["costs.json", "--out", "t.json"], "costs.json: run: must be the folder of a run, got 'a file'"),
    (["bare", "--out", "t.json"], "bare: run: must be the folder of a run, got 'a folder without meta.json'"),
    (["kept", "--out", "kept/t.json"], "kept/t.json: place: must not lie inside a recording"),
    (["kept", "--out", "t.json", "--from-seconds", "2", "--until-seconds", "1"], "--until-seconds must be > --from-s"),
    (["kept", "--out", "t.json", "--from-seconds", "-1"], "--from-seconds must be in [0, 1e9], got -1.0"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_is_no_timeline_is_refused_in_a_line(folder, arguments, message):
    served("one", "plain", "kept", limit=2)
    Path("bare").mkdir(exist_ok=True)
    assert refused("timeline", *arguments).startswith(message.replace("`runs`", "RUN"))
    assert not Path("t.json").exists()


def test_events_go_with_a_folder(folder):
    call = ["simulate", "--workload", WORKLOAD, "--cluster", "one.toml", "--policy", "plain", "--events"]
    assert refused(*call) == "--events goes with --out, the folder that keeps them"


SPOILT = [
    ("ops", "level", 9, "operations.parquet: level: must be in [0, 4] (row 0), got 9"),
    ("ops", "kind", 3, "operations.parquet: kind: must be 0 or 1 (row 0), got 3"),
    ("ops", "end_ps", -1, "operations.parquet: end_ps: must not be before start_ps (row 0), got -1"),
    ("rows", "request", 99, "rows.parquet: request: must be in [0, 29] (row 0), got 99"),
    ("rows", "kind", 2, "rows.parquet: kind: must be one of 0, 1, 4 (row 0), got 2"),
    ("rows", "accepted", 10**6, "rows.parquet: accepted: must be in [0, tokens] (row 0), got 1000000"),
]


@pytest.mark.parametrize(("table", "column", "value", "message"), SPOILT)
def test_spoilt_events_are_refused(folder, table, column, value, message):
    log = served("one", "draft:4/target", "kept")
    columns = dict(getattr(log.operations, table))
    columns[column] = columns[column].copy()
    columns[column][0] = value
    spoilt = KeptOperations(**{"ops": log.operations.ops, "rows": log.operations.rows, table: columns})
    write_serving(replace(log, operations=spoilt), Path("spoilt"))
    with pytest.raises(TraceFormatError) as found:
        read_serving(Path("spoilt"))
    assert str(found.value) == f"spoilt/{message}"


def test_a_timeline_of_nothing_is_refused(folder):
    with pytest.raises(ArgumentError, match=r"^`runs` must name at least one folder, got none$"):
        paceline.timeline([], "t.json")
