"""Costs that wrap others, and the lines that costs say: what is scaled, mapped, priced as another or placed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.cost.base import CostModel, CostRangeError
from paceline.sim.cost.files import CostGrid, CostLine, FileCost, TableCost
from paceline.sim.cost.make import OnDevice, make_cost
from paceline.sim.cost.measured import TimedCost
from paceline.sim.cost.roofline import RooflineCost, device_sheet
from paceline.sim.cost.what_if import MappedCost, Price, PricedAsCost, Reading, scaled
from paceline.sim.serving.charges import MOST_ERROR, ForwardLines, in_whole_ps
from paceline.sim.serving.cluster import PlacedCost
from paceline.sim.serving.running import to_ps, to_s
from paceline.traces.meta import CostTable, DraftBlock
from paceline.traces.shapes import shape_called

from .shapes import DEVICE, MODEL, RECORDING, recording_that_says, seconds
from .timed_recordings import recording_of, request_of, rounds_of, shapes

GRID = CostGrid(new_tokens=(1, 64), context_tokens=(10, 500, 9000), seconds=((1e-4, 3e-4, 2e-4), (4e-4, 5e-4, 9e-4)))
TABLE = CostTable(new_tokens=(1, 64), seconds=(1e-4, 4e-4))
LINE = CostLine(intercept_s=1e-3, per_new_token_s=1.234e-6, per_kv_token_s=1e-9 / 3)


def roofline(name="llama-3.1-8b", **options):
    return RooflineCost(device_sheet()["h100"], (shape_called(name, "m", None),), **options)


def costs():
    placed = PlacedCost({"other": FileCost("f", {"other": TABLE}), "m": roofline()}, "m")
    return (
        roofline(),
        roofline("llama-3.1-70b", tensor_parallel=4),
        roofline("qwen-3-30b-a3b"),
        FileCost("f", {"m": GRID}, extrapolate=True),
        FileCost("f", {"m": CostGrid(new_tokens=(1,), context_tokens=(7,), seconds=((1e-4,),))}, extrapolate=True),
        FileCost("f", {"m": LINE}),
        TableCost("t", {"m": TABLE}, extrapolate=True),
        scaled(roofline(), {"m": 1.7}, target="m"),
        placed,
        PricedAsCost("p", {"m": Price(cost=FileCost("f", {"big": GRID}, extrapolate=True), model="big")}),
    )


SHAPES = st.tuples(st.sampled_from(range(len(costs()))), st.integers(1, 64), st.integers(0, 4000))
contexts = st.one_of(
    st.integers(0, 20_000), st.integers(0, 10**7), st.sampled_from([9, 10, 499, 500, 8999, 9000, 9001])
)


@given(SHAPES, contexts, st.data())
def test_forwards_lie_on_the_lines(shape, held, data):
    which, num_rows, more = shape
    cost = costs()[which]
    asked = {"num_rows": num_rows, "new_tokens": num_rows + more}
    line = cost.context_line("m", context_tokens=held, **asked)
    assert line.start <= held < line.end
    other = data.draw(st.integers(line.start, int(min(line.end, line.start + 10**6)) - 1))
    assert cost.context_line("m", context_tokens=other, **asked) == line
    expected = cost.forward_s("m", context_tokens=other, **asked)
    assert line.start_s + line.slope_s * (other - line.start) == pytest.approx(expected, rel=1e-12)


@given(SHAPES, contexts, st.data())
def test_whole_picoseconds_are_near_and_follow_from_the_shape(shape, held, data):
    which, num_rows, more = shape
    cost = costs()[which]
    asked = num_rows, num_rows + more
    line = ForwardLines(cost).line("m", *asked, held)
    assert line.start <= held < line.end
    other = data.draw(st.integers(line.start, int(min(line.end, line.start + 10**6)) - 1))
    ps = line.ps(other)
    lines = ForwardLines(cost)
    lines.line("m", *asked, data.draw(contexts))
    assert lines.line("m", *asked, other) == line
    seconds = in_whole_ps(cost).forward_s("m", num_rows=asked[0], new_tokens=asked[1], context_tokens=other)
    assert to_ps(seconds) == ps
    assert seconds == to_s(ps)
    exact_ps = to_ps(cost.forward_s("m", num_rows=asked[0], new_tokens=asked[1], context_tokens=other))
    assert abs(ps - exact_ps) <= 2 + 2 * MOST_ERROR * exact_ps


def test_a_grid_refuses_lines_beyond_its_range_and_tells_when_it_went_beyond():
    asked = {"num_rows": 1, "new_tokens": 1}
    strict = FileCost("f", {"m": GRID})
    assert strict.context_line("m", context_tokens=9000, **asked).end == 9001
    for held in (9, 9001):
        with pytest.raises(CostRangeError, match="tokens held"):
            strict.context_line("m", context_tokens=held, **asked)
    beyond = FileCost("f", {"m": GRID}, extrapolate=True)
    beyond.context_line("m", context_tokens=9000, **asked)
    assert not beyond.notes()
    beyond.context_line("m", context_tokens=9001, **asked)
    assert beyond.notes()


class Measured(CostModel):
    """A cost that says nothing of lines."""

    name = "measured"
    lookup_s = 0.0

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        return 1e-3


def test_who_has_no_lines_says_so_by_name():
    cost = Measured()
    words = "cost measured has no lines by the tokens held"
    assert cost.unlined() == words
    assert scaled(cost, {"m": 2.0}, target="m").unlined() == words
    assert PlacedCost({"d": roofline(), "m": cost}, "m").unlined() == words
    assert PricedAsCost("p", {"m": Price(cost=cost, model="m")}).unlined() == words
    assert in_whole_ps(cost) is cost
    assert all(not lined.unlined() for lined in costs())


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


SPLIT = RooflineCost(DEVICE, (MODEL,), tensor_parallel=2)
ALONE = RooflineCost(DEVICE, (MODEL,))
MEASURED = make_cost("cpu", RECORDING)


def priced() -> PricedAsCost:
    return PricedAsCost("what if", {"draft": Price(cost=ALONE, model="m"), "target": Price(cost=SPLIT, model="m")})


@given(new=st.integers(1, 500), rows=st.integers(1, 8), held=st.integers(0, 5000))
def test_every_member_costs_what_its_other_model_costs(new, rows, held):
    cost = priced()
    assert seconds(cost, new, model="draft", rows=rows, held=held) == seconds(ALONE, new, rows=rows, held=held)
    assert seconds(cost, new, model="target", rows=rows, held=held) == seconds(SPLIT, new, rows=rows, held=held)


def test_it_says_what_is_priced_as_what_and_what_the_costs_say_once():
    cost = PricedAsCost("mixed", {name: Price(cost=MEASURED, model="draft") for name in ("draft", "target")})
    said = [f"{name} is priced as draft on cpu" for name in ("draft", "target")]
    assert cost.notes() == (*said, *MEASURED.notes())
    assert cost.name == "mixed"


def test_a_member_without_a_price_is_refused():
    with pytest.raises(ValueError, match=r"^cost what if: no price for model 'mid'; it has draft, target$"):
        seconds(priced(), 1, model="mid")
    with pytest.raises(ValueError, match=r"^cost none: prices must hold at least one member, got {}$"):
        PricedAsCost("none", {})


@given(factor=st.floats(1e-3, 1e3), new=st.integers(1, 8))
def test_one_member_is_scaled_and_no_other(factor, new):
    plain = make_cost("cpu", RECORDING)
    cost = make_cost("cpu", RECORDING, scale={"draft": factor})
    assert seconds(cost, new, model="draft") == seconds(plain, new, model="draft") * factor
    assert seconds(cost, new, model="target") == seconds(plain, new, model="target")
    assert cost.lookup_s == plain.lookup_s
    assert cost.notes() == plain.notes()
    assert not cost.knows_rounds


def test_recorded_rounds_are_scaled_by_part():
    rounds = rounds_of([2, 3, 0], draft_s=[1.0, 2.0, 3.0], verify_s=[10.0, 20.0, 30.0])
    cost = TimedCost(recording_of(request_of("a", {"eagle": rounds}, prefill_s={"eagle": 4.0})))
    faster = scaled(cost, {"eagle": 0.5, "target": 3.0}, target="target")
    assert faster.knows_rounds
    assert faster.name == "timed, eagle x0.5, target x3"
    assert faster.round_s("a", 3, "eagle") == (1.0, 60.0)
    assert faster.round_s("a", 4, "eagle") is None
    assert faster.prefill_s("a", "eagle") == 12.0
    assert seconds(faster, 1, model="eagle") == pytest.approx(0.5 * 6.0 / 12)
    assert seconds(faster, 5, model="target") == 3.0 * 20.0
    assert faster.lookup_s == cost.lookup_s
    assert faster.notes() == cost.notes()
