"""A policy in a cell, and runs of the arena: in processes, interrupted, gone on with, and what cannot be played."""

import json
import re
import signal
from dataclasses import replace
from itertools import count
from math import isclose
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.base.files import shipped
from paceline.decoding.legal_steps import Policy
from paceline.decoding.pool import Pool
from paceline.decoding.steps import Verify
from paceline.policies.by_name import PolicySpec, PolicySpecError, make_policy
from paceline.policies.learned import read_head
from paceline.sim.contexts import TrieTables
from paceline.sim.recorded import recorded_pool
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.contexts.on_disk import read_trace, write_trace
from paceline.traces.recording import reordered
from paceline_laboratory.arena import cells as buildable
from paceline_laboratory.arena import run as arena_run
from paceline_laboratory.arena.board import OTHERS, BoardRuns, checks
from paceline_laboratory.arena.cells import ArenaCell, asked_field, loads
from paceline_laboratory.arena.play import BEST_STATIC, PARTS, SERVED, STEPPED, WALKED, Played, play, served
from paceline_laboratory.arena.recordings import RecordingUnavailableError
from paceline_laboratory.arena.run import ArenaRun, run_arena

POLICIES = ("plain", "draft:4/target", "two-level", "via-sd")
RECORDING = read_trace(shipped("recordings", "pico.trace"))
IDS = [request.request_id for request in RECORDING.requests]


def cell(load, ladder="steep"):
    return ArenaCell(recording="pico", ladder=ladder, load=load)


def ids(recording):
    return [request.request_id for request in recording.requests]


@given(st.integers(1, 10_000))
def test_another_order_has_the_same_requests_in_each_quarter(seed):
    other = reordered(RECORDING, seed, parts=PARTS)
    found, size = ids(other), len(IDS) // PARTS
    for part in range(PARTS):
        assert sorted(found[part * size : (part + 1) * size]) == sorted(IDS[part * size : (part + 1) * size])
    assert replace(other, requests=RECORDING.requests) == RECORDING


def test_seed_0_is_the_recorded_order_and_others_are_not():
    assert ids(reordered(RECORDING, 0)) == IDS
    assert IDS != ids(reordered(RECORDING, 1)) == ids(reordered(RECORDING, 1)) != ids(reordered(RECORDING, 2))


@pytest.mark.parametrize(("policy", "seed"), [("two-level", 0), ("draft:3/mid:6/target", 1), ("specrouter", 2)])
def test_an_order_shares_its_tables_and_is_played_as_if_it_had_its_own(stage, policy, seed):
    shared, own = stage.tables(seed), TrieTables(reordered(stage.recording, seed, parts=PARTS))
    logs = [
        simulate(Scenario(tables=tables, cost=stage.cost("steep"), seed=seed), make_policy(policy, tables.pool), policy)
        for tables in (shared, own)
    ]
    for name, column in logs[0].steps.items():
        assert column.tolist() == logs[1].steps[name].tolist()
    first = stage.recording.requests[0].request_id
    assert shared.of(first) is stage.tables(0).of(first)


def test_capacity_is_what_the_target_alone_writes_in_a_large_batch(stage):
    alone = 1 / stage.cost("even").forward_s("target", num_rows=1, new_tokens=1, context_tokens=0)
    assert alone < stage.capacity_per_s("even") < 32 * alone


class Looking(Policy):
    """Plain decoding that notes what was asked, and how much of the answer it saw."""

    def __init__(self, pool):
        self._step = Verify(pool.target)
        self.seen = {}

    def decide(self, seen):
        self.seen[seen.request_id] = (seen.tag, seen.prompt, tuple(seen.emitted_from(0)))
        return self._step


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_request_comes_once_and_is_answered_as_it_was_recorded(stage, seed):
    tables = stage.tables(seed)
    policy = Looking(tables.pool)
    found = served(tables, stage.cost("even"), policy, "looking", tokens_per_s=50.0, seed=seed)
    answers = {(one.tag, one.prompt): one.trie.token[one.trie.trunk[1:]].tolist() for one in tables.trace.requests}
    assert sorted((tag, prompt) for tag, prompt, _ in policy.seen.values()) == sorted(answers)
    assert found.tokens == sum(map(len, answers.values()))
    for tag, prompt, begun in policy.seen.values():
        assert list(begun) == answers[tag, prompt][: len(begun)]


@pytest.mark.parametrize(
    ("load", "policy"),
    [(load, POLICIES[(place + more) % len(POLICIES)]) for place, load in enumerate(loads()) for more in (0, 1)],
)
def test_a_run_is_the_same_whenever_it_is_repeated(stage, load, policy):
    first, again = (play(stage, cell(load), PolicySpec.parse(policy), 1) for _ in range(2))
    assert first == again
    assert (first.cell, first.policy) == (cell(load), policy)
    at_100, *later = first.seconds_at
    assert later == [None, None]
    assert at_100 is None if load in ("half", "ninety") else 0 < at_100 < first.seconds


def test_one_request_at_a_time_another_order_takes_a_fixed_chain_as_long(stage):
    """What it plays does not depend on the order, and its answers do not either."""
    runs = [play(stage, cell("batch-1"), PolicySpec.parse("draft:4/target"), seed) for seed in (0, 1)]
    assert runs[0].tokens == runs[1].tokens
    assert isclose(runs[0].seconds, runs[1].seconds, rel_tol=1e-9)


def test_what_is_said_of_quality_is_of_lossy_policies(stage):
    lossless, lossy = (play(stage, cell("batch-1"), PolicySpec.parse(name), 0) for name in ("two-level", "via-sd"))
    assert lossless.same_share is lossless.divergences is None
    assert 0 <= lossy.same_share <= 1
    assert lossy.divergences > 0


def test_who_is_asked_step_by_step_thinks(stage):
    paths = {name: play(stage, cell("batch-1"), PolicySpec.parse(name), 0) for name in ("draft:4/target", "two-level")}
    assert paths["draft:4/target"].path == WALKED
    assert paths["draft:4/target"].think_us is None
    assert paths["two-level"].path == STEPPED
    assert paths["two-level"].think_us > 0
    assert play(stage, cell("half"), PolicySpec.parse("two-level"), 0).path == SERVED


def test_arrivals_at_nine_tenths_find_a_busier_device_than_at_half(stage):
    plain = PolicySpec.parse("plain")
    half, ninety = (play(stage, cell(load), plain, 0) for load in ("half", "ninety"))
    assert half.tokens == ninety.tokens
    assert ninety.tokens_per_s > half.tokens_per_s  # more requests share a forward
    assert ninety.mean_e2e_s > half.mean_e2e_s


def test_what_a_policy_lacks_is_told_with_its_name(stage):
    with pytest.raises(ValueError, match="eagle:2/target"):
        play(stage, cell("batch-1"), PolicySpec.parse("eagle:2/target"), 0)


FIELD = ("plain", "two-level", "via-sd")
MINE = """class Mine:
    def __init__(self, pool):
        pass

    def decide(self, seen):
        raise RuntimeError('no')

    def learn(self, outcome):
        pass
"""


@pytest.fixture
def shelf(monkeypatch, tmp_path):
    """Two short recordings, and one that cannot be had."""
    for name, start in (("a", 0), ("b", 8)):
        whole = read_trace(shipped("recordings", "pico.trace"))
        meta = whole.meta.model_copy(update={"name": name})
        write_trace(replace(whole, meta=meta, requests=whole.requests[start : start + 4]), tmp_path / f"{name}.trace")

    class Shelf:
        entries = dict.fromkeys(("a", "b", "away", "untrained"))

        def __init__(self, work):
            self.work = work

        def is_at_hand(self, name):
            return name != "untrained"

        def recording(self, name):
            if name == "away":
                raise RecordingUnavailableError("its logs are not here")
            return tmp_path / f"{name}.trace"

    monkeypatch.setattr(arena_run, "RecordingShelf", Shelf)


class OneChain:
    """In place of a search, which takes seconds."""

    def __init__(self, stage):
        self._stage = stage

    def best(self, cell, seed):
        chain = "draft:2/target"
        return replace(play(self._stage, cell, PolicySpec.parse(chain), seed), policy=BEST_STATIC, chain=chain)


@pytest.fixture
def no_search(monkeypatch):
    monkeypatch.setattr(arena_run, "CellStatics", OneChain)


@pytest.fixture
def asked(shelf, tmp_path):
    cells = [
        ArenaCell(recording=name, ladder=ladder, load="batch-1") for name in ("a", "b") for ladder in ("flat", "steep")
    ]
    return {"cells": cells, "policies": asked_field(FIELD, None), "seeds": 2, "work": tmp_path / "work"}


def test_every_policy_is_played_in_every_cell_at_every_seed_beside_the_best_static_chain(no_search, asked):
    results = run_arena(**asked)
    places = [(run.cell, run.policy, run.seed) for run in results.played]
    assert places == [
        (cell, policy, seed) for cell in asked["cells"] for policy in (BEST_STATIC, *FIELD) for seed in (0, 1)
    ]
    assert results.is_whole
    assert not results.left_out
    assert all(run.chain == "" for run in results.played if run.policy != BEST_STATIC)


def test_what_was_played_is_not_played_again(no_search, asked, monkeypatch):
    first = run_arena(**asked)
    monkeypatch.setattr(ArenaRun, "play", lambda self: pytest.fail(f"{self} is played again"))
    again = run_arena(**asked)
    assert again == replace(first, num_kept=len(first.played))


def test_an_interrupt_keeps_what_was_played_and_the_next_run_goes_on(no_search, asked, monkeypatch):
    whole = run_arena(**asked | {"work": asked["work"].with_name("whole")})
    played, number = ArenaRun.play, count(1)

    def interrupted(run):
        if next(number) == 5:
            signal.raise_signal(signal.SIGINT)
        return played(run)

    monkeypatch.setattr(ArenaRun, "play", interrupted)
    cut = run_arena(**asked)
    assert not cut.is_whole
    assert len(cut.played) == 5
    rest = run_arena(**asked)
    assert rest.num_kept == 5
    assert rest.played == whole.played


def test_an_interrupt_before_all_recordings_are_there_leaves_a_run_that_is_not_whole(no_search, asked, monkeypatch):
    """Also where all that is to be played on the others was played before."""
    run_arena(**asked | {"cells": asked["cells"][:2]})

    class Slow(arena_run.RecordingShelf):
        def recording(self, name):
            signal.raise_signal(signal.SIGINT)
            return super().recording(name)

    monkeypatch.setattr(arena_run, "RecordingShelf", Slow)
    cut = run_arena(**asked)
    assert {run.cell.recording for run in cut.played} == {"a"}
    assert not cut.is_whole


def test_what_a_recording_lacks_is_left_out_by_name(no_search, lacking, asked):
    away = ArenaCell(recording="away", ladder="flat", load="batch-1")
    nowhere, untrained = (away._replace(recording=name) for name in ("nowhere", "untrained"))
    results = run_arena(
        **asked
        | {"cells": [*asked["cells"][:1], away, nowhere, untrained], "policies": asked_field(["two-level"], None)}
    )
    assert results.missing == {
        "away": "its logs are not here",
        "nowhere": "nothing makes it",
        "untrained": "it is not made yet; --make does, in minutes",
    }
    assert {(one.run.policy, one.run.seed) for one in results.left_out} == {("two-level", 0), ("two-level", 1)}
    assert results.left_out[0].why == "it needs what is not there"
    assert {run.policy for run in results.played} == {BEST_STATIC, "plain"}
    assert results.is_whole


@pytest.mark.parametrize("policy", ["specrouter,every=0", "draft:0/target", "eagle:2/target"])
def test_a_policy_that_no_recording_can_be_played_with_is_refused_before_anything_is_played(asked, policy):
    with pytest.raises(PolicySpecError, match=policy):
        run_arena(**asked | {"policies": asked_field(["plain", policy], None)})
    assert not (asked["work"] / "cells").exists()


def test_a_policy_that_one_recording_can_be_played_with_is_not_refused(no_search, asked, monkeypatch):
    def of_b_alone(recording):
        whole = recorded_pool(recording)
        return Pool([one for one in whole.members if one.name != "mid"]) if recording.about.name == "a" else whole

    monkeypatch.setattr(buildable, "recorded_pool", of_b_alone)
    chain = "draft:2/mid:4/target"
    results = run_arena(**asked | {"policies": asked_field([chain], None), "seeds": 1})
    assert chain in {run.policy for run in results.played}


def test_a_policy_that_fails_loses_no_other_run_and_is_played_again(no_search, asked, tmp_path):
    file = tmp_path / "broken.py"
    file.write_text(MINE)
    wanted = asked | {"cells": asked["cells"][:1], "policies": asked_field([f"{file}:Mine", "plain"], None)}
    for _ in range(2):
        results = run_arena(**wanted)
        assert len(results.failed) == 2
        assert "RuntimeError" in results.failed[0]
        assert {run.policy for run in results.played} == {BEST_STATIC, "plain"}
        assert results.is_whole
        assert list(results.gaps()) == list(results.failed)


def test_a_cell_without_a_best_static_chain_is_told(no_search, asked, monkeypatch):
    def refuses(self, cell, seed):
        raise ValueError("seconds are not known")

    monkeypatch.setattr(OneChain, "best", refuses)
    results = run_arena(**asked | {"cells": asked["cells"][:1], "seeds": 1})
    (gap,) = results.gaps()
    assert gap == (
        f"cell {asked['cells'][0]} is left out at seed 0, which has no best static chain: seconds are not known"
    )


def test_cells_of_which_no_recording_can_be_had_are_told(asked):
    away = ArenaCell(recording="away", ladder="flat", load="batch-1")
    with pytest.raises(ArgumentError, match="must have a recording that can be had, got away: its logs are not here"):
        run_arena(**asked | {"cells": [away]})


def test_heads_are_fitted_to_tuning_recordings_alone(no_search, asked, capsys):
    wanted = asked | {"policies": asked_field(["specdec++", "specdec++,h=0.3"], None), "seeds": 1}
    left = run_arena(**wanted).left_out
    assert {one.run.policy for one in left} == {"specdec++", "specdec++,h=0.3"}
    assert "head must name the file of an acceptance head" in left[0].why

    found = run_arena(**wanted | {"tuning": ("b", "away")})
    assert "acceptance heads are fitted to b\n" in capsys.readouterr().err
    (head,) = (asked["work"] / "heads").glob("*.json")
    assert read_head(str(head)).recording == "b"
    assert not found.left_out
    assert {run.policy for run in found.played} == {BEST_STATIC, "plain", "specdec++", "specdec++,h=0.3"}
    assert run_arena(**wanted | {"tuning": ("b",)}).num_kept == len(found.played)
    assert run_arena(**wanted | {"tuning": ("a",)}).num_kept == len(found.played) - 2 * len(asked["cells"])


@pytest.mark.slow
def test_processes_find_what_one_does_also_with_a_head_that_is_fitted(asked):
    few = asked | {"cells": asked["cells"][::2], "policies": asked_field(["specdec++"], None), "seeds": 1}
    few = few | {"tuning": ("b",)}
    here, there = run_arena(**few), run_arena(**few | {"jobs": 2, "work": asked["work"].with_name("other")})
    assert here == there
    assert not here.left_out


@pytest.mark.parametrize(
    "name", ["synth-bursty/even/batch-8", pytest.param("synth-ladder/far/batch-1", marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_cells_are_as_the_leaderboard_has_them(tmp_path, name):
    """Recordings that are drawn are the same on every machine, and so is what is played on them."""
    board = json.loads((Path(__file__).parents[3] / "docs/figures/leaderboard.json").read_text(encoding="utf-8"))
    (said,) = (one for one in board["checks"] if one["cell"] == name)
    policies = asked_field(["specrouter"], None)
    runs = run_arena([ArenaCell.parse(name)], policies, work=tmp_path, make=True).played
    (found,) = checks(BoardRuns(runs), [ArenaCell.parse(name)])
    assert found.chain == said["best_static"]
    others = {check: ratio for check, ratio in said["ratios"].items() if check != OTHERS}
    assert found.ratios == pytest.approx(others, rel=1e-9)
    assert found.beyond == pytest.approx(said["after_first_tokens"], rel=1e-9)


@pytest.mark.slow
def test_a_process_that_is_killed_is_told_with_what_it_played(asked, tmp_path):
    file = tmp_path / "killer.py"
    file.write_text(MINE.replace("raise RuntimeError('no')", "__import__('os').kill(__import__('os').getpid(), 9)"))
    wanted = asked | {"cells": asked["cells"][:1], "policies": asked_field([f"{file}:Mine"], None)}
    wanted |= {"jobs": 2, "seeds": 1}
    (lost,) = run_arena(**wanted).failed
    assert re.search(r"killer\.py:Mine in a/flat/batch-1, seed 0: its process ended by itself", lost)
    assert run_arena(**wanted | {"policies": (), "jobs": 1}).num_kept == 2


@pytest.mark.parametrize("policy", ["pearl", "dsi", "pipespec", "per-tag,default=pearl"])
def test_working_ahead_plays_in_batches_and_is_not_applicable_under_arrivals(shelf, tmp_path, policy):
    def outcome(load):
        cell = ArenaCell(recording="a", ladder="steep", load=load)
        run = ArenaRun(trace=tmp_path / "a.trace", cell=cell, policy=policy, seed=0, made_of={})
        return run.outcome(json.loads(json.dumps(run.play())))

    assert isinstance(outcome("batch-8"), Played)
    assert outcome("half").why == (
        "not applicable: no member works ahead here: under load, on imported rounds and in forced runs a request runs "
        "one step at a time"
    )
