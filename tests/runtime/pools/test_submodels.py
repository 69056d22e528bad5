"""A submodel is its model with layers skipped, whatever a config says of layers by number, or it is refused."""

import copy
from itertools import combinations

import pytest
import torch
from paceline.runtime.forward import cache_argument
from paceline.runtime.pools import submodels as parts
from paceline.runtime.pools.submodels import make_submodel
from paceline.runtime.refusals import BrokenRuleError
from transformers import DynamicCache, PreTrainedModel

from ...claims.model_types import MODEL_TYPES, tiny_config, whole_model

# Longer than the windows of all models here.
TOKENS = torch.tensor([[5, 9, 7, 8, 9, 10, 11, 12, 7, 30, 4, 31, 8, 8, 40]])
MASKS = tuple(mask for count in (1, 2) for mask in combinations(range(3), count))
EXPERTS = {"num_experts": 4, "moe_intermediate_size": 24}
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]
OTHERS = "layers with the same weights under another number, those of"
# By model type and what its config says, the masks that are refused and a word of the reason; all others are right.
KINDS = [
    *((kind, {}, (), "") for kind in ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "smollm3")),
    *((kind, {}, (), "") for kind in ("olmo2", "olmo3", "phi3", "granite", "exaone4", "cohere2", "starcoder2")),
    *((kind, {}, (), "") for kind in ("mixtral", "qwen3_moe", "ernie4_5")),
    ("gemma3_text", {"layer_types": SLIDING}, (), ""),
    ("smollm3", {"no_rope_layers": [1, 0, 1]}, (), ""),
    ("smollm3", {"no_rope_layers": [0, 1, 1]}, (), ""),
    ("llama4_text", {"no_rope_layers": [1, 1, 0], "moe_layers": [1]}, (), ""),
    ("qwen3_moe", {"mlp_only_layers": [1], **EXPERTS}, (), ""),
    ("exaone_moe", {"mlp_layer_types": ["dense", "sparse", "dense"]}, (), ""),
    ("qwen3_moe", {"decoder_sparse_step": 2, **EXPERTS}, ((0,), (1,), (0, 2)), f"{OTHERS} Qwen3MoeForCausalLM have"),
    ("glm4_moe", {"first_k_dense_replace": 1}, ((0,), (0, 1), (0, 2)), f"{OTHERS} Glm4MoeForCausalLM have others"),
    ("diffllama", {}, ((0,), (1,), (0, 1), (0, 2)), "got lambda_init 0."),  # a factor by number
    ("beam", {}, ((0,), (1,), (0, 1), (0, 2)), "got attn_residual_add_idx "),  # a place in a list of residuals
]


def logits(model: PreTrainedModel) -> torch.Tensor:
    return model(input_ids=TOKENS, use_cache=False).logits


def check_skips(model, mask, monkeypatch):
    """A submodel says what the whole model does, whose skipped layers hand on what they get."""
    submodel = make_submodel(model, mask)
    with monkeypatch.context() as patch:
        for layer in mask:
            patch.setattr(model.model.layers[layer], "forward", lambda hidden_states, *_, **__: hidden_states)
        wanted = logits(model)
    torch.testing.assert_close(logits(submodel), wanted, rtol=0, atol=1e-5)
    return submodel


def on_meta(model: PreTrainedModel) -> PreTrainedModel:
    with torch.device("meta"):
        return type(model)(copy.deepcopy(model.config)).eval()


@pytest.mark.parametrize(("model_type", "changes", "refused", "reason"), KINDS)
@pytest.mark.one_in(3)
def test_it_is_its_model_with_layers_skipped_or_is_refused(model_type, changes, refused, reason, monkeypatch):
    model = whole_model(tiny_config(model_type, **changes))
    before = logits(model)
    for mask in ((), *MASKS):
        if mask in refused:
            for asked in (model, on_meta(model)):
                with pytest.raises(BrokenRuleError) as caught:
                    make_submodel(asked, mask)
                assert reason in str(caught.value)
                assert "\n" not in str(caught.value)
            continue
        submodel = check_skips(model, mask, monkeypatch)
        own = {weight.data_ptr() for weight in submodel.parameters()}
        assert own <= {weight.data_ptr() for weight in model.parameters()}
        assert not any(buffer.is_meta for buffer in submodel.buffers())
        make_submodel(on_meta(model), mask)
    assert torch.equal(logits(model), before)
    assert not [hook for module in model.modules() for hook in module._forward_hooks.values()]


@pytest.mark.slow
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_of_every_model_type(model_type, monkeypatch):
    try:
        model = whole_model(tiny_config(model_type))
    except (AttributeError, ImportError):
        pytest.skip("transformers cannot make one")
    for mask in MASKS:
        try:
            make_submodel(model, mask)
        except BrokenRuleError:
            continue
        check_skips(model, mask, monkeypatch)


def test_gradients_stay_as_they_are():
    model = whole_model(tiny_config("llama"))
    make_submodel(model, (1,))
    assert not any(parameter.requires_grad for parameter in model.parameters())
    model.requires_grad_()
    assert all(parameter.requires_grad for parameter in make_submodel(model, (1,)).parameters())


def test_it_has_its_own_cache():
    slim, cache = make_submodel(whole_model(tiny_config("llama")), (1,)), DynamicCache()
    slim(input_ids=TOKENS[:, :9], **{cache_argument(slim): cache})
    stepwise = slim(input_ids=TOKENS[:, 9:], **{cache_argument(slim): cache}).logits
    assert cache.get_seq_length() == TOKENS.shape[1]
    assert len(cache.layers) == 2
    torch.testing.assert_close(stepwise, logits(slim)[:, 9:])


def test_layers_that_depend_on_their_number_are_refused_in_half_precision_too():
    model = whole_model(tiny_config("diffllama")).to(torch.bfloat16)
    with pytest.raises(BrokenRuleError, match=r"another number, .* of DiffLlamaForCausalLM is not, got lambda_init"):
        make_submodel(model, (0,))
    assert make_submodel(model, (2,)).config.num_hidden_layers == 2  # the others keep their numbers


def test_a_list_by_layer_that_is_left_alone_is_found_by_the_check(monkeypatch):
    """SmolLM3 turns no positions in some layers, and says so in a list beside `layer_types`."""
    model = whole_model(tiny_config("smollm3", no_rope_layers=[1, 0, 1]))

    def careless(model, kept):
        config = copy.deepcopy(model.config)
        config.num_hidden_layers = len(kept)
        return config

    monkeypatch.setattr(parts, "_config_of", careless)
    with pytest.raises(BrokenRuleError, match="layers that are the same under another number"):
        make_submodel(model, (0,))


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
