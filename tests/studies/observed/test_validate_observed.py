"""Replay of observed runs, and seconds fitted to them: what the simulator itself did is found again."""

import json
from dataclasses import replace

import pytest
from paceline.runs.observed import ObservedMeta, ObservedRequest, ObservedRun, read_observed, write_observed
from paceline.studies.serving import simulate
from paceline.studies.validate_observed import validate_observed

from ...cli.command_line import done, refused

CLUSTER = '[[replicas]]\ndevice = "cpu-roofline"\nmax_num_seqs = 4\nprefix_cache = false\n'
SECONDS = {"intercept_s": 0.004, "per_new_token_s": 0.0008, "per_kv_token_s": 1e-6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs of a server whose seconds are known: the simulator's own, told as if a client had seen them."""
    place = tmp_path_factory.mktemp("observed")
    (place / "c.toml").write_text(CLUSTER)
    figures = dict.fromkeys(("draft", "mid", "slim", "target"), SECONDS)
    (place / "s.json").write_text(json.dumps(figures))
    for seed, name in ((1, "a"), (2, "b")):
        load = "poisson:rate=20,requests=25,prompt=lognormal:60:1,output=4..40"
        options = {"cluster": place / "c.toml", "cost": str(place / "s.json"), "seed": seed}
        write_observed(observed(simulate(load, "plain", **options).log), place / name)
    return place


def observed(log):
    """A log of the simulator as a client's; times move by 5 s, since a run does not begin with its first request."""
    columns = {name: column.tolist() for name, column in log.requests.items() if name != "cached_tokens"}
    later = 5 * 10**12
    requests = tuple(
        ObservedRequest(
            request_id=name,
            prompt_id="p",
            asked_tokens=columns["output_tokens"][row],
            due_at_ps=columns["arrived_at_ps"][row] + later,
            sent_at_ps=columns["arrived_at_ps"][row] + later,
            outputs_at_ps=(columns["first_token_at_ps"][row] + later, columns["ended_at_ps"][row] + later),
            ended_at_ps=columns["ended_at_ps"][row] + later,
            prompt_tokens=columns["prompt_tokens"][row],
            output_tokens=columns["output_tokens"][row],
            finish_reason="length",
        )
        for row, name in enumerate(columns["request_id"])
    )
    about = {"url": "http://h", "model": "m", "endpoint": "/v1/completions", "workload": "w", "prompts": "p"}
    meta = ObservedMeta(**about, loop="open", ended_at_ps=log.meta.ended_at_ps + later)
    return ObservedRun(meta, requests)


def test_what_the_simulator_did_is_replayed_without_an_error(folder):
    found = validate_observed(folder / "b", cluster=folder / "c.toml", cost=str(folder / "s.json"))
    assert found.within
    assert max(abs(cell.error) for cell in found.cells) < 1e-9


def test_seconds_are_found_again_in_another_run(folder):
    found = validate_observed(folder / "b", cluster=folder / "c.toml", calibrate_on=folder / "a")
    assert found.within
    assert found.calibration.misfit < 0.03
    assert max(abs(cell.error) for cell in found.cells) < 0.06
    line = found.calibration.line
    decode_s = SECONDS["intercept_s"] + SECONDS["per_new_token_s"]
    assert line.intercept_s + line.per_new_token_s == pytest.approx(decode_s, rel=0.1)
    assert line.per_new_token_s == pytest.approx(SECONDS["per_new_token_s"], rel=0.1)


def test_other_seconds_are_beyond_the_bounds_and_said_so(folder):
    found = validate_observed(folder / "b", cluster=folder / "c.toml", cost="cpu-roofline")
    assert not found.within
    assert "beyond: TTFT mean, ms" in found.lines()[-1]
    wide = validate_observed(
        folder / "b", cluster=folder / "c.toml", cost="cpu-roofline", mean_bound=10.0, tail_bound=10.0
    )
    assert wide.within


def test_a_fit_is_never_judged_on_its_own_run(folder):
    write_observed(read_observed(folder / "a"), folder / "copy")
    cluster = ("--cluster", folder / "c.toml")
    for same in ("a", "copy"):
        said = refused("validate", "--observed", folder / "a", "--calibrate", folder / same, *cluster)
        assert said.startswith("--calibrate must be another run than --observed")


def test_what_did_not_finish_is_not_replayed_and_said_so(folder):
    run = read_observed(folder / "b")
    first, second, *rest = run.requests
    kept = (replace(first, failed="HTTP 500: no"), replace(second, ended_at_ps=None), *rest)
    write_observed(ObservedRun(run.meta, kept), folder / "less")
    found = json.loads(done("validate", "--observed", folder / "less", "--cluster", folder / "c.toml", "--json", "-"))
    assert found["requests"] == len(rest)
    assert found["notes"] == ["2 observed requests did not finish: not replayed"]


def test_what_cannot_be_replayed_is_refused_by_name(folder):
    run = read_observed(folder / "b")
    first, *rest = run.requests
    write_observed(ObservedRun(run.meta, (replace(first, output_tokens=None), *rest)), folder / "blind")
    cluster = ("--cluster", folder / "c.toml")
    said = refused("validate", "--observed", folder / "blind", *cluster)
    assert f"blind: request {first.request_id}: output_tokens must be known to be replayed" in said
    write_observed(ObservedRun(run.meta, ()), folder / "none")
    assert "must hold a request that finished" in refused("validate", "--observed", folder / "none", *cluster)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--observed goes with --cluster FILE or --cluster DEVICE"),
        (("--cluster", "h100", "--prompts", "p"), "--prompts has no part in --observed"),
        (("--cluster", "h100", "--runs", "2"), "--runs has no part in --observed"),
        (("--cluster", "h100", "--policy", "plain", "--policy", "ngram"), "--policy must be given once"),
        (("--cluster", "h100", "--mean-bound", "0"), "--mean-bound must be in (0, 10], got 0"),
        (("--cluster", "h100", "--calibrate", "a", "--cost", "cpu"), "--cost must be left out beside --calibrate"),
    ],
)
def test_options_that_do_not_go_together(folder, options, said):
    assert said in refused("validate", "--observed", folder / "b", *options)


def test_what_goes_with_observed_alone(folder):
    assert refused("validate", "--calibrate", folder / "a") == "--calibrate goes with --observed"
    assert refused("validate", "--cluster", "h100") == "--trace must be given, but with --observed"


def test_a_policy_beside_those_of_the_cluster_is_refused(folder):
    (folder / "own.toml").write_text(f'{CLUSTER}policy = "plain"\n')
    options = ("validate", "--observed", folder / "b", "--cluster", folder / "own.toml")
    assert "figures are within" in done(*options)
    assert "--policy must be left out: every replica" in refused(*options, "--policy", "plain")
