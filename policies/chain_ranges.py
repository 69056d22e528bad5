"""Ranges of windows, `draft:1..4/mid:4..8:2/target`: every chain with a window out of each range."""

import re
from collections.abc import Sequence
from itertools import product
from math import prod

from ..decoding.pool import Pool
from .chain_notation import ChainSpec, parse_chain

# At most seven digits: no window is longer, and no text makes a number that takes long to read.
_RANGE = re.compile(r"(?P<first>\d{1,7})(?:\.\.(?P<last>\d{1,7})(?::(?P<step>\d{1,7}))?)?", re.ASCII)


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
