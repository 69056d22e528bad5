"""`paceline compare` on an imported recording, what-ifs on acceptance, and seeds."""

import json

import pytest
from paceline.traces.rounds.store import write_rounds

from ...sim.rounds.small_rounds import one_request, recording_of, rounds_of
from ..command_line import done, refused

SECONDS = ((0.1, 0.5), (0.1, 0.5), (0.1, 0.5), (0.1, 0.5))
ROWS = ((0, 2, 4), (3, 4, 4), (8, 0, 4), (9, 1, 4))


@pytest.fixture
def log(tmp_path):
    """An imported recording of a feature-fed drafter and one that reads tokens; all that was measured is there."""
    rounds = {"feature": rounds_of(*ROWS, seconds=SECONDS), "tokens": rounds_of(*ROWS, seconds=SECONDS)}
    lengths = {"": 11, "feature": 11, "tokens": 11}
    return written(
        tmp_path / "log.trace",
        *(one_request(lengths, rounds, request_id=f"r{index}", wall_s={"": 5.5}) for index in range(4)),
    )


def written(path, *requests, drafters=(("feature", True, 4), ("tokens", False, 4)), **meta):
    recording = recording_of(*requests, drafters=drafters)
    meta = recording.meta.model_copy(update={"name": "log", "notes": ("all is known",), **meta})
    write_rounds(iter(recording.requests), lambda: meta, path)
    return path


def compared(trace, *args):
    return json.loads(done("compare", "--trace", trace, *args, "--json", "-"))


def row(data, policy):
    return next(found for found in data["policies"] if found["policy"] == policy)


def test_an_unknown_window_is_the_longest_seen(tmp_path):
    rounds = {"feature": rounds_of(*((start, kept, -1) for start, kept, _ in ROWS))}
    request = one_request({"": 11, "feature": 11}, rounds, wall_s={"": 5.5, "feature": 3.0})
    trace = written(tmp_path / "log.trace", request, drafters=(("feature", True, None),))
    assert [policy["policy"] for policy in compared(trace)["policies"]][1] == "feature:4/target"


def test_what_is_modelled_is_run_at_several_seeds(log):
    data = compared(log, "--policy", "feature:3/target", "--policy", "feature:4/target", "--seeds", "4", "--seed", "2")
    modelled, known = data["policies"]
    assert modelled["exact_share"] < 1
    assert (modelled["seeds"], known["seeds"], data["meta"]["seeds"]) == (4, 1, 4)
    low, high = modelled["speed_up_ci"]
    assert low <= modelled["speed_up"] <= high
    speeds = []
    for seed in range(2, 6):
        one = compared(log, "--policy", "feature:3/target", "--seeds", "2", "--seed", seed, "--log", f"logs{seed}")
        assert one["policies"][0]["seeds"] == 2
        meta = json.loads((log.parent / f"logs{seed}" / "00-feature_3_target" / "meta.json").read_text())
        assert meta["seed"] == seed
        speeds.append(one)
    assert len({json.dumps(one["policies"][0]) for one in speeds}) > 1
    assert compared(log, "--policy", "feature:3/target", "--seed", "2", "--seeds", "4")["policies"] == [modelled]


def test_what_has_no_seconds_is_left_out_of_the_default(tmp_path):
    """Nobody timed the target alone: no speed-up is known, and the table says why."""
    request = one_request({"feature": 11}, {"feature": rounds_of(*ROWS, seconds=SECONDS)})
    trace = written(tmp_path / "log.trace", request, drafters=(("feature", True, 4),))
    data = compared(trace)
    assert [policy["policy"] for policy in data["policies"]] == ["feature:4/target"]
    assert data["policies"][0]["speed_up"] is None
    assert data["meta"]["left_out"][0].startswith("plain is left out: cost timed: the log has no step of target alone")
    assert "unknown" in done("compare", "--trace", trace)
    assert "no step of target alone" in refused("compare", "--trace", trace, "--policy", "plain")
    (alone,) = compared(trace, "--policy", "feature:4/target")["meta"]["left_out"]
    assert alone.startswith("no speed-up is known: cost timed")
    assert compared(trace, "--policy", "feature:4/target", "--extrapolate")["policies"][0]["speed_up"] > 1


def test_without_seconds_a_cost_must_be_named(tmp_path):
    request = one_request({"": 11}, {"feature": rounds_of(*ROWS)})
    trace = written(tmp_path / "log.trace", request, drafters=(("feature", True, 4),))
    assert "--cost FILE.json" in refused("compare", "--trace", trace)
    line = {"intercept_s": 1.0, "per_new_token_s": 0, "per_kv_token_s": 0}
    (tmp_path / "mine.json").write_text(json.dumps({"feature": line, "target": line}))
    data = compared(trace, "--cost", "mine.json", "--policy", "feature:4/target", "--batch", "2")
    assert data["policies"][0]["duration_s"] == 4 + 4 + 4 + 3 + 2


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("confident", "policy confident needs signals of tokens, which recording log does not hold"),
        ("feature:2/tokens:4/target", "tokens cannot verify and can only stand first"),
        ("ngram", "policy ngram needs a model-free member"),
    ],
)
def test_what_rounds_cannot_answer_is_refused(log, policy, told):
    assert told in refused("compare", "--trace", log, "--policy", policy)


def test_strict(log):
    done("compare", "--trace", log, "--policy", "feature:4/target", "--strict")
    line = refused("compare", "--trace", log, "--policy", "feature:3/target", "--strict")
    assert line.endswith("needs a round that was not recorded; leave out --strict")


# -- what if


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("feature", "--shift-acceptance must be NAME=DELTA, got 'feature'"),
        ("=0.1", "--shift-acceptance must be NAME=DELTA, got '=0.1'"),
        ("feature=much", "--shift-acceptance must be NAME=DELTA, got 'feature=much'"),
        ("nobody=0.1", "nobody"),
        ("feature=0.9", "feature"),
        ("feature=nan", "feature"),
        ("target=0.1", "target"),
    ],
)
def test_a_shift_that_cannot_be(log, option, told):
    assert told in refused("compare", "--trace", log, "--shift-acceptance", option)


def test_a_shift_given_twice(log):
    twice = ("--shift-acceptance", "feature=0.1", "--shift-acceptance", "feature=0.2")
    assert refused("compare", "--trace", log, *twice) == "--shift-acceptance feature is given twice"


def test_one_seed_is_no_interval(log):
    assert "--seeds" in refused("compare", "--trace", log, "--seeds", "1")


@pytest.mark.parametrize(
    "policy", ["confident,draft=tokens", "svip,draft=tokens", "adaedl", "guarded,policy=confident"]
)
def test_policies_that_look_at_probabilities_say_that_there_are_none(log, policy):
    told = refused("compare", "--trace", log, "--policy", "plain", "--policy", policy)
    assert told == f"policy {policy} needs signals of tokens, which recording log does not hold"


def test_policies_that_read_text_say_where_there_is_none(log):
    assert "hedgespec scores drafters" in refused("compare", "--trace", log, "--policy", "hedgespec")


@pytest.mark.parametrize(
    "policy", ["two-level,most=4", "banditspec,kind=exp3", "cas-spec,most=4", "guarded,policy=adaptive"]
)
def test_policies_that_choose_work_on_rounds(log, policy):
    assert row(compared(log, "--policy", policy), policy)["output_tokens"] == 44
