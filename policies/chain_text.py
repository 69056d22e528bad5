"""Texts of chains, read: `draft:4/mid:8/target`, and ranges of windows; and which options a policy takes.

A chain lists members from smallest to target, each but the last with its window; `draft:1..4/mid:4..8:2/target` is
every chain with a window out of each range. A constructor's parameter of type `Policy` takes another policy, and one
with `**name: Policy` takes a policy under any key. Also the policies to compare if none are named.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..base.by_name import any_key_of, kinds_of, options_of
from ..base.errors import ArgumentError, repeated
from ..decoding.legal_steps import Policy
from ..decoding.pool import Pool
from .ranges import policy_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSpec:
    """A chain."""

    members: tuple[str, ...]  # names from smallest to target
    # one per member but the last, >= 1: tokens the lowest drafts, or a verifier keeps, before the next level judges
    # them
    windows: tuple[int, ...]

    def __str__(self) -> str:
        below = [f"{name}:{window}" for name, window in zip(self.members, self.windows, strict=False)]
        return "/".join([*below, self.members[-1]])


def parse_chain(text: str, pool: Pool) -> ChainSpec:
    """The chain `text` names; raises ValueError with the part that is wrong."""
    *below, target = text.split("/")
    members: list[str] = []
    windows: list[int] = []
    for part in below:
        name, colon, window = part.partition(":")
        if not colon:
            raise ValueError(f"chain {text!r}: {part!r} needs a window, as in {name}:4")
        if not window.isascii() or not window.isdigit() or int(window) < 1:
            raise ValueError(f"chain {text!r}: the window of {name} must be a whole number >= 1, got {window!r}")
        members.append(name)
        windows.append(int(window))
    if ":" in target:
        raise ValueError(
            f"chain {text!r}: it must end in the target, {pool.target}, without a window; its last part is {target!r}"
        )
    members.append(target)
    _check_order(text, members, pool)
    return ChainSpec(members=tuple(members), windows=tuple(windows))


def _check_order(text: str, members: list[str], pool: Pool) -> None:
    try:
        levels = [pool.level(name) for name in members]
    except ValueError as error:
        raise ValueError(f"chain {text!r}: {error}") from None
    twice = repeated(members)
    if twice:
        raise ValueError(f"chain {text!r}: {twice[0]} is repeated")
    if levels != sorted(levels):
        raise ValueError(f"chain {text!r}: members must go from smallest to largest: {', '.join(pool.names)}")
    for level in levels[1:]:
        if not pool.members[level].verifies:
            raise ValueError(f"chain {text!r}: {pool.names[level]} cannot verify and can only stand first")
    if levels[-1] != pool.target_level:
        raise ValueError(f"chain {text!r}: the last member must be the target {pool.target}, got {members[-1]!r}")


def chains_in(texts: Sequence[str], pool: Pool, *, most: int) -> tuple[ChainSpec, ...]:
    """Every chain that the texts hold, each once, in the order of the texts and their windows.

    Windows are numbers or ranges of them (`policies/ranges.py`). Raises ValueError for a text that is no such chain, or
    for more chains than `most`, counted before any is made.
    """
    try:
        ranges = [policy_ranges(text) for text in texts]
        count = sum(one.count for one in ranges)
    except ArgumentError as error:
        raise ValueError(f"a sweep {str(error).removeprefix('`policies` ')}") from None
    if count > most:
        raise ValueError(f"a sweep must hold {most:,} cells at most, got {count:,} chains in {', '.join(texts)}")
    chains = dict.fromkeys(text for one in ranges for text in one.policies())
    return tuple(parse_chain(text, pool) for text in chains)


BASELINE = "plain"


def default_policies(pool: Pool) -> list[str]:
    """A representative set for any pool: the target alone, chains of two and three levels, and policies that adapt."""
    target = pool.target
    free = [member.name for member in pool.members if member.model_free]
    below = [member.name for member in pool.members[:-1] if not member.model_free]
    names = [BASELINE, *(f"{model}:4/{target}" for model in below)]
    if len(below) > 1:
        names += [f"{below[0]}:3/{model}:6/{target}" for model in below[1:]]
    if free:
        names.append("ngram")
        names += [f"{free[0]}:6/{model}:6/{target}" for model in below[1:2]]
    if below:
        names += ["adaptive", "confident"]
    return names


def policies_at_windows(pool: Pool, windows: Mapping[str, int]) -> list[str]:
    """The target alone, every drafter with its window (tokens >= 1), prompt lookup, and a window that adapts.

    For the pool of a log of rounds: none needs probabilities.
    """
    names = [BASELINE, *(f"{name}:{window}/{pool.target}" for name, window in windows.items())]
    if any(member.model_free for member in pool.members):
        names.append("ngram")
    return names + [f"adaptive,draft={name},start={min(4, most)},most={most}" for name, most in windows.items()]


PolicyClass = Callable[..., Policy]


def policy_options(cls: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """The options that can be given as text: the constructor's parameters after the pool, values or policies."""
    return options_of(cls, Policy)


def any_key(cls: Callable[..., object]) -> str | None:
    """The parameter of a constructor with `**name: Policy`, policies under any key; None if it has none."""
    return any_key_of(cls, Policy)


def takes_policies(cls: Callable[..., object]) -> bool:
    """Whether it is made of other policies."""
    options = policy_options(cls).values()
    return any_key(cls) is not None or any(Policy in kinds_of(cls, option, Policy) for option in options)
