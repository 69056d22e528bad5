"""Measured seconds on another device: by hand, and what any reading of them keeps to."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.cost.files import TableCost
from paceline.sim.cost.make import OnDevice, make_cost
from paceline.sim.cost.measured import TimedCost
from paceline.sim.cost.roofline import RooflineCost
from paceline.sim.cost.what_if import MappedCost, Reading
from paceline.traces.meta import CostTable, DraftBlock

from ..shapes import DEVICE, MODEL, RECORDING, recording_that_says, seconds
from ..timed_recordings import recording_of, request_of, rounds_of, shapes

# Twice the bandwidth and four times the arithmetic of DEVICE: 4 MB of weights take 40 and 20 microseconds.
FAST = replace(DEVICE, name="fast", bytes_per_s=2e11, flops_per_s={"float32": 4e12, "float16": 4e12})
HERE, THERE = RooflineCost(DEVICE, (MODEL,)), RooflineCost(FAST, (MODEL,))
READINGS = st.sampled_from(Reading)


def moved(reading, measured_s, new=1, here=HERE, there=THERE):
    table = TableCost("measured", {"m": CostTable(new_tokens=(1, 10**6), seconds=(measured_s, measured_s))})
    return MappedCost(table, here, there, reading, target="target")


def test_readings_by_hand():
    memory_s, launches_s = (4e6 + 400) / 1e11, 1e-3
    measured_s = memory_s + launches_s
    assert seconds(moved(Reading.device, measured_s), 1) == pytest.approx(memory_s / 2 + launches_s)
    assert seconds(moved(Reading.memory, measured_s), 1) == pytest.approx(memory_s / 2 + launches_s)
    assert seconds(moved(Reading.all, measured_s), 1) == pytest.approx(measured_s / 2)
    assert moved(Reading.all, measured_s).name == "measured, round to fast"


def test_a_block_drafters_round_is_one_forward():
    """Its 4 tokens read the weights once and not 4 times: 2 MB, on a device of twice the bandwidth."""
    request = request_of("q", {"block": rounds_of([3, 4, 2], draft_s=[1.0] * 3, verify_s=[2.0] * 3)})
    saved = []
    for block in (None, DraftBlock(tokens=4)):
        drafter, target = shapes("block", "target")
        models = (drafter.model_copy(update={"draft_block": block}), target)
        device = replace(DEVICE, flops_per_s={"float16": 4e12})
        here, there = (RooflineCost(each, models) for each in (device, FAST))
        timed = TimedCost(recording_of(request, drafters=("block",)))
        cost = MappedCost(timed, here, there, Reading.memory, target="target")
        saved.append(1.0 - cost.round_s("q", 0, "block")[0])
    assert saved[0] == pytest.approx(4 * 1e-5, rel=1e-3)
    assert saved[1] == pytest.approx(1e-5, rel=1e-2)


def test_arithmetic_scales_as_arithmetic_does():
    new = 1000
    arithmetic_s, memory_s = HERE.busy_s("m", num_rows=1, new_tokens=new, context_tokens=0)
    assert arithmetic_s > memory_s
    measured_s = arithmetic_s + 1.0
    assert seconds(moved(Reading.device, measured_s), new) == pytest.approx(arithmetic_s / 4 + 1.0)
    assert seconds(moved(Reading.all, measured_s), new) == pytest.approx(measured_s / 4)
    assert seconds(moved(Reading.memory, measured_s), new) == pytest.approx(measured_s - memory_s / 2)


@given(
    reading=READINGS,
    measured_s=st.floats(1e-7, 10.0),
    new=st.integers(1, 4096),
    rows=st.integers(1, 8),
    held=st.integers(0, 10**5),
)
def test_a_faster_device_is_faster_and_by_no_more_than_its_roofline(reading, measured_s, new, rows, held):
    asked = {"new": new, "rows": rows, "held": held}
    there = seconds(moved(reading, measured_s), **asked)
    least = min(FAST_RATIO) * measured_s
    assert least * (1 - 1e-9) <= there <= measured_s
    # And back again is where one came from, as long as everything scales.
    if reading is Reading.all:
        assert seconds(moved(reading, there, here=THERE, there=HERE), **asked) == pytest.approx(measured_s)


FAST_RATIO = (0.5, 0.25)


def test_what_no_device_of_that_kind_can_do_is_told():
    cost = moved(Reading.device, 1e-5)
    assert cost.notes() == ("measured by new tokens only: a longer context costs no more",)
    assert seconds(cost, 1) == pytest.approx(0.5e-5)
    assert cost.notes()[-1] == "measured faster than the roofline of round allows, in parts: m"


def imported(**rest):
    rounds = rounds_of([2, 3, 0], drafted=3, draft_s=[1.0, 2.0, 3.0], verify_s=[10.0, 20.0, 30.0])
    request = request_of("a", {"eagle": rounds}, tokens=8, wall_s={"": 80.0}, **rest)
    return recording_of(request, window=3, models=shapes("eagle", "target"))


def rooflines(recording):
    return tuple(
        RooflineCost(replace(device, flops_per_s={"float16": 1e12}), recording.meta.models) for device in (DEVICE, FAST)
    )


def test_recorded_rounds_are_mapped_part_by_part():
    recording = imported(prefill_s={"eagle": 4.0})
    here, there = rooflines(recording)
    cost = MappedCost(TimedCost(recording), here, there, Reading.device, target="target")
    assert cost.knows_rounds
    draft_s, verify_s = cost.round_s("a", 3, "eagle")
    one = here.busy_s("eagle", num_rows=1, new_tokens=1, context_tokens=3)[1]
    four = here.busy_s("target", num_rows=1, new_tokens=4, context_tokens=3)[1]
    assert draft_s == pytest.approx(2.0 - 3 * one / 2)
    assert verify_s == pytest.approx(20.0 - four / 2)
    assert cost.round_s("a", 4, "eagle") is None
    alone = here.busy_s("target", num_rows=1, new_tokens=1, context_tokens=5)[1]
    assert cost.round_s("a", 5, "") == (0.0, pytest.approx(10.0 - alone / 2))
    read = here.busy_s("target", num_rows=1, new_tokens=1, context_tokens=0)[1]
    assert "prompts of unknown length" not in " ".join(cost.notes())
    assert cost.prefill_s("a", "eagle") == pytest.approx(4.0 - read / 2)
    assert cost.prefill_s("a", "") == 0.0
    assert "prompts of unknown length: of their prefill, one reading of the weights is mapped" in cost.notes()


def test_means_are_mapped_as_forwards():
    recording = imported()
    here, there = rooflines(recording)
    plain = TimedCost(recording)
    cost = MappedCost(plain, here, there, Reading.all, target="target")
    for model, new in (("eagle", 1), ("target", 4)):
        assert seconds(cost, new, model=model) == pytest.approx(seconds(plain, new, model=model) / 2)
    assert seconds(cost, 40, model="eagle") == seconds(cost, 1, model="eagle")


def test_what_is_measured_with_the_recording_goes_to_another_device():
    on = OnDevice(device="h200", measured_on="h100")
    cost = make_cost("timed", imported(), on=on, scale={"eagle": 2.0})
    plain = make_cost("timed", imported(), on=on)
    assert cost.name == "timed, h100 to h200, eagle x2"
    assert cost.round_s("a", 3, "eagle")[0] == 2.0 * plain.round_s("a", 3, "eagle")[0]
    recording = recording_that_says(hardware="NVIDIA H100 80GB HBM3; AMD EPYC, 2 cores, 1 threads")
    assert make_cost("cpu", recording, on=OnDevice(device="a100")).name == "cpu, h100-sxm to a100"


@pytest.mark.parametrize(
    ("name", "on", "told"),
    [
        (
            "timed",
            OnDevice(device="h200"),
            "needs the device of the sheet that timed .* `measured_on` DEVICE; .*'nothing'",
        ),
        ("timed", OnDevice(device="moon", measured_on="h100"), r"`on` must be a device of the sheet .*got 'moon'"),
        ("timed", OnDevice(device="h200", measured_on="sun"), r"`measured_on` must be a device .*got 'sun'"),
        (
            "timed",
            OnDevice(device="h100", measured_on="h100-sxm"),
            "`on` must name another device.*got h100 for h100-sxm",
        ),
        (
            "h200",
            OnDevice(device="h100", measured_on="a100"),
            r"`on` is for seconds measured .*\(timed\), got `cost` h200",
        ),
    ],
)
def test_what_cannot_be_mapped_is_told_in_one_line(name, on, told):
    with pytest.raises(ValueError, match=told) as caught:
        make_cost(name, imported(), on=on)
    assert "\n" not in str(caught.value)


def test_mapping_takes_shapes():
    recording = imported()
    recording = replace(recording, meta=recording.meta.model_copy(update={"models": ()}))
    with pytest.raises(ValueError, match="cost timed `on` h200: no shape for target, eagle: give `models`"):
        make_cost("timed", recording, on=OnDevice(device="h200", measured_on="h100"))


def test_a_bare_roofline_says_that_there_are_measured_seconds():
    (told,) = make_cost("h200", imported()).notes()
    assert "`cost` timed `on` h200" in told
    untimed = recording_of(request_of("a", {}), models=shapes("eagle", "target"))
    assert make_cost("h200", untimed).notes() == ()
    assert make_cost("h100", RECORDING).notes() == (), "measured on a processor of which no sheet knows"
