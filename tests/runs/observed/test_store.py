"""The folder of an observed run: what is written is read, and what is not sound is refused in one line."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.runs.observed import (
    ObservedAcceptance,
    ObservedMeta,
    ObservedRequest,
    ObservedRun,
    is_observed,
    read_observed,
    write_observed,
)
from paceline.traces.errors import TraceFormatError

END_PS = 10**13
maybe = st.none() | st.integers(1, 1000)


def meta(**other):
    about = {"url": "http://h", "model": "m", "endpoint": "/v1/completions", "workload": "w", "prompts": "p"}
    return ObservedMeta(**about | {"loop": "open", "ended_at_ps": END_PS} | other)


@st.composite
def requests(draw):
    found = []
    for number in range(draw(st.integers(0, 4))):
        times = sorted(draw(st.lists(st.integers(0, END_PS), min_size=3, max_size=8)))
        failed = draw(st.sampled_from(["", "HTTP 500: no"]))
        found.append(
            ObservedRequest(
                request_id=f"r{number}",
                tag=draw(st.sampled_from(["", "code"])),
                prompt_id="p",
                asked_tokens=draw(st.integers(1, 9)),
                due_at_ps=times[0],
                sent_at_ps=times[1],
                outputs_at_ps=tuple(times[2:-1]),
                ended_at_ps=times[-1] if failed or draw(st.booleans()) else None,
                failed=failed,
                prompt_tokens=draw(maybe),
                output_tokens=draw(maybe),
                cached_tokens=draw(maybe),
                drafted=draw(maybe),
                accepted=draw(maybe),
            )
        )
    return tuple(found)


@given(requests())
def test_what_is_written_is_read(tmp_path_factory, found):
    path = tmp_path_factory.mktemp("run") / "run"
    acceptance = ObservedAcceptance(source="s", drafts=3, accepted_by_place=(2, 1))
    run = ObservedRun(meta(acceptance=acceptance, notes=("n",)), found)
    write_observed(run, path)
    read = read_observed(path)
    assert (read.meta, read.requests) == (run.meta, run.requests)
    assert is_observed(path)


GOOD = ObservedRequest(
    request_id="r", prompt_id="p", asked_tokens=4, due_at_ps=1, sent_at_ps=2, outputs_at_ps=(3, 4), ended_at_ps=5
)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"request_id": ""}, "request_id: must not be empty"),
        ({"sent_at_ps": 0}, "outputs_at_ps: must be in order"),
        ({"outputs_at_ps": (4, 3)}, "outputs_at_ps: must be in order"),
        ({"ended_at_ps": 3}, "ended_at_ps: must not be before the last chunk"),
        ({"ended_at_ps": END_PS + 1}, "ended_at_ps: must not be after the end of the run"),
        ({"ended_at_ps": None, "failed": "x"}, "ended_at_ps: must be there of a request that failed"),
        ({"prompt_tokens": 0}, "prompt_tokens: must be in [1, "),
        ({"output_tokens": -1}, "output_tokens: must be in [0, "),
    ],
)
def test_rows_that_are_not_sound_are_refused(tmp_path, change, said):
    write_observed(ObservedRun(meta(), (GOOD, replace(GOOD, **{"request_id": "s"} | change))), tmp_path / "run")
    with pytest.raises(TraceFormatError) as refused:
        read_observed(tmp_path / "run")
    assert f"requests.parquet: {said}" in str(refused.value)
    assert "(row 1)" in str(refused.value)


def test_files_that_are_not_sound_are_refused(tmp_path):
    path = tmp_path / "run"
    write_observed(ObservedRun(meta(), (GOOD,)), path)
    with pytest.raises(ValueError, match="exists already"):
        write_observed(ObservedRun(meta(), ()), path)
    stored = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(stored | {"loop": "closed"}))
    with pytest.raises(TraceFormatError, match="concurrency must be there of a closed loop alone"):
        read_observed(path)
    (path / "meta.json").write_text(json.dumps(stored))
    with (path / "requests.parquet").open("ab") as file:
        file.write(b"x")
    with pytest.raises(TraceFormatError, match="sha256"):
        read_observed(path)
    with pytest.raises(TraceFormatError, match="must be the folder of an observed run"):
        read_observed(tmp_path / "nothing")
    assert not is_observed(tmp_path)
