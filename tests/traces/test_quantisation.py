"""What configs say of quantised weights and caches: bytes by hand, and what is not understood is refused by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces.errors import TraceFormatError
from paceline.traces.shapes import FORMATS, presets
from paceline.traces.shapes_given import given_decoders, given_shapes, read_hub_config

from .test_shapes_given import LLAMA, QWEN_MOE, refused, shape, written

HIDDEN, LAYERS, TABLE = 4096, 32, 128_256 * 4096
ATTENTION, FEED_FORWARD = HIDDEN * (2 * 4096 + 2 * 1024), 3 * HIDDEN * 14_336
MATRICES = LAYERS * (ATTENTION + FEED_FORWARD)
ALL = presets()["llama-3.1-8b"].parameters
KV = LAYERS * 2 * 8 * 128

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4"}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}


def tensors(weights, fed=None, **more):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": fed}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": group}} | more  # fmt: skip


FLOAT_8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
FLOAT_4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
INT_4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
INT_8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}


@pytest.mark.parametrize(
    ("said", "form", "parameters", "bits", "arithmetic"),
    [
        (FP8, "fp8", MATRICES, 8 + 32 / 128**2, "fp8"),
        (FP8 | {"scale_fmt": "ue8m0"}, "fp8", MATRICES, 8 + 8 / 128**2, "fp8"),
        (FP8 | {"weight_block_size": None, "modules_to_not_convert": ["lm_head"]}, "fp8", MATRICES, 8, "fp8"),
        (FP8 | {"ignored_layers": ["model.layers.0", "model.layers.31.mlp"]}, "fp8",
         MATRICES - ATTENTION - 2 * FEED_FORWARD, 8 + 32 / 128**2, "fp8"),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["self_attn"]}, "fp8",
         LAYERS * FEED_FORWARD, 8, "fp8"),
        (GPTQ, "int4", MATRICES, 4 + 20 / 128, None),
        (GPTQ | {"bits": 8, "group_size": -1}, "int8", MATRICES, 8, None),
        (GPTQ | {"bits": 3, "group_size": 64, "lm_head": True}, "int3", MATRICES + TABLE, 3 + 19 / 64, None),
        (AWQ, "int4", MATRICES, 4 + 20 / 128, None),
        (BNB, "nf4", MATRICES, 4 + 32 / 64, None),
        (BNB | {"llm_int8_skip_modules": []}, "nf4", MATRICES + TABLE, 4 + 32 / 64, None),
        (BNB | {"llm_int8_skip_modules": ["lm_head"]}, "nf4", MATRICES, 4 + 32 / 64, None),
        (BNB | {"bnb_4bit_use_double_quant": True}, "nf4", MATRICES, 4 + (8 + 32 / 256) / 64, None),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", MATRICES, 8, "int8"),
        (tensors(FLOAT_8, FLOAT_8), "fp8", MATRICES, 8, "fp8"),
        (tensors(FLOAT_8), "fp8", MATRICES, 8, None),
        (tensors(INT_8, INT_8, format="int-quantized"), "int8", MATRICES, 8, "int8"),
        (tensors(INT_4), "int4", MATRICES, 4 + 16 / 128, None),
        (tensors(INT_4 | {"symmetric": False}), "int4", MATRICES, 4 + 20 / 128, None),
        (tensors(INT_4, FLOAT_8), "int4", MATRICES, 4 + 16 / 128, "fp8"),
        (tensors(FLOAT_4, FLOAT_4, format="nvfp4-pack-quantized"), "nvfp4", MATRICES, 4.5, "fp4"),
        (tensors(FLOAT_4 | {"group_size": 32, "strategy": "group"}), "mxfp4", MATRICES, 4.25, None),
        (tensors(FLOAT_8, FLOAT_8, ignore=[]), "fp8", MATRICES + TABLE, 8, "fp8"),
        (tensors(FLOAT_8, FLOAT_8, ignore=["re:.*self_attn.*", "re:vision_tower.*", "lm_head"]), "fp8",
         LAYERS * FEED_FORWARD, 8, "fp8"),
        (MODELOPT, "nvfp4", MATRICES, 4.5, "fp4"),
        (MODELOPT | {"quant_algo": "FP8", "group_size": None, "exclude_modules": ["lm_head", "model.layers.0*"]}, "fp8",
         31 * (ATTENTION + FEED_FORWARD), 8, "fp8"),
        (MODELOPT | {"quant_algo": "W4A16_AWQ", "group_size": 64}, "int4", MATRICES, 4 + 16 / 64, None),
    ],
)  # fmt: skip
def test_what_a_config_says_of_its_weights(tmp_path, said, form, parameters, bits, arithmetic):
    found = shape(tmp_path, {**LLAMA, "quantization_config": said})
    assert (found.parameters, found.kv_bytes_per_token) == (ALL, 2 * KV)
    assert (found.quantised.format, found.quantised.parameters) == (form, parameters)
    assert found.quantised.bytes_per_parameter == pytest.approx(bits / 8)
    assert found.quantised.arithmetic == arithmetic
    assert found.weights_bytes == pytest.approx(2 * (ALL - parameters) + parameters * bits / 8, abs=1)


def test_mlx_packs_the_tables_too(tmp_path):
    said = {"group_size": 64, "bits": 4}
    once = shape(tmp_path, {**LLAMA, "quantization": said})
    assert once.quantised.parameters == MATRICES + 2 * TABLE
    assert once.quantised.bytes_per_parameter == pytest.approx(0.5 + 4 / 64)
    assert shape(tmp_path, {**LLAMA, "quantization": said, "quantization_config": said}) == once
    tied = {**LLAMA, "quantization": said, "tie_word_embeddings": True}
    assert shape(tmp_path, tied).quantised.parameters == MATRICES + TABLE


@pytest.mark.parametrize(
    ("said", "kv"),
    [
        (tensors(FLOAT_8, FLOAT_8, kv_cache_scheme={"num_bits": 8, "type": "float"}), KV),
        (tensors(FLOAT_8, FLOAT_8, kv_cache_scheme=None), 2 * KV),
        (MODELOPT | {"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, KV),
        (MODELOPT | {"kv_cache_quant_algo": "FP8"}, KV),
        (MODELOPT | {"kv_cache_quant_algo": "NVFP4"}, KV * 9 // 16),
    ],
)
def test_the_cache_has_a_dtype_of_its_own(tmp_path, said, kv):
    found = shape(tmp_path, {**LLAMA, "quantization_config": said})
    assert found.kv_bytes_per_token == kv


@pytest.mark.parametrize("module", [False, {"bits": 8, "group_size": 64}, None])
def test_a_module_that_mlx_writes_otherwise_is_refused(tmp_path, module):
    """By false it is left as it was, so that its weights would be priced as if they had four bits."""
    said = {"bits": 4, "group_size": 64, "lm_head": module}
    with pytest.raises(TraceFormatError, match=r"quantization\.lm_head: must be absent, weights of several kinds"):
        shape(tmp_path, {**LLAMA, "quantization": said})


@pytest.mark.parametrize(
    ("beside", "said", "form"),
    [
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}, "fp8"),
        ("quantize_config.json", {"bits": 4, "group_size": 128, "desc_act": False}, "int4"),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 128, "zero_point": True, "version": "GEMM"}, "int4"),
        ("compression_config", tensors(FLOAT_8, FLOAT_8), "fp8"),
        ("quantization", {"bits": 8, "group_size": 64}, "int8"),
    ],
)
def test_what_is_not_said_under_quantization_config(tmp_path, beside, said, form):
    """Llama 8B, as engines leave it: in a file beside the config, or under a key of its own."""
    inside = {} if beside.endswith(".json") else {beside: said}
    file = written(tmp_path, {**LLAMA, **inside})
    if not inside:
        (tmp_path / beside).write_text(json.dumps(said))
    assert read_hub_config(file, "t").quantised.format == form
    assert read_hub_config(tmp_path, "t") == read_hub_config(file, "t")
    whole = tensors(INT_8, INT_8)
    both = written(tmp_path, {**LLAMA, **inside, "quantization_config": whole})
    with pytest.raises(TraceFormatError, match="must say of quantised weights what quantization_config of"):
        read_hub_config(both, "t")
    if not inside:
        (tmp_path / beside).write_text("[")
        with pytest.raises(TraceFormatError, match=f"{beside}: content: must be JSON"):
            read_hub_config(file, "t")


def test_a_mixture_has_all_experts_in_it_or_none(tmp_path):
    ignored = ["lm_head", "re:.*mlp.gate$"]
    said = tensors(FLOAT_8, FLOAT_8, ignore=ignored)
    found = shape(tmp_path, {**QWEN_MOE, "quantization_config": said})
    routers = 48 * 128 * 2048
    tables, norms = 2 * 151_936 * 2048, 48 * (2 * 2048 + 2 * 128) + 2048
    assert found.quantised.experts
    assert found.quantised.parameters == found.parameters - routers - tables - norms
    dense = tensors(FLOAT_8, FLOAT_8, ignore=[*ignored, "re:.*mlp.experts.*"])
    left = shape(tmp_path, {**QWEN_MOE, "quantization_config": dense}).quantised
    assert (left.experts, left.parameters) == (False, found.quantised.parameters - found.experts.all_parameters)
    some = tensors(FLOAT_8, FLOAT_8, ignore=["model.layers.3.mlp.experts"])
    with pytest.raises(TraceFormatError, match="ignore: must skip all experts of a mixture or none"):
        shape(tmp_path, {**QWEN_MOE, "quantization_config": some})
    with pytest.raises(
        TraceFormatError, match="quant_method: must be another for a mixture: what it does to experts is not known"
    ):
        shape(tmp_path, {**QWEN_MOE, "quantization_config": BNB})


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"quant_method": "aqlm"}, "quant_method: must be a known one .known are fp8, .*got 'aqlm'"),
        ({"quant_method": ["fp8"]}, r"quant_method: must be a known one .known are fp8, .*got \['fp8'\]"),
        ({"quant_method": "mxfp4"}, "quant_method: must be a known one .*got 'mxfp4'"),
        ([], "quantization_config: must be an object, got 'a list'"),
        (FP8 | {"fmt": "e5m2"}, "quantization_config.fmt: must be one of e4m3, got 'e5m2'"),
        (FP8 | {"weight_block_size": [128]}, "weight_block_size: must be two whole numbers"),
        (FP8 | {"expert_dtype": "fp4"}, "expert_dtype: must be one of fp8, got 'fp4'"),
        (FP8 | {"modules_to_not_convert": ["w_o_hat"]}, "modules_to_not_convert: must name modules .*got 'w_o_hat'"),
        (FP8 | {"modules_to_not_convert": ["re:(("]}, "modules_to_not_convert: must be names or patterns"),
        (FP8 | {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert: must be a list of names"),
        (GPTQ | {"bits": 5}, "bits: must be one of 2, 3, 4, 8, got 5"),
        (GPTQ | {"bits": True}, "bits: must be one of 2, 3, 4, 8, got True"),
        (GPTQ | {"bits": 4.0}, "bits: must be one of 2, 3, 4, 8, got 4.0"),
        (GPTQ | {"group_size": 0}, "group_size: must be a whole number >= 1, or -1, got 0"),
        (GPTQ | {"dynamic": {"x": {"bits": 8}}}, "dynamic: must be absent, weights of several kinds"),
        (BNB | {"load_in_8bit": True}, "load_in_4bit: must not be true beside load_in_8bit, got True"),
        (tensors(FLOAT_8) | {"config_groups": {}}, "config_groups: must hold a group, which says .*got 'none'"),
        (tensors(FLOAT_8) | {"config_groups": {"a": {}, "b": {}}}, "must hold one group, weights of .*got 2"),
        (tensors(FLOAT_8) | {"config_groups": None}, "config_groups: must be an object, got 'nothing'"),
        (tensors(FLOAT_8, ignore=""), "ignore: must be a list of names, got ''"),
        (FP8 | {"dequantize": True}, "dequantize: must be absent, it is not known whether .*got True"),
        (BNB | {"load_in_4bit": None}, "load_in_4bit: must be true, or else load_in_8bit, got 'nothing'"),
        (tensors(FLOAT_8) | {"config_groups": {"a": 1}}, "config_groups.a: must be an object, got 'a number'"),
        (tensors(FLOAT_8, format="marlin-24"), "format: must be one of float-quantized, .*got 'marlin-24'"),
        (tensors(FLOAT_8, sparsity_config={"format": "sparse-24"}), "sparsity_config.format: must be dense, .*24'"),
        (tensors(FLOAT_8, sparsity_config={"a": 1}), "sparsity_config.format: must be dense, .*got 'nothing'"),
        (tensors(FLOAT_8, {"num_bits": 4, "type": "int"}), "input_activations.type: must be float, of 4 bits"),
        (tensors(FLOAT_4 | {"group_size": 64}), "weights.group_size: must be 16 or 32, of floats of 4 bits, got 64"),
        (tensors(INT_4, kv_cache_scheme={"num_bits": 3}), "kv_cache_scheme.num_bits: must be one of 4, 8, got 3"),
        (MODELOPT | {"quant_algo": "MIXED_PRECISION"}, "quant_algo: must be one of FP8, .*got 'MIXED_PRECISION'"),
        (MODELOPT | {"exclude_modules": None}, "exclude_modules: must be there, or it is not known"),
        (MODELOPT | {"kv_cache_quant_algo": "FP6"}, "kv_cache_quant_algo: must be one of FP8, INT8, NVFP4, got 'FP6'"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_name(tmp_path, said, told):
    refused(tmp_path, {**LLAMA, "quantization_config": said}, told)


KEYS = sorted({key for said in (FP8, GPTQ, AWQ, BNB, MODELOPT, tensors(FLOAT_8)) for key in said} | set(FLOAT_8))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 300)
    | st.sampled_from(["float", "int", "group", "fp8", "Linear", "lm_head"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)


@given(
    said=st.sampled_from([FP8, GPTQ, AWQ, BNB, MODELOPT, tensors(FLOAT_8, FLOAT_8)]),
    key=st.sampled_from(["quantization_config", "quantization", "compression_config"]),
    change=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3),
)
def test_any_words_on_weights_are_read_or_refused_in_one_line(tmp_path_factory, said, key, change):
    file = written(tmp_path_factory.mktemp("config"), {**LLAMA, "num_hidden_layers": 2, key: {**said, **change}})
    told = ""
    try:
        found = read_hub_config(file, "t")
        taken = found.weights_bytes
    except TraceFormatError as error:
        taken, told = 1, str(error)
    assert taken > 0
    assert "\n" not in told


# -- what --models says after @


@pytest.mark.parametrize("form", FORMATS)
def test_a_preset_in_a_format(form):
    (plain, ours) = given_shapes(["a=llama-3.1-8b", f"b=llama-3.1-8b@{form}"], "t")
    assert ours.parameters == plain.parameters
    assert ours.quantised.parameters == MATRICES
    assert ours.weights_bytes == pytest.approx(2 * (ALL - MATRICES) + MATRICES * FORMATS[form].bytes_each, abs=1)
    assert ours.kv_bytes_per_token == plain.kv_bytes_per_token


def test_the_ways_that_a_model_is_served(tmp_path):
    file = written(tmp_path, LLAMA)
    asked = ["t=llama-3.1-8b@fp8,kv=fp8", f"c={file}@kv=fp8,fp8", f"d={tmp_path}@int4", "p=llama-3.2-1b@block=12"]
    config, folder, target, draft = given_shapes([*asked[1:3], asked[0], asked[3]], "t")
    assert config == target.model_copy(update={"name": "c"})
    assert (target.kv_bytes_per_token, target.quantised.arithmetic) == (KV, "fp8")
    assert (folder.quantised.format, folder.kv_bytes_per_token) == ("int4", 2 * KV)
    assert (draft.draft_block.tokens, draft.quantised, draft.parameters) == (
        12,
        None,
        presets()["llama-3.2-1b"].parameters,
    )
    assert given_shapes(["llama-3.1-8b@fp8,kv=fp8"], "t") == (target,)
    assert given_decoders(asked, "t")["t"].quantised is not None


def test_heads_are_in_the_targets_own_dtype_with_its_cache():
    plain, served = (
        given_shapes([f"t={target}", "eagle3=eagle3"], "t")[1] for target in ("llama-3.1-8b", "llama-3.1-8b@fp8,kv=fp8")
    )
    assert served == plain.model_copy(update={"kv_bytes_per_token": plain.kv_bytes_per_token // 2})


@pytest.mark.parametrize(
    "text",
    ["t=llama-3.1-8b@fp4", "t=llama-3.1-8b@FP8", "t=llama-3.1-8b@", "t=llama-3.1-8b@kv=fp9", "t=llama-3.1-8b@block=0",
     "t=llama-3.1-8b@fp8,int8", "t=qwen-3-8b@kv=fp8,kv=fp8", "t=@fp8", "llama-3.1-8b@fp8,", "t=llama-3.1-8b@block=²"],
)  # fmt: skip
def test_ways_that_are_none(text):
    with pytest.raises(
        ValueError, match="`models` must say after @ one of fp8, int8, int4, nvfp4, mxfp4, kv= one"
    ) as caught:
        given_shapes([text], "t")
    assert "\n" not in str(caught.value)


def test_what_a_way_does_not_go_with(tmp_path):
    file = written(tmp_path, {**LLAMA, "quantization_config": FP8})
    with pytest.raises(ValueError, match="has fp8 weights, got int4"):
        given_shapes([f"t={file}@int4"], "t")
    with pytest.raises(ValueError, match="must be without @, but for its kv"):
        given_shapes(["t=llama-3.1-8b", "e=eagle3@fp8"], "t")
