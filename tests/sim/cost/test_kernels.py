"""Seconds of measured kernels: sums by hand, what lies between and beyond the measured, and all that is refused."""

import pickle
from dataclasses import replace
from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.sim.cost.base import CostRangeError
from paceline.sim.cost.by_name import make_cost
from paceline.sim.cost.engines import engines
from paceline.sim.cost.kernel_tables import EXPERTS, GEMM, KernelTables
from paceline.sim.cost.kernels import KernelCost, beside_kernels
from paceline.sim.cost.roofline import device_sheet
from paceline.sim.serving.cluster import open_cluster
from paceline.sim.serving.cluster_file import ClusterFileError
from paceline.traces.errors import TraceFormatError
from paceline.traces.parts import parts_of
from paceline.traces.quantisation import quantised_weights
from paceline.traces.shapes import FORMATS, DecoderShape, Mixture, head_of

from ..serving.cluster.small_pools import llamas
from . import kernel_folders as made
from .shapes import seconds

# All its products are measured ones: queries, keys and values 4096, gate and up 4096, output 65,536.
SHAPE = DecoderShape(
    hidden=1024, layers=3, heads=16, kv_heads=8, head_size=128, intermediate=2048, vocabulary=65_536, dtype="bfloat16"
)
MIXED = replace(SHAPE, mixture=Mixture(experts=8, per_token=2, intermediate=512))
BESIDE = beside_kernels("vllm", "h100-sxm")
VLLM, LAYER_S = BESIDE.terms, BESIDE.layer_s
BYTE_S = 2 / device_sheet()["h100"].bytes_per_s


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made.folder(tmp_path_factory.mktemp("kernels"), heads=(16, 8))


def cost_of(folder, *shapes, engine="vllm", extrapolate=False, given=(SHAPE, MIXED), **options):
    """The cost of a draft head and a target, or of models that are given."""
    models = shapes or (head_of("eagle3", SHAPE, "d"), SHAPE.info("m"))
    parts = {model.name: parts_of(model, given) for model in models}
    return KernelCost(KernelTables(folder, engine, extrapolate=extrapolate), models, parts, **options)


def product_s(n, k, m):
    return made.gemm_ms(n, k, m) / 1e3 + (n + k) * m * BYTE_S


def layers_s(m):
    return 3 * (
        product_s(4096, 1024, m) + product_s(1024, 2048, m) + product_s(4096, 1024, m) + product_s(1024, 2048, m)
    )


def test_a_plain_step_by_hand(folder):
    cost = cost_of(folder)
    assert cost.name == "kernels of h100-sxm (vllm)"
    wanted = layers_s(1) + product_s(65_536, 1024, 1) + 3 * (made.decoding_ms(1, 255) / 1e3 + LAYER_S) + VLLM.row_s
    assert seconds(cost, 1, held=255) == pytest.approx(wanted)
    # Of eight rows: between m = 1 and 16 the table is linear, and so is the formula.
    wanted = layers_s(8) + product_s(65_536, 1024, 8) + 3 * (made.decoding_ms(8, 255) / 1e3 + LAYER_S) + 8 * VLLM.row_s
    assert seconds(cost, 8, rows=8, held=8 * 255) == pytest.approx(wanted)


def test_a_verification_and_a_prompt_by_hand(folder):
    cost = cost_of(folder)
    # Four tokens are read like one (the last of them at step 255), in a forward that the engine takes longer for.
    wanted = layers_s(4) + product_s(65_536, 1024, 4) + 3 * (made.decoding_ms(1, 255) / 1e3 + LAYER_S)
    assert seconds(cost, 4, held=252) == pytest.approx(wanted + VLLM.row_s + VLLM.wide_s)
    # A prompt's pairs take longer than reading, and the output is of at most 64 tokens of a row.
    wanted = layers_s(4096) + product_s(65_536, 1024, 64) + 3 * (made.prompt_ms(1, 4096) / 1e3 + LAYER_S)
    assert seconds(cost, 4096, held=0) == pytest.approx(wanted + VLLM.row_s + VLLM.wide_s)


def test_a_draft_by_hand(folder):
    """An EAGLE-3 head: three joined states, which lie between two measured k, a layer, and an output."""
    target = replace(SHAPE, vocabulary=4096)
    cost = cost_of(folder, head_of("eagle3", target, "d"), target.info("m"), given=[target])
    low, high = made.gemm_ms(1024, 2048, 1), made.gemm_ms(1024, 4096, 1)
    joining = exp(log(low) + log(1.5) / log(2) * log(high / low)) / 1e3 + (3072 + 1024) * BYTE_S
    layer = product_s(4096, 2048, 1) + product_s(1024, 2048, 1) + product_s(4096, 1024, 1) + product_s(1024, 2048, 1)
    wanted = joining + layer + product_s(4096, 1024, 1) + made.decoding_ms(1, 255) / 1e3 + LAYER_S
    assert seconds(cost, 1, model="d", held=255) == pytest.approx(wanted + VLLM.draft_step_s + VLLM.draft_row_s)


def test_a_drafter_with_several_layers_and_copied_drafts_by_hand(folder):
    cost = cost_of(folder, SHAPE.info("d"), SHAPE.info("m"), free=("ngram",))
    step_s = VLLM.drafting_s(3) + VLLM.draft_row_s - VLLM.row_s  # beside the kernels of the same layers
    assert seconds(cost, 1, model="d") - seconds(cost, 1) == pytest.approx(step_s)
    round_s, row_s = VLLM.lookup_terms(3)
    assert cost.lookups_s(2) == pytest.approx(round_s + 2 * (row_s + cost.lookup_s))
    low, high = BESIDE.dense.rounds.bounds
    for end, factor in zip(cost.ends(), (low, high), strict=True):
        assert end.lookups_s(2) - 2 * cost.lookup_s == pytest.approx(factor * (round_s + 2 * row_s))


def test_medusa_heads_hold_nothing(folder):
    cost = cost_of(folder, head_of("medusa", SHAPE, "d"), SHAPE.info("m"))
    wanted = 5 * (product_s(1024, 1024, 1) + product_s(65_536, 1024, 1)) + LAYER_S
    for held in (0, 10**6):
        found = seconds(cost, 1, model="d", held=held)
        assert found == pytest.approx(wanted + VLLM.draft_step_s + VLLM.draft_row_s)
    assert cost.draft_terms("d").block.tokens == 5
    assert pickle.loads(pickle.dumps(cost)).forward_s("d", num_rows=1, new_tokens=1, context_tokens=0) == found


def test_devices_that_share_a_model_by_hand(folder):
    cost = cost_of(folder, SHAPE.info("m"), tensor_parallel=2)
    assert cost.name == "kernels of h100-sxm x2 tensor parallel (vllm)"
    alone = cost_of(folder, SHAPE.info("m"))
    reduced = 6 * made.reduce_ms(1024) / 1e3
    both, one = seconds(cost, 1, held=255), seconds(alone, 1, held=255)
    attention = 3 * (made.decoding_ms(1, 255, 8) - made.decoding_ms(1, 255, 4)) / 1e3
    assert one - both + reduced > attention  # products are smaller too
    assert both - reduced > one / 2  # but not what every kernel takes at least
    with pytest.raises(ArgumentError, match="`tensor_parallel` must divide heads of attention, 16, got 3"):
        cost_of(folder, SHAPE.info("m"), tensor_parallel=3)


@given(st.sampled_from([1, 2, 8, 33]), st.integers(1, 40), st.integers(0, 4000), st.data())
def test_more_takes_longer_and_lines_are_the_same_seconds(folder, rows, fed, held, data):
    cost = data.draw(st.shared(st.builds(cost_of, st.just(folder))))
    most = rows * (4095 - fed)
    held = min(held * rows, most)
    for model in ("d", "m"):
        here = seconds(cost, rows * fed, model=model, rows=rows, held=held)
        line = cost.context_line(model, num_rows=rows, new_tokens=rows * fed, context_tokens=held)
        assert line.start <= held
        assert held < line.end
        assert line.start_s + line.slope_s * (held - line.start) == pytest.approx(here, rel=1e-12)
        assert here <= seconds(cost, rows * fed, model=model, rows=rows, held=min(held + 64, most))
        assert here <= seconds(cost, rows * fed + 1, model=model, rows=rows, held=held)


def test_between_two_products_logarithms_are_interpolated(tmp_path):
    """Exactly so where seconds are a power of both sizes; and what is wider than all is done in equal parts."""
    path = made.folder(tmp_path, heads=(16, 8))
    made.put(path, "gemm", "vllm", "0.9.1", "gemm_perf", made.gemm(ms=lambda n, k, m: n**0.8 * k**0.7 * 1e-5))
    between = replace(SHAPE, intermediate=3000, vocabulary=150_000)
    cost = cost_of(path, between.info("m"), given=[between])
    power = 1e-8 * (
        3 * (4096**0.8 * 1024**0.7 + 1024**0.8 * 2048**0.7 + 6000**0.8 * 1024**0.7 + 1024**0.8 * 3000**0.7)
        + 3 * 50_000**0.8 * 1024**0.7
    )
    moved = (3 * (4096 + 1024 + 1024 + 2048 + 6000 + 1024 + 1024 + 3000) + 150_000 + 1024) * BYTE_S
    rest = 3 * (made.decoding_ms(1, 255) / 1e3 + LAYER_S) + VLLM.row_s
    assert seconds(cost, 1, held=255) == pytest.approx(power + moved + rest)


def test_the_newest_version_that_has_rows_and_the_fastest_kernel(tmp_path):
    path = made.folder(tmp_path)
    rows = made.gemm("fp8")
    slower = [row | {"kernel_source": "slow", "latency": 2 * row["latency"]} for row in rows]
    for version, factor in (("1.3.0rc9", 3.0), ("1.3.0rc20", 1.0), ("0.10.0", 9.0)):
        put = [row | {"latency": factor * row["latency"]} for row in [*slower, *rows]]
        made.put(path, "gemm", "vllm", version, "gemm_perf", put)
    made.put(path, "gemm", "vllm", "1.3.0", "gemm_perf", made.gemm("nvfp4"))
    tables = KernelTables(path, "vllm")
    assert tables.curves(GEMM, {"gemm_dtype": "fp8"})[(64, 64)].at(1) == pytest.approx(made.gemm_ms(64, 64, 1) / 1e3)
    tables.curves(GEMM, {"gemm_dtype": "bfloat16"})
    assert list(tables.versions) == ["1.3.0rc20", "0.9.0"]


def test_tables_of_a_device_without_engine_and_older_ones(tmp_path):
    """Older attention tables have no windows; what was measured of engines elsewhere is said to be from there."""
    path = made.folder(tmp_path, heads=(16, 8))
    device = {"device": "NVIDIA A100-SXM4-80GB"}
    made.put(path, "gemm", "vllm", "0.9.0", "gemm_perf", [row | device for row in made.gemm()])
    for name, rows in zip(("generation_attention_perf", "context_attention_perf"), made.attention(16, 8), strict=True):
        old = [{key: value for key, value in row.items() if key != "window_size"} | device for row in rows]
        made.put(path, "attention", "vllm", "0.9.0", name, old)
    cost = cost_of(path, SHAPE.info("m"))
    assert cost.name == "kernels of a100-80gb (vllm)"
    _, lacks, elsewhere = cost.notes()
    assert lacks == "what tables lack was measured on h100-sxm, h100, h200, b200 alone, not on a100-80gb"
    assert elsewhere.startswith("no rounds of vllm were measured on such a device")
    assert seconds(cost, 1, held=255) > 0


EXPERT_KEYS = {
    "moe_dtype": "bfloat16", "hidden_size": 1024, "inter_size": 512, "topk": 2, "num_experts": 8, "moe_tp_size": 1,
    "moe_ep_size": 1, "distribution": "power_law_1.2",
}  # fmt: skip


def test_experts_by_hand(tmp_path):
    path = made.folder(tmp_path, heads=(16, 8))
    made.put(
        path, "moe", "vllm", "0.9.0", "moe_perf",
        [EXPERT_KEYS | {"num_tokens": m, "latency": made.experts_ms(m)} for m in (1, 64, 4096)],
    )  # fmt: skip
    cost = cost_of(path, MIXED.info("m"))
    dense = cost_of(path, SHAPE.info("m"))
    feed_forward = 3 * (product_s(4096, 1024, 1) + product_s(1024, 2048, 1))
    router = 3 * (product_s(64, 1024, 1) - (64 - 8) * BYTE_S)  # as wide as the narrowest that was measured
    wanted = seconds(dense, 1, held=255) - feed_forward + router + 3 * made.experts_ms(1) / 1e3
    assert seconds(cost, 1, held=255) == pytest.approx(wanted)
    assert any(note == "m: experts busy by power_law_1.2" for note in cost.notes())
    assert any(f"in nine of ten measurements of {BESIDE.mixture.of}, a token took" in note for note in cost.notes())
    with pytest.raises(
        ArgumentError, match=r"moe_perf.parquet: no rows of num_experts 9 among those of moe_dtype bfloat16"
    ):
        KernelTables(path, "vllm").curves(EXPERTS, EXPERT_KEYS | {"num_experts": 9})


def quantised(name):
    return replace(SHAPE, quantised=quantised_weights(SHAPE, FORMATS[name]))


def test_quantised_weights_are_read_off_their_own_tables(tmp_path):
    path = made.folder(tmp_path, heads=(16, 8))
    narrow = {"fp8": 2.0, "fp8_block": 3.0, "int4_wo": 4.0}
    rows = [row | {"latency": row["latency"] / by} for dtype, by in narrow.items() for row in made.gemm(dtype)]
    made.put(path, "gemm", "vllm", "0.9.1", "gemm_perf", rows)
    plain = cost_of(path, SHAPE.info("m"))
    products = 3e-3 * sum(made.gemm_ms(*each, 1) for each in ((4096, 1024), (1024, 2048)) * 2)
    for name, by in (("fp8", 2.0), ("int4", 4.0)):
        cost = cost_of(path, quantised(name).info("m"))
        assert seconds(plain, 1, held=255) - seconds(cost, 1, held=255) == pytest.approx(products * (1 - 1 / by))
    shape = quantised("fp8").info("m")
    blocks = shape.quantised.model_copy(update={"bytes_per_parameter": 1 + 4 / 128**2})
    cost = cost_of(path, shape.model_copy(update={"quantised": blocks}))
    assert seconds(plain, 1, held=255) - seconds(cost, 1, held=255) == pytest.approx(products * 2 / 3)
    with pytest.raises(ArgumentError, match=r"no rows of gemm_dtype nvfp4 .*; it has fp8, fp8_block, int4_wo"):
        cost_of(path, quantised("nvfp4").info("m"))


def test_units_that_multiply_choose_the_table_too(tmp_path):
    """Weights in int8 alone, and both sides in int8, are other kernels: on an H100 published ones differ threefold."""
    path = made.folder(tmp_path, heads=(16, 8))
    rows = [
        row | {"latency": row["latency"] / by} for dtype, by in (("sq", 4), ("int8_wo", 2)) for row in made.gemm(dtype)
    ]
    made.put(path, "gemm", "vllm", "0.9.1", "gemm_perf", rows)
    products = 3e-3 * sum(made.gemm_ms(*each, 1) for each in ((4096, 1024), (1024, 2048)) * 2)
    plain, both = seconds(cost_of(path, SHAPE.info("m")), 1), quantised("int8").info("m")
    alone = both.model_copy(update={"quantised": both.quantised.model_copy(update={"arithmetic": None})})
    for model, by in ((both, 4), (alone, 2)):
        assert plain - seconds(cost_of(path, model), 1) == pytest.approx(products * (1 - 1 / by))
    mixed = both.model_copy(update={"quantised": both.quantised.model_copy(update={"format": "fp8"})})
    with pytest.raises(ArgumentError, match="no table has weights in fp8 multiplied in int8, as of m; use another"):
        cost_of(path, mixed)


def test_heads_of_keys_and_values_are_split_whole(tmp_path):
    path = made.folder(tmp_path, heads=(16, 4))  # on two devices 8 and 2
    shape = replace(SHAPE, kv_heads=3)
    held = [seconds(cost_of(path, shape.info("m"), given=[shape], tensor_parallel=2), 1, held=at) for at in (100, 200)]
    assert held[1] - held[0] == pytest.approx(3 * (made.decoding_ms(1, 200, 2) - made.decoding_ms(1, 100, 2)) / 1e3)


def test_trtllm_leaves_out_finding_scales(tmp_path):
    """Published seconds of these are 0 where the product alone took as long."""
    path = made.folder(tmp_path, "trtllm", heads=(16, 8), dtypes=("bfloat16", "fp8"))
    scales = [
        {"quant_dtype": "fp8", "k": k, "m": m, "latency": 0.001 * (m < 99)} for k in made.WIDE for m in made.TOKENS
    ]
    made.put(path, "quantize", "trtllm", "0.9.0", "computescale_perf", scales)
    plain, narrow = (cost_of(path, shape.info("m"), engine="trtllm") for shape in (SHAPE, quantised("fp8")))
    assert seconds(plain, 1, held=255) - seconds(narrow, 1, held=255) == pytest.approx(12 * 1e-6)


def test_the_table_is_whole():
    """Rows cost what they cost beside a roofline."""
    for engine in ("vllm", "sglang", "trtllm"):
        for device, terms in engines()[engine].items():
            beside = beside_kernels(engine, device)
            assert beside.terms.row_s == terms.row_s, device
            assert 0 < beside.layer_s < 1e-4
            for sure in (beside.dense, beside.mixture):
                assert sure.plain.low > 0
                assert all(0 <= each.low <= 1 <= each.high for each in (sure.plain, sure.rounds))


@pytest.mark.parametrize(("engine", "device"), [("sglang", "b200"), ("sglang", "a100-80gb"), ("trtllm", "h100-sxm")])
def test_without_rounds_of_the_engine_on_the_device_the_range_is_wide(engine, device):
    measured = beside_kernels("sglang", "h100-sxm")
    beside, own = beside_kernels(engine, device), measured.dense
    assert measured.terms.rounds_measured
    assert not beside.terms.rounds_measured
    assert (beside.dense.new, own.new == beside.dense.new) == ("new to the fit", False)
    assert beside.dense.rounds.low <= own.rounds.low
    assert beside.dense.rounds.high >= own.rounds.high


def test_an_engine_without_rounds_says_so_beside_kernels_too(tmp_path, folder):
    told = "no rounds of trtllm were measured on such a device: they are taken from elsewhere"
    path = made.folder(tmp_path, "trtllm", heads=(16, 8))
    assert told in cost_of(path, SHAPE.info("m"), engine="trtllm").notes()
    assert not any("no rounds" in note for note in cost_of(folder).notes())


def test_the_ends_are_of_rounds_and_with_plain_steps_of_the_whole(folder):
    cost = cost_of(folder)
    plain, rounds = BESIDE.dense.plain, BESIDE.dense.rounds
    low, high = cost.ends()
    one = seconds(cost, 2, rows=2, held=500)
    assert [seconds(end, 2, rows=2, held=500) for end in (low, high)] == [one, one]
    assert [seconds(end, 4, held=252) - seconds(cost, 4, held=252) for end in (low, high)] == pytest.approx(
        [(factor - 1) * VLLM.wide_s for factor in rounds.bounds]
    )
    whole = [seconds(end, 2, rows=2, held=500) / one for end in cost.ends(whole=True)]
    assert whole == pytest.approx([plain.low, plain.low, plain.high, plain.high])


@pytest.mark.parametrize(
    ("asked", "last", "told"),
    [
        (
            (1, 1, 4096),
            (1, 1, 4095),
            "m with 1 rows and 1 new tokens was measured for up to 4,095 tokens held, asked for",
        ),
        (
            (1, 4096, 1),
            (1, 4096, 0),
            "m with 1 rows and 4096 new tokens was measured for up to 0 tokens held, asked for 1",
        ),
        ((1, 4097, 0), (1, 4096, 0), "window_size 0, .* was measured for isl 1 to 4,096, asked for 4,097"),
        (
            (65, 65, 65),
            (64, 64, 64),
            "generation_attention_perf of .* was measured for batch_size 1 to 64, asked for 65",
        ),
        (
            (8, 16_385, 0),
            (8, 16_384, 0),
            "gemm_dtype bfloat16, n 4096, k 1024 was measured for m 1 to 16,384, asked for",
        ),
    ],
)
def test_beyond_what_was_measured_it_refuses_or_extrapolates(folder, asked, last, told):
    def at(cost, place):
        return seconds(cost, place[1], rows=place[0], held=place[2])

    with pytest.raises(CostRangeError, match=told) as caught:
        at(cost_of(folder), asked)
    assert "use a smaller batch or window, another cost, or `extrapolate`" in str(caught.value)
    cost = cost_of(folder, extrapolate=True)
    assert at(cost_of(folder), last) == at(cost, last)
    assert not any("beyond what was measured" in note for note in cost.notes())
    assert at(cost, last) < at(cost, asked) < 1.1 * at(cost, last)
    assert any("beyond what was measured" in note for note in cost.notes())


def test_named_as_a_cost(folder, tmp_path):
    recording = llamas()
    path = made.folder(tmp_path / "h100")
    cost = make_cost(f"kernels:{path}", recording)
    assert cost.name == "kernels of h100-sxm (vllm)"
    asked = {"num_rows": 1, "new_tokens": 1, "context_tokens": 100}
    target = recording.about.models[-1]
    assert make_cost(f"kernels:{path}", recording, scale={target: 2.0}).forward_s(target, **asked) == pytest.approx(
        2 * cost.forward_s(target, **asked)
    )
    for options, told in (
        ({"engine": "sglang"}, "has tables of vllm, got `engine` sglang"),
        ({"engine": "bare"}, "`engine` must be vllm or sglang or trtllm with `cost` kernels:DIR, got 'bare'"),
        ({"efficiency": {"flops": 0.5}}, "`efficiency` goes with a device as `cost`, got `cost` kernels:"),
        ({"tensor_parallel": 64}, "`tensor_parallel` must divide heads of attention, 32, got 64"),
    ):
        with pytest.raises(ArgumentError) as refused:
            make_cost(f"kernels:{path}", recording, **options)
        assert told in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("version", "engine", "is_told"),
    [("0.9.2", None, True), ("0.13.0", None, True), ("0.9.2", "vllm", False), ("0.19.1", None, False)],
)
def test_that_a_log_is_of_an_older_release_is_told(version, engine, is_told, tmp_path, monkeypatch):
    recording = llamas()
    about = replace(recording.about, source="vllm-log", software={"vllm": version})
    monkeypatch.setattr(type(recording), "about", about)
    notes = make_cost(f"kernels:{made.folder(tmp_path / 'h100')}", recording, engine=engine).notes()
    told = f"the log is of vllm {version}, but rounds are those of present releases of vllm"
    assert (told in notes) == is_told


def test_a_cluster_has_kernels_beside_its_file(tmp_path):
    made.folder(tmp_path / "h100")
    path = tmp_path / "cluster.toml"
    path.write_text('[[replicas]]\ndevice = "h100"\ncost = "kernels:h100"\ntensor_parallel = 2\n')
    assert open_cluster(path, llamas()).replicas[0].cost.name == "kernels of h100-sxm x2 tensor parallel (vllm)"
    path.write_text('[[replicas]]\ndevice = "h200"\ncost = "kernels:h100"\n')
    rule = r"cost must be left out, or of the device that members lie on \(h200\), got .kernels:h100."
    with pytest.raises(ClusterFileError, match=rule):
        open_cluster(path, llamas())
    path.write_text('[[replicas]]\ndevice = "h100"\ncost = "kernels:h200"\n')
    with pytest.raises(ClusterFileError, match=r"replicas\[0\].cost cannot be taken: .*h200 must name a folder"):
        open_cluster(path, llamas())


def test_a_member_that_nobody_can_take_apart_is_refused_when_it_is_asked_for(folder):
    models = (SHAPE.info("d").model_copy(update={"parameters": 12_345_678}), SHAPE.info("m"))
    cost = KernelCost(KernelTables(folder, "vllm"), models, {"d": None, "m": parts_of(models[1], [SHAPE])})
    assert seconds(cost, 1) > 0
    with pytest.raises(
        ArgumentError, match="what d multiplies does not follow from its counts: give `models` d=PRESET"
    ):
        seconds(cost, 1, model="d")
    with pytest.raises(ValueError, match="no shape for model 'x'; it has d, m"):
        seconds(cost, 1, model="x")


def spoil(path, how):
    """A folder one of whose files is not what it should be, or that is none."""
    file = path / "gemm" / "vllm" / "0.9.0" / "gemm_perf.parquet"
    rows = made.gemm()
    if how == "nowhere":
        return path / "nowhere"
    if how == "pointer":
        file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    elif how == "text":
        file.write_text("m,n,k,latency\n")
    elif how == "column":
        made.put(
            path, "gemm", "vllm", "0.9.0", "gemm_perf", [{k: v for k, v in row.items() if k != "n"} for row in rows]
        )
    elif how == "words":
        made.put(path, "gemm", "vllm", "0.9.0", "gemm_perf", [row | {"n": str(row["n"])} for row in rows])
    elif how == "numbered":
        made.put(path, "gemm", "vllm", "0.9.0", "gemm_perf", [row | {"gemm_dtype": 16} for row in rows])
    elif how == "infinite":
        made.put(path, "gemm", "vllm", "0.9.0", "gemm_perf", [row | {"latency": float("inf")} for row in rows])
    elif how in ("seconds", "microseconds"):
        factor = {"seconds": 1e-3, "microseconds": 1e3}[how]
        rows = [row | {"latency": factor * row["latency"]} for row in made.attention(16, 8)[0]]
        made.put(path, "attention", "vllm", "0.9.0", "generation_attention_perf", rows)
    elif how == "negative":
        rows = [row | {"isl": -64} if row["isl"] == 64 else row for row in made.attention(16, 8)[1]]
        made.put(path, "attention", "vllm", "0.9.0", "context_attention_perf", rows)
    elif how == "another":
        rows = [row | {"device": "NVIDIA H200"} for row in made.attention(16, 8)[1]]
        made.put(path, "attention", "vllm", "0.9.0", "context_attention_perf", rows)
    elif how == "host":
        made.put(path, "gemm", "vllm", "0.9.0", "gemm_perf", [row | {"latency": 0.05} for row in rows])
    elif how in ("device", "nameless"):
        device = {"device": "NVIDIA T4" if how == "device" else None}
        made.put(path, "gemm", "vllm", "0.9.0", "gemm_perf", [row | device for row in rows])
    elif how == "empty":
        return path / "comm"
    elif how == "devices":
        return path.parent
    return path


@pytest.mark.parametrize(
    ("how", "kind", "told"),
    [
        ("nowhere", ArgumentError, "as aiconfigurator's data/h100_sxm: there is no such folder"),
        ("empty", ArgumentError, "as aiconfigurator's data/h100_sxm: it holds no such file"),
        ("devices", ArgumentError, "; it holds devices, name one of them: h100_sxm"),
        ("pointer", TraceFormatError, "gemm_perf.parquet: content: must be Parquet; `git lfs pull` fetches it, got"),
        ("text", TraceFormatError, "gemm_perf.parquet: content: must be Parquet, got"),
        ("column", TraceFormatError, "gemm_perf.parquet: columns: must have n, got 'framework, version"),
        ("words", TraceFormatError, "gemm_perf.parquet: n: must be whole numbers, got 'string'"),
        (
            "seconds",
            TraceFormatError,
            "latency: must be milliseconds, 0.0001 to 1 of the fastest row of num_heads 16, ",
        ),
        (
            "microseconds",
            TraceFormatError,
            "latency: must be milliseconds, 0.0001 to 1 of the fastest row of num_heads",
        ),
        ("negative", TraceFormatError, "context_attention_perf.parquet: isl: must be >= 1, got -64"),
        ("another", TraceFormatError, "device: must be 'NVIDIA H100 80GB HBM3', as in other rows, got 'NVIDIA H200'"),
        ("numbered", TraceFormatError, "gemm_perf.parquet: gemm_dtype: must be as 'bfloat16', got 'int64'"),
        ("infinite", TraceFormatError, "gemm_perf.parquet: latency: must be milliseconds above 0, got inf"),
        (
            "host",
            ArgumentError,
            "products of gemm_dtype bfloat16 took 50 microseconds at the least, which the host takes",
        ),
        ("device", ArgumentError, "must be of a device of docs/costs.md, got 'NVIDIA T4'"),
        ("nameless", ArgumentError, "must be of a device of docs/costs.md, got 'None'"),
    ],
)
def test_folders_that_will_not_do(tmp_path, how, kind, told):
    path = spoil(made.folder(tmp_path / "h100_sxm", heads=(16, 8)), how)
    with pytest.raises(kind) as refused:
        cost_of(path)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
