"""Which cost a name is, and what it is refused with."""

import pytest
from paceline.sim.cost.files import TableCost
from paceline.sim.cost.make import OnDevice, default_cost, make_cost
from paceline.sim.cost.measured import TimedCost
from paceline.sim.cost.roofline import RooflineCost, device_sheet
from paceline.traces import CostTable

from .shapes import META, RECORDING, recording_that_says, seconds
from .timed_recordings import recording_of, request_of, shapes

TABLE = CostTable(new_tokens=(1, 2, 8, 16), seconds=(1.0, 1.5, 3.0, 2.0))
TIMED = recording_of(request_of("a", wall_s={"": 2.0}))
SHAPED = recording_of(request_of("a", wall_s={"": 2.0}), models=shapes("eagle", "target"))


def test_a_cost_by_name(tmp_path):
    assert isinstance(make_cost("cpu", RECORDING), TableCost)
    assert seconds(make_cost("cpu", RECORDING), 5, model="target") == pytest.approx(0.02 * 1.04)
    single = recording_that_says(models=tuple(model.model_copy(update={"dtype": "float32"}) for model in META.models))
    for name in device_sheet():
        slow = name == "cpu-roofline"
        cost = make_cost(name, single if slow else RECORDING)
        assert isinstance(cost, RooflineCost)
        assert cost.name == name
        assert 0 < seconds(cost, 1, model="draft") < seconds(cost, 1, model="target") < (1.0 if slow else 0.01)
    measured = recording_that_says(costs={"h100": dict.fromkeys(META.model_names, TABLE)})
    assert seconds(make_cost("h100", measured), 5, model="draft") == 2.25, "measured goes before the sheet"
    assert isinstance(make_cost("timed", TIMED), TimedCost)
    file = tmp_path / "mine.json"
    file.write_text('{"eagle": {"intercept_s": 1}, "target": {"intercept_s": 3}}')
    assert seconds(make_cost(str(file), TIMED), 9, model="target") == 3.0


def test_options_reach_the_cost():
    cost = make_cost("h100", RECORDING, tensor_parallel=2, scale={"draft": 0.5})
    assert cost.name == "h100 x2 tensor parallel, draft x0.5"
    cost = make_cost("cpu", RECORDING, extrapolate=True)
    assert seconds(cost, 10**6, model="target") > META.costs["cpu"]["target"].seconds[-1]
    (told,) = make_cost("h200", SHAPED).notes()
    assert "`cost` timed `on` h200" in told
    assert make_cost("h100", RECORDING).notes() == (), "measured on a processor of which no sheet knows"


@pytest.mark.parametrize(
    ("recording", "default"),
    [
        (RECORDING, "cpu"),
        (recording_that_says(costs={}), "h100"),
        (TIMED, "timed"),
        (recording_of(request_of("a"), models=shapes("eagle", "target")), "h100"),
    ],
)
def test_the_default_is_what_was_measured(recording, default):
    assert default_cost(recording) == default


FROM_H100 = {"on": OnDevice(device="h200", measured_on="h100")}


@pytest.mark.parametrize(
    ("name", "recording", "options", "told"),
    [
        ("cpu", RECORDING, {"tensor_parallel": 2}, "`tensor_parallel` is for devices of the sheet; cpu was measured"),
        ("none.json", RECORDING, {"tensor_parallel": 2}, "`tensor_parallel` is for devices of the sheet"),
        ("h100", RECORDING, {"tensor_parallel": 10**400}, r"must be in \[1, \d+\], the least hidden size, got 1000"),
        ("h100", RECORDING, {"extrapolate": True}, "`extrapolate` is for measured costs; h100 has no range to leave"),
        ("h100", RECORDING, {"scale": {"ngram": 2.0}}, r"`scale` must name a model .* \(draft, target\), got 'n"),
        *(
            ("cpu", RECORDING, {"scale": {"draft": factor}}, r"`scale` of draft must be in \[1e-06, 1e\+06\], got")
            for factor in (0.0, -1.0, float("nan"), float("inf"), 1e308)
        ),
        ("cpu", RECORDING, {"allow_foreign_profile": True}, "`allow_foreign_profile` is for profiles; cpu is none"),
        ("timed", RECORDING, {}, "cost timed: this recording holds no seconds of rounds or answers; known are"),
        ("v100", RECORDING, {}, "unknown cost 'v100': known are a100, a100-40gb, .*, or a FILE.json"),
        ("h100", TIMED, {}, "cost h100: no shape for target, eagle: give `models` target=PRESET"),
        ("timed", TIMED, FROM_H100, "cost timed `on` h200: no shape for target, eagle: give `models`"),
        ("timed", SHAPED, {"on": OnDevice(device="h200")}, "needs the device of the sheet that timed .*'nothing'"),
        ("timed", SHAPED, {"on": OnDevice(device="moon", measured_on="h100")}, "`on` must be a device .*got 'moon'"),
        ("timed", SHAPED, {"on": OnDevice(device="h200", measured_on="sun")}, "`measured_on` must be .*got 'sun'"),
        (
            "timed",
            SHAPED,
            {"on": OnDevice(device="h100", measured_on="h100-sxm")},
            "must name another device.*got h100",
        ),
        ("h200", SHAPED, FROM_H100, r"`on` is for seconds measured .*\(timed\), got `cost` h200"),
    ],
)
def test_what_does_not_apply_is_refused_in_one_line(name, recording, options, told):
    with pytest.raises(ValueError, match=told) as caught:
        make_cost(name, recording, **options)
    assert "\n" not in str(caught.value)


def test_without_seconds_or_all_shapes_there_is_no_default():
    with pytest.raises(ValueError, match=r"holds no seconds: give `cost` FILE.json, or `cost` DEVICE and `models`"):
        default_cost(recording_of(request_of("a"), models=shapes("target")))
