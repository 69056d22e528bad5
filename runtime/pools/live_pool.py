"""A pool of models that a program holds already, instead of a pool file."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedModel

from ...decoding.prompt_lookup import LookupRule
from ...traces.meta import NAME_PATTERN
from ..forward.layer_masks import attention_of
from ..forward.mask_check import check_masks
from ..tokenizers.pieces import num_token_ids
from .configs.supported_models import check_supported
from .loaded_members import LoadedMember, LoadedMembers, describe_lookup, describe_model, table_rows
from .submodel import make_submodel

TARGET, NGRAM = "target", "ngram"


def live_pool(
    target: PreTrainedModel,
    assistants: Sequence[PreTrainedModel] | Mapping[str, PreTrainedModel] = (),
    *,
    context_tokens: int,
    eos_token_ids: tuple[int, ...],
    lookup: LookupRule | None = None,
    slims: Mapping[str, tuple[int, ...]] | None = None,
    names: Sequence[str] | None = None,
    target_tokenizer: object = None,
    assistant_tokenizers: Sequence[object] | None = None,
    copy_weights: bool = False,
) -> LoadedMembers:
    """Put models together; they are not changed.

    Args:
        target: writes the text; called `target`.
        assistants: smaller models in any order, or by name; may be none.
        context_tokens: longest context, >= 1.
        eos_token_ids: tokens that end a text; may be none.
        lookup: of a member `ngram` that copies from the text; None for none.
        slims: submodels of the target by name, each with the layers that it leaves out.
        names: of the assistants, in their order; default `assistant0`, `assistant1` ... from the smallest.
        target_tokenizer: needed where an assistant has its own.
        assistant_tokenizers: of the assistants, in their order; None for those that share the target's.
        copy_weights: whether copies of weights may be made, where those are quicker to multiply by.

    Raises:
        ValueError: a model that cannot stand in a pool with this target, names that are wrong, or tokenizers that
            cannot be aligned.
    """
    if isinstance(assistants, Mapping):
        if names is not None:
            raise ValueError(f"assistant_names must be left out where assistants have names, got {_counted(names)}")
        names, assistants = list(assistants), list(assistants.values())
    if not isinstance(assistants, Sequence):
        raise ValueError(f"assistant_models must be a list of models, got {_counted(assistants)}")
    rows = _rows(assistants, names, assistant_tokenizers)
    models = [_member(name, model, tokenizer, context_tokens) for name, model, tokenizer in rows]
    largest = _member(TARGET, target, None, context_tokens)
    shared = _own_copy("target_tokenizer", target_tokenizer)
    for member in models:
        _check_beside(member, largest, shared)
    models += [_slim(name, target, skipped) for name, skipped in (slims or {}).items()]
    models.sort(key=lambda member: member.num_parameters)
    members = [*([] if lookup is None else [describe_lookup(NGRAM, lookup)]), *models, largest]
    pool = LoadedMembers(
        members=tuple(members),
        tokenizer=shared,
        eos_token_ids=eos_token_ids,
        context_tokens=context_tokens,
        copy_weights=copy_weights,
    )
    for member in members:
        if member.tokenizer is not None:
            _check_tokens("assistant_tokenizers", member.tokenizer, member)
            _check_tokens("target_tokenizer", pool.tokenizer, pool.target)
            pool.alignment(member.name)
    return pool


def _slim(name: str, target: PreTrainedModel, skipped: tuple[int, ...]) -> LoadedMember:
    try:
        return describe_model(name, "submodel", make_submodel(target, skipped), None)
    except ValueError as error:
        raise ValueError(f"skip_layers of {name}: {error}") from error


def _rows(
    assistants: Sequence[PreTrainedModel], names: Sequence[str] | None, tokenizers: Sequence[object] | None
) -> list[tuple[str, PreTrainedModel, Tokenizer | None]]:
    """Name, model and tokenizer of the assistants, smallest first."""
    for field, given in (("assistant_names", names), ("assistant_tokenizers", tokenizers)):
        if given is None:
            continue
        if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != len(assistants):
            rule = f"must be a list of {len(assistants)}, one per assistant model"
            raise ValueError(f"{field} {rule}, got {_counted(given)}")
    for model in assistants:
        if not isinstance(model, PreTrainedModel):
            raise ValueError(f"assistant_models must be models of transformers, got {type(model).__name__}")
    order = sorted(range(len(assistants)), key=lambda index: _num_parameters(assistants[index]))
    return [
        (
            f"assistant{place}" if names is None else checked_name("assistant_names", names[index]),
            assistants[index],
            None if tokenizers is None else _own_copy("assistant_tokenizers", tokenizers[index]),
        )
        for place, index in enumerate(order)
    ]


def _counted(given: object) -> str:
    """A list in a few words: items such as tokenizers fill many lines."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        return f"a list of {len(given)}"
    return type(given).__name__


def _num_parameters(model: PreTrainedModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def checked_name(field: str, name: object) -> str:
    """A name that a member may have; raises ValueError for another."""
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name) or name == TARGET:
        raise ValueError(f"{field} must be letters, digits and . _ + -, and not {TARGET!r}, got {name!r}")
    return name


def _own_copy(field: str, tokenizer: object) -> Tokenizer | None:
    """The tokenizer below one of transformers; a copy, since padding and truncation are switched off."""
    if tokenizer is None:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(backend, Tokenizer):
        raise ValueError(f"{field} must be fast tokenizers, got {type(tokenizer).__name__}")
    copy: Tokenizer = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _member(name: str, model: PreTrainedModel, tokenizer: Tokenizer | None, context_tokens: int) -> LoadedMember:
    config: Any = model.config
    try:
        check_supported(config, type(model), context_tokens=context_tokens)
    except ValueError as error:
        raise ValueError(f"{name} cannot be used: {error}") from error
    if config._attn_implementation != attention_of(config):
        wanted = f"attn_implementation={attention_of(config)!r}"
        raise ValueError(f"{name} must be loaded with {wanted}, got {config._attn_implementation!r}")
    if model.tp_size is not None and model.tp_size > 1:
        raise ValueError(
            f"{name} must be whole, got one split over {model.tp_size} processes; a pool file can split it"
        )
    if model.training:
        raise ValueError(f"{name} must be in evaluation mode (call its eval()), got training mode")
    try:
        check_masks(model)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from error
    most = getattr(config, "max_position_embeddings", None)
    if most is not None and context_tokens > most:
        raise ValueError(f"prompt and answer must fit into the {most} positions of {name}, got {context_tokens} tokens")
    return describe_model(name, "model", model, tokenizer)


def _check_tokens(field: str, tokenizer: Tokenizer | None, member: LoadedMember) -> None:
    """The model must have a row for every token, or looking it up fails in the middle of a text."""
    config: Any = None if member.model is None else member.model.config
    num_tokens = 0 if tokenizer is None else tokenizer.get_vocab_size()
    if num_tokens > config.vocab_size:
        raise ValueError(
            f"{field} must not have more tokens than {member.name} ({config.vocab_size}), got {num_tokens}"
        )


def _check_beside(member: LoadedMember, target: LoadedMember, tokenizer: Tokenizer | None) -> None:
    rows, of_target = table_rows(member), table_rows(target)
    if member.tokenizer is None and rows != of_target:
        if tokenizer is None:
            raise ValueError(
                f"{member.name} must have the target's vocabulary size ({of_target}), or target_tokenizer must say how "
                "many tokens both share, or the assistant needs a tokenizer of its own in assistant_tokenizers, "
                f"got {rows}"
            )
        if rows < num_token_ids(tokenizer):
            raise ValueError(
                f"{member.name} must have a row for each of the {num_token_ids(tokenizer)} tokens of target_tokenizer, "
                f"or a tokenizer of its own in assistant_tokenizers, got {rows}"
            )
    if member.num_parameters > target.num_parameters:
        raise ValueError(
            f"{member.name} must not have more parameters than the target ({target.num_parameters:,}), "
            f"got {member.num_parameters:,}"
        )
