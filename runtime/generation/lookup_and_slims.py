"""What a `generate()` call asks for beside models: prompt lookup, submodels of its own model, and the default chain."""

from collections.abc import Mapping, Sequence
from numbers import Integral

from transformers import GenerationConfig

from ...decoding.pool import Pool
from ...decoding.prompt_lookup import LookupRule
from ..pools.live_pool import checked_name
from .honoured_options import shown, whole

SkipLayers = Sequence[int] | Mapping[str, Sequence[int]]

# Tokens at each handover of the default chain.
WINDOW = 4
# Of transformers, where the config does not say.
MAX_MATCH = 2


def read_lookup(config: GenerationConfig) -> tuple[LookupRule | None, int]:
    """The prompt lookup of transformers and its window; None and 0 where `prompt_lookup_num_tokens` is not given.

    Raises:
        ValueError: a window or a longest match that is no whole number from 1 on.
    """
    window, longest = config.prompt_lookup_num_tokens, config.max_matching_ngram_size
    if window is None:
        return None, 0
    return (
        LookupRule(
            max_match=MAX_MATCH if longest is None else whole("max_matching_ngram_size", longest), occurrence="first"
        ),
        whole("prompt_lookup_num_tokens", window),
    )


def read_slims(given: object) -> dict[str, tuple[int, ...]]:
    """Layers to leave out by the name of the submodel; one without a name is `slim`.

    Raises:
        ValueError: neither a list of whole numbers nor a mapping from names to such lists, or a list that is empty.
    """
    if given is None:
        return {}
    named = given if isinstance(given, Mapping) else {"slim": given}
    return {checked_name("names of skip_layers", name): _layers(layers) for name, layers in named.items()}


def _layers(given: object) -> tuple[int, ...]:
    rule = "skip_layers must be a list of layers of the model, or such lists by name"
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(f"{rule}, got {shown(given)}")
    for layer in given:
        if isinstance(layer, bool) or not isinstance(layer, Integral):
            raise ValueError(f"{rule}, got a list with {shown(layer)}")
    if not given:
        raise ValueError(f"{rule}, got an empty list")
    return tuple(map(int, given))


def default_chain(pool: Pool, lookup_tokens: int) -> str:
    """A chain of all members: plain decoding where the target is the only one."""
    windows = {name: lookup_tokens if pool.is_model_free(name) else WINDOW for name in pool.names[:-1]}
    return "/".join([*(f"{name}:{window}" for name, window in windows.items()), pool.target])
