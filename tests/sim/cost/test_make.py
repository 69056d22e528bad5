"""Which cost a name is, and what it is refused with."""

import pytest
from paceline.sim.cost.make import default_cost, make_cost
from paceline.sim.cost.measured import TimedCost
from paceline.sim.cost.roofline import RooflineCost, device_sheet

from .shapes import META, RECORDING, recording_that_says, seconds
from .timed_recordings import recording_of, request_of, shapes


def test_a_cost_by_name():
    assert seconds(make_cost("cpu", RECORDING), 5, model="target") == pytest.approx(0.02 * 1.04)
    assert seconds(make_cost("cpu", RECORDING), 1, model="draft") == pytest.approx(0.02 * 0.2)
    single = recording_that_says(models=tuple(model.model_copy(update={"dtype": "float32"}) for model in META.models))
    for name in device_sheet():
        slow = name == "cpu-roofline"
        cost = make_cost(name, single if slow else RECORDING)
        assert isinstance(cost, RooflineCost)
        assert cost.name == name
        assert 0 < seconds(cost, 1, model="draft") < seconds(cost, 1, model="target") < (1.0 if slow else 0.01)


def test_options_reach_the_cost():
    assert make_cost("h100", RECORDING, tensor_parallel=2).name == "h100 x2 tensor parallel"
    cost = make_cost("h100", RECORDING, tensor_parallel=2, scale={"draft": 0.5})
    assert cost.name == "h100 x2 tensor parallel, draft x0.5"
    tables = META.costs["cpu"]["target"]
    cost = make_cost("cpu", RECORDING, extrapolate=True)
    assert seconds(cost, 10**6, model="target") > tables.seconds[-1]


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("cpu", {"tensor_parallel": 2}, "`tensor_parallel` is for devices of the sheet; cpu was measured as it is"),
        ("none.json", {"tensor_parallel": 2}, "`tensor_parallel` is for devices of the sheet"),
        ("h100", {"tensor_parallel": 0}, r"tensor_parallel must be in \[1, \d+\], the least hidden size, got 0"),
        ("h100", {"tensor_parallel": 10**400}, "the least hidden size, got 1000"),
        ("h100", {"extrapolate": True}, "`extrapolate` is for measured costs; h100 has no range to leave"),
        (
            "h100",
            {"scale": {"ngram": 2.0}},
            r"`scale` must name a model that has forwards \(draft, target\), got 'n",
        ),
        ("cpu", {"scale": {"draft": 0.0}}, r"`scale` of draft must be in \[1e-06, 1e\+06\], got 0.0"),
        ("cpu", {"scale": {"draft": -1.0}}, r"`scale` of draft must be in \[1e-06, 1e\+06\], got -1.0"),
        ("cpu", {"scale": {"draft": float("nan")}}, r"`scale` of draft must be in \[1e-06, 1e\+06\], got nan"),
        ("cpu", {"scale": {"draft": float("inf")}}, r"`scale` of draft must be in \[1e-06, 1e\+06\], got inf"),
        ("cpu", {"scale": {"draft": 1e308}}, r"`scale` of draft must be in \[1e-06, 1e\+06\], got 1e\+308"),
        ("timed", {}, "cost timed: this recording holds no seconds of rounds or answers"),
        ("v100", {}, "unknown cost 'v100': known are a100, a100-40gb, .*, or a FILE.json"),
    ],
)
def test_options_that_do_not_apply_are_refused(name, options, told):
    with pytest.raises(ValueError, match=told) as caught:
        make_cost(name, RECORDING, **options)
    assert "\n" not in str(caught.value)


def test_the_default_is_what_was_measured():
    assert default_cost(RECORDING) == "cpu"
    assert default_cost(recording_that_says(costs={})) == "h100"
    assert default_cost(recording_of(request_of("a", wall_s={"": 2.0}))) == "timed"
    assert default_cost(recording_of(request_of("a"), models=shapes("eagle", "target"))) == "h100"
    with pytest.raises(ValueError, match=r"holds no seconds: give `cost` FILE.json, or `cost` DEVICE and `models`"):
        default_cost(recording_of(request_of("a"), models=shapes("target")))


def test_costs_of_an_imported_recording(tmp_path):
    timed = recording_of(request_of("a", wall_s={"": 2.0}))
    assert isinstance(make_cost("timed", timed), TimedCost)
    with pytest.raises(ValueError, match="cost h100: no shape for target, eagle: give `models` target=PRESET"):
        make_cost("h100", timed)
    with pytest.raises(ValueError, match="cost timed: this recording holds no seconds of rounds or answers; known are"):
        make_cost("timed", recording_of(request_of("a")))
    shaped = recording_of(request_of("a"), models=shapes("eagle", "target"))
    assert make_cost("h100", shaped, scale={"eagle": 0.5}).name == "h100, eagle x0.5"
    file = tmp_path / "mine.json"
    file.write_text('{"eagle": {"intercept_s": 1}, "target": {"intercept_s": 3}}')
    assert seconds(make_cost(str(file), timed), 9, model="target") == 3.0
