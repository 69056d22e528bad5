"""A submodel is the model with layers passed over, or is refused: whatever configs have by layer."""

import pytest
import torch
from paceline.runtime.pools import submodels as submodel
from paceline.runtime.pools.submodels import make_submodel
from paceline.runtime.refusals import BrokenRuleError
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
KINDS = (
    "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "smollm3", "olmo2", "olmo3", "phi3", "granite",
    "exaone4", "cohere2", "starcoder2", "mixtral", "qwen3_moe", "ernie4_5",
)  # fmt: skip


def made(kind: str):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**SIZES), attn_implementation="eager").eval()
    for weight in model.parameters():
        weight.requires_grad_(requires_grad=False)
        if weight.dim() > 1:
            weight.normal_(0, 0.25)
    return model


@pytest.mark.parametrize("skipped", [(), (0,), (1,), (0, 2)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_it_writes_what_the_model_writes_with_layers_passed_over(kind, skipped):
    """By another way than the check itself does it, and on other tokens."""
    model = made(kind)
    slim = make_submodel(model, skipped)
    ids = torch.arange(20)[None] + 5
    found = slim(input_ids=ids, use_cache=False).logits
    for layer in skipped:
        model.model.layers[layer].forward = lambda hidden_states, *_, **__: hidden_states
    assert torch.allclose(found, model(input_ids=ids, use_cache=False).logits, atol=1e-4)
    assert not [hook for module in model.modules() for hook in module._forward_hooks.values()]


def test_a_list_by_layer_that_is_left_alone_is_found_by_the_check(monkeypatch):
    """SmolLM3 turns no positions in every fourth layer, and says so in a list beside `layer_types`."""

    def careless(model, kept):
        config = type(model.config)(**SIZES | {"num_hidden_layers": len(kept)})
        config._attn_implementation = "eager"
        return config

    monkeypatch.setattr(submodel, "_config_of", careless)
    with pytest.raises(BrokenRuleError, match="layers that are the same under another number"):
        make_submodel(made("smollm3"), (0,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layers_that_depend_on_their_number_are_refused(dtype):
    """DiffLlama weighs its second attention by the layer's number."""
    model = made("diffllama").to(dtype)
    with pytest.raises(BrokenRuleError, match=r"another number, .* of DiffLlamaForCausalLM is not, got lambda_init"):
        make_submodel(model, (0,))
    assert make_submodel(model, (3,)).config.num_hidden_layers == 3  # the others keep their numbers
