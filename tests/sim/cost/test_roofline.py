from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.cost.base import LOOKUP_S
from paceline.sim.cost.roofline import RooflineCost, device_sheet
from paceline.traces import ModelInfo
from paceline.traces.errors import Experts
from paceline.traces.meta import DraftBlock, Quantised
from paceline.traces.shapes_given import given_shapes

from .shapes import DEVICE, MODEL, seconds

LAUNCH = 3 * 2e-6
PUBLISHED = [device for device in device_sheet().values() if device.name != "cpu-roofline"]
MODEL_7B = ModelInfo(
    name="target", parameters=7 * 10**9, layers=32, hidden_size=4096, kv_bytes_per_token=524_288, dtype="float16"
)


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


@given(
    device=st.sampled_from(PUBLISHED),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    new=st.integers(1, 4096),
    held=st.integers(0, 10**6),
    rows=st.integers(1, 64),
    more=st.integers(1, 1000),
    split=st.sampled_from([1, 2, 8]),
)
def test_roofline_is_monotone(device, dtype, new, held, rows, more, split):
    dtype = dtype if dtype in device.flops_per_s else "bfloat16"
    small = ModelInfo(name="m", parameters=10**9, layers=24, hidden_size=2048, kv_bytes_per_token=10**5, dtype=dtype)
    large = small.model_copy(update={"parameters": 2 * 10**9})
    cost = RooflineCost(device, (small,), tensor_parallel=split)
    base = seconds(cost, new, rows=rows, held=held)
    assert base >= 24 * device.layer_launch_s
    assert base <= seconds(cost, new + more, rows=rows, held=held)
    assert base < seconds(cost, new, rows=rows, held=held + more) or base == pytest.approx(
        seconds(cost, new, rows=rows, held=held + more), rel=1e-3
    )
    assert base <= seconds(RooflineCost(device, (large,), tensor_parallel=split), new, rows=rows, held=held)


@given(split=st.integers(2, 16), new=st.integers(1, 512), held=st.integers(0, 10**5))
def test_splitting_never_does_better_than_evenly(split, new, held):
    device = device_sheet()["h100"]
    whole = seconds(RooflineCost(device, (MODEL_7B,)), new, model="target", held=held)
    parts = seconds(RooflineCost(device, (MODEL_7B,), tensor_parallel=split), new, model="target", held=held)
    assert parts > whole / split
    if new == 1:
        assert parts < whole  # 14 GB of weights outweigh the all-reduces of one token


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


def test_quantised_weights_fit_where_their_own_would_not():
    large = MODEL.model_copy(update={"parameters": 400_000_000})
    with pytest.raises(ValueError, match=r"take 1.6 GB, memory holds 1.0 GB"):
        RooflineCost(DEVICE, (large,))
    ours = Quantised(format="fp8", parameters=390_000_000, bytes_per_parameter=1.0)
    RooflineCost(DEVICE, (large.model_copy(update={"quantised": ours}),))


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
