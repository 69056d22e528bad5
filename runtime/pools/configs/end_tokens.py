"""Which tokens end a text: those that `generate()` of transformers stops at, and nowhere else decided.

`generate()` reads `eos_token_id` of the model's generation config alone. That is the content of generation_config.json
where the model has one, whether or not it names an end; the model's config.json counts only where there is no such
file (transformers 5.23, `GenerationMixin.adjust_generation_fn` and `_prepare_generation_config`).
"""

from transformers import PreTrainedModel

from ...broken_rule import ConfigError

EOS_FIELD = "eos_token_id"


def end_tokens(model: PreTrainedModel) -> tuple[int, ...]:
    """Tokens that end a text of a loaded model, in the order its generation config names them; none if it names none.

    Raises:
        ConfigError: what it names are not ids of the model's vocabulary.
    """
    return checked_end_tokens(getattr(model.generation_config, EOS_FIELD, None), int(model.config.vocab_size))


def checked_end_tokens(given: object, vocab_size: int) -> tuple[int, ...]:
    """The ids that an `eos_token_id` names: one, a list of them, or none; each once.

    Raises:
        ConfigError: anything but ids from 0 to `vocab_size` - 1.
    """
    listed: list[object] = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    ids = [token for token in listed if type(token) is int and 0 <= token < vocab_size]
    if len(ids) < len(listed):
        raise ConfigError(EOS_FIELD, f"must be ids from 0 to {vocab_size - 1}", given)
    return tuple(dict.fromkeys(ids))
