"""`--start`: where a request's first token comes from is asked for, stated, and refused where it means nothing."""

import json

import pytest
from paceline.runtime.pools.pool import ModelPool
from paceline.traces.rounds.store import write_rounds

from ...sim.rounds.small_rounds import one_request, recording_of, rounds_of
from ...tiny_models import random_prompts, tiny_pool_of_four
from ..command_line import done, paceline, refused

CHAIN = ("--policy", "draft:4/target")


def data(*args):
    return json.loads(done(*args, "--json", "-"))


@pytest.fixture
def imported(tmp_path):
    rounds = rounds_of((0, 2, 4), (3, 4, 4), (8, 2, 4), seconds=((0.1, 0.5),) * 3)
    recording = recording_of(one_request({"": 11, "tokens": 11}, {"tokens": rounds}, wall_s={"": 5.5}))
    write_rounds(iter(recording.requests), lambda: recording.meta, tmp_path / "log.trace")
    return tmp_path / "log.trace"


@pytest.fixture
def prompts(monkeypatch, tmp_path):
    monkeypatch.setattr(ModelPool, "load", staticmethod(lambda path, *, threads, devices, chat: tiny_pool_of_four()))
    lines = [json.dumps({"id": one.request_id, "tag": "a", "prompt": one.text}) for one in random_prompts(3, seed=2)]
    (tmp_path / "prompts.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return ("--prompts", "prompts.jsonl", "--max-new-tokens", "8")


def test_a_comparison_starts_as_engines_do_unless_asked():
    default, draft = data("compare", *CHAIN), data("compare", *CHAIN, "--start", "draft")
    assert (default["meta"]["start"], draft["meta"]["start"]) == ("prefill", "draft")
    assert default == data("compare", *CHAIN, "--start", "prefill")
    (one,), (other,) = default["policies"], draft["policies"]
    assert one["ttft_s"]["mean"] < other["ttft_s"]["mean"]
    assert one["output_tokens"] == other["output_tokens"]


def test_a_recording_of_our_own_has_no_start_of_its_own():
    told = refused("compare", *CHAIN, "--start", "recorded")
    assert "start must be prefill or draft for recording pico" in told
    assert told.endswith("got recorded")


@pytest.mark.parametrize("command", ["run", "agree"])
def test_models_have_no_recorded_start(command, prompts):
    ran = paceline(command, *prompts, "--start", "recorded")
    assert ran.code == 2
    assert "recorded" in ran.err
    assert ran.out == ""


def test_a_run_of_models(prompts):
    default, draft = data("run", *prompts, *CHAIN), data("run", *prompts, *CHAIN, "--start", "draft")
    assert (default["meta"]["start"], draft["meta"]["start"]) == ("prefill", "draft")
    assert [row["tokens"] for row in default["outputs"]] == [row["tokens"] for row in draft["outputs"]]
    assert ", start draft" in done("run", *prompts, *CHAIN, "--start", "draft")
    assert ", start" not in done("run", *prompts, *CHAIN)


@pytest.mark.parametrize("start", ["prefill", "draft"])
def test_both_worlds_agree_on_either_start(prompts, start):
    found = data("agree", *prompts, *CHAIN, "--start", start)
    assert found["agree"] is True
    assert found["meta"]["start"] == start
