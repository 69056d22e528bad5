"""A profile of a tiny pool is measured, found, and its seconds held against real decoding."""

from dataclasses import replace
from statistics import median

import pytest
from paceline.base.errors import ArgumentError
from paceline.runtime.profiling.forwards import ShapeGrid
from paceline.runtime.prompts import Prompt
from paceline.sim.cost.base import CostRangeError
from paceline.studies.compare import compare
from paceline.studies.profile import profile
from paceline.studies.profile_check import check_profile
from paceline.studies.validate import validate
from paceline.traces.contexts.on_disk import read_trace, write_trace
from paceline.traces.meta import CostTable, Sampling
from paceline.traces.profile import BesideForwards, read_profile

from ...runtime.forced.forced_pools import write_tiny_forced_pool
from .profiled_pool import GRID, POOL, PROMPTS

POLICIES = ["plain", "draft:3/target", "draft:2/mid:4/target", "ngram", "adaptive"]


LONG = [*PROMPTS, Prompt(request_id="long", tag="a", text=" ".join(["t1"] * 256))]


@pytest.fixture
def unmeasured(monkeypatch):
    """Nothing can be measured or run."""
    for what in ("profile.journal_of", "profile.measure_members", "profile.measure_operations", "validate._measured"):
        monkeypatch.setattr(f"paceline.studies.{what}", None)


@pytest.fixture(scope="module")
def made(profiled_folder):
    """(recording's path, profile)."""
    folder, profiled = profiled_folder
    return folder / "a.trace", profiled


def test_a_profile_says_what_was_measured(made):
    _, profiled = made
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
        assert member.reload.away_s == GRID.away_s
        assert {cell.away_s for cell in member.after_away} == {0.0, *GRID.away_s}
    assert meta.members[-1].shares.keys() == {"draft", "mid", "slim"}  # which are all made of its layers
    assert all(member.shares["target"] == 1.0 for member in meta.members[:-1])
    assert {"Plain", "Chain", "Adaptive", "Confident", "Ngram"} <= meta.decide_s.keys()
    assert repr(profiled).startswith("pool tiny on ")
    assert len(profiled.to_dicts()) == len(profiled.profile.shapes)
    assert profiled.to_json()["floor"] is None  # on a processor


def test_a_comparison_here_says_whose_seconds_it_uses(made):
    path, profiled = made
    found = compare(path, ["plain", "draft:3/target"], cost="here")
    (note,) = (line for line in found.to_json()["meta"]["cost_notes"] if line.startswith("seconds measured on "))
    assert profiled.profile.meta.hardware in note
    assert "greedy sampling" in note
    assert found.to_json()["meta"]["decide_s"] is None


def test_both_worlds_take_the_same_steps_and_about_the_same_time(made):
    """Loosely: a busy machine may double anything, even the seconds of this process alone."""
    path, _ = made
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
        ({"threads": 2}, "`threads` must be 1, as here was measured with, got 2: profile anew"),
        ({"policies": ["oracle-window"]}, "policy oracle-window sees ahead, which only a recording can grant"),
        ({"policies": ["per-tag,default=plain,c=draft:3/target"]}, "names the tag c, which no request of recording a"),
    ],
)
def test_what_cannot_be_validated_is_refused_before_anything_is_run(made, unmeasured, given, told):
    path, _ = made
    with pytest.raises(ValueError, match=told):
        validate(POOL, PROMPTS, path, **{"policies": ["plain"], **given})


def test_seconds_that_a_cost_does_not_know_are_refused_before_anything_is_run(made, unmeasured, tmp_path):
    stored = read_trace(made[0])
    table = CostTable(new_tokens=(1, 2), seconds=(0.1, 0.2))
    meta = stored.meta.model_copy(update={"costs": {"cpu": dict.fromkeys(stored.meta.model_names, table)}})
    write_trace(replace(stored, meta=meta), tmp_path / "b.trace")
    with pytest.raises(CostRangeError):
        validate(POOL, PROMPTS, tmp_path / "b.trace", ["draft:9/target"], cost="cpu", batches=(1,))


def test_a_machine_that_drifts_is_refused_before_more_is_measured_and_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.studies.profile.measure_members", None)
    grid = ShapeGrid(rows=(1,), new_tokens=(1, 2), context_tokens=(0,))
    with pytest.raises(ArgumentError, match=r"seconds must drift by `most_drift` 0% at most"):
        profile(POOL, PROMPTS, out=tmp_path / "a.profile", grid=grid, repeats=3, most_drift=0.0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"most_drift": float("nan")}, r"`most_drift` must be in \[0, 10\], got nan"),
        ({"policies": ["nobody"]}, "nobody"),
        ({"out": "a.json"}, r"`out` must end in \.profile, by which a cost is known for a profile, got 'a\.json'"),
        ({"policies": ["draft:3/nobody"]}, "nobody"),
        ({"policies": ["oracle-window"]}, "policy oracle-window sees ahead, which only a recording can grant"),
        ({"policies": ["per-tag,default=plain,c=draft:3/target"]}, "names the tag c, which no request of the prompts"),
        ({"repeats": 2}, "`repeats` must be >= 3, got 2"),
        ({"prompts": LONG}, "`prompts` must have 1 to 255 tokens, as pool tiny has a context of 256, got request long"),
    ],
)
def test_what_cannot_be_profiled_is_refused_before_anything_is_measured(tmp_path, unmeasured, given, told):
    with pytest.raises(ValueError, match=told):
        profile(POOL, grid=GRID, **{"prompts": PROMPTS, "out": tmp_path / "a.profile", **given})


@pytest.mark.parametrize("axis", [{"rows": ()}, {"new_tokens": (0, 1)}, {"context_tokens": (5, 5)}, {"rows": (2, 1)}])
def test_a_grid_must_increase(axis):
    with pytest.raises(ValueError, match="must be strictly increasing from >= "):
        ShapeGrid(**axis)


def test_a_forced_pool_is_validated_on_the_decisions_of_a_recording(made, tmp_path):
    """At the price of a device that is not this one: only the steps are compared here."""
    path, _ = made
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
    ],
)
def test_what_cannot_be_validated_on_a_forced_pool(made, tmp_path, given, told):
    path, _ = made
    forced = write_tiny_forced_pool(tmp_path / "forced")
    with pytest.raises(ValueError, match=told):
        validate(forced, **{"prompts": None, "recording": path, "cost": "h100", "runs": 1, **given})


def test_a_pool_of_models_needs_prompts(made):
    with pytest.raises(ArgumentError, match="`prompts` must be given, those of the recording"):
        validate(POOL, None, made[0], ["plain"])


@pytest.fixture(scope="module")
def forced(made, tmp_path_factory):
    """(forced pool's folder, its profile)."""
    folder = write_tiny_forced_pool(tmp_path_factory.mktemp("forced") / "pool")
    return folder, profile(folder, recording=made[0], grid=GRID, repeats=3, most_drift=9.0)


def test_a_profile_of_a_forced_pool_is_one_of_its_models_and_says_so(forced):
    folder, profiled = forced
    meta = profiled.profile.meta
    assert meta.forced
    assert repr(profiled).startswith("FORCED pool tiny forced on ")
    assert profiled.to_json()["meta"]["forced"] is True
    assert [member.name for member in meta.members] == ["draft", "mid", "slim", "target"]
    assert {"Plain", "Chain", "Adaptive", "Confident", "Ngram"} <= meta.decide_s.keys()
    assert check_profile(folder).profile == profiled.profile


def test_a_forced_pool_is_validated_with_its_profile(made, forced):
    folder, _ = forced
    found = validate(folder, None, made[0], POLICIES, batches=(1, 4), runs=1)
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
def test_what_cannot_be_profiled_of_a_forced_pool(made, forced, unmeasured, given, told):
    recording = {} if not given else {"recording": made[0]}
    with pytest.raises(ArgumentError, match=told):
        profile(forced[0], grid=GRID, repeats=3, **recording, **given)


def test_a_recording_decides_nothing_for_models_of_their_own(made):
    with pytest.raises(ArgumentError, match="`recording` is for a forced pool, whose models decide nothing, got"):
        profile(POOL, PROMPTS, recording=made[0], grid=GRID, repeats=3)


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


def test_a_grid_that_the_pool_has_no_room_for(tmp_path):
    grid = ShapeGrid(context_tokens=(10_000,))
    with pytest.raises(ValueError, match="no shape of the grid fits"):
        profile(POOL, PROMPTS, grid=grid, out=tmp_path / "a.profile")
