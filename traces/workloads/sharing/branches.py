"""The notation of branching answers: `4@0/2@32` is four at the prompt, each split in two after 32 tokens."""

import re
from typing import NamedTuple

from ....arguments import ArgumentError
from ..options import MOST_COUNT

_BRANCH = re.compile(r"(\d{1,10})@(\d{1,10})", re.ASCII)
MOST_PATHS = 4096


class Branch(NamedTuple):
    """Each path so far becomes so many.

    Attributes:
        num_paths: >= 1; the path itself is the first of them.
        depth: tokens of the answer, >= 0, after which they part.
    """

    num_paths: int
    depth: int


def branches_of(name: str, text: str) -> tuple[Branch, ...]:
    """Branches, their depths ascending; raises ArgumentError, which names `name`."""
    found: list[Branch] = []
    paths = 1
    for part in text.split("/"):
        given = _BRANCH.fullmatch(part)
        if given is None:
            raise ArgumentError(f"{name} must be N@DEPTH, others behind a slash, as 4@0/2@32, got {text!r}")
        branch = Branch(int(given[1]), int(given[2]))
        paths *= branch.num_paths
        if branch.num_paths < 1:
            raise ArgumentError(f"{name} must have at least 1 path at each depth, got {part!r}")
        if paths > MOST_PATHS:
            raise ArgumentError(f"{name} must have at most {MOST_PATHS:,} paths in all, got {text!r}")
        if branch.depth > MOST_COUNT or (found and branch.depth <= found[-1].depth):
            raise ArgumentError(f"{name} must have ascending depths in [0, {MOST_COUNT}], got {text!r}")
        found.append(branch)
    return tuple(found)
