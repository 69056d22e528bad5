"""Reading `draft:4/mid:8/target`: members from smallest to target, each but the last with its window.

Also with ranges of windows, `draft:1..4/mid:4..8:2/target`: every chain with a window out of each range.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from ..decoding.pool import Pool

# At most seven digits: no window is longer, and no text makes a number that takes long to read.
_RANGE = re.compile(r"(?P<first>\d{1,7})(?:\.\.(?P<last>\d{1,7})(?::(?P<step>\d{1,7}))?)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSpec:
    """A chain.

    Attributes:
        members: names from smallest to target.
        windows: one per member but the last, >= 1: tokens the lowest drafts, or a verifier keeps, before the next
            level judges them.
    """

    members: tuple[str, ...]
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
    twice = [name for index, name in enumerate(members) if name in members[:index]]
    if twice:
        raise ValueError(f"chain {text!r}: {twice[0]} stands twice")
    if levels != sorted(levels):
        raise ValueError(f"chain {text!r}: members must go from smallest to largest: {', '.join(pool.names)}")
    for level in levels[1:]:
        if not pool.members[level].verifies:
            raise ValueError(f"chain {text!r}: {pool.names[level]} cannot verify and can only stand first")
    if levels[-1] != pool.target_level:
        raise ValueError(f"chain {text!r}: the last member must be the target {pool.target}, got {members[-1]!r}")


def chains_in(texts: Sequence[str], pool: Pool, *, most: int) -> tuple[ChainSpec, ...]:
    """Every chain that the texts hold, each once, in the order of the texts and their windows.

    Args:
        texts: chains whose windows are numbers or `FIRST..LAST` or `FIRST..LAST:STEP`, both ends included.
        pool: the members.
        most: chains at most, counted before any is made.

    Raises:
        ValueError: a text that is no such chain, or more chains than `most`.
    """
    ranges = {text: _ranges(text) for text in texts}
    count = sum(prod(len(windows) for windows in parts) for parts in ranges.values())
    if count > most:
        raise ValueError(f"a sweep must hold {most:,} cells at most, got {count:,} chains in {', '.join(ranges)}")
    chains: dict[str, ChainSpec] = {}
    for text, parts in ranges.items():
        members = [part.partition(":")[0] for part in text.split("/")]
        for windows in product(*parts):
            below = [f"{name}:{window}" for name, window in zip(members, windows, strict=False)]
            chain = "/".join([*below, text.split("/")[-1]])
            chains[chain] = parse_chain(chain, pool)
    return tuple(chains.values())


def _ranges(text: str) -> list[range]:
    """The windows of each member but the last."""
    return [_windows(text, part) for part in text.split("/")[:-1]]


def _windows(text: str, part: str) -> range:
    name, colon, windows = part.partition(":")
    found = _RANGE.fullmatch(windows)
    if not colon or found is None:
        raise ValueError(
            f"sweep {text!r}: {part!r} needs a window or a range, as in {name}:4, {name}:1..8, {name}:1..9:2"
        )
    first = int(found["first"])
    last = first if found["last"] is None else int(found["last"])
    step = 1 if found["step"] is None else int(found["step"])
    if not 1 <= first <= last or step < 1:
        raise ValueError(
            f"sweep {text!r}: windows of {name} must go up from 1 or more, in steps of 1 or more, got {windows}"
        )
    return range(first, last + 1, step)
