"""Which models the fused forward can stand in for."""

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, MistralForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from ..heads.subset_head import SubsetHead

FAMILIES = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def fused_supports(model: PreTrainedModel) -> str | None:
    """The reason against a fused forward of this model, None if there is none."""
    if type(model) not in FAMILIES:
        names = ", ".join(family.__name__ for family in FAMILIES)
        return f"model must be one of {names}, got {type(model).__name__}"
    return _config_reason(model) or _module_reason(model) or _tensor_reason(model)


def multiplied_weights(model: PreTrainedModel) -> list[Tensor]:
    """The weights that a fused forward multiplies by, tied ones too; none of a model that it does not support.

    Asks nothing of values, so that a model without any has the weights of one with.
    """
    if type(model) not in FAMILIES or _config_reason(model) or _module_reason(model):
        return []
    return [module.weight for name, module in model.named_modules() if name.endswith(("_proj", "lm_head"))]


def _config_reason(model: PreTrainedModel) -> str | None:
    config = model.config
    if config._attn_implementation != "sdpa":
        return f"attention must be 'sdpa', got {config._attn_implementation!r}"
    if config.hidden_act not in ("silu", "swish"):
        return f"hidden_act must be 'silu', got {config.hidden_act!r}"
    rope = model.model.rotary_emb.rope_type
    if "dynamic" in rope or rope == "longrope":
        return f"rope_type must not depend on the length of the text, got {rope!r}"
    return None


def _module_reason(model: PreTrainedModel) -> str | None:
    """Adapters, quantisation, hooks and patched forwards change what a module computes."""
    if model.training:
        return "model must be in evaluation mode, got training mode"
    for name, module in model.named_modules():
        known = (nn.Linear, SubsetHead) if name == "lm_head" else (nn.Linear,)
        if name.endswith(("_proj", "lm_head")) and type(module) not in known:
            return f"{name} must be Linear, got {type(module).__name__}"
        if name.endswith("norm") and not hasattr(module, "variance_epsilon"):
            return f"{name} must be the RMS norm of the model's family, got {type(module).__name__}"
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
            return f"forwards must be the stock ones without hooks, {name or 'the model'} has another"
    return None


def _tensor_reason(model: PreTrainedModel) -> str | None:
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        return f"weights must be of one floating-point format, got {', '.join(sorted(map(str, dtypes)))}"
    devices = {str(parameter.device) for parameter in model.parameters()}
    if len(devices) != 1 or "meta" in devices:
        return f"weights must be on one device, got {', '.join(sorted(devices))}"
    return None
