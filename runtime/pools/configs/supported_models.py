"""The models that recorder and runtime can do, and why not the others: asked before any weights are loaded.

Both feed a model chosen tokens of many contexts at once, each with its own mask, over keys and values of every token
so far, of which some are dropped again. A model has to take such a mask, and must keep nothing else of the past.
"""

import inspect
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from ...broken_rule import ConfigError
from ...forward.layer_masks import EAGER, FULL, SLIDING, attention_of, layer_windows
from ...forward.module_forward import find_cache_argument
from .config_values import RULES


def check_supported(config: PreTrainedConfig, model_class: type[PreTrainedModel], *, context_tokens: int) -> None:
    """Raises ConfigError with the first reason against a model of this config.

    Args:
        config: of the model.
        model_class: that is, or would be, built from it.
        context_tokens: longest text it is used with.
    """
    values: Any = config
    if values.is_encoder_decoder:
        raise ConfigError("is_encoder_decoder", "must be false: only decoders of text are supported", value=True)
    if values.model_type in RULES["other_models"]:
        raise ConfigError("model_type", RULES["other_models"][values.model_type], values.model_type)
    _check_state(config, model_class)
    _check_layers_alike(config)
    for field in RULES["needed_fields"]:
        if type(getattr(values, field, None)) is not int:
            rule = "must be a decoder of text alone, whose config says " + ", ".join(RULES["needed_fields"])
            raise ConfigError("model_type", f"{rule} ({field} is missing)", values.model_type)
    layer_windows(config)
    _check_attention(config, model_class)
    _check_rope(config, context_tokens)


def _check_state(config: PreTrainedConfig, model_class: type[PreTrainedModel]) -> None:
    """All a model keeps of the past must be keys and values by token, as a hybrid of attention alone does."""
    kinds = getattr(config, "layer_types", None) or ["unknown"]
    if getattr(model_class, "_is_stateful", False) and not set(kinds) <= {FULL, SLIDING}:
        rule = "must keep keys and values of every token, not a running state that cannot be rolled back"
        raise ConfigError("model_type", rule, config.model_type)


def _check_layers_alike(config: PreTrainedConfig) -> None:
    """Only feed-forward widths may be a layer's own: caches and masks are those of all layers."""
    own = sorted((getattr(config, "per_layer_attributes", None) or set()) - set(RULES["may_differ_by_layer"]))
    if own:
        rule = "must not give layers heads, windows or widths of their own"
        raise ConfigError("per_layer_config", rule, ", ".join(own))


def _check_attention(config: PreTrainedConfig, model_class: type[PreTrainedModel]) -> None:
    for field, rule in RULES["other_attention"].items():
        if getattr(config, field, None):
            raise ConfigError(field, rule, getattr(config, field))
    if attention_of(config) == "sdpa" and not getattr(model_class, "_supports_sdpa", False):
        rule = f"must be one whose attention is PyTorch's (sdpa), or one of {', '.join(sorted(EAGER))}"
        raise ConfigError("model_type", rule, config.model_type)
    if attention_of(config) == "sdpa" and getattr(config, "attn_logit_softcapping", None):
        rule = f"must be null for model_type {config.model_type}: sdpa caps no scores"
        raise ConfigError("attn_logit_softcapping", rule, config.attn_logit_softcapping)
    arguments = inspect.signature(model_class.forward).parameters
    missing = [name for name in RULES["needed_arguments"] if name not in arguments]
    if find_cache_argument(model_class) is None:
        missing.append("cache")
    if missing:
        needed = ", ".join(RULES["needed_arguments"])
        rule = f"must be one whose forward takes {needed} and cache ({missing[0]} is missing)"
        raise ConfigError("model_type", rule, config.model_type)


def _check_rope(config: PreTrainedConfig, context_tokens: int) -> None:
    """Positions that turn differently once the text is longer would spoil the keys that are held already."""
    rope: Any = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict):
        return
    # One for all layers, or one for each kind of layer.
    for one in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        original = one.get("original_max_position_embeddings")
        if one.get("rope_type") == "longrope" and original and context_tokens > original:
            rule = f"must not be longrope for contexts beyond {original} tokens (context_tokens is {context_tokens})"
            raise ConfigError("rope_parameters.rope_type", rule, "longrope")
