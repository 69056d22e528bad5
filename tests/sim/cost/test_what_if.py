"""Costs that wrap others, and the lines that costs say: what is scaled, mapped, priced as another or placed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.cost.base import CostModel, CostRangeError
from paceline.sim.cost.by_name import OnDevice, make_cost
from paceline.sim.cost.files import CostGrid, CostLine, FileCost, TableCost
from paceline.sim.cost.measured import TimedCost
from paceline.sim.cost.roofline import RooflineCost, device_sheet
from paceline.sim.cost.what_if import MappedBy, MappedCost, Price, PricedAsCost, scaled
from paceline.sim.serving.charges import MOST_ERROR, ForwardLines, in_whole_ps, to_ps, to_s
from paceline.sim.serving.cluster import PlacedCost
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
    one = CostGrid(new_tokens=(1,), context_tokens=(7,), seconds=((1e-4,),))
    return (
        roofline(),
        roofline("llama-3.1-70b", tensor_parallel=4),
        roofline("qwen-3-30b-a3b"),
        FileCost("f", {"m": GRID}, extrapolate=True),
        FileCost("f", {"m": one}, extrapolate=True),
        FileCost("f", {"m": LINE}),
        TableCost("t", {"m": TABLE}, extrapolate=True),
        scaled(roofline(), {"m": 1.7}, target="m"),
        PlacedCost({"other": FileCost("f", {"other": TABLE}), "m": roofline()}, "m"),
        PricedAsCost("p", {"m": Price(cost=FileCost("f", {"big": GRID}, extrapolate=True), model="big")}),
    )


SHAPES = st.tuples(st.sampled_from(range(len(costs()))), st.integers(1, 64), st.integers(0, 4000))
CONTEXTS = st.one_of(
    st.integers(0, 20_000), st.integers(0, 10**7), st.sampled_from([9, 10, 499, 500, 8999, 9000, 9001])
)


@given(SHAPES, CONTEXTS, st.data())
def test_forwards_lie_on_the_lines_and_whole_picoseconds_are_near(shape, held, data):
    which, num_rows, more = shape
    cost = costs()[which]
    asked = {"num_rows": num_rows, "new_tokens": num_rows + more}
    line = cost.context_line("m", context_tokens=held, **asked)
    assert line.start <= held < line.end
    other = data.draw(st.integers(line.start, int(min(line.end, line.start + 10**6)) - 1))
    assert cost.context_line("m", context_tokens=other, **asked) == line
    exact_s = cost.forward_s("m", context_tokens=other, **asked)
    assert line.start_s + line.slope_s * (other - line.start) == pytest.approx(exact_s, rel=1e-12)
    # And pieces of it in whole picoseconds, which follow from the shape alone.
    first = ForwardLines(cost).line("m", num_rows, num_rows + more, other)
    lines = ForwardLines(cost)
    lines.line("m", num_rows, num_rows + more, data.draw(CONTEXTS))
    assert lines.line("m", num_rows, num_rows + more, other) == first
    assert first.start <= other < first.end
    ps, whole_s = first.ps(other), in_whole_ps(cost).forward_s("m", context_tokens=other, **asked)
    assert (to_ps(whole_s), to_s(ps)) == (ps, whole_s)
    assert abs(ps - to_ps(exact_s)) <= 2 + 2 * MOST_ERROR * to_ps(exact_s)


def test_a_grid_refuses_lines_beyond_its_range_and_tells_when_it_went_beyond():
    asked = {"num_rows": 1, "new_tokens": 1}
    strict, beyond = (FileCost("f", {"m": GRID}, extrapolate=goes_on) for goes_on in (False, True))
    assert 9000 < strict.context_line("m", context_tokens=9000, **asked).end <= 9001
    for held in (9, 9001):
        with pytest.raises(CostRangeError, match="tokens held"):
            strict.context_line("m", context_tokens=held, **asked)
    beyond.context_line("m", context_tokens=9000, **asked)
    assert not beyond.notes()
    beyond.context_line("m", context_tokens=9001, **asked)
    assert beyond.notes()


def test_who_has_no_lines_says_so_by_name():
    class Measured(CostModel):
        name = "measured"

    cost = Measured()
    for one in (
        cost,
        scaled(cost, {"m": 2.0}, target="m"),
        PlacedCost({"d": roofline(), "m": cost}, "m"),
        PricedAsCost("p", {"m": Price(cost=cost, model="m")}),
    ):
        assert one.unlined() == "cost measured has no lines by the tokens held"
    assert in_whole_ps(cost) is cost
    assert not any(lined.unlined() for lined in costs())


@given(factor=st.floats(1e-3, 1e3), new=st.integers(1, 8))
def test_one_member_is_scaled_and_no_other(factor, new):
    plain, cost = (make_cost("cpu", RECORDING, scale=scale) for scale in (None, {"draft": factor}))
    assert seconds(cost, new, model="draft") == seconds(plain, new, model="draft") * factor
    assert seconds(cost, new, model="target") == seconds(plain, new, model="target")
    assert (cost.lookup_s, cost.notes(), cost.knows_rounds) == (plain.lookup_s, plain.notes(), False)


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
    assert (faster.lookup_s, faster.notes()) == (cost.lookup_s, cost.notes())


SPLIT, ALONE = (RooflineCost(DEVICE, (MODEL,), tensor_parallel=devices) for devices in (2, 1))


@given(new=st.integers(1, 500), rows=st.integers(1, 8), held=st.integers(0, 5000))
def test_every_member_costs_what_its_other_model_costs(new, rows, held):
    cost = PricedAsCost("what if", {"draft": Price(cost=ALONE, model="m"), "target": Price(cost=SPLIT, model="m")})
    for model, other in (("draft", ALONE), ("target", SPLIT)):
        assert seconds(cost, new, model=model, rows=rows, held=held) == seconds(other, new, rows=rows, held=held)
    with pytest.raises(ValueError, match=r"^cost what if: no price for model 'mid'; it has draft, target$"):
        seconds(cost, 1, model="mid")
    assert cost.draft_terms("ngram") is None  # which every replay asks of all members


def test_it_says_what_is_priced_as_what_and_what_the_costs_say_once():
    table = make_cost("cpu", RECORDING)
    cost = PricedAsCost("mixed", {name: Price(cost=table, model="draft") for name in ("draft", "target")})
    said = [f"{name} is priced as draft on cpu" for name in ("draft", "target")]
    assert (cost.name, cost.notes()) == ("mixed", (*said, *table.notes()))
    with pytest.raises(ValueError, match=r"^cost none: prices must hold at least one member, got {}$"):
        PricedAsCost("none", {})


# Twice the bandwidth and four times the arithmetic of DEVICE: 4 MB of weights take 40 and 20 microseconds.
FAST = replace(DEVICE, name="fast", bytes_per_s=2e11, flops_per_s={"float32": 4e12, "float16": 4e12})
HERE, THERE = RooflineCost(DEVICE, (MODEL,)), RooflineCost(FAST, (MODEL,))


def moved(reading, measured_s, here=HERE, there=THERE):
    table = TableCost("measured", {"m": CostTable(new_tokens=(1, 10**6), seconds=(measured_s, measured_s))})
    return MappedCost(table, here, there, reading, target="target")


def test_readings_by_hand():
    memory_s = (4e6 + 400) / 1e11
    measured_s = memory_s + 1e-3  # of launches
    for reading in (MappedBy.device, MappedBy.memory):
        assert seconds(moved(reading, measured_s), 1) == pytest.approx(memory_s / 2 + 1e-3)
    assert seconds(moved(MappedBy.all, measured_s), 1) == pytest.approx(measured_s / 2)
    assert moved(MappedBy.all, measured_s).name == "measured, round to fast"
    arithmetic_s, memory_s = HERE.busy_s("m", num_rows=1, new_tokens=1000, context_tokens=0)
    assert arithmetic_s > memory_s
    measured_s = arithmetic_s + 1.0
    assert seconds(moved(MappedBy.device, measured_s), 1000) == pytest.approx(arithmetic_s / 4 + 1.0)
    assert seconds(moved(MappedBy.all, measured_s), 1000) == pytest.approx(measured_s / 4)
    assert seconds(moved(MappedBy.memory, measured_s), 1000) == pytest.approx(measured_s - memory_s / 2)


@given(
    reading=st.sampled_from(MappedBy),
    measured_s=st.floats(1e-7, 10.0),
    new=st.integers(1, 4096),
    rows=st.integers(1, 8),
    held=st.integers(0, 10**5),
)
def test_a_faster_device_is_faster_and_by_no_more_than_its_roofline(reading, measured_s, new, rows, held):
    asked = {"new": new, "rows": rows, "held": held}
    there = seconds(moved(reading, measured_s), **asked)
    assert 0.25 * measured_s * (1 - 1e-9) <= there <= measured_s
    # And back again is where one came from, as long as everything scales.
    if reading is MappedBy.all:
        assert seconds(moved(reading, there, here=THERE, there=HERE), **asked) == pytest.approx(measured_s)


def test_what_no_device_of_that_kind_can_do_is_told():
    cost = moved(MappedBy.device, 1e-5)
    assert cost.notes() == ("measured by new tokens only: a longer context costs no more",)
    assert seconds(cost, 1) == pytest.approx(0.5e-5)
    assert cost.notes()[-1] == "measured faster than the roofline of round allows, in parts: m"


def imported(**rest):
    rounds = rounds_of([2, 3, 0], drafted=3, draft_s=[1.0, 2.0, 3.0], verify_s=[10.0, 20.0, 30.0])
    request = request_of("a", {"eagle": rounds}, tokens=8, wall_s={"": 80.0}, **rest)
    return recording_of(request, window=3, models=shapes("eagle", "target"))


def mapped(recording, models, reading, flops=1e12):
    half = [replace(device, flops_per_s={"float16": flops}) for device in (DEVICE, FAST)]
    here, there = (RooflineCost(device, models) for device in half)
    return MappedCost(TimedCost(recording), here, there, reading, target="target"), here


def test_recorded_rounds_are_mapped_part_by_part():
    recording = imported(prefill_s={"eagle": 4.0})
    cost, here = mapped(recording, recording.meta.models, MappedBy.device)
    assert cost.knows_rounds

    def memory_s(model, new, held):
        return here.busy_s(model, num_rows=1, new_tokens=new, context_tokens=held)[1]

    expected = 2.0 - 3 * memory_s("eagle", 1, 3) / 2, 20.0 - memory_s("target", 4, 3) / 2
    assert cost.round_s("a", 3, "eagle") == pytest.approx(expected)
    assert cost.round_s("a", 4, "eagle") is None
    assert cost.round_s("a", 5, "") == (0.0, pytest.approx(10.0 - memory_s("target", 1, 5) / 2))
    assert "prompts of unknown length" not in " ".join(cost.notes())
    assert cost.prefill_s("a", "eagle") == pytest.approx(4.0 - memory_s("target", 1, 0) / 2)
    assert cost.prefill_s("a", "") == 0.0
    assert "prompts of unknown length: of their prefill, one reading of the weights is mapped" in cost.notes()


def test_means_are_mapped_as_forwards():
    recording = imported()
    plain, (cost, _) = TimedCost(recording), mapped(recording, recording.meta.models, MappedBy.all)
    for model, new in (("eagle", 1), ("target", 4)):
        assert seconds(cost, new, model=model) == pytest.approx(seconds(plain, new, model=model) / 2)
    assert seconds(cost, 40, model="eagle") == seconds(cost, 1, model="eagle")


def test_a_block_drafters_round_is_one_forward():
    """Its 4 tokens read the weights once and not 4 times: 2 MB, on a device of twice the bandwidth."""
    request = request_of("q", {"block": rounds_of([3, 4, 2], draft_s=[1.0] * 3, verify_s=[2.0] * 3)})
    drafter, target = shapes("block", "target")
    for block, times in ((None, 4), (DraftBlock(tokens=4), 1)):
        models = (drafter.model_copy(update={"draft_block": block}), target)
        cost, _ = mapped(recording_of(request, drafters=("block",)), models, MappedBy.memory, flops=4e12)
        assert 1.0 - cost.round_s("q", 0, "block")[0] == pytest.approx(times * 1e-5, rel=1e-2)


def test_what_is_measured_with_the_recording_goes_to_another_device():
    on = OnDevice(device="h200", measured_on="h100")
    cost, plain = (make_cost("timed", imported(), on=on, scale=scale) for scale in ({"eagle": 2.0}, None))
    assert cost.name == "timed, h100 to h200, eagle x2"
    assert cost.round_s("a", 3, "eagle")[0] == 2.0 * plain.round_s("a", 3, "eagle")[0]
    recording = recording_that_says(hardware="NVIDIA H100 80GB HBM3; AMD EPYC, 2 cores, 1 threads")
    assert make_cost("cpu", recording, on=OnDevice(device="a100")).name == "cpu, h100-sxm to a100"
