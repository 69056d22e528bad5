"""The cost of a profile: forwards, what is beside them, deciding, and whom it may speak for."""

import re

import pytest
from paceline.base.errors import ArgumentError
from paceline.base.files import FOLDER_VARIABLE, processor
from paceline.policies.fixed import Chain
from paceline.policies.spec import make_policy
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.base import CostModel, CostRangeError
from paceline.sim.cost.make import make_cost
from paceline.sim.cost.measured import ProfiledCost, newest_here
from paceline.sim.simulate import Scenario, simulate
from paceline.traces import SyntheticSpec, make_trace
from paceline.traces.profile import BatchShape, BesideForwards, write_profile

from ...profiles.profiles import made_profile, seconds_of
from .shapes import META, RECORDING, seconds
from .timed_recordings import recording_of, request_of

NAMES = META.model_names


def parameters_of(recorded=META):
    return {model.name: model for model in recorded.models}


def matching(**changes):
    """A profile of the models that the recording was made of."""
    made = made_profile(names=NAMES, **{"processor": processor(), **changes})
    known = parameters_of()
    members = tuple(
        member.model_copy(update={"parameters": known[member.name].parameters, "dtype": known[member.name].dtype})
        for member in made.meta.members
    )
    return type(made)(meta=made.meta.model_copy(update={"members": members}), shapes=made.shapes)


def cost_of(profile=None):
    return ProfiledCost(profile or matching(), "a.profile", NAMES)


def test_forwards_are_those_of_the_profile():
    assert seconds(cost_of(), 3, model="draft") == pytest.approx(seconds_of(1, 3, 0))
    with pytest.raises(CostRangeError, match="mid was not profiled; it has draft, target"):
        ProfiledCost(matching(), "a.profile", ["draft", "mid"])


def test_every_operation_and_every_step_is_charged_for():
    """What replay takes is the sum of its forwards, of what is beside them, and of the decisions."""
    tables = TrieTables(make_trace(SyntheticSpec(models=NAMES, requests=3, tokens=20)))
    cost, policy = cost_of(), make_policy("draft:4/target", tables.pool)
    assert cost.knows_operations
    assert isinstance(policy, Chain)

    class ForwardsOnly(CostModel):
        name, forward_s = "bare", cost.forward_s

    log = simulate(Scenario(tables=tables, cost=cost), policy, "chain")
    bare = simulate(Scenario(tables=tables, cost=ForwardsOnly()), make_policy("draft:4/target", tables.pool), "chain")
    drafts, verifies = (log.ops["kind"] == kind for kind in (0, 1))
    drafted = log.steps["drafted"].sum()
    judged = (log.steps["judged"] + 1)[log.steps["kind"] == 1].sum()
    meta = matching().meta
    drafting, verifying = meta.members[0].drafting, meta.members[-1].verifying
    beside = (
        drafts.sum() * drafting.seconds(0, 1, 0)
        + drafted * drafting.per_token_s
        + verifies.sum() * verifying.seconds(0, 1, 0)
        + judged * verifying.per_token_s
    )
    decided = (log.steps["prefill"] == 0).sum() * meta.decide_s["Chain"]
    total, without = (float(one.requests["finished_at_s"].max()) for one in (log, bare))
    assert total == pytest.approx(without + beside + decided)
    assert log.meta["decide_s"] == meta.decide_s["Chain"]


def test_deciding_may_be_told_and_is_else_known_or_the_mean():
    tables = TrieTables(RECORDING)
    told = Scenario(tables=tables, cost=cost_of(), decide_s=0.0)
    assert told.seconds_to_decide(make_policy("adaptive", tables.pool)) == 0.0
    known = Scenario(tables=tables, cost=cost_of())
    assert known.seconds_to_decide(make_policy("adaptive", tables.pool)) == 3e-5
    assert known.seconds_to_decide(make_policy("plain", tables.pool)) == pytest.approx(2e-5)
    assert any("deciding was not measured" in note for note in known.cost.notes())


def test_a_member_made_faster_keeps_what_is_beside_its_forwards(tmp_path):
    path = tmp_path / "a.profile"
    write_profile(matching(), path)
    cost = make_cost(str(path), RECORDING, scale={"draft": 0.5})
    assert cost.knows_operations
    assert seconds(cost, 3, model="draft") == pytest.approx(0.5 * seconds_of(1, 3, 0))
    beside_s = cost.beside_s("draft", "draft", num_forwards=1, num_rows=2, num_tokens=3)
    assert beside_s == matching().meta.members[0].drafting.seconds(1, 2, 3)
    slow, quick = (one.batch_s("draft", BatchShape(1, 1, 1, 1), first=True) for one in (cost_of(), cost))
    assert quick == pytest.approx(0.5 * slow)


def test_the_newest_profile_of_this_machine_and_these_models(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(ValueError, match="`cost` here needs a profile of draft, target on this machine"):
        make_cost("here", RECORDING)
    write_profile(matching(lookup=BesideForwards(per_op_s=1.0)), tmp_path / "profiles" / "a.profile")
    write_profile(
        matching(lookup=BesideForwards(per_op_s=2.0), measured_at="2026-05-01T00:00:00Z"),
        tmp_path / "profiles" / "b.profile",
    )
    write_profile(
        made_profile(names=NAMES, processor=processor(), measured_at="2026-06-01T00:00:00Z"),
        tmp_path / "profiles" / "other-models.profile",
    )
    assert make_cost("here", RECORDING).lookup_s == 2.0


def kept(tmp_path, name, **changes):
    path = tmp_path / "profiles" / name
    write_profile(matching(**changes), path)
    return path


@pytest.mark.parametrize("spoil", [lambda whole: whole[:-100], lambda whole: whole[:4] + whole[40:], lambda _: b""])
def test_a_spoiled_profile_is_passed_over_and_named(tmp_path, monkeypatch, capsys, spoil):
    """Whether it is its end that is missing, which says whose it is, or what is before."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    newest = kept(tmp_path, "b.profile", measured_at="2026-05-01T00:00:00Z")
    newest.write_bytes(spoil(newest.read_bytes()))
    with pytest.raises(ArgumentError, match=rf"`cost` here needs a profile of .*; {re.escape(str(newest))}: profile: "):
        make_cost("here", RECORDING)
    assert capsys.readouterr().err == ""
    kept(tmp_path, "a.profile", lookup=BesideForwards(per_op_s=1.0))
    assert make_cost("here", RECORDING).lookup_s == 1.0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"paceline: a profile is passed over: {newest}: profile: must be a Parquet file")


def test_profiles_of_other_machines_and_models_are_no_matter_however_spoiled(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    kept(tmp_path, "a.profile", lookup=BesideForwards(per_op_s=1.0))
    for name, changes in (("b.profile", {"processor": "another"}), ("c.profile", {"parameters": 7})):
        other = tmp_path / "profiles" / name
        write_profile(made_profile(names=NAMES, **{"processor": processor(), **changes}), other)
        whole = other.read_bytes()
        other.write_bytes(whole[:4] + bytes(40) + whole[44:])
    assert make_cost("here", RECORDING).lookup_s == 1.0
    assert capsys.readouterr().err == ""


def test_only_profiles_of_the_device_count_and_of_its_threads_first(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    kept(tmp_path, "a.profile", device="cpu", measured_at="2026-01-01T00:00:00Z")
    kept(tmp_path, "b.profile", device="cpu", threads=2, measured_at="2026-02-01T00:00:00Z")
    kept(tmp_path, "c.profile", device="NVIDIA H100", measured_at="2026-03-01T00:00:00Z")
    models = {model.name: (model.parameters, model.dtype) for model in META.models}
    chosen = {
        (1, "cpu"): "a.profile",
        (2, "cpu"): "b.profile",
        (4, "cpu"): "b.profile",
        (None, "cpu"): "b.profile",
        (2, "NVIDIA H100"): "c.profile",
        (None, None): "c.profile",
        (2, None): "b.profile",
    }
    assert {asked: newest_here(models, *asked).file.name for asked in chosen} == chosen
    with pytest.raises(ArgumentError, match="needs a profile of draft, target on NVIDIA A100 here"):
        newest_here(models, 1, "NVIDIA A100")


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        (matching(processor="another"), "measured on another, 1 thread, this is "),
        (
            made_profile(names=NAMES, processor=processor()),
            "its draft has 1,000 parameters of float32, this one",
        ),
    ],
)
def test_a_foreign_profile_is_refused_or_labelled(tmp_path, profile, says):
    path = tmp_path / "a.profile"
    write_profile(profile, path)
    with pytest.raises(ValueError, match=f"is a foreign profile: .*{re.escape(says)}"):
        make_cost(str(path), RECORDING)
    assert "FOREIGN" in make_cost(str(path), RECORDING, allow_foreign_profile=True).name


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"extrapolate": True}, "`extrapolate` is for measured tables"),
        ({"tensor_parallel": 2}, "`tensor_parallel` is for devices of the sheet"),
    ],
)
def test_options_that_do_not_go_with_a_profile(tmp_path, options, says):
    path = tmp_path / "a.profile"
    write_profile(matching(), path)
    with pytest.raises(ValueError, match=re.escape(says)):
        make_cost(str(path), RECORDING, **options)


def test_profiles_are_for_recordings_of_pools():
    log = recording_of(request_of("a"))
    with pytest.raises(ValueError, match=r"`cost` here is for recordings of a pool, .* is an imported log"):
        make_cost("here", log)
    with pytest.raises(ValueError, match="`allow_foreign_profile` is for profiles; cpu is none"):
        make_cost("cpu", RECORDING, allow_foreign_profile=True)
