"""Fused and module forwards give the logits of the stock model, whatever was batched, rolled back or caught up."""

import random

import pytest
import torch
from paceline.runtime import forward_choice as choosing
from paceline.runtime.forward import ModuleForward
from paceline.runtime.forward_choice import choose_forward
from paceline.runtime.fused import FusedForward, fused_supports
from paceline.runtime.pools.parts import make_submodel
from paceline.runtime.products import PRODUCT_NAMES
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

from ...pairs import pairs
from ..tiny_decoders import (
    CACHES,
    CONTEXT,
    FAMILIES,
    MODULES_ONLY,
    VOCABULARY,
    RaggedTexts,
    remembered,
    tiny_decoder,
    without_cache,
)

RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.1}


def relative_difference(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


def worst_difference(stock, forward, cache, *, steps=20, seed=0):
    """Feed random subsets of five requests, roll some back, let others lag; compare with the stock model."""
    rng = random.Random(seed)
    ragged = RaggedTexts(forward, cache)
    worst = 0.0
    for _ in range(steps):
        for name, text in ragged.texts.items():
            if text and rng.random() < 0.3:
                ragged.roll_back(name, rng.randint(0, len(text)))
        names = [name for name in "abcde" if len(ragged.texts.get(name, [])) < CONTEXT - 20]
        chosen = rng.sample(names, rng.randint(1, len(names))) if names else []
        new = {name: [rng.randrange(VOCABULARY) for _ in range(rng.choice([1, 1, 2, 5, 19]))] for name in chosen}
        keep = rng.choice([None, 1, 2])
        for name, logits in (ragged.feed(new, keep) if new else {}).items():
            expected = stock(ragged.texts[name])[-len(logits) :]
            worst = max(worst, relative_difference(logits, expected))
            assert not logits.isnan().any()
    return worst


@pytest.mark.parametrize(
    ("family", "dtype", "mode", "ran"),
    pairs([*FAMILIES], [*RELATIVE], [*CACHES], (("modules", False), ("fused", False), ("fused", True))),
)
def test_ragged_batches_give_the_stock_logits(family, dtype, mode, ran):
    model = tiny_decoder(family, dtype)
    stock = remembered(model)
    kind, share = ran
    forward = choose_forward(model, kind=kind, share_weights=share, context_tokens=CONTEXT)
    assert forward.name == kind
    assert worst_difference(stock, forward, CACHES[mode](forward.kv_shape)) < RELATIVE[dtype]


@pytest.mark.parametrize(("family", "dtype", "mode"), pairs([*MODULES_ONLY], [*RELATIVE], [*CACHES]))
def test_ragged_batches_of_models_with_windows_and_caps(family, dtype, mode):
    model = tiny_decoder(family, dtype)
    forward = choose_forward(model, kind="auto", share_weights=False, context_tokens=CONTEXT)
    assert forward.name == "modules"
    # The eager attention of Gemma 2 takes its softmax in float32, whatever the weights are.
    assert worst_difference(remembered(model), forward, CACHES[mode](forward.kv_shape)) < max(1e-6, RELATIVE[dtype])


@pytest.mark.parametrize("product", PRODUCT_NAMES)
@pytest.mark.parametrize("family", ["llama-biased", "llama-ungrouped", "qwen3-window"])
def test_every_product_gives_the_stock_logits(family, product):
    stock = remembered(tiny_decoder(family, torch.float32))
    kind = f"fused:{product}"
    try:
        forward = choose_forward(
            tiny_decoder(family, torch.float32), kind=kind, share_weights=True, context_tokens=CONTEXT
        )
    except ValueError as error:
        pytest.skip(str(error))
    assert worst_difference(stock, forward, CACHES["slots"](forward.kv_shape), steps=8) < 1e-3


def test_a_single_token_without_a_mask():
    model = tiny_decoder("qwen3")
    text = [3, 1, 4, 1, 5, 9, 2, 6]
    expected = without_cache(model, text)
    for kind in ("modules", "fused"):
        forward = choose_forward(model, kind=kind, share_weights=True, context_tokens=CONTEXT)
        ragged = RaggedTexts(forward, CACHES["slots"](forward.kv_shape))
        found = torch.cat([ragged.feed({"a": [token]})["a"] for token in text])
        assert relative_difference(found, expected) < 1e-9


@pytest.mark.parametrize(
    ("cls", "config"),
    [
        (GPT2LMHeadModel, GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT)),
        (
            GPTNeoXForCausalLM,
            GPTNeoXConfig(
                vocab_size=VOCABULARY,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                attn_implementation="sdpa",
            ),
        ),
    ],
)
def test_other_decoders_run_through_their_modules(cls, config):
    torch.manual_seed(0)
    model = cls(config).eval().double()
    forward = choose_forward(model, kind="auto", share_weights=True, context_tokens=CONTEXT)
    assert forward.name == "modules"
    for cache in CACHES.values():
        assert worst_difference(remembered(model), forward, cache(forward.kv_shape)) < 1e-6
    with pytest.raises(ValueError, match=f"model must be one of LlamaForCausalLM, .*, got {cls.__name__}"):
        choose_forward(model, kind="fused", share_weights=True, context_tokens=CONTEXT)


def storages(*models):
    """Bytes of every storage that the models' parameters use, by address."""
    found = {}
    for model in models:
        for parameter in model.parameters():
            storage = parameter.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return found


def weights_of(forward):
    for layer in forward._layers:
        for projection in (layer.qkv, layer.output, layer.gate_up, layer.down):
            yield from (part.weight for part in projection.parts)
    yield from (part.weight for part in forward._head.parts)


@pytest.mark.parametrize("first", ["target", "submodel"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_fusing_takes_no_memory_and_keeps_sharing(family, first):
    target = tiny_decoder(family, torch.float32, num_hidden_layers=3)
    submodel = make_submodel(target, (1,))
    before = sum(storages(target, submodel).values())
    values = {name: parameter.clone() for name, parameter in target.named_parameters()}
    pair = (target, submodel) if first == "target" else (submodel, target)
    forwards = [choose_forward(model, kind="fused", share_weights=True, context_tokens=CONTEXT) for model in pair]
    assert sum(storages(target, submodel).values()) == before
    assert storages(submodel).keys() < storages(target).keys()
    for forward in forwards:
        addresses = {weight.untyped_storage().data_ptr() for weight in weights_of(forward)}
        assert addresses <= storages(target).keys()
        assert forward._embedding.data_ptr() == target.model.embed_tokens.weight.data_ptr()
    assert all(torch.equal(parameter, values[name]) for name, parameter in target.named_parameters())
    for name, parameter in submodel.model.layers[1].named_parameters():
        assert parameter is dict(target.model.layers[2].named_parameters())[name]


def test_fusing_again_makes_nothing_new():
    model = tiny_decoder("qwen3", torch.float32)
    first, second = (FusedForward(model, share_weights=True, context_tokens=CONTEXT) for _ in range(2))
    pairs = list(zip(weights_of(first), weights_of(second), strict=True))
    assert all(one.data_ptr() == other.data_ptr() and one.stride() == other.stride() for one, other in pairs)


def test_somebody_elses_model_is_left_alone():
    model = tiny_decoder("llama", torch.float32)
    before = {name: (weight.data_ptr(), weight.stride()) for name, weight in model.named_parameters()}
    forward = choose_forward(model, kind="auto", share_weights=False, context_tokens=CONTEXT)
    assert forward.name == "fused"
    assert before == {name: (weight.data_ptr(), weight.stride()) for name, weight in model.named_parameters()}
    assert {weight.untyped_storage().data_ptr() for weight in weights_of(forward)} <= storages(model).keys()


def test_fusing_within_inference_mode():
    model = tiny_decoder("llama", torch.float32)
    with torch.inference_mode():
        forward = choose_forward(model, kind="fused", share_weights=True, context_tokens=CONTEXT)
    assert not any(parameter.is_inference() for parameter in model.parameters())
    assert worst_difference(remembered(model), forward, CACHES["slots"](forward.kv_shape), steps=5) < 1e-3


def changed(family="llama", **changes):
    return lambda: tiny_decoder(family, torch.float32, **changes)


def with_hook():
    model = tiny_decoder()
    model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    return model


def with_adapter():
    model = tiny_decoder()
    model.model.layers[0].self_attn.q_proj = torch.nn.Sequential(model.model.layers[0].self_attn.q_proj)
    return model


def with_patched_forward():
    model = tiny_decoder()
    model.model.norm.forward = model.model.norm.forward
    return model


def with_other_norm():
    model = tiny_decoder()
    model.model.norm = torch.nn.RMSNorm(32, dtype=torch.float64)
    return model


def with_mixed_formats():
    model = tiny_decoder()
    model.model.layers[0].mlp.float()
    return model


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (changed(attn_implementation="eager"), "attention must be 'sdpa', got 'eager'"),
        (changed(hidden_act="gelu"), "hidden_act must be 'silu', got 'gelu'"),
        (changed(rope_parameters=DYNAMIC), "rope_type must not depend on the length of the text, got 'dynamic'"),
        (lambda: tiny_decoder().train(), "training mode"),
        (with_hook, r"model\.layers\.1\.mlp has another"),
        (with_patched_forward, r"model\.norm has another"),
        (with_adapter, r"q_proj must be Linear, got Sequential"),
        (with_other_norm, r"model\.norm must be the RMS norm of the model's family, got RMSNorm"),
        (with_mixed_formats, r"one floating-point format, got torch\.float32, torch\.float64"),
        (lambda: tiny_decoder().to("meta"), "on one device, got meta"),
    ],
)
def test_reasons_against_a_fused_forward(make, reason):
    model = make()
    with pytest.raises(ValueError, match=reason):
        choose_forward(model, kind="fused", share_weights=True, context_tokens=CONTEXT)
    with pytest.raises(ValueError, match=reason):
        FusedForward(model, share_weights=True, context_tokens=CONTEXT)


@pytest.mark.parametrize("make", [changed(hidden_act="gelu"), changed(rope_parameters=DYNAMIC), with_hook])
def test_auto_takes_the_modules_where_fusing_is_not_possible(make):
    model = make()
    forward = choose_forward(model, kind="auto", share_weights=True, context_tokens=CONTEXT)
    assert forward.name == "modules"
    dtype = forward.kv_shape.dtype
    assert worst_difference(remembered(model), forward, CACHES["slots"](forward.kv_shape), steps=8) < RELATIVE[dtype]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (changed("qwen2", layer_types=["full_attention", "chunked_attention"]), "layer_types must be .* got .*chunked"),
        (changed(attn_implementation="eager"), "attention must be 'sdpa', got 'eager'"),
        (lambda: tiny_decoder().train(), "LlamaForCausalLM in training mode"),
    ],
)
def test_models_that_cannot_be_rolled_back_are_refused(make, reason):
    with pytest.raises(ValueError, match=reason):
        ModuleForward(make())


def forgets_rope(monkeypatch):
    rotation = FusedForward._rotation
    monkeypatch.setattr(FusedForward, "_rotation", lambda self, p: tuple(reversed(rotation(self, p))))


def forgets_mask(monkeypatch):
    monkeypatch.setattr(FusedForward, "_additive", lambda self, placement, window: None)


def returns_nan(monkeypatch):
    call = FusedForward.__call__
    monkeypatch.setattr(FusedForward, "__call__", lambda self, *arguments: call(self, *arguments) * torch.nan)


@pytest.mark.parametrize("break_it", [forgets_rope, forgets_mask, returns_nan])
@pytest.mark.parametrize("dtype", RELATIVE)
def test_a_broken_fused_forward_is_caught_when_it_is_made(break_it, dtype, monkeypatch):
    break_it(monkeypatch)
    with pytest.raises(ValueError, match=r"fused logits must be within .* of those of modules, got"):
        choose_forward(tiny_decoder("llama", dtype), kind="auto", share_weights=True, context_tokens=CONTEXT)


def test_weights_that_are_not_finite_are_not_the_forwards_fault():
    model = tiny_decoder("llama", torch.float32)
    model.lm_head.weight[3] = torch.nan
    forward = choose_forward(model, kind="fused", share_weights=True, context_tokens=CONTEXT)
    logits = choosing._sample_logits(forward, VOCABULARY)
    assert logits[:, 3].isnan().all()
    assert logits.isnan().sum() == len(logits)


def test_choices_out_of_range():
    model = tiny_decoder()
    with pytest.raises(ValueError, match=r"`forward` must be one of auto, fused, modules, fused:plain, .*, got 'fast'"):
        choose_forward(model, kind="fast", share_weights=True, context_tokens=CONTEXT)
    with pytest.raises(ValueError, match="context_tokens must be >= 6, got 5"):
        choose_forward(model, kind="auto", share_weights=True, context_tokens=5)
    with pytest.raises(ValueError, match="context_tokens must be >= 1, got 0"):
        FusedForward(model, share_weights=True, context_tokens=0)
    assert fused_supports(model) is None


def test_positions_beyond_the_context():
    forward = choose_forward(tiny_decoder(), kind="fused", share_weights=True, context_tokens=8)
    ragged = RaggedTexts(forward, CACHES["slots"](forward.kv_shape))
    ragged.feed({"a": [1] * 8})
    with pytest.raises(ValueError, match="positions must be < 8, got 8"):
        ragged.feed({"a": [1]})
    with pytest.raises(IndexError):
        ragged.feed({"a": [1], "b": [1]})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", CACHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_batches_on_a_gpu(family, dtype, mode):
    model = tiny_decoder(family, dtype).cuda()
    stock = remembered(model)
    for kind in ("modules", "fused"):
        forward = choose_forward(model, kind=kind, share_weights=True, context_tokens=CONTEXT)
        assert worst_difference(stock, forward, CACHES[mode](forward.kv_shape)) < RELATIVE[dtype]
