"""Fused and module forwards give the logits of the stock model, whatever was batched, rolled back or caught up."""

import random

import pytest
import torch
from paceline.base.files import FOLDER_VARIABLE
from paceline.runtime import forward_choice as choosing
from paceline.runtime.forward import ModuleForward, cache_argument
from paceline.runtime.forward_choice import choose_forward
from paceline.runtime.fused import FusedForward, fused_supports
from paceline.runtime.pools.configs import check_supported
from paceline.runtime.pools.submodels import make_submodel
from paceline.runtime.products import PRODUCT_NAMES
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from ..pairs import pairs
from .tiny_decoders import (
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


def chosen(model, kind="fused", *, share=True, context_tokens=CONTEXT):
    return choose_forward(model, kind=kind, share_weights=share, context_tokens=context_tokens)


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
        picked = rng.sample(names, rng.randint(1, len(names))) if names else []
        new = {name: [rng.randrange(VOCABULARY) for _ in range(rng.choice([1, 1, 2, 5, 19]))] for name in picked}
        keep = rng.choice([None, 1, 2])
        for name, logits in (ragged.feed(new, keep) if new else {}).items():
            expected = stock(ragged.texts[name])[-len(logits) :]
            worst = max(worst, relative_difference(logits, expected))
            assert not logits.isnan().any()
    return worst


@pytest.mark.parametrize(
    ("family", "dtype", "mode", "ran"),
    [
        *pairs([*FAMILIES], [*RELATIVE], [*CACHES], (("modules", False), ("fused", False), ("fused", True))),
        *pairs([*MODULES_ONLY], [*RELATIVE], [*CACHES], (("auto", False),)),
    ],
)
@pytest.mark.one_in(5)
def test_ragged_batches_give_the_stock_logits(family, dtype, mode, ran):
    model = tiny_decoder(family, dtype)
    stock = remembered(model)
    forward = chosen(model, ran[0], share=ran[1])
    assert forward.name == ("modules" if family in MODULES_ONLY else ran[0])
    # The eager attention of Gemma 2 takes its softmax in float32, whatever the weights are.
    allowed = max(1e-6 if family in MODULES_ONLY else 0.0, RELATIVE[dtype])
    assert worst_difference(stock, forward, CACHES[mode](forward.kv_shape)) < allowed


@pytest.mark.parametrize("product", PRODUCT_NAMES)
@pytest.mark.parametrize("family", ["llama-biased", "llama-ungrouped", "qwen3-window"])
@pytest.mark.one_in(3)
def test_every_product_gives_the_stock_logits(family, product):
    stock = remembered(tiny_decoder(family, torch.float32))
    try:
        forward = chosen(tiny_decoder(family, torch.float32), f"fused:{product}")
    except ValueError as error:
        pytest.skip(str(error))
    assert worst_difference(stock, forward, CACHES["slots"](forward.kv_shape), steps=8) < 1e-3


@pytest.mark.parametrize("kind", ["modules", "fused"])
def test_a_single_token_without_a_mask(kind):
    model = tiny_decoder("qwen3")
    text = [3, 1, 4, 1, 5, 9, 2, 6]
    expected = without_cache(model, text)
    forward = chosen(model, kind)
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
                vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                num_attention_heads=4, attn_implementation="sdpa",
            ),
        ),
    ],
)  # fmt: skip
def test_other_decoders_run_through_their_modules(cls, config):
    torch.manual_seed(0)
    model = cls(config).eval().double()
    forward = chosen(model, "auto")
    assert forward.name == "modules"
    for cache in CACHES.values():
        assert worst_difference(remembered(model), forward, cache(forward.kv_shape)) < 1e-6
    with pytest.raises(ValueError, match=f"model must be one of LlamaForCausalLM, .*, got {cls.__name__}"):
        chosen(model)


# -- whose weights a fused forward runs on


def storages(*models):
    """Bytes of every storage that the models' parameters use, by address."""
    found = [parameter.untyped_storage() for model in models for parameter in model.parameters()]
    return {storage.data_ptr(): storage.nbytes() for storage in found}


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
    forwards = [chosen(model) for model in ((target, submodel) if first == "target" else (submodel, target))]
    assert sum(storages(target, submodel).values()) == before
    assert storages(submodel).keys() < storages(target).keys()
    for forward in forwards:
        assert {weight.untyped_storage().data_ptr() for weight in weights_of(forward)} <= storages(target).keys()
        assert forward._embedding.data_ptr() == target.model.embed_tokens.weight.data_ptr()
    assert all(torch.equal(parameter, values[name]) for name, parameter in target.named_parameters())
    for name, parameter in submodel.model.layers[1].named_parameters():
        assert parameter is dict(target.model.layers[2].named_parameters())[name]


def places(named):
    return [(name, weight.data_ptr(), weight.stride()) for name, weight in named]


def test_fusing_again_makes_nothing_new_and_leaves_somebody_elses_model_alone(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))  # which has no choice of another test
    monkeypatch.setattr(choosing, "_race_s", lambda forward: float(forward.name != "fused"))
    model = tiny_decoder("qwen3", torch.float32)
    first, second = (FusedForward(model, share_weights=True, context_tokens=CONTEXT) for _ in range(2))
    assert places(enumerate(weights_of(first))) == places(enumerate(weights_of(second)))
    theirs = tiny_decoder("llama", torch.float32)
    before = places(theirs.named_parameters())
    forward = chosen(theirs, "auto", share=False)
    assert forward.name == "fused"
    assert places(theirs.named_parameters()) == before
    assert {weight.untyped_storage().data_ptr() for weight in weights_of(forward)} <= storages(theirs).keys()


@pytest.mark.parametrize(("again_s", "name"), [(0.5, "fused"), (2.0, "modules")])
def test_a_slow_spell_of_the_machine_is_not_remembered_as_a_slow_forward(tmp_path, monkeypatch, again_s, name):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    fused_s = iter((2.0, again_s))
    monkeypatch.setattr(choosing, "_race_s", lambda forward: next(fused_s) if forward.name == "fused" else 1.0)
    assert chosen(tiny_decoder("llama", torch.float32), "auto").name == name
    assert chosen(tiny_decoder("llama", torch.float32), "auto").name == name  # as is remembered


def test_fusing_within_inference_mode():
    model = tiny_decoder("llama", torch.float32)
    with torch.inference_mode():
        forward = chosen(model)
    assert not any(parameter.is_inference() for parameter in model.parameters())
    assert worst_difference(remembered(model), forward, CACHES["slots"](forward.kv_shape), steps=5) < 1e-3


# -- what cannot be fused, or run at all


def changed(family="llama", **changes):
    return lambda: tiny_decoder(family, torch.float32, **changes)


def edited(edit):
    def make():
        model = tiny_decoder()
        edit(model)
        return model

    return make


def add_hook(model):
    model.model.layers[1].mlp.register_forward_hook(lambda *_: None)


def add_adapter(model):
    model.model.layers[0].self_attn.q_proj = torch.nn.Sequential(model.model.layers[0].self_attn.q_proj)


def patch_forward(model):
    model.model.norm.forward = model.model.norm.forward


def change_norm(model):
    model.model.norm = torch.nn.RMSNorm(32, dtype=torch.float64)


def mix_formats(model):
    model.model.layers[0].mlp.float()


EAGER, GELU = changed(attn_implementation="eager"), changed(hidden_act="gelu")
DYNAMIC = changed(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})


@pytest.mark.parametrize(
    ("make", "reason", "modules_run"),
    [
        (EAGER, "attention must be 'sdpa', got 'eager'", False),
        (GELU, "hidden_act must be 'silu', got 'gelu'", True),
        (DYNAMIC, "rope_type must not depend on the length of the text, got 'dynamic'", True),
        (lambda: tiny_decoder().train(), "training mode", False),
        (edited(add_hook), r"model\.layers\.1\.mlp has another", True),
        (edited(patch_forward), r"model\.norm has another", None),
        (edited(add_adapter), r"q_proj must be Linear, got Sequential", None),
        (edited(change_norm), r"model\.norm must be the RMS norm of the model's family, got RMSNorm", None),
        (edited(mix_formats), r"one floating-point format, got torch\.float32, torch\.float64", None),
        (lambda: tiny_decoder().to("meta"), "on one device, got meta", None),
    ],
)
def test_reasons_against_a_fused_forward(make, reason, modules_run):
    """`auto` takes the modules instead, and modules refuse what they cannot roll back for the same reason."""
    model = make()
    with pytest.raises(ValueError, match=reason):
        chosen(model)
    if modules_run:
        forward = chosen(model, "auto")
        assert forward.name == "modules"
        cache, allowed = CACHES["slots"](forward.kv_shape), RELATIVE[forward.kv_shape.dtype]
        assert worst_difference(remembered(model), forward, cache, steps=8) < allowed
    elif modules_run is False:
        with pytest.raises(ValueError, match=reason):
            ModuleForward(model)


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
        chosen(tiny_decoder("llama", dtype), "fused")


def test_weights_that_are_not_finite_are_not_the_forwards_fault():
    model = tiny_decoder("llama", torch.float32)
    model.lm_head.weight[3] = torch.nan
    logits = choosing._sample_logits(chosen(model), VOCABULARY)
    assert logits[:, 3].isnan().all()
    assert logits.isnan().sum() == len(logits)


def test_choices_out_of_range():
    model = tiny_decoder()
    chunked = ["full_attention", "chunked_attention"]
    for call, told in (
        (lambda: chosen(model, "fast"), r"`forward` must be one of auto, fused, modules, fused:plain, .*, got 'fast'"),
        (lambda: chosen(model, "auto", context_tokens=5), "context_tokens must be >= 6, got 5"),
        (lambda: ModuleForward(tiny_decoder("qwen2", layer_types=chunked)), "layer_types must be .* got .*chunked"),
    ):
        with pytest.raises(ValueError, match=told):
            call()
    assert fused_supports(model) is None
    forward = chosen(model, context_tokens=8)
    ragged = RaggedTexts(forward, CACHES["slots"](forward.kv_shape))
    ragged.feed({"a": [1] * 8})
    with pytest.raises(ValueError, match="positions must be < 8, got 8"):
        ragged.feed({"a": [1]})
    with pytest.raises(IndexError):
        ragged.feed({"a": [1], "b": [1]})


# -- the name by which a model's forward takes its cache, whatever transformers it was written for


class Older(LlamaForCausalLM):
    """As models were written before transformers 5.24."""

    def forward(self, input_ids, position_ids=None, attention_mask=None, past_key_values=None, logits_to_keep=0, **_):
        return self.answer(past_key_values)

    def answer(self, cache):
        self.given = cache
        cache.update(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4), 0)


class Newer(Older):
    """As they are since."""

    def forward(self, input_ids, position_ids=None, attention_mask=None, cache=None, logits_to_keep=0, **_):
        return self.answer(cache)


class Forgetful(LlamaForCausalLM):
    def forward(self, input_ids, position_ids=None, attention_mask=None, logits_to_keep=0, **_):
        raise AssertionError("never run")


CONFIG = LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)


@pytest.mark.parametrize(("kind", "name"), [(Older, "past_key_values"), (Newer, "cache")])
def test_a_forward_is_given_its_cache_by_its_name(kind, name):
    model = kind(CONFIG).eval()
    assert cache_argument(model) == name
    check_supported(CONFIG, kind, context_tokens=64)
    assert ModuleForward(model).kv_shape.num_layers == 1
    assert isinstance(model.given, DynamicCache)


def test_models_of_the_installed_transformers_take_it_without_a_warning_and_others_are_refused():
    model, cache = tiny_decoder(), DynamicCache()
    model(input_ids=torch.tensor([[1, 2, 3]]), **{cache_argument(model): cache})
    assert cache.get_seq_length() == 3
    with pytest.raises(ValueError, match=r"^model must be one whose forward takes a cache, got Forgetful$"):
        cache_argument(Forgetful(CONFIG))
    with pytest.raises(ValueError, match=r"model_type must be .* \(cache is missing\), got 'llama'"):
        check_supported(CONFIG, Forgetful, context_tokens=64)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", CACHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_batches_on_a_gpu(family, dtype, mode):
    model = tiny_decoder(family, dtype).cuda()
    stock = remembered(model)
    for kind in ("modules", "fused"):
        forward = chosen(model, kind)
        assert worst_difference(stock, forward, CACHES[mode](forward.kv_shape)) < RELATIVE[dtype]
