"""A profile of a tiny pool is measured, found, told from one that no longer fits, and held against decoding."""

import json
import sys
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import process_time
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from paceline.base.errors import ArgumentError
from paceline.base.files import FOLDER_VARIABLE
from paceline.decoding.steps import PolicyError
from paceline.policies.by_name import PolicySpec
from paceline.reports.recordings import trace_tables
from paceline.reports.validation import total_s
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.profiling import forwards as forward_shapes
from paceline.runtime.profiling import probe
from paceline.runtime.profiling.forwards import ShapeGrid
from paceline.runtime.profiling.operations import _thought_s, measure_members, measure_operations
from paceline.runtime.prompts import Prompt
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.base import CostRangeError
from paceline.sim.cost.measured import ProfiledCost
from paceline.sim.simulate import Scenario, simulate
from paceline.studies import profile_check as unfinished
from paceline.studies.compare import compare
from paceline.studies.profile import Profiled, profile
from paceline.studies.profile_check import check_profile, mismatches, remarks_on_profile
from paceline.studies.record import record
from paceline.studies.validate import validate
from paceline.traces.contexts.on_disk import read_trace, write_trace
from paceline.traces.meta import CostTable, Sampling
from paceline.traces.profile import BesideForwards, DecideSeconds, Profile, read_profile, write_profile

from ..runtime.forced.forced_pools import write_tiny_forced_pool
from ..tiny_models import random_prompts, tiny_pool_of_four

POOL = tiny_pool_of_four()
PROMPTS = random_prompts(6, seed=3)
GRID = ShapeGrid(rows=(1, 4), new_tokens=(1, 6, 14), context_tokens=(0, 60), most_tokens=84, away_s=(0.001,))
TIMED = ("profiling.forwards", "profiling.operations", "clock")
# Operations are watched at few batches and on few tokens, forwards hardly settle, and little is measured again.
FEW = {
    "operations._BATCHES": (1, 4),
    "operations._MOST_TOKENS": 12,
    "forwards.SETTLING": 1,
    "forwards._MOST_REPEATS": 3,
}


class Made(NamedTuple):
    """What is there once: a recording of the pool, the profile of here, and what was measured for it."""

    trace: Path
    profiled: Profiled
    beside: dict

    @property
    def profile(self):
        return self.profiled.profile

    @property
    def out(self):
        return self.profiled.out


@contextmanager
def of_this_process():
    """Seconds are those that processors worked for this process: what else the machine does takes none of them."""
    with pytest.MonkeyPatch.context() as patch:
        for module in TIMED:
            patch.setattr(f"paceline.runtime.{module}.perf_counter", process_time)
        for name, few in FEW.items():
            patch.setattr(f"paceline.runtime.profiling.{name}", few)
        yield


@pytest.fixture(autouse=True)
def _undisturbed():
    with of_this_process():
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    record(POOL, PROMPTS, folder / "a.trace", max_new_tokens=16, costs=False)
    beside = {}

    def kept(measure):
        return lambda *args, **options: beside.setdefault(measure, measure(*args, **options))

    with pytest.MonkeyPatch.context() as patch, of_this_process():
        patch.setenv(FOLDER_VARIABLE, str(folder))
        for measure in (measure_members, measure_operations):
            patch.setattr(f"paceline.studies.profile.{measure.__name__}", kept(measure))
        profiled = profile(POOL, PROMPTS, grid=GRID, repeats=3, most_drift=9.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(folder))
        yield Made(folder / "a.trace", profiled, beside)


POLICIES = ["plain", "draft:2/mid:4/target", "ngram", "adaptive"]
LONG = [*PROMPTS, Prompt(request_id="long", tag="a", text=" ".join(["t1"] * 256))]


@pytest.fixture
def now(monkeypatch):
    """The instant that it is, however long a test takes."""
    found = datetime.now(UTC)

    class Still(datetime):
        @classmethod
        def now(cls, tz=None):
            return found

    for module in (unfinished, probe):
        monkeypatch.setattr(module, "datetime", Still)
    return found


@pytest.fixture
def unmeasured(monkeypatch):
    """Nothing can be measured or run."""
    for what in ("profile.journal_of", "profile.measure_members", "profile.measure_operations", "validate.in_turns"):
        monkeypatch.setattr(f"paceline.studies.{what}", None)


@pytest.mark.slow
def test_a_profile_says_what_was_measured(made):
    profiled = made.profiled
    meta = profiled.profile.meta
    assert read_profile(profiled.out) == profiled.profile
    assert [member.name for member in meta.members] == ["draft", "mid", "slim", "target"]
    assert {(shape.rows, shape.new_tokens) for shape in profiled.profile.shapes} == {
        (rows, new) for rows in GRID.rows for new in GRID.new_tokens
    }
    assert all(shape.seconds > 0 and shape.spread >= 0 for shape in profiled.profile.shapes)
    for member in meta.members:
        assert member.drafting.seconds(3, 1, 3) > 0
        assert member.verifying.seconds(1, 1, 4) > 0
        assert member.stopping.seconds(3, 1, 3) > 0
        assert member.reload.away_s == GRID.away_s
        assert {cell.away_s for cell in member.after_away} == {0.0, *GRID.away_s}
    assert meta.members[-1].shares.keys() == {"draft", "mid", "slim"}  # which are all made of its layers
    assert all(member.shares["target"] == 1.0 for member in meta.members[:-1])
    assert {"Plain", "Chain", "Adaptive", "Confident", "Ngram"} <= meta.decide_s.keys()
    assert repr(profiled).startswith("pool tiny on ")
    assert len(profiled.to_dicts()) == len(profiled.profile.shapes)
    assert profiled.to_json()["floor"] is None  # on a processor


@pytest.mark.slow
def test_a_comparison_here_says_whose_seconds_it_uses(made):
    path, profiled = made.trace, made.profiled
    found = compare(path, ["plain", "draft:3/target"], cost="here")
    (note,) = (line for line in found.to_json()["meta"]["cost_notes"] if line.startswith("seconds measured on "))
    assert profiled.profile.meta.hardware in note
    assert "greedy sampling" in note
    assert found.to_json()["meta"]["decide_s"] is None


def test_both_worlds_take_the_same_steps_and_about_the_same_time(made):
    """Loosely: a busy machine may double anything, even the seconds of this process alone."""
    path = made.trace
    found = validate(POOL, PROMPTS, path, POLICIES, batches=(1, 4), runs=2)
    assert len(found.cells) == len(POLICIES) * 2 * 2
    assert all(cell.equal for cell in found.cells)
    assert found.verdict.median_error >= 0
    assert 0.1 < median(cell.simulated_s / cell.measured_s for cell in found.cells) < 10
    assert {choice.tag for choice in found.choices()} == {"a", "b"}
    assert "total seconds are off by" in repr(found)
    assert found.to_json()["verdict"]["equal"] == 1.0
    assert found.to_json()["repeatability"].keys() == found.to_json()["verdict"].keys()
    assert found.repeatability.equal == 1.0
    assert 0 < found.repeatability.median_error < 5
    assert "measured runs are off from each other by" in found.lines()[-1]
    assert all(cell.error == pytest.approx(cell.forwards_error + cell.beside_error) for cell in found.cells)


# Thinks for two milliseconds when the first request of a step asks, and for half a one for each.
THINKS = """
from paceline.policies import About, Verify
from ticking import clock


class Thinks:
    about = About(lossless=True)

    def __init__(self, pool):
        self._verify, self._asked_at_s = Verify(pool.target), -1.0

    def decide(self, seen):
        clock.asked += 1
        clock.now_s += 5e-4 + (seen.load.now_s != self._asked_at_s) * 2e-3 + (clock.asked in clock.interrupted_at)
        self._asked_at_s = seen.load.now_s
        return self._verify

    def learn(self, outcome):
        pass
"""


class Ticking:
    """A clock on which all but thinking takes a microsecond for each look at it, and an interruption a second."""

    def __init__(self):
        self.now_s, self.asked, self.interrupted_at = 0.0, 0, ()

    def __call__(self):
        self.now_s += 1e-6
        return self.now_s


@pytest.mark.parametrize("every", [3, 8, 20])
def test_what_a_policy_computes_at_some_steps_is_no_interruption(every):
    seconds = [2e-3 if step % every == 0 else 1e-5 for step in range(48)]
    ops = [SimpleNamespace(policy_s=one) for one in seconds]
    assert _thought_s(ops) == pytest.approx(sum(seconds))
    ops[5].policy_s = 1.0
    assert sum(seconds) <= _thought_s(ops) <= sum(seconds) + 2e-3


def test_thinking_is_found_by_how_many_run_and_validated_closer_than_that_of_one(made, tmp_path, monkeypatch):
    clock = Ticking()
    monkeypatch.setitem(sys.modules, "ticking", SimpleNamespace(clock=clock))
    for module in TIMED:
        monkeypatch.setattr(f"paceline.runtime.{module}.perf_counter", clock)
    monkeypatch.setattr("paceline.runtime.profiling.operations._BATCHES", (1, 4, 8))
    (tmp_path / "thinks.py").write_text(THINKS)
    thinks = f"{tmp_path / 'thinks.py'}:Thinks"
    prompts = [replace(prompt, tag="a") for prompt in random_prompts(8, seed=3)]
    members = made.beside[measure_members]
    make = partial(PolicySpec.parse(thinks).build, loaded_pool(POOL))
    asked = POOL, prompts, members, {"thinks": make}, {}, Sampling(mode="greedy")
    table = measure_operations(*asked).decide_s["Thinks"]
    assert table.batches == (1, 4, 8)
    assert table.seconds == pytest.approx((2.5e-3, 4e-3, 6e-3), abs=1e-4)
    begun = clock.asked
    clock.interrupted_at = {begun + int(begun * share) for share in (0.3, 0.5, 0.9)}  # once at each batch size
    assert measure_operations(*asked).decide_s["Thinks"].seconds == pytest.approx(table.seconds, abs=1e-4)

    trace = tmp_path / "b.trace"
    record(POOL, prompts, trace, max_new_tokens=12, costs=False)
    by_batch, of_one = (
        replace(made.profile, meta=made.profile.meta.model_copy(update={"decide_s": {"Thinks": known}}))
        for known in (table, DecideSeconds.of_step(table.each_s(1)))
    )
    write_profile(by_batch, tmp_path / "a.profile")
    found = validate(POOL, prompts, trace, [thinks], cost=str(tmp_path / "a.profile"), batches=(1, 4, 8), runs=1)
    cost = ProfiledCost(of_one, "of one", [one.name for one in of_one.meta.members])
    tables = TrieTables(read_trace(trace))
    for cell in found.cells:
        log = simulate(Scenario(tables=tables, cost=cost, batch=cell.batch), make(), "thinks")
        error = total_s(log) / cell.measured_s - 1
        assert error == pytest.approx(cell.error) if cell.batch == 1 else abs(cell.error) < abs(error) / 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tags": ["a", "b", "a"]}, "`tags` a is given twice"),
        ({"tags": []}, "`tags` must hold one, got none"),
        ({"batches": (1, 2, 1)}, "`batches` 1 is given twice"),
        ({"tags": ["c"]}, "`tags` must be among a, b, got 'c'"),
        ({"runs": 0}, "`runs` must be >= 1, got 0"),
        ({"requests": 0}, "`requests` must be >= 1, got 0"),
        ({"batches": (1, 0)}, "`batches` must be >= 1, got 0"),
        ({"threads": 2}, "`threads` must be 1, as here was measured with, got 2: profile again"),
        ({"policies": ["oracle-window"]}, "policy oracle-window sees ahead, which only a recording allows"),
        ({"policies": ["per-tag,default=plain,c=draft:3/target"]}, "names the tag c, which no request of recording a"),
    ],
)
def test_what_cannot_be_validated_is_refused_before_anything_is_run(made, unmeasured, given, told):
    path = made.trace
    with pytest.raises(ValueError, match=told):
        validate(POOL, PROMPTS, path, **{"policies": ["plain"], **given})


def test_seconds_that_a_cost_does_not_know_are_refused_before_anything_is_run(made, unmeasured, tmp_path):
    stored = read_trace(made.trace)
    table = CostTable(new_tokens=(1, 2), seconds=(0.1, 0.2))
    meta = stored.meta.model_copy(update={"costs": {"cpu": dict.fromkeys(stored.meta.model_names, table)}})
    write_trace(replace(stored, meta=meta), tmp_path / "b.trace")
    with pytest.raises(CostRangeError):
        validate(POOL, PROMPTS, tmp_path / "b.trace", ["draft:9/target"], cost="cpu", batches=(1,))


def test_a_machine_that_drifts_is_refused_before_more_is_measured_and_no_profile_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.studies.profile.measure_members", None)
    grid = ShapeGrid(rows=(1,), new_tokens=(1, 2), context_tokens=(0,))
    with pytest.raises(ArgumentError, match=r"seconds must drift by `most_drift` 0 \(0%\) at most"):
        profile(POOL, PROMPTS, out=tmp_path / "a.profile", grid=grid, repeats=3, most_drift=0.0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"most_drift": float("nan")}, r"`most_drift` must be in \[0, 10\], got nan"),
        ({"policies": ["nobody"]}, "nobody"),
        ({"out": "a.json"}, r"`out` must end in \.profile, by which a cost is known for a profile, got 'a\.json'"),
        ({"policies": ["draft:3/nobody"]}, "nobody"),
        ({"policies": ["oracle-window"]}, "policy oracle-window sees ahead, which only a recording allows"),
        ({"policies": ["per-tag,default=plain,c=draft:3/target"]}, "names the tag c, which no request of the prompts"),
        ({"repeats": 2}, "`repeats` must be >= 3, got 2"),
        ({"prompts": LONG}, "`prompts` must have 1 to 255 tokens, as pool tiny has a context of 256, got request long"),
    ],
)
def test_what_cannot_be_profiled_is_refused_before_anything_is_measured(tmp_path, unmeasured, given, told):
    with pytest.raises(ValueError, match=told):
        profile(POOL, grid=GRID, **{"prompts": PROMPTS, "out": tmp_path / "a.profile", **given})


def test_a_grid_must_increase_and_fit(tmp_path):
    for axis in ({"rows": ()}, {"new_tokens": (0, 1)}, {"context_tokens": (5, 5)}, {"rows": (2, 1)}):
        with pytest.raises(ValueError, match="must be strictly increasing from >= "):
            ShapeGrid(**axis)
    with pytest.raises(ValueError, match="no shape of the grid fits"):
        profile(POOL, PROMPTS, grid=ShapeGrid(context_tokens=(10_000,)), out=tmp_path / "a.profile")


def test_a_forced_pool_is_validated_on_the_decisions_of_a_recording(made, tmp_path):
    """At the price of a device that is not this one: only the steps are compared here."""
    path = made.trace
    found = validate(
        write_tiny_forced_pool(tmp_path / "forced"), None, path, POLICIES, cost="h100", batches=(3,), runs=1
    )
    assert len(found.cells) == len(POLICIES) * 2
    assert all(cell.equal and cell.forced and cell.measured_s > 0 for cell in found.cells)
    told = repr(found)
    assert "FORCED pool tiny forced against recording a" in told
    assert "forced: what is accepted comes from recording a, not from the models" in told.replace("\n", " ")
    assert found.to_json()["forced"] is True
    assert all(row["forced"] for row in found.to_dicts())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"prompts": PROMPTS}, "`prompts` must be left out with a forced pool"),
        ({"policies": ["entropy-patch"]}, "`policies` must be lossless on a forced pool, got entropy-patch"),
        ({"policies": ["draft:3/nobody"]}, "nobody"),
        ({"cost": "here"}, "`cost` here needs a profile of draft, mid, slim, target on this machine"),
        ({"pool": POOL}, "`prompts` must be given, those of the recording"),
    ],
)
def test_what_cannot_be_validated_on_a_forced_pool(made, tmp_path, given, told):
    forced = {"pool": write_tiny_forced_pool(tmp_path / "forced"), "prompts": None, "recording": made.trace}
    with pytest.raises(ValueError, match=told):
        validate(**forced | {"policies": ["plain"], "cost": "h100", "runs": 1} | given)


LOSSY = """
from paceline.policies import Commit, Deferral, Draft, DraftTree, FixedTree, Verify

class Below:
    between = Verify("mid", Deferral("token", 0.5))
    draft = Draft("draft", 1)

    def __init__(self, pool):
        self.steps = [Verify(pool.target), self.draft, self.between]

    def decide(self, seen):
        return self.steps[2 if seen.num_pending else int(seen.has_room)]

    def learn(self, outcome):
        pass

class Grows(Below):
    draft = DraftTree("draft", FixedTree(((0,), (1,))))

class Lossy:
    def __init__(self, pool):
        self.verify = Verify(pool.target)

    def decide(self, seen):
        if seen.num_pending:
            return Commit(1)
        return Draft("draft", 1) if seen.has_room else self.verify

    def learn(self, outcome):
        pass
"""


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("lossy.py:Lossy", "is lossy, and only lossless policies were asked for"),
        ("pearl", "Overlap.* cannot be forced: a forced run has no lossy rule, token tree or Overlap"),
        ("lossy.py:Below", "Verify.* cannot be forced"),
        ("lossy.py:Grows", "DraftTree.* cannot be forced"),
    ],
)
def test_a_step_that_cannot_be_forced_is_refused_in_the_replay(made, tmp_path, monkeypatch, policy, told):
    """What the models had measured of other policies was lost."""
    (tmp_path / "lossy.py").write_text(LOSSY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paceline.studies.validate.in_turns", lambda *_: pytest.fail("the models ran"))
    policies = ["plain", policy]
    with pytest.raises(PolicyError, match=told):
        validate(write_tiny_forced_pool(tmp_path / "forced"), None, made.trace, policies, cost="h100", runs=1)


@pytest.fixture(scope="module")
def forced(made, tmp_path_factory):
    """(forced pool's folder, its profile)."""
    folder = write_tiny_forced_pool(tmp_path_factory.mktemp("forced") / "pool")
    with of_this_process():
        return folder, profile(
            folder, recording=made.trace, grid=replace(GRID, new_tokens=(1, 14)), repeats=3, most_drift=9.0
        )


@pytest.mark.slow  # it is profiled
def test_a_profile_of_a_forced_pool_is_one_of_its_models_and_says_so(forced):
    folder, profiled = forced
    meta = profiled.profile.meta
    assert meta.forced
    assert repr(profiled).startswith("FORCED pool tiny forced on ")
    assert profiled.to_json()["meta"]["forced"] is True
    assert [member.name for member in meta.members] == ["draft", "mid", "slim", "target"]
    assert {"Plain", "Chain", "Adaptive", "Confident", "Ngram"} <= meta.decide_s.keys()
    assert check_profile(folder).profile == profiled.profile


@pytest.mark.slow  # it is profiled
def test_a_forced_pool_is_validated_with_its_profile(made, forced):
    folder, _ = forced
    found = validate(folder, None, made.trace, POLICIES, batches=(1, 4), runs=1)
    assert all(cell.equal and cell.forced for cell in found.cells)
    assert 0.1 < median(cell.simulated_s / cell.measured_s for cell in found.cells) < 10
    assert any("of forced pool tiny forced" in note for note in found.to_json()["notes"])
    assert found.to_json()["repeatability"] is None
    assert found.lines()[-1] == "how well the machine repeats its own seconds is not known from one run"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "`recording` must be given with forced pool tiny forced: it decides what is accepted"),
        ({"prompts": PROMPTS}, "`prompts` must be left out with a forced pool"),
        ({"sampling": Sampling(mode="coupled", temperature=0.5, seed=1)}, "`sampling` must be that of the recording"),
        ({"policies": ["entropy-patch"]}, "`policies` must be lossless on a forced pool, got entropy-patch"),
        ({"policies": ["per-tag,default=plain,c=plain"]}, "names the tag c, which no request of the recording has"),
    ],
)
def test_what_cannot_be_profiled_of_a_forced_pool(made, unmeasured, tmp_path, given, told):
    recording = {} if not given else {"recording": made.trace}
    with pytest.raises(ArgumentError, match=told):
        profile(write_tiny_forced_pool(tmp_path / "pool"), grid=GRID, repeats=3, **recording, **given)


def test_a_pool_of_models_takes_no_recording_to_be_profiled(made, unmeasured):
    with pytest.raises(ArgumentError, match="`recording` is for a forced pool, whose models decide nothing, got"):
        profile(POOL, PROMPTS, recording=made.trace, grid=GRID, repeats=3)


@pytest.mark.parametrize("free", [(), ("ngram",)])
def test_a_pool_of_a_target_alone_is_profiled(tmp_path, free):
    members = tuple(member for member in POOL.members if member.name in (*free, "target"))
    grid = ShapeGrid(rows=(3,), new_tokens=(2, 6), context_tokens=(0, 20), away_s=(0.001,))
    found = profile(
        replace(POOL, members=members), PROMPTS, grid=grid, most_drift=9.0, out=tmp_path / "a.profile"
    ).profile
    assert [member.name for member in found.meta.members] == ["target"]
    assert found.meta.members[0].drafting == BesideForwards()
    assert found.meta.lookup.seconds(0, 1, 0) > 0


def changed(made: Profile, *, faster=1.0, **meta) -> Profile:
    """A profile as if it had been measured on a machine so many times as fast, and otherwise."""
    shapes = tuple(shape._replace(seconds=shape.seconds / faster, spread=0.01) for shape in made.shapes)
    members = tuple(after_away_changed(member, faster) for member in made.meta.members)
    return Profile(meta=made.meta.model_copy(update={"drift": 0.01, "members": members, **meta}), shapes=shapes)


def after_away_changed(member, faster):
    cells = tuple(
        cell.model_copy(update={"seconds": cell.seconds / faster, "spread": 0.01}) for cell in member.after_away
    )
    return member.model_copy(update={"after_away": cells})


def written(profile_: Profile, tmp_path):
    path = tmp_path / "b.profile"
    write_profile(profile_, path)
    return path


def test_a_profile_whose_weights_come_back_later_than_they_did_no_longer_fits(made, tmp_path):
    """Loosely: a busy machine may take several times as long for anything. The settled forwards are those of now."""
    here = made.profile
    members = tuple(after_away_changed(member, 60.0) for member in here.meta.members)
    found = check_profile(POOL, written(changed(here, drift=9.0, members=members), tmp_path)).freshness
    assert found.members.keys() == found.after_away.keys() == {"draft", "mid", "slim", "target"}
    assert all(pace.fits and pace.limit >= 9.0 for pace in found.members.values())
    assert not any(pace.fits for pace in found.after_away.values())
    assert " forwards after times away take " in found.line
    assert not found.to_json()["after_away"]["target"]["fits"]


def test_a_profile_of_now_is_told_from_one_of_a_machine_sixty_times_as_fast(made, tmp_path, now):
    """Loosely, as above; limits rest on what the profile measured of itself."""
    then = {"measured_at": now - timedelta(minutes=58)}
    found = check_profile(POOL, written(changed(made.profile, faster=60.0, **then), tmp_path))
    assert not found.fits
    for paces in (found.freshness.members, found.freshness.after_away):
        assert paces.keys() == {"draft", "mid", "slim", "target"}
        assert all(6 < pace.ratio < 600 for pace in paces.values())
        assert [pace.limit for pace in paces.values()] == pytest.approx([0.01 + 2 * 0.01] * 4)
    assert [row["after_away"] for row in found.to_dicts()] == [False] * 4 + [True] * 4
    assert found.freshness.age_s == 58 * 60
    assert found.lines()[-1].startswith("the profile no longer fits: ")
    assert found.lines()[-1].endswith(" times as long as 58 min ago; profile again")


def test_a_profile_is_asked_only_whether_the_members_that_run_still_fit(made):
    keys = [
        validate(POOL, PROMPTS, made.trace, asked, cost=str(made.out), batches=(1,), tags=["a"], requests=1, runs=1)
        .to_json()["freshness"]["members"]
        .keys()
        for asked in (["plain"], ["plain", "mid:2/target"], ["adaptive"])
    ]
    assert keys == [{"target"}, {"mid", "target"}, {"draft", "target"}]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"threads": 2}, "it was measured with 2 threads, torch has 1"),
        ({"device": "NVIDIA H100"}, "it was measured on NVIDIA H100, these models are on cpu"),
    ],
)
def test_what_makes_seconds_wrong(made, tmp_path, changes, says):
    here = made.profile
    other = changed(here, **changes)
    assert mismatches(other, POOL) == [says]
    with pytest.raises(ArgumentError, match=f"the profile does not fit these models: {says}; profile again"):
        check_profile(POOL, written(other, tmp_path))


def test_members_that_run_otherwise(made):
    here = made.profile
    first, *others = here.meta.members

    def first_is(**change):
        return mismatches(changed(here, members=(first.model_copy(update=change), *others)), POOL)

    assert first_is(forward="magic") == [f"its draft ran magic, here it runs {first.forward}"]
    assert first_is(dtype="bfloat16") == [
        f"its draft has {first.parameters:,} parameters of bfloat16, this one {first.parameters:,} of float32"
    ]


def test_what_may_have_changed_seconds_is_remarked(made):
    here = made.profile
    assert remarks_on_profile(here.meta, POOL, "greedy") == []
    torch_then = here.meta.model_copy(update={"torch": "1.0"})
    assert remarks_on_profile(torch_then, POOL, "coupled") == [
        f"the profile was made with torch 1.0, this is {torch.__version__}",
        "the profile was made with greedy sampling, this is coupled, which chooses otherwise",
    ]
    chosen = here.meta.model_copy(update={"products": (*here.meta.products, "float32 7x7: plain from 1")})
    assert remarks_on_profile(chosen, POOL, "greedy") == [
        "products were chosen otherwise since the profile was made: float32 7x7"
    ]


def test_validate_says_beforehand_that_a_profile_no_longer_fits(made, tmp_path, capsys):
    here = made.profile
    path = written(changed(here, faster=60.0), tmp_path)
    found = validate(POOL, PROMPTS, made.trace, ["plain"], cost=str(path), batches=(1,), runs=1)
    assert "the profile no longer fits: " in capsys.readouterr().err
    assert not found.to_json()["freshness"]["fits"]
    assert any(note.startswith("the profile no longer fits: ") for note in found.lines())
    true = validate(POOL, PROMPTS, made.trace, ["plain"], cost=str(made.out), batches=(1,), runs=1)
    for wrong, right in zip(found.cells, true.cells, strict=True):
        assert wrong.simulated_s < right.simulated_s


def test_validate_takes_a_profile_of_other_threads_if_told_to_and_labels_it(made, tmp_path, capsys):
    here = made.profile
    given = {"cost": str(written(changed(here, threads=2), tmp_path)), "batches": (1,), "runs": 1}
    says = "`threads` must be 2, as .*b.profile was measured with, got 1: profile again, or `allow_foreign_profile`"
    with pytest.raises(ArgumentError, match=says):
        validate(POOL, PROMPTS, made.trace, ["plain"], **given)
    found = validate(POOL, PROMPTS, made.trace, ["plain"], allow_foreign_profile=True, **given)
    label = "FOREIGN profile: it was measured with 2 threads, torch has 1"
    assert label in found.meta["notes"]
    assert label in capsys.readouterr().err


def test_a_validation_with_other_seconds_than_a_profile_has_no_freshness(made):
    found = validate(POOL, PROMPTS, made.trace, ["plain"], cost="h100", batches=(1,), runs=1)
    assert found.to_json()["freshness"] is None


def test_a_recording_takes_its_seconds_from_a_profile(made, tmp_path, capsys):
    here = made.profile
    told = r"\.profile must reach forwards of 70 tokens, those of the longest prompt, and for draft it reaches \d+: "
    with pytest.raises(ArgumentError, match=told):
        record(POOL, [" ".join(["t1"] * 70)], tmp_path / "long.trace", max_new_tokens=8, profile="here")
    assert not (tmp_path / "long.trace").exists()
    trace = record(POOL, PROMPTS, tmp_path / "a.trace", max_new_tokens=8, profile="here")
    assert " the profile " in capsys.readouterr().err
    taken = read_trace(tmp_path / "a.trace").meta.profile
    assert (taken.file, taken.sha256) == (made.out.name, sha256(made.out.read_bytes()).hexdigest())
    assert (taken.hardware, taken.measured_at) == (here.meta.hardware, here.meta.measured_at)
    facts, _ = trace_tables(trace.summary())
    assert ("seconds from profile", taken.words) in facts.rows
    tables = trace.meta.costs["cpu"]
    assert tables.keys() == {"draft", "mid", "slim", "target"}
    measured = {shape.key: shape.seconds for shape in here.shapes}
    for name, table in tables.items():
        seconds = dict(zip(table.new_tokens, table.seconds, strict=True))
        assert seconds[1] == measured[name, 1, 1, 60]
        assert seconds[6] == measured[name, 1, 6, 60]
        assert max(seconds) == 12  # two rows of 16 tokens and one of 16 are beyond the profile


@pytest.mark.parametrize(
    ("changes", "given", "says"),
    [
        ({"processor": "another"}, {}, "the profile does not fit these models: it was measured on another, 1 thread, "),
        ({"threads": 2}, {}, "the profile does not fit these models: it was measured with 2 threads, torch has 1"),
        ({"members": "other"}, {}, "the profile does not fit these models: its target has 7 parameters of float32"),
        ({}, {"costs": False}, "`profile` goes with `costs`, got `profile` .* without them"),
    ],
)
def test_a_recording_refuses_seconds_of_others_and_writes_nothing(made, tmp_path, changes, given, says):
    here = made.profile
    if "members" in changes:
        *others, target = here.meta.members
        changes = {"members": (*others, target.model_copy(update={"parameters": 7}))}
    path = written(changed(here, **changes), tmp_path)
    with pytest.raises(ArgumentError, match=says):
        record(POOL, PROMPTS, tmp_path / "a.trace", max_new_tokens=8, profile=path, **given)
    assert list(tmp_path.iterdir()) == [path]


SMALL = ShapeGrid(rows=(1, 3), new_tokens=(1, 6), context_tokens=(0, 20), most_tokens=84, away_s=(0.001,))
GIVEN = {"grid": SMALL, "repeats": 3, "most_drift": 9.0}
NUM_GROUPS = 4 * 4  # of rows and tokens held, in four rounds


@pytest.fixture
def beside(made, monkeypatch):
    """Besides forwards nothing is measured again: they come before it, and a journal keeps no other thing."""
    members, operations = (made.beside[measure] for measure in (measure_members, measure_operations))
    monkeypatch.setattr("paceline.studies.profile.measure_members", lambda *given: replace(members, even=given[2]))
    monkeypatch.setattr("paceline.studies.profile.measure_operations", lambda *_, **__: operations)


def group_times(forward, name, rows, context, counts):
    """As if a forward of so many tokens took so long."""
    return {(name, rows, count, context): 1e-4 * (1 + rows * count) for count in counts}


@pytest.fixture
def interrupted(tmp_path, monkeypatch, beside):
    """The journal of a profile that was interrupted in its third round; groups timed from here on are counted."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    timed = []

    def times(*group):
        if len(timed) == 10 * 4:
            raise KeyboardInterrupt
        timed.append(group[1:4])
        return group_times(*group)

    monkeypatch.setattr(forward_shapes, "_time_group", times)
    with pytest.raises(KeyboardInterrupt):
        profile(POOL, PROMPTS, **GIVEN)
    (path,) = (tmp_path / "unfinished").iterdir()
    assert not (tmp_path / "profiles").exists()
    timed.clear()
    monkeypatch.setattr(forward_shapes, "_time_group", lambda *group: timed.append(group[1:4]) or group_times(*group))
    return path, timed


def same_again(monkeypatch, ratio=1.0, spread=0.0):
    """Measuring again finds every member as quick as then, times a ratio, and by so much from one time to the next."""

    def again(forwards, shapes):
        return {
            name: [
                (shape, shape._replace(seconds=ratio * shape.seconds, spread=spread))
                for shape in shapes
                if shape.member == name
            ]
            for name in forwards
        }

    monkeypatch.setattr(unfinished, "measure_again", again)


def test_it_goes_on_where_it_was_and_says_so(interrupted, monkeypatch, capsys):
    path, timed = interrupted
    same_again(monkeypatch)
    known = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert len(known) == 10
    made = profile(POOL, PROMPTS, **GIVEN).profile
    assert len(timed) == 4 * (NUM_GROUPS - 10)
    assert "an interrupted profile continues: 10 groups of shapes of the last " in capsys.readouterr().err
    assert len(made.shapes) == 4 * 2 * 2 * 2
    assert not path.exists()  # what is finished is no more to be gone on with


@pytest.mark.parametrize("where", ["then", "now"])
@pytest.mark.parametrize(("ratio", "continues"), [(1.2, True), (0.7, True), (1.9, False), (0.5, False)])
def test_a_machine_that_varies_as_much_anyway_is_no_other_machine(
    interrupted, monkeypatch, capsys, where, ratio, continues
):
    """30% from one time to the next: up to 1.7 times as long says nothing, whether rounds then or now show it."""
    path, timed = interrupted
    header, *lines = path.read_text().splitlines()
    if where == "then":
        first = [json.loads(line) for line in lines[:4]]
        lines = [
            json.dumps(one | {"round": number, "shapes": [[*key, by * seconds] for *key, seconds in one["shapes"]]})
            for number, by in enumerate((1.0, 0.8, 1.2))
            for one in first
        ]
        path.write_text("\n".join([header, *lines]) + "\n")
    same_again(monkeypatch, ratio, spread=0.3 if where == "now" else 0.0)
    # Rounds that were scaled drift by themselves, of which nothing is made here.
    monkeypatch.setattr("paceline.studies.profile._refuse_drift", lambda *_: None)
    profile(POOL, PROMPTS, **GIVEN | {"most_drift": 0.1})
    assert len(timed) == 4 * (NUM_GROUPS - len(lines) * continues)
    told = capsys.readouterr().err
    assert ("profile continues" in told) == continues
    assert ("'s forwards take " in told) != continues


def test_an_interrupt_says_what_the_same_command_does_then(interrupted, monkeypatch, capsys, now):
    path, _ = interrupted
    begun_at = (now - timedelta(seconds=2400)).isoformat()
    header, *lines = path.read_text().splitlines(keepends=True)
    path.write_text(json.dumps(json.loads(header) | {"begun_at": begun_at}) + "\n" + "".join(lines))
    same_again(monkeypatch)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.studies.profile.measure_members", interrupt)
    with pytest.raises(KeyboardInterrupt):
        profile(POOL, PROMPTS, **GIVEN)
    told = capsys.readouterr().err
    assert "continues: 10 groups" in told
    assert f"{NUM_GROUPS} groups of shapes kept: the same command within 20 min continues, unless the machine" in told


@pytest.fixture
def refused(tmp_path, monkeypatch, beside, now):
    """The error of a profile whose seconds grew round by round; groups timed from here on are counted."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    timed = []

    def times(*group):
        number = len(timed) // NUM_GROUPS  # four members in each of a round's groups
        timed.append(group)
        return {key: (1 + 0.1 * number) * seconds for key, seconds in group_times(*group).items()}

    monkeypatch.setattr(forward_shapes, "_time_group", times)
    with pytest.raises(ArgumentError) as raised:
        profile(POOL, PROMPTS, **GIVEN | {"most_drift": 0.1})
    timed.clear()
    same_again(monkeypatch)
    return str(raised.value), timed


def test_a_refused_profile_continues_with_a_larger_drift_which_the_error_names(refused, capsys):
    error, timed = refused
    assert "by `most_drift` 0.1 (10%) at most while they are measured, got 18%: " in error
    assert "; `most_drift` 0.2 accepts it, and within 60 min continues with what is measured, unless the" in error
    made = profile(POOL, PROMPTS, **GIVEN | {"most_drift": 0.2}).profile
    assert not timed
    assert made.meta.drift == pytest.approx(1.3 / 1.1 - 1)  # of all rounds
    assert f"a refused profile continues: {NUM_GROUPS} groups of shapes" in capsys.readouterr().err


def test_a_refused_profile_begins_again_with_the_same_drift(refused, capsys):
    _, timed = refused
    with pytest.raises(ArgumentError, match="got "):
        profile(POOL, PROMPTS, **GIVEN | {"most_drift": 0.1})
    assert len(timed) == 4 * NUM_GROUPS
    told = "its seconds drifted by 18%, and --most-drift 0.1 (10%) allows less"
    assert f"a refused profile begins again, and its {NUM_GROUPS} groups of shapes are measured again: {told}" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("ratio", "older_s", "options", "says"),
    [
        (
            1.2,
            0,
            {"most_drift": 0.1},
            "target's forwards take 1.20 times as long as then (0.91 to 1.10 would continue); a larger one than "
            "--most-drift 0.1 (10%) allows more",
        ),
        (0.5, 0, {"most_drift": 0.1}, "'s forwards take 0.50 times as long as then"),
        (1.0, 3700, {}, "begins again, and its 10 groups of shapes are measured again: it is 62 min old"),
        (1.0, 0, {"restart": True}, ""),
        (1.0, 0, {"grid": replace(SMALL, context_tokens=(0, 21))}, ""),
    ],
)
def test_what_is_of_no_use_is_begun_anew(interrupted, monkeypatch, capsys, now, ratio, older_s, options, says):
    path, timed = interrupted
    same_again(monkeypatch, ratio)
    header, *lines = path.read_text().splitlines(keepends=True)
    begun_at = (now - timedelta(seconds=older_s)).isoformat()
    path.write_text(json.dumps(json.loads(header) | {"begun_at": begun_at}) + "\n" + "".join(lines))
    profile(POOL, PROMPTS, **GIVEN | options)
    assert len(timed) == 4 * NUM_GROUPS
    told = capsys.readouterr().err
    assert says in told
    assert "profile continues" not in told


def test_a_grid_beyond_memory_keeps_what_fits_and_names_the_rest(tmp_path, monkeypatch, beside):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(forward_shapes, "_time_group", group_times)
    of_target = POOL.target.kv_bytes_per_token
    monkeypatch.setattr(forward_shapes, "total_bytes", lambda device: 2 * of_target * 64)
    made = profile(POOL, PROMPTS, **GIVEN)
    shapes = {shape.key for shape in made.profile.shapes}
    assert ("target", 3, 1, 20) in shapes
    assert ("target", 3, 6, 20) not in shapes
    assert ("draft", 3, 6, 20) in shapes
    assert made.profile.meta.left_out == ("target: 3 x 6 and more after 20",)
    assert "left out, as memory is short: target: 3 x 6 and more after 20" in made.lines()
