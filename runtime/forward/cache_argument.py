"""What a model's forward calls the cache it is given: `cache` since transformers 5.24, `past_key_values` before."""

import inspect

from transformers import PreTrainedModel

CACHE_ARGUMENTS = ("cache", "past_key_values")


def find_cache_argument(model_class: type[PreTrainedModel]) -> str | None:
    """The name in the signature of the forward, as a model's own code may be older than transformers; None for none."""
    arguments = inspect.signature(model_class.forward).parameters
    return next((name for name in CACHE_ARGUMENTS if name in arguments), None)


def cache_argument(model: PreTrainedModel) -> str:
    """The name for a call of this model; raises ValueError if its forward takes no cache."""
    name = find_cache_argument(type(model))
    if name is None:
        raise ValueError(f"model must be one whose forward takes a cache, got {type(model).__name__}")
    return name
