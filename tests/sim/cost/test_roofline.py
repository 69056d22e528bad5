"""Seconds of a roofline by hand: dense models, mixtures of experts, quantised weights, and the sheet of devices."""

from dataclasses import replace
from itertools import combinations, product
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.cost.base import LOOKUP_S
from paceline.sim.cost.roofline import RooflineCost, device_sheet
from paceline.traces.errors import Experts
from paceline.traces.meta import WIDTHS, DraftBlock, ModelInfo, Quantised
from paceline.traces.shapes import presets
from paceline.traces.shapes_given import given_shapes
from pydantic import ValidationError

from .shapes import DEVICE, MODEL, seconds

LAUNCH = 3 * 2e-6


def test_roofline_by_hand():
    cost = RooflineCost(DEVICE, (MODEL,))
    # Few tokens wait for memory: 4 bytes a weight, and 10 + 1 tokens of keys and values.
    assert seconds(cost, 1, held=10) == pytest.approx((4e6 + 400 * 11) / 1e11 + LAUNCH)
    # Many tokens wait for arithmetic: two operations a weight, and attention of 4 x 3 x 100 x 1000 new:
    # they see the 24 held, and 1 to 1000 of themselves.
    assert seconds(cost, 1000, held=24) == pytest.approx((2e6 * 1000 + 1200 * 1000 * 524.5) / 1e12 + LAUNCH)
    # In four rows they see 6 held, and 1 to 250 of themselves.
    assert seconds(cost, 1000, rows=4, held=24) == pytest.approx((2e6 * 1000 + 1200 * 1000 * 131.5) / 1e12 + LAUNCH)
    assert cost.lookup_s == LOOKUP_S
    assert cost.notes() == ()


def test_tensor_parallel_by_hand():
    cost = RooflineCost(DEVICE, (MODEL,), tensor_parallel=4)
    assert cost.name == "round x4 tensor parallel"
    busy = (4e6 + 400 * 11) / 1e11 / 4
    reduced = 2 * (2 * 3 / 4 * 100 * 4 / 1e10 + 3e-6)  # twice a layer: 3/4 of the bytes out, and as many back
    assert seconds(cost, 1, held=10) == pytest.approx(busy + 3 * (2e-6 + reduced))


def test_roofline_needs_a_figure_and_a_shape():
    with pytest.raises(ValueError, match="cost round: no peak figure for dtype 'bfloat16' of m"):
        RooflineCost(DEVICE, (MODEL.model_copy(update={"dtype": "bfloat16"}),))
    with pytest.raises(ValueError, match="cost round: no shape for model 'x'; the recording has m"):
        seconds(RooflineCost(DEVICE, (MODEL,)), 1, model="x")


FAST = replace(DEVICE, flops_per_s={"float32": 1e12, "fp8": 4e12})


@pytest.mark.parametrize("arithmetic", ["fp8", "fp4", None])
def test_quantised_weights_by_hand(arithmetic):
    """Of a million parameters 600,000 in half a byte: fp8 units are four times as fast, fp4 ones there are none."""
    ours = Quantised(format="ours", parameters=600_000, bytes_per_parameter=0.5, arithmetic=arithmetic)
    cost = RooflineCost(FAST, (MODEL.model_copy(update={"quantised": ours}),))
    assert seconds(cost, 1, held=10) == pytest.approx((4 * 400_000 + 300_000 + 400 * 11) / 1e11 + LAUNCH)
    multiplied = 400_000 + 600_000 / (4 if arithmetic == "fp8" else 1)
    assert seconds(cost, 1000, held=24) == pytest.approx((2e3 * multiplied + 1200 * 1000 * 524.5) / 1e12 + LAUNCH)
    (note,) = cost.notes()
    assert (
        note
        == {
            "fp8": "m: ours weights, 60.0% of all, multiplied in fp8",
            "fp4": "m: ours weights, 60.0% of all, dequantised and multiplied in float32, as round has no fp4 units",
            None: "m: ours weights, 60.0% of all, dequantised and multiplied in float32",
        }[arithmetic]
    )


def test_quantised_experts_by_hand():
    """Four experts of 50,000 in two layers, one a token: 400,000 in a byte each; a token reads a quarter of them."""
    experts = Experts(number=4, per_token=1, layers=2, parameters=50_000)
    ours = Quantised(format="fp8", parameters=400_000, bytes_per_parameter=1.0, arithmetic="fp8", experts=True)
    mixture = MODEL.model_copy(update={"experts": experts, "quantised": ours})
    cost = RooflineCost(FAST, (mixture,))
    assert mixture.weights_bytes == 4 * 600_000 + 400_000
    assert seconds(cost, 1, held=10) == pytest.approx((4 * 600_000 + 100_000 + 400 * 11) / 1e11 + LAUNCH)
    many = 2e4 * (600_000 + 100_000 / 4)
    assert seconds(cost, 10_000, held=0) == pytest.approx((many + 1200 * 10_000 * 5000.5) / 1e12 + LAUNCH)


def test_llama_70b_in_fp8_on_four_h100():
    """68.5 GB of matrices and 4.2 GB of tables over 13.4 TB/s, then launches and all-reduces: 127 tokens a second."""
    per_s = {
        way: 1
        / seconds(
            RooflineCost(device_sheet()["h100"], given_shapes([f"t={way}"], "t"), tensor_parallel=4), 1, model="t"
        )
        for way in ("llama-3.1-70b", "llama-3.1-70b@fp8")
    }
    assert per_s == pytest.approx({"llama-3.1-70b": 77.2, "llama-3.1-70b@fp8": 127.6}, rel=0.005)


def test_a_block_drafter_costs_one_forward():
    block = DraftBlock(tokens=15, fed="block")
    cost = RooflineCost(DEVICE, (MODEL.model_copy(update={"draft_block": block}),))
    assert cost.draft_terms("m") == (0.0, None, block)
    assert cost.notes() == ("a whole draft in one forward: m",)


def test_what_cannot_be_split():
    with pytest.raises(ValueError, match=r"tensor_parallel must be in \[1, \d+\], the least hidden size, got 0"):
        RooflineCost(DEVICE, (MODEL,), tensor_parallel=0)
    alone = replace(DEVICE, link_bytes_per_s=None)
    with pytest.raises(ValueError, match="cost round: no link to split models over, got tensor_parallel 2"):
        RooflineCost(alone, (MODEL,), tensor_parallel=2)
    assert RooflineCost(alone, (MODEL,)).name == "round"


def test_weights_must_fit():
    """1 GB of memory: two models of 600 MB fit two devices, or one if they share their weights."""
    whole = MODEL.model_copy(update={"parameters": 150_000_000})
    twin = whole.model_copy(update={"name": "n"})
    with pytest.raises(ValueError, match=r"cost round: the weights of m, n take 1.2 GB, memory holds 1.0 GB") as caught:
        RooflineCost(DEVICE, (whole, twin))
    assert "\n" not in str(caught.value)
    RooflineCost(DEVICE, (whole, twin), tensor_parallel=2)
    RooflineCost(DEVICE, (whole, twin.model_copy(update={"submodel_of": "m"})))
    with pytest.raises(ValueError, match="the weights of m, n take"):  # of a model that is not in the pool
        RooflineCost(DEVICE, (whole, twin.model_copy(update={"submodel_of": "other"})))


EXPERTS = Experts(number=8, per_token=2, layers=3, parameters=25_000)
MIXTURE = MODEL.model_copy(update={"experts": EXPERTS})


@pytest.mark.parametrize(("number", "per_token", "tokens"), [(4, 1, 3), (4, 2, 2), (5, 2, 3), (3, 3, 2)])
def test_the_mean_over_every_way_to_route(number, per_token, tokens):
    ways = [set().union(*chosen) for chosen in product(combinations(range(number), per_token), repeat=tokens)]
    assert len(ways) == comb(number, per_token) ** tokens
    experts = Experts(number=number, per_token=per_token, layers=1, parameters=1)
    assert experts.touched(tokens) == pytest.approx(sum(map(len, ways)) / len(ways))


@given(st.integers(2, 512), st.data(), st.integers(1, 5000))
def test_more_tokens_touch_more_experts_each_fewer_of_its_own(number, data, tokens):
    experts = Experts(number=number, per_token=data.draw(st.integers(1, number)), layers=1, parameters=1)
    assert experts.touched(1) == pytest.approx(experts.per_token)
    less, here, more = (experts.touched(tokens + by) for by in (-1, 0, 1))
    assert less <= here <= more <= number
    assert more - here <= (here - less) * (1 + 1e-9) + 1e-9


def test_a_forward_by_hand():
    """A million weights, 3 x 8 x 25,000 of them experts: a token goes through 400,000 and a quarter of the rest."""
    cost = RooflineCost(DEVICE, (MIXTURE,))
    assert MIXTURE.active_parameters == 400_000 + 3 * 2 * 25_000
    launches = 3 * 2e-6
    # Five tokens touch 8 (1 - 0.75^5) = 6.1 experts of each layer; memory waits: 4 bytes a weight.
    read = 400_000 + 3 * 25_000 * 8 * (1 - 0.75**5)
    assert seconds(cost, 5, held=10) == pytest.approx((4 * read + 400 * 15) / 1e11 + launches)
    # A thousand touch all of them, and arithmetic counts the two that each goes through.
    arithmetic = 2 * 550_000 * 1000 + 1200 * 1000 * 500.5
    assert seconds(cost, 1000) == pytest.approx(arithmetic / 1e12 + launches)
    assert cost.notes()[0].startswith("m: experts drawn uniformly and independently")


@given(st.integers(1, 3000), st.integers(0, 10**6), st.sampled_from([1, 4]))
def test_where_every_token_goes_through_all_experts_a_mixture_is_dense(new, held, split):
    every = MODEL.model_copy(update={"experts": EXPERTS.model_copy(update={"per_token": 8})})
    dense, mixed = (RooflineCost(DEVICE, (one,), tensor_parallel=split) for one in (MODEL, every))
    assert seconds(mixed, new, held=held) == seconds(dense, new, held=held)
    assert seconds(RooflineCost(DEVICE, (MIXTURE,), tensor_parallel=split), new, held=held) <= seconds(
        dense, new, held=held
    )


def test_verification_of_a_mixture_is_not_flat():
    """What docs/costs.md says: times the experts, and times the seconds, of five tokens over one, at batch 1."""
    h200 = device_sheet()["h200"]
    for name, experts, more in (("mixtral-8x7b", 3.05, 2.69), ("qwen-3-30b-a3b", 4.41, 2.36), ("llama-3.1-8b", 1, 1)):
        shape = presets()[name].info("m")
        cost = RooflineCost(h200, (shape,))
        touched = 1.0 if shape.experts is None else shape.experts.touched(5) / shape.experts.touched(1)
        assert touched == pytest.approx(experts, abs=0.01)
        assert seconds(cost, 5, held=1000) / seconds(cost, 1, held=1000) == pytest.approx(more, abs=0.01)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"number": 1}, "experts.number\n.*greater than or equal to 2"),
        ({"per_token": 9}, "per_token must be at most number, 8, got 9"),
        ({"layers": 4}, "experts.layers must be at most layers, 3, got 4"),
        ({"parameters": 50_000}, "parameters must be more than those of all experts, 1200000, got 1000000"),
    ],
)
def test_experts_that_cannot_be(change, told):
    experts = EXPERTS.model_dump() | change
    with pytest.raises(ValidationError, match=told):
        ModelInfo.model_validate({**MODEL.model_dump(), "experts": experts})


NAMES = {
    "a100-40gb",
    "a100-80gb",
    "h100-pcie",
    "h100-sxm",
    "h200",
    "b200",
    "l40s",
    "rtx4090",
    "rtx5090",
    "tpu-v5p",
    "cpu-roofline",
}


def test_the_sheet_is_sound():
    sheet = device_sheet()
    assert set(sheet) == NAMES | {"a100", "h100"}
    for name, device in sheet.items():
        assert name == device.name
        assert device.source
        assert 1e10 < device.memory_bytes < 1e12
        if name == "cpu-roofline":
            continue
        assert 8e11 < device.bytes_per_s < 1e13
        assert 1e14 < device.flops_per_s["bfloat16"] < 1e16
        assert 3e10 < device.link_bytes_per_s < device.bytes_per_s
        if "float32" in device.flops_per_s:
            assert device.flops_per_s["float32"] < device.flops_per_s["bfloat16"] == device.flops_per_s["float16"]
        narrow = {unit: device.flops_per_s[unit] for unit in ("int8", "fp8", "fp4") if unit in device.flops_per_s}
        assert all(1.9 < peak / device.flops_per_s["bfloat16"] < 8.1 for peak in narrow.values())
        assert set(device.flops_per_s) <= {*WIDTHS, *narrow}


@pytest.mark.parametrize(("short", "name"), [("a100", "a100-80gb"), ("h100", "h100-sxm")])
def test_a_short_name_is_the_same_device(short, name):
    sheet = device_sheet()
    assert replace(sheet[short], name=name) == sheet[name]
