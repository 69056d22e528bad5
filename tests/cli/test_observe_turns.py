"""`paceline observe` with several `--policy`: each turn sends both the same, and gains say how sure they are."""

import json
from dataclasses import replace
from itertools import groupby
from math import isclose
from statistics import median, quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.terminal import Progress
from paceline.runs.observed import ObservedRun, read_observed
from paceline.studies.observe import shown_run
from paceline.studies.observe_turns import MOST_APART, ObservedTurns

from ..observing.fake_server import Ways, served
from ..runs.making import OBSERVED, observed_run
from .command_line import done, refused
from .test_observe import folder, observe  # noqa: F401 - a fixture

BOTH = ("--policy", "plain", "--policy", "draft:4/target")
SERVES_BOTH = Ways(policies=("plain", "draft:4/target"))


@pytest.mark.usefixtures("folder")
def test_policies_take_turns_and_have_the_same_requests_in_each(tmp_path):
    with served(SERVES_BOTH) as server:
        found = json.loads(done(*observe(server, *BOTH, "--turns", "2", "--seed", "5", "--out", "seen", "--json", "-")))
        asked = [(body["policy"], body["seed"], body["prompt"]) for body in server.bodies]
    runs = [(key, sorted(text for *_, text in rows)) for key, rows in groupby(asked, key=lambda one: one[:2])]
    order = [("plain", 5), ("draft:4/target", 5), ("draft:4/target", 6), ("plain", 6)]
    assert [key for key, _ in runs] == order
    assert runs[0][1] == runs[1][1]
    assert runs[2][1] == runs[3][1]
    names = ("plain-1", "draft-4-target-1", "draft-4-target-2", "plain-2")
    for name, (policy, seed) in zip(names, order, strict=True):
        meta = read_observed(tmp_path / "seen" / name).meta
        assert (meta.extra_body, meta.seed) == ({"policy": policy}, seed)
    assert len(list((tmp_path / "seen").iterdir())) == 4
    plain, draft = found["policies"]
    means = [[turn["e2e_s"]["mean"] for turn in one["turns"]] for one in (plain, draft)]
    assert draft["gains"] == pytest.approx([ours / theirs for ours, theirs in zip(*means, strict=True)])
    assert draft["gain"]["low"] <= draft["gain"]["mean"] <= draft["gain"]["high"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--policy", "plain", "--turns", "2"), "--policy must be two or more, unlike each other, got plain"),
        (BOTH[:2] * 2, "--policy must be two or more, unlike each other, got plain, plain"),
        (("--policy", "a:1", "--policy", "a/1"), "--policy must differ in more than signs, got a-1 twice"),
        ((*BOTH, "--extra-body", '{"policy": "x"}'), "--extra-body must leave out policy, which --policy sends"),
        ((*BOTH[:2], "--extra-body", '{"policy": 1}'), "--extra-body must leave out policy, which --policy sends"),
        ((*BOTH, "--policy", "mid"), "--policy must be one that URL serves (plain, draft:4/target), got mid"),
        (("--policy", "mid"), "--policy must be one that URL serves (plain, draft:4/target), got mid"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_in_turns_is_refused_before_anything_is_sent(options, message):
    with served(SERVES_BOTH) as server:
        assert refused(*observe(server, *options)) == message.replace("URL", server.url)
        assert server.bodies == []


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("asked", [BOTH, BOTH[:2], ("--model", "tiny", *BOTH)])
def test_a_server_that_knows_no_policies_would_take_one_and_ignore_it(asked):
    with served() as server:
        told = f"--policy goes with paceline serve, {server.url} lists no policies, got plain"
        assert refused(*observe(server, *asked)) == told
        assert server.bodies == []


@pytest.mark.usefixtures("folder")
def test_progress_says_which_run_of_how_many_is_observed(monkeypatch):
    stages = []
    enter = Progress.__enter__
    monkeypatch.setattr(Progress, "__enter__", lambda stage: stages.append(stage.line) or enter(stage))
    with served(SERVES_BOTH) as server:
        done(*observe(server, *BOTH, "--turns", "2"))
    assert [stage.partition(": ")[0] for stage in stages] == [
        "observing plain, run 1 of 4",
        "observing draft:4/target, run 2 of 4",
        "observing draft:4/target, run 3 of 4",
        "observing plain, run 4 of 4",
    ]


@pytest.mark.usefixtures("folder")
def test_one_policy_is_sent_with_each_request():
    with served(SERVES_BOTH) as server:
        done(*observe(server, "--policy", "plain"))
    assert {body["policy"] for body in server.bodies} == {"plain"}


def run_of(token_ms, slower):
    """Five answers of ten tokens, at so many milliseconds a token, times `slower`."""
    seen = []
    for number in range(5):
        first, step = round(1e9 * slower * (number + 1)), round(1e9 * slower * token_ms)
        times = tuple(first + step * place for place in range(10))
        told = {"prompt_tokens": 4, "output_tokens": 10, "outputs_at_ps": times, "ended_at_ps": times[-1]}
        told |= {"asked_tokens": 10, "due_at_ps": 0, "sent_at_ps": 0, "finish_reason": "length"}
        seen.append(replace(OBSERVED, request_id=str(number), **told))
    return shown_run(observed_run(*seen, ended_at_ps=0))


@given(
    paces=st.lists(st.floats(0.5, 2), min_size=2, max_size=6),
    token_ms=st.tuples(st.floats(1, 50), st.floats(1, 50)),
)
def test_a_pace_that_changes_between_turns_leaves_the_gain_and_is_told(paces, token_ms):
    policies = ("plain", "other")
    turns = tuple({name: run_of(each, pace) for name, each in zip(policies, token_ms, strict=True)} for pace in paces)
    found = ObservedTurns(policies=policies, turns=turns)
    gain = found.gain("other")
    assert gain.low <= gain.mean <= gain.high
    assert isclose(gain.mean, (3 + 9 * token_ms[0]) / (3 + 9 * token_ms[1]), rel_tol=1e-6)
    assert isclose(gain.low, gain.high, rel_tol=1e-6)
    low, _, high = quantiles(paces, method="inclusive")
    assert isclose(found.apart, (high - low) / median(paces), rel_tol=1e-6, abs_tol=1e-6)
    busy = [line for line in found.lines() if line.startswith("too busy a machine")]
    assert bool(busy) == (found.apart > MOST_APART)


def test_other_arrivals_are_no_other_pace():
    """Of four turns two have all requests at once, each token twice as long, and two one after the other."""

    def turn(together):
        begins, step = ([0] * 5, 2 * 10**10) if together else ([10**12 * row for row in range(5)], 10**10)
        one = run_of(8, 1.0).run
        requests = tuple(
            replace(
                request,
                sent_at_ps=begin,
                outputs_at_ps=(times := tuple(begin + step * place for place in range(1, 11))),
                ended_at_ps=times[-1],
            )
            for request, begin in zip(one.requests, begins, strict=True)
        )
        alone = tuple(replace(requests[0], request_id=f"x{row}", sent_at_ps=(late := 10**13 + row * 10**12),
                              outputs_at_ps=(times := tuple(late + 10**10 * place for place in range(1, 11))),
                              ended_at_ps=times[-1]) for row in range(6))  # fmt: skip
        return {"plain": shown_run(ObservedRun(one.meta, requests + alone))}

    found = ObservedTurns(policies=("plain",), turns=tuple(map(turn, (True, False, True, False))))
    assert found.apart == 0


def test_a_pace_that_changes_within_turns_widens_the_interval():
    turns = tuple({"plain": run_of(8, pace), "other": run_of(4, 1.0)} for pace in (1.0, 1.6, 0.7))
    gain = ObservedTurns(policies=("plain", "other"), turns=turns).gain("other")
    assert gain.low < 1 < 75 / 39 < gain.high
