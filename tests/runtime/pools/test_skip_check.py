"""A submodel is its model with layers skipped, whatever a config says of layers by number, or it is refused."""

import copy
from itertools import combinations

import pytest
import torch
from paceline.runtime.pools.submodels import make_submodel
from paceline.runtime.refusals import BrokenRuleError
from transformers import PreTrainedModel

from ...claims.model_types import MODEL_TYPES, tiny_config, whole_model

# Longer than the windows of all models here.
TOKENS = torch.tensor([[5, 9, 7, 8, 9, 10, 11, 12, 7, 30, 4, 31, 8, 8, 40]])
MASKS = tuple(mask for count in (1, 2) for mask in combinations(range(3), count))
EXPERTS = {"num_experts": 4, "moe_intermediate_size": 24}
# By model type and what its config says, the masks that are refused and a word of the reason; all others are right.
KINDS = {
    "llama": ("llama", {}, (), ""),
    "windows by kind": (
        "gemma3_text",
        {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        (),
        "",
    ),
    "positions by a list": ("smollm3", {"no_rope_layers": [1, 0, 1]}, (), ""),
    "other positions by a list": ("smollm3", {"no_rope_layers": [0, 1, 1]}, (), ""),
    "positions and experts by lists": ("llama4_text", {"no_rope_layers": [1, 1, 0], "moe_layers": [1]}, (), ""),
    "dense layers by number": ("qwen3_moe", {"mlp_only_layers": [1], **EXPERTS}, (), ""),
    "feed-forward kinds by a list": ("exaone_moe", {"mlp_layer_types": ["dense", "sparse", "dense"]}, (), ""),
    "experts in every second layer": (
        "qwen3_moe",
        {"decoder_sparse_step": 2, **EXPERTS},
        ((0,), (1,), (0, 2)),
        "layers with the same weights under another number, those of Qwen3MoeForCausalLM have others",
    ),
    "dense layers first": (
        "glm4_moe",
        {"first_k_dense_replace": 1},
        ((0,), (0, 1), (0, 2)),
        "layers with the same weights under another number, those of Glm4MoeForCausalLM have others",
    ),
    "a factor by number": ("diffllama", {}, ((0,), (1,), (0, 1), (0, 2)), "got lambda_init 0."),
    "a place in a list of residuals": ("beam", {}, ((0,), (1,), (0, 1), (0, 2)), "got attn_residual_add_idx "),
}


def skipping(model: PreTrainedModel, mask: tuple[int, ...], monkeypatch) -> torch.Tensor:
    """Logits of the whole model, whose skipped layers hand on what they get."""
    with monkeypatch.context() as patch:
        for layer in mask:
            patch.setattr(model.model.layers[layer], "forward", lambda hidden_states, *_, **__: hidden_states)
        return model(input_ids=TOKENS, use_cache=False).logits


def on_meta(model: PreTrainedModel) -> PreTrainedModel:
    with torch.device("meta"):
        return type(model)(copy.deepcopy(model.config)).eval()


@pytest.mark.parametrize("name", KINDS)
def test_a_submodel_is_its_model_with_layers_skipped_or_is_refused(name, monkeypatch):
    model_type, changes, refused, reason = KINDS[name]
    model = whole_model(tiny_config(model_type, **changes))
    before = model(input_ids=TOKENS, use_cache=False).logits
    for mask in MASKS:
        if mask in refused:
            for asked in (model, on_meta(model)):
                with pytest.raises(BrokenRuleError) as caught:
                    make_submodel(asked, mask)
                assert reason in str(caught.value)
                assert "\n" not in str(caught.value)
            continue
        submodel = make_submodel(model, mask)
        found = submodel(input_ids=TOKENS, use_cache=False).logits
        torch.testing.assert_close(found, skipping(model, mask, monkeypatch), rtol=0, atol=1e-5)
        own = {weight.data_ptr() for weight in submodel.parameters()}
        assert own <= {weight.data_ptr() for weight in model.parameters()}
        make_submodel(on_meta(model), mask)
    assert torch.equal(model(input_ids=TOKENS, use_cache=False).logits, before)


def test_what_only_logits_tell_is_refused_where_there_are_weights(monkeypatch):
    """A scale that a layer takes from the config when it runs."""
    model = whole_model(tiny_config("olmo2"))
    layer = type(model.model.layers[0])
    stock = layer.forward

    def scaled(self, hidden_states, *args, **kwargs):
        return stock(self, hidden_states, *args, **kwargs) * (1 + 0.1 * self.self_attn.layer_idx)

    monkeypatch.setattr(layer, "forward", scaled)
    make_submodel(on_meta(model), (0,))
    make_submodel(model, (2,))
    with pytest.raises(BrokenRuleError, match="do the same under another number, those of Olmo2ForCausalLM do not"):
        make_submodel(model, (0,))


def test_a_setting_that_goes_from_true_to_false_is_not_taken_for_a_number(monkeypatch):
    model = whole_model(tiny_config("llama"))
    model.model.layers[1].self_attn.is_causal = True
    make_submodel(model, (0,))
    layer = type(model.model.layers[0])
    stock = layer.__init__

    def by_number(self, config, layer_idx):
        stock(self, config, layer_idx)
        self.rotates = layer_idx != 0

    monkeypatch.setattr(layer, "__init__", by_number)
    with pytest.raises(BrokenRuleError, match="got rotates False instead of True"):
        make_submodel(whole_model(tiny_config("llama")), (0,))


def test_weights_that_are_not_the_models_own_are_said_to_be_so():
    model = whole_model(tiny_config("llama"))
    model.model.layers[0].mlp.register_parameter("extra", torch.nn.Parameter(torch.zeros(2)))
    with pytest.raises(BrokenRuleError, match="needs the stock weights of LlamaForCausalLM, got others"):
        make_submodel(model, (1,))


@pytest.mark.slow
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_of_every_model_type(model_type, monkeypatch):
    try:
        model = whole_model(tiny_config(model_type))
    except (AttributeError, ImportError):
        pytest.skip("transformers cannot make one")
    for mask in MASKS:
        try:
            submodel = make_submodel(model, mask)
        except BrokenRuleError:
            continue
        found = submodel(input_ids=TOKENS, use_cache=False).logits
        torch.testing.assert_close(found, skipping(model, mask, monkeypatch), rtol=0, atol=1e-5)
