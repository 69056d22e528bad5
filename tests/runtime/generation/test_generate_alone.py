"""The drop-in without an assistant model: plain, prompt lookup, submodels of the model itself, and chains of these."""

import copy
from collections import Counter
from functools import wraps
from itertools import cycle

import pytest
import torch
from paceline.reports import summarise_run
from paceline.runtime import forward_choice
from paceline.runtime.forward import TOLERANCES
from paceline.runtime.fused import FusedForward
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OlmoConfig,
    OlmoForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ..conftest import ALPHABET, EOS, random_llama
from .chained_models import PAD, Models, batch

COMMON = {
    "vocab_size": len(ALPHABET),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "pad_token_id": None,
    "eos_token_id": EOS,
    "attn_implementation": "sdpa",
}
FULL = {"layer_types": ["full_attention"] * 4}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"] * 2}
EAGER = {"attn_implementation": "eager"}  # it caps scores
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": None}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 16}),
    "gemma": (GemmaForCausalLM, GemmaConfig, {"head_dim": 8, "tie_word_embeddings": True}),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig, {"head_dim": 8, "tie_word_embeddings": True, **FULL}),
    "gemma3 with windows": (Gemma3ForCausalLM, Gemma3TextConfig, {"head_dim": 8, "sliding_window": 8, **WINDOWS}),
    "gemma2": (Gemma2ForCausalLM, Gemma2Config, {"head_dim": 8, "sliding_window": 8, **EAGER}),
    "mistral with windows": (MistralForCausalLM, MistralConfig, {"sliding_window": 8}),
    "gpt2": (GPT2LMHeadModel, GPT2Config, {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 128}),
    "gpt-neox": (GPTNeoXForCausalLM, GPTNeoXConfig, {}),
}
WITHOUT_SLIMS = ("gpt2", "gpt-neox")
LOOKUP, SLIM = {"prompt_lookup_num_tokens": 5}, {"skip_layers": [2]}
WAYS = {
    "plain": {},
    "no assistants": {"assistant_models": []},
    "lookup": LOOKUP,
    "lookup of longer matches": LOOKUP | {"max_matching_ngram_size": 4},
    "slim": SLIM,
    "two slims": {"skip_layers": {"half": [1, 2], "most": [2]}, "policy": "half:3/most:5/target"},
    "chain": SLIM | LOOKUP | {"policy": "ngram:4/slim:6/target"},
    "adaptive": SLIM | LOOKUP | {"policy": "adaptive"},
}


def family(name, dtype=torch.float32):
    model, config, changes = FAMILIES[name]
    torch.manual_seed(1)
    return model(config(**(COMMON | changes))).eval().to(dtype)


def alone(model, inputs, **options):
    models = Models(1)
    models.target = model
    return models.chained(inputs, **({"assistant_models": None} | options))


@pytest.fixture(scope="module")
def target():
    return random_llama(11)


@pytest.mark.parametrize(("way", "kv_cache"), [*zip(WAYS, cycle(["slots", "mask", "mask"]), strict=False)])
def test_a_padded_batch_reads_as_generates(target, way, kv_cache):
    stock = target.generate(**batch(), max_new_tokens=20, pad_token_id=PAD)
    ours = alone(target, batch(), max_new_tokens=20, pad_token_id=PAD, kv_cache=kv_cache, **WAYS[way])
    assert torch.equal(stock, ours)


@pytest.mark.parametrize("name", FAMILIES)
def test_other_architectures(name):
    """A chain has lookups, a submodel and the target in it."""
    model = family(name)
    way = WAYS["lookup" if name in WITHOUT_SLIMS else "chain"]
    if name in WITHOUT_SLIMS:
        with pytest.raises(ValueError, match=r"^skip_layers of slim: a submodel needs layers under model.layers., GPT"):
            alone(model, batch(), max_new_tokens=4, pad_token_id=PAD, **SLIM)
    stock = model.generate(**batch(), max_new_tokens=20, pad_token_id=PAD)
    assert torch.equal(stock, alone(model, batch(), max_new_tokens=20, pad_token_id=PAD, **way))


@pytest.mark.parametrize(("name", "way"), [("llama", "plain"), ("gemma3", "chain"), ("gpt2", "lookup")])
def test_half_precision_differs_at_near_ties_only(name, way):
    """A forward of another width rounds otherwise: where texts part, both tokens are as good as equal."""
    model = family(name, torch.bfloat16)
    inputs = batch()
    stock = model.generate(**inputs, max_new_tokens=20, pad_token_id=PAD)
    ours = alone(model, inputs, max_new_tokens=20, pad_token_id=PAD, **WAYS[way])
    for row in range(len(stock)):
        width = min(stock.shape[1], ours.shape[1])
        parted = (stock[row, :width] != ours[row, :width]).nonzero()
        if not len(parted):
            continue
        at = int(parted[0])
        start = int((inputs["attention_mask"][row] == 0).sum())
        with torch.inference_mode():
            logits = model(input_ids=stock[row : row + 1, start:at]).logits[0, -1].float()
        gap = abs(float(logits[stock[row, at]] - logits[ours[row, at]]))
        assert gap <= TOLERANCES[torch.bfloat16] * float(logits.abs().max())


class TestWhatRuns:
    def log(self, target, **options):
        logs = []
        alone(target, batch(), max_new_tokens=12, pad_token_id=PAD, on_log=logs.append, **options)
        return logs[0]

    def test_members_and_default_chains(self, target):
        members = {"plain": ["target"], "lookup": ["ngram", "target"], "slim": ["slim", "target"]}
        chains = {"plain": "target", "lookup": "ngram:5/target", "slim": "slim:4/target"}
        for way, names in members.items():
            log = self.log(target, **WAYS[way])
            assert (log.meta["members"], log.meta["policy"]) == (names, chains[way])
        log = self.log(target, **LOOKUP, skip_layers={"half": [1, 2], "most": [2]})
        assert log.meta["members"] == ["ngram", "half", "most", "target"]
        assert log.meta["policy"] == "ngram:5/half:4/most:4/target"

    def test_submodels_stand_among_assistants_by_size(self, target):
        small = random_llama(3, num_layers=1)
        log = self.log(target, assistant_models=[small], **SLIM)
        assert log.meta["members"] == ["assistant0", "slim", "target"]

    def test_plain_is_one_token_a_forward_and_the_others_are_more(self, target):
        assert summarise_run(self.log(target)).acceptance_length == 1
        assert summarise_run(self.log(target, **SLIM)).acceptance_length > 1.2
        text = torch.tensor([[3, 4, 5, 6, 7, 8] * 4])
        logs = []
        alone(target, {"input_ids": text}, max_new_tokens=24, on_log=logs.append, **LOOKUP)
        assert logs[0].steps["drafted"].sum() > 0

    def test_the_lookup_is_that_of_transformers(self, target, monkeypatch):
        """Two tokens at most unless the config says more, and the first occurrence."""
        from paceline.runtime import draft as draft_processor

        rules = []
        looked_up = draft_processor.looked_up

        def noting(context, *, step, room, rule):
            rules.append((rule.min_match, rule.max_match, rule.occurrence, step.tokens))
            return looked_up(context, step=step, room=room, rule=rule)

        monkeypatch.setattr(draft_processor, "looked_up", noting)
        self.log(target, **LOOKUP)
        assert {rule[:3] for rule in rules} == {(1, 2, "first")}
        assert max(rule[3] for rule in rules) == 5
        rules.clear()
        self.log(target, **LOOKUP, max_matching_ngram_size=4)
        assert {rule[:3] for rule in rules} == {(1, 4, "first")}


@pytest.mark.parametrize("way", ["lookup", "slim", "chain"])
@pytest.mark.parametrize("mode", ["rejection", "coupled"])
def test_sampled_texts_depend_on_the_seed_alone(target, way, mode):
    """Coupled sampling writes one text whatever the chain, rejection sampling one for each chain."""

    def drawn(**options):
        torch.manual_seed(5)
        shape = {"max_new_tokens": 16, "pad_token_id": PAD, "do_sample": True, "sampling": mode}
        return alone(target, batch(), **shape, **options)

    assert torch.equal(drawn(**WAYS[way]), drawn() if mode == "coupled" else drawn(**WAYS[way]))


@pytest.mark.parametrize(("name", "own", "fused"), [("qwen3", 5, 3), ("gemma", 2, 0), ("olmo", 19, 0)])
def test_forwards_before_the_first_token_are_those_that_the_docs_name(name, own, fused, monkeypatch, tmp_path):
    """Of the second call: the first one times ways to run, here with the fused forward as the quicker one."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setattr(forward_choice, "_race_s", lambda forward: float(forward.name != "fused"))
    ran = Counter()

    def counted(kind, method):
        stock = getattr(kind, method)

        @wraps(stock)
        def counting(*given, **named):
            ran[kind] += 1
            return stock(*given, **named)

        monkeypatch.setattr(kind, method, counting)

    model = OlmoForCausalLM(OlmoConfig(**COMMON)).eval() if name == "olmo" else family(name)
    one_token = {"inputs": {"input_ids": torch.tensor([[3, 4, 5]])}, "max_new_tokens": 1}
    alone(model, **one_token)
    counted(type(model), "forward")
    counted(FusedForward, "__call__")
    alone(model, **one_token)
    ran[FusedForward if fused else type(model)] -= 1  # that of the token
    assert (ran[type(model)], ran[FusedForward]) == (own, fused)


def test_the_model_stays_as_it_is():
    """Also where only some weights take gradients, which submodels share."""
    model = random_llama(11)
    for index, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(index % 2 == 0)
    before = [(name, tensor.data_ptr(), tensor.requires_grad) for name, tensor in tensors(model)]
    values = copy.deepcopy(model.state_dict())
    for way in WAYS.values():
        alone(model, batch(), max_new_tokens=8, pad_token_id=PAD, **way)
    assert [(name, tensor.data_ptr(), tensor.requires_grad) for name, tensor in tensors(model)] == before
    assert all(torch.equal(values[name], tensor) for name, tensor in model.state_dict().items())


def tensors(model):
    return [*model.named_parameters(), *model.named_buffers()]


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"prompt_lookup_num_tokens": 0}, "prompt_lookup_num_tokens must be a whole number >= 1, got 0"),
            ({"prompt_lookup_num_tokens": 2.5}, "prompt_lookup_num_tokens must be a whole number >= 1, got 2.5"),
            (LOOKUP | {"max_matching_ngram_size": 0}, "max_matching_ngram_size must be a whole number >= 1, got 0"),
            ({"skip_layers": []}, "skip_layers must be a list of layers of the model, .*, got an empty list"),
            ({"skip_layers": "2"}, "skip_layers must be a list of layers .*, got '2'"),
            ({"skip_layers": 2}, "skip_layers must be a list of layers .*, got 2"),
            ({"skip_layers": [1.5]}, "skip_layers must be a list of layers .*, got a list with 1.5"),
            ({"skip_layers": [True]}, "skip_layers must be a list of layers .*, got a list with True"),
            ({"skip_layers": {"a": 1}}, "skip_layers must be a list of layers .*, got 1"),
            ({"skip_layers": [3]}, r"skip_layers of slim: must be different layers of 0..2, got \(3,\)"),
            ({"skip_layers": [1, 1]}, r"skip_layers of slim: must be different layers of 0..2, got \(1, 1\)"),
            ({"skip_layers": [0, 1, 2]}, "skip_layers of slim: must leave at least one of 3 layers"),
            ({"skip_layers": {"target": [1]}}, "names of skip_layers must be .* and not 'target', got 'target'"),
            ({"skip_layers": {"a b": [1]}}, "names of skip_layers must be letters, .*, got 'a b'"),
            (LOOKUP | {"skip_layers": {"ngram": [1]}}, "pool member names must be unique, got ngram, ngram, target"),
            ({"policy": "ngram:4/target"}, "policy 'ngram:4/target': .*unknown model 'ngram'; this pool has target"),
            ({"policy": "slim:4/target"}, "unknown model 'slim'; this pool has target"),
            ({"assistant_models": 5}, "assistant_models must be a list of models, got int"),
        ],
    )  # fmt: skip
    def test_by_name(self, target, options, told):
        with pytest.raises(ValueError, match=told):
            alone(target, batch(), max_new_tokens=4, pad_token_id=PAD, **options)

    def test_an_assistant_that_transformers_keeps_back(self, target):
        with pytest.raises(ValueError, match=r"^assistant_model must be given as assistant_models=\[...\]"):
            alone(target, batch((6,)), max_new_tokens=4, assistant_model=random_llama(3, num_layers=1))

    def test_a_submodel_of_other_weights(self, target):
        """As quantised ones, or those of an adapter."""
        changed = copy.deepcopy(target)
        layer = changed.model.layers[1].mlp
        layer.up_proj = torch.nn.Sequential(layer.up_proj)
        with pytest.raises(
            ValueError, match="skip_layers of slim: a submodel needs the stock weights of LlamaForCausalLM"
        ):
            alone(changed, batch(), max_new_tokens=4, pad_token_id=PAD, skip_layers=[2])
