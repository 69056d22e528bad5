"""Seconds of profiles and of recorded rounds."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.base.files import FOLDER_VARIABLE, processor
from paceline.decoding.results import DRAFT
from paceline.policies.by_name import make_policy
from paceline.policies.fixed import Chain
from paceline.reports.summary import summarise_run
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.base import CostModel, CostRangeError
from paceline.sim.cost.by_name import make_cost
from paceline.sim.cost.measured import ProfiledCost, TimedCost, newest_here
from paceline.sim.simulate import Scenario, simulate
from paceline.traces import SyntheticSpec, make_trace
from paceline.traces.profile import BatchShape, BesideForwards, DecideSeconds, write_profile

from ...profiles.profiles import ADAPTIVE, CHAIN, made_profile, seconds_of
from .shapes import META, RECORDING, seconds
from .timed_recordings import recording_of, request_of, rounds_of

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


@pytest.mark.parametrize(
    ("of_draft", "of_target", "told"),
    [
        (0.2, 0.25, None),
        (0.3, 0.25, "seconds of draft varied by 30% between repeats of this profile (spread): "),
        (0.3, 0.37, "seconds of draft, target varied by 30% to 37% between repeats of this profile (spread): "),
    ],
)
def test_seconds_that_varied_are_not_to_be_chosen_by(of_draft, of_target, told):
    spreads = {"draft": of_draft, "target": of_target}
    quiet = matching()
    shapes = tuple(shape._replace(spread=spreads[shape.member]) for shape in quiet.shapes)
    notes = cost_of(type(quiet)(meta=quiet.meta, shapes=shapes)).notes()
    assert notes[1:] == (() if told is None else (f"{told}do not choose between policies that differ by less",))


def test_every_operation_and_every_step_is_charged_for():
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
    decided = (log.steps["prefill"] == 0).sum() * CHAIN.each_s(1)
    total, without = (float(one.requests["finished_at_s"].max()) for one in (log, bare))
    assert total == pytest.approx(without + beside + decided)
    assert log.meta["decide_s"] == CHAIN.each_s(1)


def test_drafts_with_a_stop_cost_what_was_measured_of_such_and_the_log_has_what_is_beside_forwards():
    tables = TrieTables(make_trace(SyntheticSpec(models=NAMES, requests=3, tokens=20)))
    known, stopping = matching(), BesideForwards(per_op_s=0.5, per_token_s=0.25)
    members = tuple(member.model_copy(update={"stopping": stopping}) for member in known.meta.members)
    stops = type(known)(meta=known.meta.model_copy(update={"members": members}), shapes=known.shapes)
    for policy in ("draft:4/target", "confident"):
        logs = [
            simulate(Scenario(tables=tables, cost=cost_of(profile)), make_policy(policy, tables.pool), policy)
            for profile in (known, stops)
        ]
        before_s, after_s = (log.meta["beside_s"] for log in logs)
        drafts = logs[0].ops["kind"] == DRAFT
        num_ops, tokens = int(drafts.sum()), int(logs[0].steps["drafted"].sum())
        drafting = known.meta.members[0].drafting
        more_s = stopping.seconds(0, 1, 0) * num_ops + stopping.per_token_s * tokens
        less_s = drafting.seconds(0, 1, 0) * num_ops + drafting.per_token_s * tokens
        assert after_s - before_s == pytest.approx(more_s - less_s if policy == "confident" else 0.0)
        total_s, all_s = (float(log.ops["duration_s"].sum()) for log in logs)
        assert all_s - total_s == pytest.approx(after_s - before_s)


@pytest.mark.parametrize("batch", [1, 2, 3, 5])
def test_a_step_costs_as_much_deciding_as_so_many_running_requests_take(batch):
    tables = TrieTables(make_trace(SyntheticSpec(models=NAMES, requests=8, tokens=30)))
    free = cost_of(matching(decide_s={"Adaptive": DecideSeconds.of_step(0.0)}))
    log, bare = (
        simulate(Scenario(tables=tables, cost=cost, batch=batch), make_policy("adaptive", tables.pool), "adaptive")
        for cost in (cost_of(), free)
    )
    # How many run when a step is decided: those whose requests have begun and not ended by then.
    starts = log.ops["start_s"][log.steps["op"]]
    begun, ended = (log.requests[name] for name in ("admitted_at_s", "finished_at_s"))
    running = [int(((begun < at) & (ended >= at)).sum()) for at in starts[log.steps["prefill"] == 0].tolist()]
    decided_s = sum(ADAPTIVE.each_s(min(batch, count)) for count in running)
    assert log.meta["policy_s"] == pytest.approx(decided_s)
    assert summarise_run(log).policy_s == log.meta["policy_s"]
    total, without = (float(one.requests["finished_at_s"].max()) for one in (log, bare))
    if batch == 1:  # requests that run together wait for each other's decisions
        assert total == pytest.approx(without + decided_s)
    assert log.meta["decide_s"] == ADAPTIVE.each_s(batch)


def test_deciding_may_be_told_and_is_else_known_or_the_mean():
    tables = TrieTables(RECORDING)
    told = Scenario(tables=tables, cost=cost_of(), decide_s=0.0)
    assert told.seconds_to_decide(make_policy("adaptive", tables.pool)).is_free
    known = Scenario(tables=tables, cost=cost_of())
    assert known.seconds_to_decide(make_policy("adaptive", tables.pool)) == ADAPTIVE
    assert known.seconds_to_decide(make_policy("plain", tables.pool)).each_s(1) == pytest.approx(2e-5)
    assert any("deciding was not measured" in note for note in known.cost.notes())


def test_a_member_made_faster_keeps_what_is_beside_its_forwards(tmp_path):
    path = tmp_path / "a.profile"
    write_profile(matching(), path)
    cost = make_cost(str(path), RECORDING, scale={"draft": 0.5})
    assert cost.knows_operations
    assert seconds(cost, 3, model="draft") == pytest.approx(0.5 * seconds_of(1, 3, 0))
    member = matching().meta.members[0]
    for kind in ("draft", "stop"):  # no drafts with a stop were timed apart
        assert cost.beside_s(kind, "draft", num_forwards=1, num_rows=2, num_tokens=3) == member.drafting.seconds(
            1, 2, 3
        )
    assert member.model_copy(update={"stopping": member.verifying}).beside("stop") is member.verifying
    slow, quick = (one.batch_s("draft", BatchShape(1, 1, 1, 1), first=True) for one in (cost_of(), cost))
    assert quick == pytest.approx(0.5 * slow)


def kept(tmp_path, name, **changes):
    path = tmp_path / "profiles" / name
    write_profile(matching(**changes), path)
    return path


def test_the_newest_profile_of_this_machine_and_these_models(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(ValueError, match="`cost` here needs a profile of draft, target on this machine"):
        make_cost("here", RECORDING)
    kept(tmp_path, "a.profile", lookup=BesideForwards(per_op_s=1.0))
    kept(tmp_path, "b.profile", lookup=BesideForwards(per_op_s=2.0), measured_at="2026-05-01T00:00:00Z")
    others = made_profile(names=NAMES, processor=processor(), measured_at="2026-06-01T00:00:00Z")
    write_profile(others, tmp_path / "profiles" / "other-models.profile")
    assert make_cost("here", RECORDING).lookup_s == 2.0


@pytest.mark.parametrize("spoil", [lambda whole: whole[:-100], lambda whole: whole[:4] + whole[40:], lambda _: b""])
def test_a_spoiled_profile_is_passed_over_and_named(tmp_path, monkeypatch, capsys, spoil):
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
        (made_profile(names=NAMES, processor=processor()), "its draft has 1,000 parameters of float32, this one"),
    ],
)
def test_a_foreign_profile_is_refused_or_labelled(tmp_path, profile, says):
    path = str(tmp_path / "a.profile")
    write_profile(profile, tmp_path / "a.profile")
    with pytest.raises(ValueError, match=f"is a foreign profile: .*{re.escape(says)}"):
        make_cost(path, RECORDING)
    assert "FOREIGN" in make_cost(path, RECORDING, allow_foreign_profile=True).name
    for option, value in (("extrapolate", True), ("tensor_parallel", 2)):
        with pytest.raises(ValueError, match=f"`{option}` (is for|goes with) "):
            make_cost(path, RECORDING, **{option: value})
    with pytest.raises(ValueError, match=r"`cost` here is for recordings of a pool, .* is an imported log"):
        make_cost("here", recording_of(request_of("a")))


NAN = float("nan")


def own_seconds():
    """Two requests whose rounds have their own seconds; the second drafted two tokens at a time."""
    first = rounds_of([2, 4, 0, 2], draft_s=[1.0, 2.0, 3.0, NAN], verify_s=[10.0, 20.0, 30.0, 40.0])
    second = rounds_of([2, 1], drafted=2, draft_s=[1.0, 1.0], verify_s=[8.0, 10.0])
    return recording_of(request_of("a", {"eagle": first}), request_of("b", {"eagle": second}))


def test_a_recorded_round_costs_what_it_took():
    cost = TimedCost(own_seconds())
    assert cost.knows_rounds
    assert cost.name == "timed"
    assert [cost.round_s("a", start, "eagle") for start in (0, 3, 8)] == [(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)]
    assert cost.round_s("a", 9, "eagle") is None  # its drafting was not timed
    assert cost.round_s("a", 1, "eagle") is None  # nothing was recorded there
    assert cost.round_s("a", 0, "other") is None
    assert cost.round_s("a", 0, "") is None
    assert cost.prefill_s("a", "eagle") == 0.0
    assert cost.notes() == ()


def test_anything_else_costs_what_such_forwards_took_in_the_mean():
    cost = TimedCost(own_seconds())
    assert seconds(cost, 5, model="target") == 20.0
    assert seconds(cost, 3, model="target") == 9.0
    assert seconds(cost, 4, model="target", held=10**6) == 14.5
    drafted = 3 * 4 + 2 * 2
    assert seconds(cost, 1, model="eagle") == seconds(cost, 99, model="eagle") == pytest.approx(8.0 / drafted)


def test_what_was_not_measured_is_refused():
    cost = TimedCost(own_seconds())
    with pytest.raises(CostRangeError, match=r"no step of target alone; import .*`extrapolate`.*\(3 new tokens\)"):
        seconds(cost, 1, model="target")
    for new in (2, 6):
        with pytest.raises(CostRangeError, match=f"cost timed: target was measured for 3 to 5 .*asked for {new}"):
            seconds(cost, new, model="target")
    with pytest.raises(CostRangeError, match="cost timed: measured with one request at a time, asked for 2"):
        seconds(cost, 5, model="target", rows=2)
    with pytest.raises(CostRangeError, match="cost timed: no seconds of drafting were recorded for 'other'"):
        seconds(cost, 1, model="other")


def test_or_extrapolated_when_told():
    cost = TimedCost(own_seconds(), extrapolate=True)
    assert seconds(cost, 4, model="target") == 14.5
    assert cost.notes() == ()
    assert seconds(cost, 1, model="target") == 9.0
    assert seconds(cost, 6, model="target") == 20.0 + (20.0 - 9.0) / 2
    assert cost.notes() == ("seconds beyond what was measured: target",)


def test_seconds_of_answers_are_shared_by_their_rounds():
    rounds = {"eagle": rounds_of([2, 3, 4, 1], drafted=-1)}
    one = request_of("a", rounds, tokens=14, wall_s={"": 14.0, "eagle": 8.0})
    two = request_of("b", rounds, tokens=14, wall_s={"": 14.0 * 3, "eagle": 8.0})
    none = request_of("c", rounds, tokens=14, wall_s={"eagle": 16.0})
    cost = TimedCost(recording_of(one, two, none))
    assert cost.round_s("a", 0, "eagle") == (1.0, 1.0)
    assert cost.round_s("b", 3, "eagle") == (0.0, 2.0)  # a round that was faster than a step of the target
    assert cost.round_s("c", 0, "eagle") == (2.0, 2.0)  # the mean stands for a request without plain seconds
    assert cost.round_s("a", 13, "") == (0.0, 1.0)
    assert cost.round_s("b", 0, "") == (0.0, 3.0)
    assert cost.round_s("a", 14, "") is None
    assert cost.round_s("c", 0, "") is None
    assert {seconds(cost, new, model="target") for new in range(1, 6)} == {2.0}
    assert seconds(cost, 1, model="eagle") == pytest.approx((4 * 1.0 + 0.0 + 4 * 2.0) / (12 * 4))
    assert cost.notes() == (
        "rounds take equal shares of an answer's measured seconds: eagle",
        "drafted tokens unknown, seconds of one are estimated: eagle",
    )


def of_unknown_length(answers, *, window=8):
    """One answer for each (tokens that stayed in each of its rounds, seconds of drafting in each of them)."""
    rounds = [rounds_of([kept] * 3, drafted=-1, draft_s=[taken] * 3, verify_s=[1.0] * 3) for kept, taken in answers]
    requests = [request_of(f"{index}", {"eagle": each}, tokens=40) for index, each in enumerate(rounds)]
    return TimedCost(recording_of(*requests, window=window))


@given(
    kept=st.lists(st.integers(0, 6), min_size=2, max_size=9), token_s=st.floats(0.01, 1.0), refused=st.floats(1.0, 2.0)
)
def test_seconds_of_a_token_are_those_that_more_of_them_take(kept, token_s, refused):
    cost = of_unknown_length([(tokens, token_s * (tokens + refused)) for tokens in kept])
    mean = sum(kept) / len(kept)
    wanted = token_s if len(set(kept)) > 1 else token_s * (mean + refused) / 8  # with nothing to compare, the least
    assert seconds(cost, 1, model="eagle") == pytest.approx(wanted)


def test_a_drafter_that_always_drafts_its_window_is_found_out():
    assert seconds(of_unknown_length([(0, 4.0), (3, 4.0), (6, 4.0)]), 1, model="eagle") == pytest.approx(4.0 / 8)


def test_a_token_takes_no_more_than_if_none_but_one_had_been_refused():
    assert seconds(of_unknown_length([(0, 1.0), (1, 9.0)]), 1, model="eagle") == pytest.approx(10.0 / 3)


ROUNDS = {"eagle": rounds_of([2, 4])}


def test_prefill_is_no_share_of_a_round_and_tokens_outside_rounds_are_steps_of_their_own():
    walls = {"wall_s": {"": 10.0, "eagle": 9.0}, "prefill_s": {"": 2.0, "eagle": 3.0}}
    cost = TimedCost(recording_of(request_of("a", ROUNDS, tokens=8, **walls)))
    assert [cost.prefill_s("a", method) for method in ("", "eagle", "other")] == [2.0, 3.0, 0.0]
    assert (cost.round_s("a", 0, ""), cost.round_s("a", 3, "eagle")) == ((0.0, 1.0), (2.0, 1.0))
    request = request_of("a", {"eagle": rounds_of([2, 1])}, tokens=9, wall_s={"eagle": 12.0})
    assert TimedCost(recording_of(request)).round_s("a", 0, "eagle") == (0.0, 2.0)  # two rounds and four more tokens


def test_a_prefill_that_writes_the_first_token_leaves_one_step_fewer_to_the_target_alone():
    def of(tokens, rest_s):
        walls = {"wall_s": {"": 2.0 + rest_s}, "prefill_s": {"": 2.0}}
        return request_of(f"{tokens}", {}, tokens=tokens, **walls)

    def recorded(*requests):
        found = recording_of(*requests)
        (drafter,) = found.meta.drafters
        return replace(
            found, meta=found.meta.model_copy(update={"drafters": (drafter.model_copy(update={"prefilled": True}),)})
        )

    rounds = request_of("a", ROUNDS, tokens=8, wall_s={"eagle": 6.0})
    cost = TimedCost(recorded(of(5, 8.0), of(1, 0.01), rounds))
    assert [cost.round_s("5", start, "") for start in (0, 1, 4)] == [(0.0, 0.0), (0.0, 2.0), (0.0, 2.0)]
    assert (cost.round_s("1", 0, ""), cost.round_s("1", 1, "")) == ((0.0, 0.0), None)
    assert seconds(cost, 1, model="target") == 2.0
    with pytest.raises(CostRangeError, match="the log has no seconds of target alone"):
        seconds(TimedCost(recorded(of(1, 0.01), rounds)), 1, model="target")


def test_without_seconds_of_the_target_alone_a_round_is_one_piece():
    cost = TimedCost(recording_of(request_of("a", ROUNDS, tokens=8, wall_s={"eagle": 6.0})), extrapolate=True)
    assert cost.round_s("a", 0, "eagle") == (0.0, 3.0)
    for model, told in (("target", "the log has no seconds of target alone"), ("eagle", "no seconds of drafting were")):
        with pytest.raises(CostRangeError, match=told):
            seconds(cost, 1, model=model)
    with pytest.raises(ValueError, match="cost timed: by hand holds no seconds, neither of rounds nor of answers"):
        TimedCost(recording_of(request_of("a", ROUNDS)))


def test_own_seconds_go_before_shares_and_an_unknown_window_is_as_many_as_ever_stayed():
    rounds = {"eagle": rounds_of([2, 4], draft_s=[1.0, 1.0], verify_s=[6.0, 8.0])}
    cost = TimedCost(recording_of(request_of("a", rounds, tokens=8, wall_s={"": 40.0, "eagle": 100.0})))
    assert cost.round_s("a", 3, "eagle") == (1.0, 8.0)
    assert [seconds(cost, new, model="target") for new in (1, 3, 5)] == [5.0, 6.0, 7.0]
    assert cost.notes() == ()
    rounds = {"eagle": rounds_of([1, 3], drafted=-1, draft_s=[3.0, 3.0], verify_s=[6.0, 8.0])}
    cost = TimedCost(recording_of(request_of("a", rounds), window=None))
    assert (seconds(cost, 1, model="eagle"), seconds(cost, 4, model="target")) == (1.0, 7.0)


@given(
    accepted=st.lists(st.integers(0, 4), min_size=1, max_size=20),
    wall_s=st.floats(0.01, 100),
    plain_s=st.floats(0.01, 100) | st.none(),
    share=st.floats(0, 0.9),
)
def test_shares_add_up_to_what_was_measured(accepted, wall_s, plain_s, share):
    rounds = rounds_of(accepted)
    tokens = sum(accepted) + len(accepted)
    walls = {"eagle": wall_s} if plain_s is None else {"eagle": wall_s, "": plain_s}
    request = request_of("a", {"eagle": rounds}, tokens=tokens, wall_s=walls, prefill_s={"eagle": share * wall_s})
    cost = TimedCost(recording_of(request))
    parts = [cost.round_s("a", start, "eagle") for start in rounds.start.tolist()]
    assert np.min(parts) >= 0
    assert np.sum(parts) + cost.prefill_s("a", "eagle") == pytest.approx(wall_s)
    if plain_s is not None:
        assert sum(cost.round_s("a", start, "")[1] for start in range(tokens)) == pytest.approx(plain_s)
