"""Seconds that are measured for a recording: how sure they are, and what stops them."""

import json

import pytest
from paceline.base.errors import ArgumentError
from paceline.reports.recordings import trace_tables
from paceline.runtime.profiling.costs import MeasuredCosts
from paceline.studies.compare import compare
from paceline.studies.record import record
from paceline.studies.setting import open_recording
from paceline.traces.meta import CostTable, Sampling

from ..tiny_models import random_prompts, tiny_pool_of_four

POOL, PROMPTS = tiny_pool_of_four(), random_prompts(6, seed=3)


def test_a_recording_of_seconds_that_were_measured_for_it_names_no_profile(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.studies.record.measure_costs", lambda *_, **__: MeasuredCosts({}, 21, 0.0, 0.0, 1.0))
    trace = record(POOL, PROMPTS, tmp_path / "a.trace", max_new_tokens=8)
    assert trace.meta.profile is None
    assert "seconds from profile" not in dict(trace_tables(trace.summary())[0].rows)


@pytest.mark.parametrize(
    ("drift", "spread", "said"),
    [(0.1, 0.25, "measured seconds: "), (0.11, 0.0, "do not trust "), (0.0, 0.26, "do not trust ")],
)
def test_a_recording_says_how_sure_its_seconds_are(tmp_path, monkeypatch, capsys, drift, spread, said):
    table = CostTable(new_tokens=(1, 4096), seconds=(1e-3, 1e-2))
    found = MeasuredCosts(dict.fromkeys(("draft", "mid", "slim", "target"), table), 7, spread, drift, 41.0)
    monkeypatch.setattr("paceline.studies.record.measure_costs", lambda *_, **__: found)
    record(POOL, PROMPTS, tmp_path / "a.trace", max_new_tokens=2)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"paceline: {said}")
    assert line.endswith(f": 7 rounds, drift {drift:.1%}, spread {spread:.1%}, 41 s")
    # Whoever opens it next is told as well, wherever its seconds are used.
    doubt = line.removeprefix("paceline: ") if said.startswith("do not") else None
    trace = open_recording(tmp_path / "a.trace")
    assert json.loads((tmp_path / "a.trace" / "meta.json").read_bytes()).get("costs_doubt") == doubt
    assert dict(trace_tables(trace.summary())[0].rows).get("doubt") == doubt
    notes = {cost: compare(trace, "plain", cost=cost).to_json()["meta"]["cost_notes"] for cost in ("cpu", "h100")}
    assert [line for line in notes["cpu"] if "do not trust" in line] == [one for one in [doubt] if one]
    assert not any("do not trust" in line for line in notes["h100"])


@pytest.mark.parametrize("stopped", [KeyboardInterrupt(), TimeoutError("only 1 of 3 rounds")])
def test_what_stops_the_measuring_leaves_the_contexts(tmp_path, monkeypatch, stopped):
    def stop(*_, **__):
        raise stopped

    monkeypatch.setattr("paceline.studies.record.measure_costs", stop)
    with pytest.raises((KeyboardInterrupt, ArgumentError)) as caught:
        record(POOL, PROMPTS, tmp_path / "a.trace", max_new_tokens=8)
    if isinstance(stopped, TimeoutError):
        assert "`costs` cannot be measured on a machine that is so slow or so busy: only 1 of 3" in str(caught.value)
        assert f"{tmp_path / 'a.trace'}.part: --no-costs makes the recording of them" in str(caught.value)
    assert len(list((tmp_path / "a.trace.part").glob("*.npz"))) == len(PROMPTS)
    monkeypatch.setattr("paceline.runtime.recording.recorder._record_group", None)
    assert len(record(POOL, PROMPTS, tmp_path / "a.trace", max_new_tokens=8, costs=False).requests) == len(PROMPTS)
    assert not (tmp_path / "a.trace.part").exists()


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
