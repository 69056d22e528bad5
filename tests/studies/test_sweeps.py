"""Sweeps: grids that are refused, cells that are calls, resuming, shards, workers that die, and what is best."""

import json
import pickle
import shutil
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.reports.sweeps import Objective, SettingFigures, best_settings, front
from paceline.runs import workers
from paceline.runs.cells import CellFound, CellStore, key_of
from paceline.studies.compare import compare
from paceline.studies.grids import GridFileError, inputs_of, read_grid
from paceline.studies.serving import simulate
from paceline.studies.setting import kept_recording, kept_tables, open_recording
from paceline.studies.sweeps import best_cells, collect, sweep_grid
from paceline.traces import SyntheticSpec, make_trace, write_trace
from paceline.traces.errors import TraceFormatError

from ..cli.command_line import paceline, refused

GRID = """
policies = ["draft:1..3/target", "adaptive,most=4|8", "draft:*/target"]
windows = [5, 6]
recordings = ["small.trace"]
costs = ["cpu", "a100"]
seeds = [0, 1]
[options]
batch = [1, 2]
lossless = true
"""
SERVED = """
policies = ["plain", "draft:2/target"]
recordings = ["small.trace"]
workloads = ["poisson:requests=12"]
clusters = ["h100"]
rates = [5.0, 50.0]
seeds = [0, 1]
[options]
slo = {ttft = 0.5}
models = [["draft=llama-3.2-1b", "target=llama-3.1-8b"]]
"""
# Where it waits, a kill finds a sweep in its midst: four cells are there, and others not before there is a file `go`.
# Dies and raises where it is told to.
MINE = """
import os, time
from glob import glob
from beside import WINDOW
from paceline.policies import Draft, Verify

class Mine:
    def __init__(
        self, pool, sleep: float = 0.0, dies: bool = False, once: bool = False, fails: bool = False, waits: int = 0
    ):
        self.steps = Draft("draft", WINDOW), Verify(pool.target)
        self.sleep, self.dies, self.fails = sleep, dies or (once and not os.path.exists("died")), fails
        while waits and len(glob("cut/cells/*/*.json")) >= 4 and not os.path.exists("go"):
            time.sleep(0.01)

    def decide(self, seen):
        time.sleep(self.sleep)
        if self.dies:
            open("died", "a").close()
            os.kill(os.getpid(), 9)
        if self.fails:
            raise RuntimeError("it fails")
        return self.steps[bool(seen.num_pending or seen.room == 1)]

    def learn(self, outcome):
        pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_trace(make_trace(SyntheticSpec(name="small", requests=6, tokens=12)), tmp_path / "small.trace")
    (tmp_path / "grid.toml").write_text(GRID)
    (tmp_path / "served.toml").write_text(SERVED)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "beside.py").write_text("WINDOW = 2\n")
    return tmp_path


def files(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def test_a_cell_is_one_call_of_compare(folder):
    done = sweep_grid("grid.toml", out="out", jobs=1)
    assert (done.total, done.kept, done.played, done.failed) == (7 * 2 * 2 * 2, 0, 56, ())
    table = collect("out").to_pylist()
    assert [row["policy"] for row in table[::8]] == [
        "draft:1/target", "draft:2/target", "draft:3/target", "adaptive,most=4", "adaptive,most=8", "draft:5/target",
        "draft:6/target",
    ]  # fmt: skip
    row = next(
        row
        for row in table
        if (row["policy"], row["cost"], row["batch"], row["seed"]) == ("adaptive,most=8", "a100", 2, 1)
    )
    options = {"cost": "a100", "batch": 2, "seed": 1, "seeds": 1, "lossless": True}
    own = compare("small.trace", ["adaptive,most=8"], **options).to_dicts()
    (own,) = (one for one in own if one["policy"] == "adaptive,most=8")
    for figure in ("output_tokens_per_s", "speed_up", "e2e_s_mean", "acceptance_length", "exact_share", "speed_up_ci"):
        assert row[figure] == own[figure], figure
    assert row["error"] == ""


def test_a_recording_is_kept_by_where_it_lies_and_when_it_was_written(folder, monkeypatch):
    def names():
        return kept_recording("small.trace").about.name, kept_tables("small.trace").trace.about.name

    assert names() == ("small", "small")
    assert kept_tables("small.trace") is kept_tables(str(folder / "small.trace"))
    write_trace(make_trace(SyntheticSpec(name="again", requests=6, tokens=12)), folder / "small.trace")
    assert names() == ("again", "again")
    other = folder / "other"
    other.mkdir()
    write_trace(make_trace(SyntheticSpec(name="other", requests=6, tokens=12)), other / "small.trace")
    monkeypatch.chdir(other)
    assert names() == ("other", "other")
    monkeypatch.chdir(folder)
    shutil.rmtree(folder / "small.trace")
    with pytest.raises(TraceFormatError, match=r"small\.trace: trace: no such folder; must be a \.trace folder"):
        kept_tables("small.trace")


def test_a_cell_of_simulate_makes_no_tables_of_its_own(folder, monkeypatch):
    monkeypatch.setattr("paceline.studies.setting.kept_tables", None)
    assert next(read_grid(folder / "served.toml").cells()).play()["finished"] == 12


def test_a_cell_is_one_call_of_simulate(folder):
    assert sweep_grid("served.toml", out="out", jobs=1).total == 8
    table = collect("out")
    assert table.equals(pq.read_table(folder / "out/cells.parquet"))
    row = next(
        row for row in table.to_pylist() if (row["policy"], row["rate"], row["seed"]) == ("draft:2/target", 50.0, 1)
    )
    run = simulate(
        "poisson:requests=12", "draft:2/target", "small.trace", cluster="h100", rate=50.0, seed=1, slo={"ttft": 0.5},
        models=["draft=llama-3.2-1b", "target=llama-3.1-8b"],
    )  # fmt: skip
    (own,) = run.to_dicts()
    for figure in ("output_tokens_per_s", "ttft_s_p99", "in_system_s", "slo_share", "duration_s"):
        assert row[figure] == own[figure], figure


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("windows", "windwos", "windwos is not a known key (did you mean windows?), got [5, 6]"),
        ("seeds = [0, 1]", "seeds = [0, 0]", "seeds must name each once, got 0"),
        ("seeds = [0, 1]", "seeds = [0.5]", "seeds[0] input should be a valid integer, got 0.5"),
        ("seeds = [0, 1]", "seeds = []", "seeds must name one at least"),
        ("seeds =", "devices = []\nseeds =", "devices must name one at least, or be left out"),
        ("windows = [5, 6]", "", "windows must go with a `:*` of a chain"),
        ("seeds =", "rates = [1.0]\nseeds =", "rates does not apply to a grid without workloads"),
        ("seeds =", "clusters = ['h100']\nseeds =", "clusters does not apply to a grid without workloads"),
        ("batch =", "bathc =", "options.bathc is not a known option; did you mean batch?"),
        ("batch = [1, 2]", "batch = [1, 'two']", "options.batch must be a valid integer, got 'two'"),
        ("batch = [1, 2]", "batch = [1, 1]", "options.batch must have one value at least, each once"),
        ("batch = [1, 2]", "models = ['a=b', 'c=d']", "a value of its own, several texts are a list in it, [[...]]"),
        ("batch = [1, 2]", "why = true", "options.why is not a known option"),
        ("batch = [1, 2]", "seed = 3", "options.seed is not a known option; it is the key `seeds` of the grid"),
        ("'a100'", "'here'", "costs must name the profile"),
        ("draft:1..3", "draft:3..1", "policies must go up in the range of draft, got 3..1"),
        ("most=4|8", "most=0.5..2.5", "policies must have steps in the range of most, as in 0.5..2.5:0.2, or a list"),
        ("draft:1..3", "draft:1..999999", "the grid must have 1,000,000 cells at most"),
        ("adaptive", "adaptve", "unknown policy 'adaptve': did you mean adaptive?"),
        ("seeds = [0, 1]", "seeds = [0, 1", "the grid must be TOML in UTF-8"),
        ("'a100'", "'a1000'", "wrong.toml: costs unknown cost 'a1000': did you mean a100?"),
        ("'a100'", "'none.json'", "wrong.toml: costs none.json: file: must be a readable file"),
        ("batch = [1, 2]", "batch = [1, 0]", "options.batch must be a whole number from 1 to 1,000,000, got 0"),
        ("seeds =", "devices = ['foo=a']\nseeds =", "wrong.toml: devices must name members of "),
        ("windows = [5, 6]", "windows = [5, 0]", "wrong.toml: windows must be >= 1, got 0"),
        ("'draft:1..3/target'", "'draft:1..3/targte'", "wrong.toml: policies 'draft:1/targte': chain 'draft:1/targte'"),
        ("'draft:1..3/target'", "'cascade'", "wrong.toml: policies cascade is lossy, and `lossless` was asked for"),
        ("lossless = true", "shift_acceptance = {nobody = 0.1}", "options.shift_acceptance must name a drafter of the"),
        (
            "lossless = true",
            "shift_acceptance = {draft = 1.5}",
            "options.shift_acceptance must keep the acceptance of ",
        ),
    ],
)
def test_a_grid_that_will_not_do_is_refused_before_anything_is_played(folder, old, new, says):
    text = GRID.replace('"', "'").replace(old, new, 1)
    assert text != GRID.replace('"', "'")
    (folder / "wrong.toml").write_text(text)
    assert says in refused("sweep", "wrong.toml", "--out", "out")
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("requests=3", "requests=0", "wrong.toml: workloads requests of poisson must be in [1, 10"),
        ("h100", "h1000", "wrong.toml: clusters unknown cluster 'h1000': did you mean h100?"),
        ("[2]", "[2, 0]", "wrong.toml: rates must be in [1e-9, 1e9], got 0.0"),
        ("seeds", "recordings = ['none.trace']\nseeds", "wrong.toml: recordings "),
        ("seeds", "costs = ['none']\nseeds", "wrong.toml: costs unknown cost 'none': known are "),
        ("seeds = [0]", "[options]\nslo = {ttft = -1}", "wrong.toml: options.slo ttft must be > 0 and finite, got -1"),
        (
            "seeds = [0]",
            "[options]\nslo = {ttft = 200}",
            "wrong.toml: options.slo ttft must say its unit above 10: 200ms or 200s, got 200",
        ),
        (
            "seeds = [0]",
            "[options]\nslo = {a = {ttft = 1}}",
            "wrong.toml: options.slo must name a class of the requests",
        ),
        ("seeds = [0]", "seeds = [0, 3, -1, 2]", "wrong.toml: seeds must be >= 0, got -1"),
        ("'plain'", "'oracle-chain'", "wrong.toml: policies must not see ahead under load"),
        (
            "seeds",
            "options.shift_acceptance = {target = 0.1}\nseeds",
            "options.shift_acceptance must name a drafter of",
        ),
    ],
)
def test_a_value_with_which_no_served_cell_can_begin_is_refused(tmp_path, monkeypatch, old, new, says):
    monkeypatch.chdir(tmp_path)
    grid = "policies = ['plain']\nworkloads = ['poisson:requests=3']\nclusters = ['h100']\nrates = [2]\nseeds = [0]\n"
    (tmp_path / "wrong.toml").write_text(grid.replace(old, new, 1))
    assert says in refused("sweep", "wrong.toml", "--out", "out")
    assert not (tmp_path / "out").exists()


def test_a_value_that_fails_beside_some_others_only_is_played(folder):
    (folder / "some.toml").write_text(
        'policies = ["plain"]\ncosts = ["a100", "h100"]\n[options]\nengine = ["vllm", "bare"]\n'
    )
    assert len(read_grid(folder / "some.toml")) == 4


def test_a_lossy_policy_may_run_where_not_all_cells_are_to_be_lossless(folder):
    for options, count in (("", 1), ("[options]\nlossless = [true, false]\n", 2)):
        (folder / "lossy.toml").write_text(f'policies = ["cascade"]\n{options}')
        assert len(read_grid(folder / "lossy.toml")) == count


def test_cells_are_counted_before_any_is_made(folder):
    (folder / "big.toml").write_text('policies = ["draft:1..1000/target,a=1..1000,b=1..1000"]')
    with pytest.raises(GridFileError, match="must have 1,000,000 cells at most, got 1,000,000,000"):
        read_grid(folder / "big.toml")  # as many cells would be made in an hour


def test_what_stands_in_the_folder_is_not_played_again(folder):
    sweep_grid("grid.toml", out="out", jobs=1)
    before = files(folder / "out")
    again = sweep_grid("grid.toml", out="out", jobs=1)
    assert (again.kept, again.played) == (56, 0)
    next((folder / "out/cells").rglob("*.json")).unlink()
    assert sweep_grid("grid.toml", out="out", jobs=1).played == 1
    assert files(folder / "out") == before


def test_another_grid_or_another_input_is_refused(folder):
    sweep_grid("grid.toml", out="out", jobs=1)
    (folder / "other.toml").write_text(GRID.replace("seeds = [0, 1]", "seeds = [0]"))
    assert "out/sweep.json: axes: must be those of this grid" in refused("sweep", "other.toml", "--out", "out")
    write_trace(make_trace(SyntheticSpec(name="small", requests=5, tokens=12)), folder / "new.trace")
    (folder / "small.trace").rename(folder / "old.trace")
    (folder / "new.trace").rename(folder / "small.trace")
    says = refused("sweep", "grid.toml", "--out", "out")
    assert says.startswith("out/sweep.json: inputs: must be as they were when the sweep began")
    assert says.endswith("got 'another small.trace'")


@pytest.mark.parametrize("named", ["kernels:tables", "cluster.toml", "other/cluster.toml"])
def test_tables_of_kernels_that_were_changed_are_another_input(folder, named):
    """A cluster file names them from its own folder."""
    (folder / "other").mkdir()
    for file, tables in (("cluster.toml", "tables"), ("other/cluster.toml", "../tables")):
        (folder / file).write_text(f'[[replicas]]\ndevice = "h100"\ncost = "kernels:{tables}"\n')
    table = folder / "tables/gemm/vllm/0.9.0/gemm_perf.parquet"
    table.parent.mkdir(parents=True)
    table.write_bytes(b"one")
    before = inputs_of([named, "small.trace"])
    table.write_bytes(b"other")
    after = inputs_of([named, "small.trace"])
    assert [text for text in after if after[text] != before[text]] == [named]


@pytest.mark.parametrize("file", ["mine.py", "beside.py"])
def test_a_policy_that_was_changed_is_another_input(folder, file):
    (folder / "mine.toml").write_text('policies = ["mine.py:Mine"]\nrecordings = ["small.trace"]')
    sweep_grid("mine.toml", out="out", jobs=1)
    path = folder / file
    path.write_text(path.read_text() + "\n# changed\n")
    with pytest.raises(TraceFormatError, match=r"another mine\.py:Mine"):
        sweep_grid("mine.toml", out="out", jobs=1)


def test_two_shards_in_two_processes_are_one_sweep(folder):
    command = [sys.executable, "-m", "paceline", "sweep", "grid.toml", "--out", "both", "--jobs", "1"]
    shards = [subprocess.Popen([*command, "--shard", f"{number}/2"], stdout=subprocess.DEVNULL) for number in (1, 2)]
    assert [one.wait(600) for one in shards] == [0, 0]
    sweep_grid("grid.toml", out="one", jobs=1)
    collect("both"), collect("one")
    assert files(folder / "both") == files(folder / "one")


@pytest.mark.parametrize("shard", ["0/2", "3/2", "2", "a/b", "1/", "1/99999999", "-1/2"])
def test_a_shard_that_is_none_is_refused(folder, shard):
    assert "--shard must be NUMBER/COUNT" in refused("sweep", "grid.toml", "--out", "out", "--shard", shard)


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.one_in(2)
def test_a_sweep_that_is_killed_and_resumed_is_one_that_was_not(folder, jobs):
    text = 'policies = ["mine.py:Mine,waits=1..6"]\nrecordings = ["small.trace"]\nseeds = [0, 1, 2]'
    (folder / "slow.toml").write_text(text)
    command = [sys.executable, "-m", "paceline", "sweep", "slow.toml", "--out", "cut", "--jobs", jobs]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    while len(list(folder.glob("cut/cells/*/*.json"))) < 4:
        assert run.poll() is None
        time.sleep(0.02)
    run.send_signal(signal.SIGKILL)
    run.wait()
    for _ in range(3000):  # processes end with whoever asked, soon
        if not alive(run.pid):
            break
        time.sleep(0.1)
    assert alive(run.pid) == []
    left = len(list(folder.glob("cut/cells/*/*.json")))
    assert 4 <= left < 4 + int(jobs)
    (folder / "go").touch()
    resumed = sweep_grid("slow.toml", out="cut", jobs=int(jobs))
    assert (resumed.kept, resumed.played) == (left, 18 - left)
    sweep_grid("slow.toml", out="whole", jobs=1)
    collect("cut"), collect("whole")
    assert files(folder / "cut") == files(folder / "whole")


def alive(group):
    """Processes of a group that still run."""
    found = subprocess.run(["ps", "-eo", "pid,pgid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in found.splitlines()[1:]]
    return [
        row for row in rows if row[1] == str(group) and "resource_tracker" not in row[2] and "defunct" not in row[2]
    ]


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_played(folder):
    (folder / "slow.toml").write_text(
        'policies = ["mine.py:Mine,sleep=0.002"]\nrecordings = ["small.trace"]\nseeds = [0, 1, 2, 3, 4, 5]'
    )
    command = [sys.executable, "-m", "paceline", "sweep", "slow.toml", "--out", "cut", "--jobs", "2"]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not list(folder.glob("cut/cells/*/*.json")):
        time.sleep(0.02)
    run.send_signal(signal.SIGINT)
    _, told = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "paceline: error: interrupted: " in told
    assert "of 6 are kept" in told


def test_a_cell_that_fails_loses_no_other_and_is_kept_with_its_line(folder):
    (folder / "mine.toml").write_text(
        'policies = ["mine.py:Mine,fails=false|true"]\nrecordings = ["small.trace"]\nseeds = [0, 1]'
    )
    ran = paceline("sweep", "mine.toml", "--out", "out", "--jobs", "1")
    assert ran.code == 1
    assert "4 cells, 0 stood there before, 4 played, 2 failed" in ran.out
    assert "recording small.trace, seed 0 and 1 more: policy mine.py:Mine,fails=true, request" in " ".join(
        ran.out.split()
    )
    assert [row["error"] == "" for row in collect("out").to_pylist()] == [True, True, False, False]
    assert sweep_grid("mine.toml", out="out", jobs=1).played == 0
    assert sweep_grid("mine.toml", out="out", jobs=1, again=True).played == 2
    found = best_cells("out", objective=["output_tokens_per_s"])
    assert found.remarks == ("1 setting left out: a cell of them failed",)


@pytest.mark.parametrize("axis", ["costs", "clusters"])
def test_the_best_say_what_their_seconds_are(folder, axis):
    more = {"costs": "", "clusters": 'workloads = ["poisson:rate=9,requests=4"]\n'}[axis]
    models = 'models = [["draft=llama-3.2-1b", "target=llama-3.1-8b"]]'
    base = 'policies = ["plain"]\nrecordings = ["small.trace"]\n'
    (folder / "devices.toml").write_text(f'{base}{axis} = ["l40s", "h100"]\n{more}[options]\n{models}')
    assert paceline("sweep", "devices.toml", "--out", axis, "--jobs", "1").code == 0
    found = best_cells(axis, objective=["output_tokens_per_s"], by=[axis.removesuffix("s")])
    (notes,) = (table.remarks for table in found.tables())
    assert sum("published peaks of l40s" in note for note in notes) == 1
    assert sum("seconds fitted to vllm" in note for note in notes) == 1
    assert found.to_json()["remarks"] == list(notes)
    assert all("notes" not in row for row in found.to_dicts())


@pytest.mark.slow
def test_a_worker_that_dies_is_named_and_the_rest_stays(folder):
    (folder / "mine.toml").write_text(
        'policies = ["mine.py:Mine,dies=false|true,sleep=0.0001"]\nrecordings = ["small.trace"]\nseeds = [0, 1]'
    )
    done = sweep_grid("mine.toml", out="out", jobs=2)
    assert done.played == 2
    assert sorted(name for name, _ in done.lost) == [
        f"policy mine.py:Mine,dies=true,sleep=0.0001, recording small.trace, seed {seed}" for seed in (0, 1)
    ]
    assert {why for _, why in done.lost} == {"its process ended by itself, as one that is killed for memory does"}
    assert collect("out").num_rows == 2


CLUSTERS = pytest.mark.parametrize(("on", "package"), [("dask", "distributed"), ("ray", "ray")])


@CLUSTERS
def test_a_cluster_that_is_not_installed_is_named(folder, monkeypatch, on, package):
    monkeypatch.setattr(workers, "find_spec", lambda name: None)
    assert f"--on {on} needs {package}: " in refused("sweep", "grid.toml", "--out", "out", "--on", on)
    assert not (folder / "out").exists()


@pytest.mark.slow
@CLUSTERS
def test_a_cluster_whose_workers_die_gives_what_processes_give(folder, on, package):
    """One worker dies once, in a cell that another plays again; cells that end every process are named."""
    pytest.importorskip(package, reason=f"{package} is not installed (extra {on})")
    once, dies = "mine.py:Mine,once=true,sleep=0.001", "mine.py:Mine,dies=true"
    rest = 'recordings = ["small.trace"]\nseeds = [0, 1, 2, 3]'
    (folder / "once.toml").write_text(f'policies = ["{once}"]\n{rest}')
    (folder / "both.toml").write_text(f'policies = ["{once}", "{dies}"]\n{rest}')
    command = [sys.executable, "-m", "paceline", "sweep", "both.toml", "--out", "out", "--on", on, "--jobs", "2"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (folder / "died").exists()
    assert ran.returncode == 1
    assert "8 cells, 0 stood there before, 4 played" in ran.stdout
    assert "and 3 more: its process ended by itself, as one that is killed for memory does" in " ".join(
        ran.stdout.split()
    )
    sweep_grid("once.toml", out="here", jobs=1)
    assert files(folder / "out/cells") == files(folder / "here/cells")


def test_processes_of_a_cluster_are_not_counted_here(folder, monkeypatch):
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://nowhere:8786")
    says = refused("sweep", "grid.toml", "--out", "out", "--on", "dask", "--jobs", "2")
    assert says.startswith("--jobs does not apply to a cluster that DASK_SCHEDULER_ADDRESS names")


FIGURE = st.integers(0, 3).map(float)


@given(st.lists(st.tuples(FIGURE, FIGURE, FIGURE), min_size=1, max_size=20), st.tuples(*[st.booleans()] * 3))
def test_the_front_is_what_no_other_setting_is_better_than(points, most):
    aims = [Objective(figure=name, most=more) for name, more in zip("abc", most, strict=True)]
    settings = [
        SettingFigures(setting={"n": n}, by_seed={0: dict(zip("abc", one, strict=True))})
        for n, one in enumerate(points)
    ]
    signed = [tuple(value if more else -value for value, more in zip(one, most, strict=True)) for one in points]
    kept = {one.setting["n"] for one in front(settings, aims)}
    for n, own in enumerate(signed):
        better = [other for other in signed if other != own and all(a >= b for a, b in zip(other, own, strict=True))]
        assert (n in kept) == (not better)


def rows():
    return [
        ({"policy": policy, "rate": rate, "seed": seed}, {"speed": speed + seed, "wait": wait})
        for policy, rate, speed, wait in (("a", 1, 10, 5.0), ("b", 1, 20, 9.0), ("a", 2, 30, None), ("b", 2, 5, 1.0))
        for seed in (0, 2)
    ]


def test_figures_are_means_over_seeds_and_limits_are_kept():
    found = best_settings(rows(), objectives=["speed"], varied=["policy", "rate", "seed"])
    assert [(one.setting, one.mean("speed")) for one in found.found] == [({"policy": "a", "rate": 2}, 31.0)]
    found = best_settings(rows(), objectives=["speed"], subject_to=["speed > 1, wait<9"], by=["rate"])
    assert [one.setting["policy"] for one in found.found] == ["a", "b"]
    *counts, in_sample = found.remarks
    assert counts == ["1 setting left out: a figure is not known", "1 setting beyond the limits"]
    assert in_sample.startswith("in sample: chosen among 3 settings by the figures that are shown")
    none = best_settings(rows(), objectives=["speed"], subject_to=["speed > 99"])
    assert none.lines() == ["no setting keeps these limits"]
    assert none.remarks == ("4 settings beyond the limits",), "none was chosen"
    assert best_settings([rows()[4]], objectives=["wait"]).lines() == ["no setting is left"]
    both = best_settings(rows(), objectives=["speed", "min:wait"])
    assert [one.setting for one in both.found] == [
        {"policy": "b", "rate": 1}, {"policy": "a", "rate": 1}, {"policy": "b", "rate": 2},
    ]  # fmt: skip
    assert both.to_json()["settings"][0] == {"policy": "b", "rate": 1, "seeds": 2, "speed": 21.0, "wait": 9.0}
    (drawn,) = both.panels()
    assert [(one.name, one.x, one.y) for one in drawn.series] == [
        ("on the front", (21.0, 11.0, 6.0), (9.0, 5.0, 1.0)), ("not on it", (), ()),
    ]  # fmt: skip
    (drawn,) = best_settings(rows(), objectives=["min:speed"], varied=["policy", "rate"]).panels()
    assert (drawn.names, drawn.values) == (("b, 2", "a, 1", "b, 1", "a, 2"), (6.0, 11.0, 21.0, 31.0))
    assert drawn.filled == {0}
    assert drawn.bounds[0][0] < 6.0 < drawn.bounds[0][1]


def test_times_are_ranked_among_those_that_reject_fewest():
    rejecting, slow, all_served = {"rejected": 9, "wait": 1.0, "output_tokens_per_s": 5.0}, 7.0, {"rejected": 0}
    cells = [({"policy": "a"}, rejecting), ({"policy": "b"}, all_served | {"wait": slow, "output_tokens_per_s": 4.0})]
    found = best_settings(cells, objectives=["min:wait"])
    assert [one.setting["policy"] for one in (*found.found, *found.others)] == ["b"]
    assert found.remarks[0] == "1 setting left out: others reject fewer requests"
    assert [one.setting["policy"] for one in best_settings(cells, objectives=["min:wait"], by=["policy"]).found] == [
        "a", "b",
    ]  # fmt: skip
    found = best_settings(cells, objectives=["output_tokens_per_s"])
    assert [one.setting["policy"] for one in (*found.found, *found.others)] == ["a", "b"]


def test_rejections_are_compared_seed_by_seed():
    """As many in the mean at other seeds are other requests; a seed that not all were played at says nothing."""
    counts = {"a": {0: 2, 1: 0}, "b": {0: 0, 1: 2}, "c": {0: 2, 1: 0, 2: 9}}
    cells = [
        ({"policy": policy, "seed": seed}, {"rejected": count, "wait": 1.0})
        for policy, by_seed in counts.items()
        for seed, count in by_seed.items()
    ]
    found = best_settings(cells, objectives=["min:wait"], missing=2)
    assert [one.setting["policy"] for one in (*found.found, *found.others)] == ["a", "c"]
    found = best_settings([cells[0], cells[3]], objectives=["min:wait"])  # no seed in common
    assert [one.setting["policy"] for one in (*found.found, *found.others)] == ["a", "b"]


def test_json_has_the_notes_of_every_setting_and_seed():
    cells = [
        ({"n": n, "seed": seed}, {"speed": 1.0, "notes": f"note {n} of {seed}"}) for n in range(50) for seed in (0, 1)
    ]
    found = best_settings(cells, objectives=["speed"])
    assert found.to_json()["remarks"][-100:] == [figures["notes"] for _, figures in cells]
    assert "note 0 of 0; 79 more of this kind" in found.tables()[0].remarks


def test_notes_of_one_kind_are_one_line_of_the_table_and_all_in_json():
    notes = ["IMPORTED trace log1", "IMPORTED trace log2"]
    cells = [({"recording": n}, {"speed": 1.0, "notes": note}) for n, note in enumerate(notes)]
    found = best_settings(cells, objectives=["speed"])
    (grid,) = found.tables()
    assert "IMPORTED trace log1; 1 more of this kind" in grid.remarks
    assert found.to_json()["remarks"][-2:] == notes


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"objectives": ["sped"]}, "`objective` knows no figure 'sped': did you mean speed?"),
        ({"objectives": []}, "`objective` must name a figure, got none"),
        ({"objectives": ["speed"], "subject_to": ["wait=3"]}, "`subject_to` must be NAME < NUMBER"),
        ({"objectives": ["speed"], "subject_to": ["wai<3"]}, "did you mean wait?"),
        ({"objectives": ["speed"], "by": ["rates"]}, "`by` must name a keyword of the cells, did you mean rate?"),
    ],
)
def test_a_name_that_no_cell_has_is_refused(asked, says):
    with pytest.raises(ArgumentError) as refusal:
        best_settings(rows(), **asked)
    assert says in str(refusal.value)


def test_best_and_collect_are_of_a_folder_of_a_sweep(folder):
    assert "none/sweep.json: file: must be there in the folder of a sweep" in refused(
        "collect", "none", "--out", "x.parquet"
    )
    assert "small.trace/sweep.json: file" in refused("best", "small.trace", "--objective", "speed_up")
    (folder / "sweep.json").write_text("{}")
    assert "sweep.json: content: must be a grid that a sweep wrote" in refused("best", ".", "--objective", "speed_up")


def test_a_file_that_is_no_cell_is_told_by_name(tmp_path):
    store, key = CellStore(tmp_path), key_of({"a": 1})
    assert store.read(key) is None
    store.write(key, CellFound(asked={"a": 1}, figures=None, failed="why"))
    assert store.keys() == (set(), {key})
    store.write(key, CellFound(asked={"a": 1}, figures={"b": 2}))
    assert store.keys() == ({key}, set())
    assert store.read(key) == CellFound(asked={"a": 1}, figures={"b": 2})
    (path,) = tmp_path.rglob("*.json")
    for content in ("{", "[]", json.dumps({"asked": {}})):
        path.write_text(content)
        with pytest.raises(TraceFormatError, match=f"{path.name}: content"):
            store.read(key)


def test_recordings_and_results_pickle(folder):
    recording = pickle.loads(pickle.dumps(open_recording("small.trace")))
    found = compare(recording, ["draft:2/target"])
    assert pickle.loads(pickle.dumps(found)).to_dicts() == found.to_dicts()
    run = simulate("poisson:requests=3,rate=4", "plain", "small.trace", cluster="h100", cost="cpu")
    assert pickle.loads(pickle.dumps(run)).to_dicts() == run.to_dicts()


def test_the_best_say_what_their_recordings_and_loads_lack(folder):
    (folder / "log.jsonl").write_text(
        '{"id": "a", "prompt_tokens": 20, "drafters": {"eagle": [4, 3, 2, 1, 3, 2, 1]}}\n'
    )
    (folder / "line.json").write_text(
        '{"eagle": {"intercept_s": 0.001, "per_new_token_s": 0, "per_kv_token_s": 0}, '
        '"target": {"intercept_s": 0.02, "per_new_token_s": 0, "per_kv_token_s": 0}}'
    )
    assert paceline("trace", "import", "positions", "log.jsonl", "--window", "eagle=4", "--out", "log.trace").code == 0
    (folder / "log.toml").write_text(
        'policies = ["eagle:9/target"]\nrecordings = ["log.trace"]\ncosts = ["line.json"]\noptions.batch = 3\n'
    )
    assert paceline("sweep", "log.toml", "--out", "log", "--jobs", "1").code == 0
    notes = best_cells("log", objective=["speed_up"]).to_json()["remarks"]
    assert "IMPORTED trace log; rounds known in order" in notes
    assert "eagle drafted 4 tokens at most in the log, which says little of more: eagle:9/target" in notes
    assert any("the recording has 1 request, so at most 1 run together" in note for note in notes)
    (folder / "shift.toml").write_text(
        'policies = ["draft:1..2/target"]\nrecordings = ["small.trace"]\noptions.shift_acceptance = { draft = 0.05 }\n'
    )
    assert paceline("sweep", "shift.toml", "--out", "shift", "--jobs", "1").code == 0
    notes = best_cells("shift", objective=["speed_up"]).to_json()["remarks"]
    assert {"SYNTHETIC trace small", "WHAT IF: acceptance of draft +0.05"} <= {*notes}


def test_what_was_not_served_is_a_column_of_the_best(folder):
    (folder / "tight.toml").write_text('[[replicas]]\ndevice = "h100"\nmembers.draft = { kv_blocks = 4 }\n')
    rows = [f'{{"arrives_s": {at}, "prompt_tokens": {40 + 90 * at}, "output_tokens": 9}}\n' for at in range(2)]
    (folder / "load.jsonl").write_text("".join(rows))
    (folder / "served.toml").write_text(
        'policies = ["draft:1..2/target", "plain"]\nworkloads = ["load.jsonl"]\nclusters = ["tight.toml"]\n'
        'rates = [1, 9000]\nrecordings = ["small.trace"]\n'
    )
    assert paceline("sweep", "served.toml", "--out", "served", "--jobs", "1").code == 0
    found = best_cells("served", objective=["min:mean_e2e"], by=["policy", "rate"])
    (grid,) = found.tables()
    assert [column.heading for column in grid.columns] == ["policy", "rate", "mean_e2e", "rejected"]
    assert [row[-1] for row in grid.rows] == ["1", "1", "1", "1", "0", "0"]
    steady = [remark for remark in grid.remarks if "the load was never steady" in remark]
    assert [remark.split(" served ")[0] for remark in steady] == ["draft:1/target", "plain"]
    assert steady[0].endswith("; 1 more of this kind")
