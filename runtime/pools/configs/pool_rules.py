"""The rules between the members of a pool, asked of their configs before any weights are loaded."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..pool_file import PoolFile, PoolFileError
from .end_tokens import EOS_FIELD
from .member_config import MemberConfig


def check_configs(
    file: Path, content: PoolFile, configs: Mapping[str, MemberConfig], tokenizer: Tokenizer | None
) -> None:
    """Vocabularies and positions; raises PoolFileError.

    Args:
        file: the pool file.
        content: of it.
        configs: by name, of members with a path; the target's at least.
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
            rule = f"must have the target's vocabulary size ({vocab_size})"
            raise PoolFileError(file, f"members[{row}]", rule, int(config.vocab_size))
        if content.context_tokens > config.max_position_embeddings:
            rule = f"must be <= {config.max_position_embeddings}, the positions of {entry.name}"
            raise PoolFileError(file, "context_tokens", rule, content.context_tokens)


def check_order(file: Path, names: Sequence[str], num_parameters: Sequence[int]) -> None:
    """Members stand in order of parameters; raises PoolFileError."""
    largest = 0
    for row, (name, count) in enumerate(zip(names, num_parameters, strict=True)):
        if count < largest:
            rule = f"must stand in order of parameters ({largest} before {count})"
            raise PoolFileError(file, f"members[{row}]", rule, name)
        largest = count


def end_tokens_of_target(content: PoolFile, configs: Mapping[str, MemberConfig]) -> tuple[int, ...]:
    """Tokens that end a text of the pool, one at least; raises PoolFileError."""
    target = configs[content.members[-1].name]
    if not target.eos_token_ids:
        rule = "must name the tokens that end a text of the target, where generate() looks for them"
        raise PoolFileError(target.eos_file, EOS_FIELD, rule, None)
    return target.eos_token_ids
