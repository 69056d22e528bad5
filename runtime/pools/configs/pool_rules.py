"""The rules between the members of a pool: loading keeps them, and a check asks them before any weights are read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedModel

from ...broken_rule import BrokenRuleError, ConfigError
from ...heads.head_tokens import read_head_tokens
from ...heads.shared_embeddings import share_embeddings
from ...heads.subset_head import SubsetHead
from ...tokenizers.alignment import Alignment
from ...tokenizers.pieces import num_token_ids
from ..low_rank import read_low_rank, restore
from ..pool_file import ForcedPoolFile, MemberEntry, PoolContent, PoolFile, PoolFileError
from ..submodel import make_submodel
from .end_tokens import EOS_FIELD
from .generation_options import IGNORE_KEY, check_left_off
from .member_config import MemberConfig


def check_configs(
    file: Path, content: PoolContent, configs: Mapping[str, MemberConfig], tokenizer: Tokenizer | None
) -> None:
    """Vocabularies and positions; raises PoolFileError.

    Args:
        file: the pool file.
        content: of it.
        configs: by name, of members with a path or a config; the target's at least.
        tokenizer: the pool's; None leaves out what it decides.
    """
    target: Any = configs[content.members[-1].name].config
    vocab_size = int(target.vocab_size)
    if tokenizer is not None and tokenizer.get_vocab_size() > vocab_size:
        rule = f"must not have more tokens than the target ({vocab_size})"
        raise PoolFileError(file, "tokenizer", rule, tokenizer.get_vocab_size())
    for row, entry in enumerate(content.members):
        if entry.name not in configs:
            continue
        config: Any = configs[entry.name].config
        if entry.tokenizer is None and config.vocab_size != vocab_size:
            if isinstance(content, ForcedPoolFile):
                rule = f"must have the target's vocabulary size ({vocab_size}); `vocab_size` gives all members one"
                raise PoolFileError(file, f"members[{row}]", rule, int(config.vocab_size))
            if tokenizer is not None:
                _check_padding(file, row, int(config.vocab_size), tokenizer)
        if content.context_tokens > config.max_position_embeddings:
            rule = f"must be <= {config.max_position_embeddings}, the positions of {entry.name}"
            raise PoolFileError(file, "context_tokens", rule, content.context_tokens)


def _check_padding(file: Path, row: int, vocab_size: int, tokenizer: Tokenizer) -> None:
    """A table of another size than the target's holds all tokens, and other rows; raises PoolFileError."""
    needed = num_token_ids(tokenizer)
    if vocab_size < needed:
        rule = (
            f"must have a row for each of the {needed} tokens of the pool's tokenizer, or a `tokenizer` of its own, "
            "with which it can draft"
        )
        raise PoolFileError(file, f"members[{row}]", rule, vocab_size)


def check_order(file: Path, names: Sequence[str], num_parameters: Sequence[int]) -> None:
    """Members stand in order of parameters; raises PoolFileError."""
    largest = 0
    for row, (name, count) in enumerate(zip(names, num_parameters, strict=True)):
        if count < largest:
            rule = f"must stand in order of parameters ({largest} before {count})"
            raise PoolFileError(file, f"members[{row}]", rule, name)
        largest = count


def end_tokens_of_target(content: PoolContent, configs: Mapping[str, MemberConfig]) -> tuple[int, ...]:
    """Tokens that end a text of the pool, one at least; raises PoolFileError."""
    target = configs[content.members[-1].name]
    if not target.eos_token_ids:
        rule = "must name the tokens that end a text of the target, where generate() looks for them"
        raise PoolFileError(target.generation_file, EOS_FIELD, rule, None)
    return target.eos_token_ids


def left_off_of_target(file: Path, content: PoolFile, configs: Mapping[str, MemberConfig]) -> dict[str, Any]:
    """Options of the target's generation config that the pool ignores, with their values.

    Raises:
        PoolFileError: an option that changes texts and is not ignored, or one to ignore that changes none.
    """
    target, ignored = configs[content.members[-1].name], content.ignore_generation_options
    for option in ignored:
        if option not in target.changed_options:
            there = ", ".join(target.changed_options) or "none"
            rule = f"must be options of {target.generation_file.name} of the target that are refused ({there})"
            raise PoolFileError(file, IGNORE_KEY, rule, option)
    try:
        check_left_off(target.changed_options, ignored)
    except ConfigError as error:
        raise PoolFileError(target.generation_file, error.field, error.rule, error.value) from error
    return {option: target.changed_options[option] for option in ignored}


def submodel_of(file: Path, row: int, entry: MemberEntry, model: PreTrainedModel) -> PreTrainedModel:
    """What an entry leaves of the model whose layers it skips, with what it adds; raises PoolFileError."""
    try:
        submodel = make_submodel(model, entry.skip_layers)
    except BrokenRuleError as error:
        raise PoolFileError(file, f"members[{row}].skip_layers", error.rule, entry.skip_layers) from error
    if entry.low_rank is None:
        return submodel
    try:
        restore(submodel, entry.skip_layers, read_low_rank(file.parent / entry.low_rank))
    except BrokenRuleError as error:
        raise PoolFileError(file, f"members[{row}].low_rank", error.rule, entry.low_rank) from error
    return submodel


def give_head(file: Path, row: int, entry: MemberEntry, model: PreTrainedModel, owner: PreTrainedModel | None) -> None:
    """Give a model the embeddings of another member and the vocabulary that its entry names; raises PoolFileError.

    Args:
        file: the pool file.
        row: of the member.
        entry: the member.
        model: of it; changed.
        owner: of the embeddings; None where the model has its own.
    """
    field = f"members[{row}]"
    if owner is not None:
        try:
            share_embeddings(model, owner)
        except BrokenRuleError as error:
            assert entry.shares is not None
            key, name = entry.shares
            raise PoolFileError(file, f"{field}.{key}", error.rule, name) from error
    if entry.vocabulary is None:
        return
    place, head = file.parent / entry.vocabulary, model.get_output_embeddings()
    if type(head) is not nn.Linear:
        rule = f"needs a model whose output head is linear, {type(model).__name__} has another"
        raise PoolFileError(file, f"{field}.vocabulary", rule, entry.vocabulary)
    try:
        tokens = read_head_tokens(place, head.out_features)
    except OSError as error:
        rule = f"must be a file that can be read ({error.strerror})"
        raise PoolFileError(file, f"{field}.vocabulary", rule, entry.vocabulary) from error
    except ValueError as error:
        raise PoolFileError(file, f"{field}.vocabulary", str(error), entry.vocabulary) from error
    at = torch.tensor(tokens, device=head.weight.device)
    model.set_output_embeddings(SubsetHead(head, at, is_of_another=owner is not None))


def check_own_tokenizer(
    file: Path,
    row: int,
    entry: MemberEntry,
    own: Tokenizer,
    configs: Mapping[str, MemberConfig],
    *,
    target: str,
    tokenizer: Tokenizer | None,
) -> None:
    """A member's own tokenizer fits its model, and is aligned with the pool's; raises PoolFileError.

    Args:
        file: the pool file.
        row: of the member.
        entry: the member.
        own: its tokenizer.
        configs: by name, the member's at least.
        target: name of the target; without its config and its end tokens nothing is aligned.
        tokenizer: the pool's; None aligns nothing.
    """
    field, config, largest = f"members[{row}].tokenizer", configs[entry.name], configs.get(target)
    vocab_size = int(config.config.vocab_size)
    if own.get_vocab_size() > vocab_size:
        rule = f"must not have more tokens than {entry.name} ({vocab_size})"
        raise PoolFileError(file, field, rule, own.get_vocab_size())
    if tokenizer is None or largest is None or not largest.eos_token_ids:
        return
    try:
        Alignment(tokenizer, own, largest.eos_token_ids[0], frozenset(config.eos_token_ids))
    except ValueError as error:
        raise PoolFileError(file, field, f"cannot be aligned ({error})", entry.tokenizer) from error
