"""Seconds of a roofline by hand: dense models, mixtures of experts, quantised weights, and the sheet of devices."""

from dataclasses import replace
from itertools import combinations, product
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.cost.base import LOOKUP_S, DraftTerms
from paceline.sim.cost.roofline import RooflineCost, device_sheet
from paceline.traces.meta import WIDTHS, DraftBlock, Experts, ModelInfo, Quantised, Windowed
from paceline.traces.shapes import presets
from paceline.traces.shapes_given import given_shapes
from pydantic import ValidationError

from .shapes import DEVICE, MODEL, seconds

LAUNCH = 3 * 2e-6
FAST = replace(DEVICE, flops_per_s={"float32": 1e12, "fp8": 4e12})
EXPERTS = Experts(number=8, per_token=2, layers=3, parameters=25_000)
LARGE = MODEL.model_copy(update={"parameters": 150_000_000})  # 600 MB, of 1 GB of memory


def roofline(device=DEVICE, tensor_parallel=1, **changes):
    return RooflineCost(device, (MODEL.model_copy(update=changes),), tensor_parallel=tensor_parallel)


def test_roofline_by_hand():
    cost = roofline()
    # Few tokens wait for memory: 4 bytes a weight, and 10 + 1 tokens of keys and values.
    assert seconds(cost, 1, held=10) == pytest.approx((4e6 + 400 * 11) / 1e11 + LAUNCH)
    # Many tokens wait for arithmetic: two operations a weight, and attention of 4 x 3 x 100 x 1000 new:
    # they see the 24 held, and 1 to 1000 of themselves.
    assert seconds(cost, 1000, held=24) == pytest.approx((2e6 * 1000 + 1200 * 1000 * 524.5) / 1e12 + LAUNCH)
    # In four rows they see 6 held, and 1 to 250 of themselves.
    assert seconds(cost, 1000, rows=4, held=24) == pytest.approx((2e6 * 1000 + 1200 * 1000 * 131.5) / 1e12 + LAUNCH)
    # Heads that write twice as much as the residual stream has do twice the arithmetic of attention.
    wide = seconds(roofline(attention_size=200), 1000, held=24)
    assert wide == pytest.approx((2e6 * 1000 + 2400 * 1000 * 524.5) / 1e12 + LAUNCH)
    assert (cost.lookup_s, cost.notes()) == (LOOKUP_S, ())
    with pytest.raises(ValueError, match="cost round: no shape for model 'x'; the recording has m"):
        seconds(cost, 1, model="x")


def test_tensor_parallel_by_hand():
    cost = roofline(tensor_parallel=4)
    assert cost.name == "round x4 tensor parallel"
    reduced = 2 * (2 * 3 / 4 * 100 * 4 / 1e10 + 3e-6)  # twice a layer: 3/4 of the bytes out, and as many back
    assert seconds(cost, 1, held=10) == pytest.approx((4e6 + 400 * 11) / 1e11 / 4 + 3 * (2e-6 + reduced))


def test_an_embedding_that_the_output_does_not_share_is_neither_read_nor_multiplied():
    cost = roofline(embedding_parameters=200_000)
    assert seconds(cost, 1, held=10) == pytest.approx((4 * 800_000 + 400 * 11) / 1e11 + LAUNCH)
    assert seconds(cost, 1000, held=24) == pytest.approx((2e3 * 800_000 + 1200 * 1000 * 524.5) / 1e12 + LAUNCH)
    # Quantised with all else, as by MLX: a tenth is not.
    ours = Quantised(format="int4", parameters=900_000, bytes_per_parameter=0.5, arithmetic="fp8", embedding=True)
    cost = roofline(FAST, quantised=ours, embedding_parameters=200_000)
    assert seconds(cost, 1, held=10) == pytest.approx((4 * 100_000 + 350_000 + 400 * 11) / 1e11 + LAUNCH)
    multiplied = 100_000 + 700_000 / 4
    assert seconds(cost, 1000, held=24) == pytest.approx((2e3 * multiplied + 1200 * 1000 * 524.5) / 1e12 + LAUNCH)


def test_layers_with_a_window_read_no_more_than_it():
    cost = roofline(windowed=Windowed(layers=1, tokens=16))
    # Of three layers one: in two rows it reads 2 x 16 of the tokens held.
    assert seconds(cost, 2, rows=2, held=20) == pytest.approx((4e6 + 400 * 22) / 1e11 + LAUNCH)
    read = 400 * (2 / 3 * (100 + 2) + 1 / 3 * (32 + 2))
    assert seconds(cost, 2, rows=2, held=100) == pytest.approx((4e6 + read) / 1e11 + LAUNCH)
    attended = 2 / 3 * 524.5 + 1 / 3 * 16
    assert seconds(cost, 1000, held=24) == pytest.approx((2e6 * 1000 + 1200 * 1000 * attended) / 1e12 + LAUNCH)
    assert cost.shared_forward_s("m", num_rows=4, new_tokens=4, context_tokens=400, read_tokens=30) == pytest.approx(
        (4e6 + 400 * (2 / 3 * 34 + 1 / 3 * (4 * 16 + 4))) / 1e11 + LAUNCH
    )  # in the window, each row for itself
    told = "m: 1 of 3 layers attend to 16 tokens; under load they hold no more, and a prefix hit finds them"
    assert cost.notes() == (told,)


@given(
    num_rows=st.integers(1, 8),
    fed=st.integers(1, 600),
    held=st.integers(0, 5000),
    window=st.integers(1, 1200),
    layers=st.integers(1, 3),
)
def test_seconds_with_windows_are_lines_of_tokens_held(num_rows, fed, held, window, layers):
    cost = roofline(windowed=Windowed(layers=layers, tokens=window))
    asked = {"num_rows": num_rows, "new_tokens": num_rows * fed}
    line = cost.context_line("m", **asked, context_tokens=held)
    assert line.start <= held < line.end
    for context in {line.start, held, min(int(min(line.end, 10**6)) - 1, held + 700)}:
        seconds = cost.forward_s("m", **asked, context_tokens=context)
        assert line.start_s + line.slope_s * (context - line.start) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(("heads", "read"), [(8, 400), (4, 400), (2, 800), (1, 1600), (3, 533), (None, 400)])
def test_devices_hold_whole_heads_of_keys_and_values(heads, read):
    """On four: eight heads are two for each, of one head each has all."""
    alone = seconds(roofline(tensor_parallel=4, kv_bytes_per_token=0), 1, held=10)
    cost = roofline(tensor_parallel=4, kv_heads=heads)
    assert seconds(cost, 1, held=10) == pytest.approx(alone + read * 11 / 1e11 / 4)
    told = ("heads of keys and values of m: not said, so their cache is split evenly over 4 devices",)
    assert cost.notes() == (told if heads is None else ())
    assert roofline().notes() == ()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"embedding_parameters": 10**6}, "embedding_parameters must be less than the parameters without experts"),
        ({"quantised": {"embedding": True}}, "quantised.embedding must be false without embedding_parameters"),
        ({"embedding_parameters": 200_000, "quantised": {}}, "quantised.parameters must be in .1, 800000., got 900000"),
        (
            {"embedding_parameters": 950_000, "quantised": {"embedding": True}},
            "quantised.parameters must be in .950000, 1000000., got 900000",
        ),
    ],
)
def test_embeddings_that_cannot_be(change, told):
    if "quantised" in change:
        change = change | {
            "quantised": {"format": "x", "parameters": 900_000, "bytes_per_parameter": 1} | change["quantised"]
        }
    with pytest.raises(ValidationError, match=told):
        ModelInfo(**MODEL.model_dump() | change)


def test_all_weights_may_be_quantised():
    every = {"format": "x", "parameters": MODEL.parameters, "bytes_per_parameter": 1}
    assert ModelInfo(**MODEL.model_dump() | {"quantised": every}).quantised.parameters == MODEL.parameters


@pytest.mark.parametrize(
    ("arithmetic", "more"),
    [("fp8", ", multiplied in fp8"), ("fp4", ", dequantised and multiplied in float32, as round has no fp4 units"),
     (None, ", dequantised and multiplied in float32")],
)  # fmt: skip
def test_quantised_weights_by_hand(arithmetic, more):
    ours = Quantised(format="ours", parameters=600_000, bytes_per_parameter=0.5, arithmetic=arithmetic)
    cost = roofline(FAST, quantised=ours)
    assert seconds(cost, 1, held=10) == pytest.approx((4 * 400_000 + 300_000 + 400 * 11) / 1e11 + LAUNCH)
    multiplied = 400_000 + 600_000 / (4 if arithmetic == "fp8" else 1)
    assert seconds(cost, 1000, held=24) == pytest.approx((2e3 * multiplied + 1200 * 1000 * 524.5) / 1e12 + LAUNCH)
    assert cost.notes() == (f"m: ours weights, 60.0% of all{more}",)


def test_quantised_experts_by_hand():
    experts = Experts(number=4, per_token=1, layers=2, parameters=50_000)
    ours = Quantised(format="fp8", parameters=400_000, bytes_per_parameter=1.0, arithmetic="fp8", experts=True)
    assert MODEL.model_copy(update={"experts": experts, "quantised": ours}).weights_bytes == 4 * 600_000 + 400_000
    cost = roofline(FAST, experts=experts, quantised=ours)
    assert seconds(cost, 1, held=10) == pytest.approx((4 * 600_000 + 100_000 + 400 * 11) / 1e11 + LAUNCH)
    many = 2e4 * (600_000 + 100_000 / 4)
    assert seconds(cost, 10_000, held=0) == pytest.approx((many + 1200 * 10_000 * 5000.5) / 1e12 + LAUNCH)


def test_a_mixture_by_hand():
    cost = roofline(experts=EXPERTS)
    # Five tokens touch 8 (1 - 0.75^5) = 6.1 experts of each layer; memory waits: 4 bytes a weight.
    read = 400_000 + 3 * 25_000 * 8 * (1 - 0.75**5)
    assert seconds(cost, 5, held=10) == pytest.approx((4 * read + 400 * 15) / 1e11 + LAUNCH)
    # A thousand touch all of them, and arithmetic counts the two that each goes through.
    assert seconds(cost, 1000) == pytest.approx((2 * 550_000 * 1000 + 1200 * 1000 * 500.5) / 1e12 + LAUNCH)
    assert cost.notes()[0].startswith("m: experts drawn uniformly and independently")


@given(st.integers(1, 3000), st.integers(0, 10**6), st.sampled_from([1, 4]))
def test_where_every_token_goes_through_all_experts_a_mixture_is_dense(new, held, split):
    every = roofline(tensor_parallel=split, experts=EXPERTS.model_copy(update={"per_token": 8}))
    dense = seconds(roofline(tensor_parallel=split), new, held=held)
    assert seconds(every, new, held=held) == dense
    assert seconds(roofline(tensor_parallel=split, experts=EXPERTS), new, held=held) <= dense


@pytest.mark.parametrize(("number", "per_token", "tokens"), [(4, 1, 3), (4, 2, 2), (5, 2, 3), (3, 3, 2)])
def test_the_mean_over_every_way_to_route(number, per_token, tokens):
    ways = [set().union(*chosen) for chosen in product(combinations(range(number), per_token), repeat=tokens)]
    assert len(ways) == comb(number, per_token) ** tokens
    experts = Experts(number=number, per_token=per_token, layers=1, parameters=1)
    assert experts.touched(tokens) == pytest.approx(sum(map(len, ways)) / len(ways))


@given(st.integers(2, 512), st.data(), st.integers(1, 5000))
def test_more_tokens_touch_more_experts_each_fewer_of_its_own(number, data, tokens):
    experts = Experts(number=number, per_token=data.draw(st.integers(1, number)), layers=1, parameters=1)
    less, here, more = (experts.touched(tokens + by) for by in (-1, 0, 1))
    assert less <= here <= more <= number
    assert more - here <= (here - less) * (1 + 1e-9) + 1e-9


def test_verification_of_a_mixture_is_not_flat():
    for name, experts, more in (("mixtral-8x7b", 3.05, 2.70), ("qwen-3-30b-a3b", 4.41, 2.46), ("llama-3.1-8b", 1, 1)):
        shape = presets()[name].info("m")
        cost = RooflineCost(device_sheet()["h200"], (shape,))
        touched = 1.0 if shape.experts is None else shape.experts.touched(5) / shape.experts.touched(1)
        assert touched == pytest.approx(experts, abs=0.01)
        assert seconds(cost, 5, held=1000) / seconds(cost, 1, held=1000) == pytest.approx(more, abs=0.01)


def test_llama_70b_in_fp8_on_four_h100():
    for way, per_s in (("llama-3.1-70b", 78.2), ("llama-3.1-70b@fp8", 130.3)):
        cost = RooflineCost(device_sheet()["h100"], given_shapes([f"t={way}"], "t"), tensor_parallel=4)
        assert 1 / seconds(cost, 1, model="t") == pytest.approx(per_s, rel=0.005)


def test_a_block_drafter_costs_one_forward():
    block = DraftBlock(tokens=15, fed="block")
    cost = roofline(draft_block=block)
    assert cost.draft_terms("m") == DraftTerms(0.0, None, block)
    assert cost.notes() == ("a whole draft in one forward: m",)


def two(**changes):
    return LARGE, LARGE.model_copy(update={"name": "n"} | changes)


@pytest.mark.parametrize(
    ("models", "options", "told"),
    [
        (
            two(),
            {},
            r"cost round: the weights of m, n take 1.2 GB, memory holds 1.0 GB; .* fewer bits \(`models` n=...@int4\)",
        ),
        (two(submodel_of="other"), {}, "the weights of m, n take"),  # of a model that is not in the pool
        ((MODEL,), {"tensor_parallel": 0}, r"tensor_parallel must be in \[1, \d+\], the least hidden size, got 0"),
        ((MODEL.model_copy(update={"dtype": "bfloat16"}),), {}, "cost round: no peak figure for dtype 'bfloat16' of m"),
    ],
)
def test_what_cannot_be(models, options, told):
    with pytest.raises(ValueError, match=told) as caught:
        RooflineCost(DEVICE, models, **options)
    assert "\n" not in str(caught.value)


def test_what_fits_and_what_has_no_link():
    RooflineCost(DEVICE, two(), tensor_parallel=2)
    RooflineCost(DEVICE, two(submodel_of="m"))
    alone = replace(DEVICE, link_bytes_per_s=None)
    assert roofline(alone).name == "round"
    with pytest.raises(ValueError, match="cost round: no link to split models over, got tensor_parallel 2"):
        roofline(alone, tensor_parallel=2)


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
    with pytest.raises(ValidationError, match=told):
        ModelInfo.model_validate({**MODEL.model_dump(), "experts": EXPERTS.model_dump() | change})


def test_the_sheet_is_sound():
    sheet = device_sheet()
    names = "a100-40gb a100-80gb h100-pcie h100-sxm h200 gh200 h20 b200 l4 l40 l40s a10 rtx3090 rtx4090 rtx5090"
    assert set(sheet) == {*names.split(), "rtx6000-ada", "tpu-v5p", "cpu-roofline", "a100", "h100"}
    for short, name in (("a100", "a100-80gb"), ("h100", "h100-sxm")):
        assert replace(sheet[short], name=name) == sheet[name]
    for name, device in sheet.items():
        assert name == device.name
        assert device.source
        assert 1e10 < device.memory_bytes < 1e12
        if name == "cpu-roofline":
            continue
        dense = device.flops_per_s["bfloat16"]
        assert 2e11 < device.bytes_per_s < 1e13
        assert 7e13 < dense < 1e16
        assert 3e10 < device.link_bytes_per_s < device.bytes_per_s
        assert device.flops_per_s.get("float32", 0) < dense == device.flops_per_s.get("float16", dense)
        narrow = {unit: device.flops_per_s[unit] for unit in ("int8", "fp8", "fp4") if unit in device.flops_per_s}
        assert all(1.9 < peak / dense < 8.1 for peak in narrow.values())
        assert set(device.flops_per_s) <= {*WIDTHS, *narrow}
