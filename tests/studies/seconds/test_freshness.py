"""A profile that no longer fits is told from one that does, and one that cannot be right is refused."""

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from types import SimpleNamespace

import pytest
import torch
from paceline.base.errors import ArgumentError
from paceline.reports.recordings import trace_tables
from paceline.runtime.profiling.forwards import reference_grid, reference_times
from paceline.studies.profile_check import (
    Freshness,
    MemberPace,
    check_profile,
    device_name,
    mismatches,
    remarks_on_profile,
)
from paceline.studies.record import record
from paceline.studies.validate import validate
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.meta import Sampling
from paceline.traces.profile import AfterAway, Profile, write_profile

from ...profiles.profiles import made_profile
from .profiled_pool import POOL, PROMPTS


@pytest.fixture(scope="module")
def made(profiled_folder):
    """(folder with `a.trace` and the profile of here, profile)."""
    folder, profiled = profiled_folder
    return folder, profiled.profile


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


def test_a_few_shapes_of_the_profile_are_measured_again():
    grid = reference_grid(made_profile().shapes)
    assert (grid.rows, grid.new_tokens, grid.context_tokens) == ((1, 2), (1, 3, 9), (50,))
    slow = [shape._replace(seconds=0.1) for shape in made_profile().shapes]
    assert reference_grid(slow).new_tokens == (1,)


def test_a_few_forwards_after_times_away_are_measured_again():
    def cells(seconds):
        return [
            AfterAway(new_tokens=count, away_s=away_s, seconds=seconds, spread=0.01)
            for count in (1, 2, 6, 40)
            for away_s in (0.0, 0.0005, 0.001, 0.004, 0.02)
        ]

    assert reference_times({"a": cells(1e-4)}) == ([1, 6], [0.0005, 0.001, 0.004, 0.02])
    assert reference_times(dict.fromkeys("abcd", cells(2e-3))) == ([1, 6], [0.0005, 0.001, 0.004])
    assert reference_times({"a": cells(2.0)}) == ([1], [0.001])


def test_a_profile_whose_weights_come_back_later_than_they_did_no_longer_fits(made, tmp_path):
    """Loosely: a busy machine may take several times as long for anything. The settled forwards are those of now."""
    _, here = made
    members = tuple(after_away_changed(member, 60.0) for member in here.meta.members)
    found = check_profile(POOL, written(changed(here, drift=2.0, members=members), tmp_path)).freshness
    assert found.members.keys() == found.after_away.keys() == {"draft", "mid", "slim", "target"}
    assert not any(pace.fits for pace in found.after_away.values())
    assert " forwards after times away take " in found.line
    assert not found.to_json()["after_away"]["target"]["fits"]


def test_a_profile_of_now_is_told_from_one_of_a_machine_sixty_times_as_fast(made, tmp_path):
    """Loosely: a busy machine may take several times as long for anything."""
    _, here = made
    then = {"measured_at": datetime.now(UTC) - timedelta(minutes=58)}
    found = check_profile(POOL, written(changed(here, faster=60.0, **then), tmp_path))
    assert not found.fits
    assert found.freshness.members.keys() == {"draft", "mid", "slim", "target"}
    assert all(6 < pace.ratio < 600 for pace in found.freshness.members.values())
    assert all(6 < pace.ratio < 600 for pace in found.freshness.after_away.values())
    assert [row["after_away"] for row in found.to_dicts()] == [False] * 4 + [True] * 4
    assert found.freshness.age_s == pytest.approx(58 * 60, abs=60)
    assert found.lines()[-1].startswith("the profile no longer fits: ")
    assert found.lines()[-1].endswith(" times as long as 58 min ago; profile anew")
    same = check_profile(POOL, written(changed(here, drift=9.0), tmp_path))
    assert same.fits
    assert same.lines()[-1].startswith("the profile fits: forwards take ")


def test_limits_rest_on_what_the_profile_measured_of_itself(made, tmp_path):
    folder, here = made
    quiet = check_profile(POOL, written(changed(here), tmp_path)).freshness
    assert [pace.limit for pace in quiet.members.values()] == pytest.approx([0.01 + 2 * 0.01] * 4)
    (path,) = (folder / "profiles").iterdir()
    own = check_profile(POOL, path).freshness
    assert all(pace.limit >= max(0.02, here.meta.drift) for pace in own.members.values())
    assert [pace.limit for pace in quiet.after_away.values()] == pytest.approx([0.01 + 2 * 0.01] * 4)


@pytest.mark.parametrize(("ratio", "fits"), [(1.0, True), (1.09, True), (1.11, False), (0.92, True), (0.9, False)])
def test_slower_and_faster_alike_are_a_change(ratio, fits):
    pace = MemberPace(ratio=ratio, limit=0.1)
    assert pace.fits == fits
    both = {"a": pace, "b": MemberPace(ratio=1.0, limit=0.1)}, {"b": MemberPace(ratio=1.0, limit=0.1)}
    for members, after_away in (both, both[::-1]):
        assert Freshness(age_s=1.0, members=members, after_away=after_away).fits == fits


def test_only_members_that_changed_are_named_the_worst_first():
    members = {name: MemberPace(ratio=ratio, limit=0.1) for name, ratio in (("a", 1.2), ("b", 1.01), ("c", 1.31))}
    after_away = {"b": MemberPace(ratio=1.25, limit=0.1), "c": MemberPace(ratio=1.0, limit=0.1)}
    assert Freshness(age_s=3480.0, members=members, after_away=after_away).line == (
        "the profile no longer fits: c's forwards take 1.31 times, b's forwards after times away take 1.25 times, a's "
        "forwards take 1.20 times as long as 58 min ago; profile anew"
    )
    fitting = {"b": members["b"]}
    assert Freshness(age_s=60.0, members=fitting, after_away=fitting).line == (
        "the profile fits: forwards take 1.01 to 1.01 times, after times away 1.01 to 1.01 times as long as 60 s ago"
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"threads": 2}, "it was measured with 2 threads, torch has 1"),
        ({"device": "NVIDIA H100"}, "it was measured on NVIDIA H100, these models are on cpu"),
    ],
)
def test_what_makes_seconds_wrong(made, tmp_path, changes, says):
    _, here = made
    other = changed(here, **changes)
    assert mismatches(other, POOL) == [says]
    with pytest.raises(ArgumentError, match=f"the profile does not fit these models: {says}; profile anew"):
        check_profile(POOL, written(other, tmp_path))


def test_members_elsewhere_than_the_target_are_a_part_of_the_device():
    on = {"draft": "cuda:1", "mid": "cpu", "target": "cpu"}
    members = [SimpleNamespace(name=name, model=SimpleNamespace(device=torch.device(at))) for name, at in on.items()]
    lookup = SimpleNamespace(name="ngram", model=None)
    assert device_name(SimpleNamespace(members=[lookup, *members], target=members[-1])) == "cpu, draft on cuda:1"
    assert device_name(POOL) == "cpu"


def test_members_that_run_otherwise(made):
    _, here = made
    first, *others = here.meta.members

    def first_is(**change):
        return mismatches(changed(here, members=(first.model_copy(update=change), *others)), POOL)

    assert first_is(forward="magic") == [f"its draft ran magic, here it runs {first.forward}"]
    assert first_is(dtype="bfloat16") == [
        f"its draft has {first.parameters:,} parameters of bfloat16, this one {first.parameters:,} of float32"
    ]


def test_what_may_have_changed_seconds_is_remarked(made):
    _, here = made
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
    folder, here = made
    path = written(changed(here, faster=60.0), tmp_path)
    found = validate(POOL, PROMPTS, folder / "a.trace", ["plain"], cost=str(path), batches=(1,), runs=1)
    assert "the profile no longer fits: " in capsys.readouterr().err
    assert not found.to_json()["freshness"]["fits"]
    assert any(note.startswith("the profile no longer fits: ") for note in found.lines())
    true = validate(
        POOL, PROMPTS, folder / "a.trace", ["plain"], cost=str(written(here, tmp_path)), batches=(1,), runs=1
    )
    for wrong, right in zip(found.cells, true.cells, strict=True):
        assert wrong.simulated_s < right.simulated_s


def test_validate_takes_a_profile_of_other_threads_if_told_to_and_labels_it(made, tmp_path, capsys):
    folder, here = made
    given = {"cost": str(written(changed(here, threads=2), tmp_path)), "batches": (1,), "runs": 1}
    says = "`threads` must be 2, as .*b.profile was measured with, got 1: profile anew, or `allow_foreign_profile`"
    with pytest.raises(ArgumentError, match=says):
        validate(POOL, PROMPTS, folder / "a.trace", ["plain"], **given)
    found = validate(POOL, PROMPTS, folder / "a.trace", ["plain"], allow_foreign_profile=True, **given)
    label = "FOREIGN profile: it was measured with 2 threads, torch has 1"
    assert label in found.meta["notes"]
    assert label in capsys.readouterr().err


def test_a_validation_with_other_seconds_than_a_profile_has_no_freshness(tmp_path):
    record(POOL, PROMPTS, tmp_path / "a.trace", max_new_tokens=8)
    found = validate(POOL, PROMPTS, tmp_path / "a.trace", ["plain"], cost="cpu", batches=(1,), runs=1)
    assert found.to_json()["freshness"] is None


def test_a_recording_takes_its_seconds_from_a_profile(made, tmp_path, capsys):
    folder, here = made
    told = r"\.profile must reach forwards of 70 tokens, those of the longest prompt, and for draft it reaches \d+: "
    with pytest.raises(ArgumentError, match=told):
        record(POOL, [" ".join(["t1"] * 70)], tmp_path / "long.trace", max_new_tokens=8, profile="here")
    assert not (tmp_path / "long.trace").exists()
    trace = record(POOL, PROMPTS, tmp_path / "a.trace", max_new_tokens=8, profile="here")
    assert capsys.readouterr().err.startswith("paceline: the profile ")
    taken, (file,) = read_trace(tmp_path / "a.trace").meta.profile, (folder / "profiles").iterdir()
    assert (taken.file, taken.sha256) == (file.name, sha256(file.read_bytes()).hexdigest())
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


def test_a_recording_of_seconds_that_were_measured_for_it_names_no_profile(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.studies.record.measure_costs", lambda *_, **__: {})
    trace = record(POOL, PROMPTS, tmp_path / "a.trace", max_new_tokens=8)
    assert trace.meta.profile is None
    assert "seconds from profile" not in dict(trace_tables(trace.summary())[0].rows)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"prompts": []}, "`prompts` must hold at least one"),
        ({"prompts": [PROMPTS[0], PROMPTS[0]]}, "`prompts` must have unique ids"),
        ({"max_new_tokens": 256}, "must fit into the pool's context of 256 tokens"),
        ({"sampling": Sampling(mode="rejection", temperature=1.0, seed=0)}, "rejection"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_seconds_are_measured(tmp_path, monkeypatch, given, says):
    for measuring in ("measure_costs", "fitting_profile"):
        monkeypatch.setattr(f"paceline.studies.record.{measuring}", None)
    for seconds in ({}, {"profile": "here"}):
        with pytest.raises(ValueError, match=says):
            record(POOL, out=tmp_path / "a.trace", **{"prompts": PROMPTS, **seconds, **given})
    assert not list(tmp_path.iterdir())


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
    _, here = made
    if "members" in changes:
        *others, target = here.meta.members
        changes = {"members": (*others, target.model_copy(update={"parameters": 7}))}
    path = written(changed(here, **changes), tmp_path)
    with pytest.raises(ArgumentError, match=says):
        record(POOL, PROMPTS, tmp_path / "a.trace", max_new_tokens=8, profile=path, **given)
    assert list(tmp_path.iterdir()) == [path]
