"""Configs of models by the names of their shapes: those that people serve, and some for processors (sizes.toml)."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from ...traces.shapes.decoder import Decoder, presets
from ...traces.shapes.named import model_called

# By (biases of queries, keys and values; norms of the hidden size; norms of a head), in a layer.
_FAMILIES: dict[tuple[bool, int, int], type[PreTrainedConfig]] = {
    (False, 2, 0): LlamaConfig,
    (True, 2, 0): Qwen2Config,
    (False, 2, 2): Qwen3Config,
}


@cache
def sized_shapes() -> Mapping[str, Decoder]:
    """Shapes for processors by name, small ones first."""
    shapes = tomllib.loads(files(__package__).joinpath("sizes.toml").read_text(encoding="utf-8"))
    return {name: Decoder(**shape) for name, shape in shapes.items()}


def preset_names() -> tuple[str, ...]:
    """All names that `preset_config` takes, as tables show them; others that mean one of these do as well."""
    return (*sized_shapes(), *(name for name, shape in presets().items() if _is_made(shape)))


def preset_config(text: str, *, context_tokens: int) -> PreTrainedConfig | None:
    """The config of the shape that a text names, `20M`, `llama-3-8b` or `Qwen3-0.6B`; None if it names none.

    Args:
        text: a name.
        context_tokens: positions the model is made for; its seconds do not depend on them.
    """
    shape = sized_shapes().get(text.upper()) or presets().get(model_called(text) or text.lower())
    if shape is None or not _is_made(shape):
        return None
    return _FAMILIES[_family(shape)](
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        max_position_embeddings=context_tokens,
        tie_word_embeddings=shape.tied,
    )


def _is_made(shape: Decoder) -> bool:
    """Whether a config here has the shape; mixtures of experts have none, and a dense one would be far too small."""
    return shape.mixture is None and _family(shape) in _FAMILIES


def _family(shape: Decoder) -> tuple[bool, int, int]:
    return shape.bias, shape.norms, shape.head_norms
