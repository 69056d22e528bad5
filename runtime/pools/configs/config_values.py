"""Values of a config.json that could not be a model's: wrong types, zeros, numbers without bound.

Only fields that decoders share are looked at; a field that is absent takes the default of its model type.
"""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from math import isfinite
from types import NoneType
from typing import Any, get_args, get_origin

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ...broken_rule import ConfigError

RULES = tomllib.loads(files(__package__).joinpath("config_rules.toml").read_text(encoding="utf-8"))


def check_values(values: Mapping[str, Any]) -> None:
    """Raises ConfigError for the first field of a config.json, or of its text part, whose value breaks a rule."""
    text = values.get("text_config")
    if isinstance(text, Mapping):
        try:
            check_values(text)
        except ConfigError as error:
            raise ConfigError(f"text_config.{error.field}", error.rule, error.value) from None
    for field in values:
        if _is_of_its_type(values, field):
            continue
        if field in RULES["most"]:
            _check_count(field, values[field])
        elif field in RULES["positive"] or field in RULES["positive_or_null"]:
            _check_positive(field, values[field])
        elif field in RULES["flags"] and not isinstance(values[field], bool):
            raise ConfigError(field, "must be true or false", values[field])
    _check_heads(values)
    _check_layer_types(values)


def _is_of_its_type(values: Mapping[str, Any], field: str) -> bool:
    """Whether the config class of its model type takes null, or a list, where most others take a number."""
    value, model_type = values[field], values.get("model_type")
    if not isinstance(value, list | None) or not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        return False
    declared: Any = getattr(CONFIG_MAPPING[model_type], "__dataclass_fields__", {}).get(field)
    kinds = () if declared is None else get_args(declared.type)
    return (NoneType if value is None else list) in [get_origin(kind) or kind for kind in kinds]


def _check_count(field: str, value: object) -> None:
    # A window of 0 means none in configs of Qwen.
    least = 0 if field == "sliding_window" else 1
    if value is None and field in RULES["count_or_null"]:
        return
    most = RULES["most"][field]
    if type(value) is not int or not least <= value <= most:
        raise ConfigError(field, f"must be a whole number from {least} to {most:,}", value)


def _check_positive(field: str, value: object) -> None:
    if value is None and field in RULES["positive_or_null"]:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
        raise ConfigError(field, "must be a number above 0", value)


def _check_heads(values: Mapping[str, Any]) -> None:
    """Heads share the width among them, and groups of them share keys and values."""
    width, heads = values.get("hidden_size"), values.get("num_attention_heads")
    groups = values.get("num_key_value_heads")
    if heads is None:
        return
    if width is not None and values.get("head_dim") is None and width % heads:
        raise ConfigError("hidden_size", f"must be a multiple of num_attention_heads ({heads})", width)
    if groups is not None and heads % groups:
        raise ConfigError("num_key_value_heads", f"must divide num_attention_heads ({heads})", groups)


def _check_layer_types(values: Mapping[str, Any]) -> None:
    kinds, layers = values.get("layer_types"), values.get("num_hidden_layers")
    if kinds is None:
        return
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise ConfigError("layer_types", "must be a list of texts", kinds)
    if layers is not None and len(kinds) != layers:
        raise ConfigError("layer_types", f"must name the kind of each of {layers} layers", kinds)
