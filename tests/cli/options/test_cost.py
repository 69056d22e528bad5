import pytest
from paceline.cli.options.cost import cost_of, factors_of
from paceline.traces import TrieRecording

from ...sim.cost.shapes import META
from ...sim.cost.timed_recordings import recording_of, request_of

TRACE = TrieRecording(meta=META, requests=())


def test_options_of_a_trace():
    assert cost_of(None, TRACE).name == "cpu"
    assert cost_of("h100", TRACE, scale=["draft=0.5", "target=2"]).name == "h100, draft x0.5, target x2"
    assert cost_of("h100", TRACE, scale=[], tensor_parallel=2).name == "h100 x2 tensor parallel"
    assert cost_of("cpu", TRACE, extrapolate=True).forward_s("target", num_rows=1, new_tokens=10**6, context_tokens=0)


def test_options_of_an_imported_recording():
    recording = recording_of(request_of("a", wall_s={"": 2.0}))
    assert cost_of(None, recording).name == "timed"
    assert cost_of("timed", recording, scale=["eagle=0.5"]).name == "timed, eagle x0.5"


@pytest.mark.parametrize("option", ["draft=0", "draft=-1", "draft=1e-7", "draft=1e308", "other=1"])
def test_a_scale_that_means_nothing(option):
    with pytest.raises(ValueError, match=r"^scale "):
        cost_of("h100", TRACE, scale=[option])


def test_a_scale_is_a_name_and_a_factor():
    assert factors_of(None) == {}
    with pytest.raises(ValueError, match="--scale must be NAME=FACTOR, got 'draft'"):
        cost_of("h100", TRACE, scale=["draft"])
