import pytest
from paceline.base.errors import ArgumentError
from paceline.studies.setting import Setting
from paceline.traces import TrieRecording

from ...sim.cost.shapes import META
from ...sim.cost.timed_recordings import recording_of, request_of

TRACE = TrieRecording(meta=META, requests=())


def cost(recording=TRACE, **options):
    return Setting(recording=recording, **options).priced()


def test_cost_of_a_recording_of_contexts():
    assert cost().name == "cpu"
    assert cost(cost="h100", scale={"draft": 0.5, "target": 2}).name == "h100, draft x0.5, target x2"
    assert cost(cost="h100", scale={}, tensor_parallel=2).name == "h100 x2 tensor parallel"
    assert cost(cost="cpu", extrapolate=True).forward_s("target", num_rows=1, new_tokens=10**6, context_tokens=0)


def test_cost_of_an_imported_recording():
    recording = recording_of(request_of("a", wall_s={"": 2.0}))
    assert cost(recording).name == "timed"
    assert cost(recording, cost="timed", scale={"eagle": 0.5}).name == "timed, eagle x0.5"


@pytest.mark.parametrize("scale", [{"draft": 0}, {"draft": -1}, {"draft": 1e-7}, {"draft": 1e308}, {"other": 1}])
def test_a_scale_that_means_nothing(scale):
    with pytest.raises(ValueError, match=r"^`scale` "):
        cost(cost="h100", scale=scale)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"seeds": 0}, r"^`seeds` must be in \[2, 1000\], got 0$"),
        ({"seeds": 1001}, r"^`seeds` must be in \[2, 1000\], got 1001$"),
        ({"start": "drafts"}, "^`start` must be one of prefill, draft, recorded, got 'drafts'$"),
        ({"measured_on": "h100"}, "^`measured_on` goes with `on` DEVICE, got `measured_on` h100$"),
    ],
)
def test_arguments_are_named(options, told):
    with pytest.raises(ArgumentError, match=told):
        Setting(recording=TRACE, **options)
