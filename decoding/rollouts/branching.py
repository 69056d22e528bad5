"""Where the continuations of a prompt branch, in words such as `4@0/2@32/2@64`.

Four paths start at the prompt, each goes on as two after 32 tokens of answer, and each of those as two after 64: 16
answers. The path that is there goes on under its own id as the first of them; the others are requests of their own,
whose prompts hold what the path has written until then.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from ...arguments import ArgumentError

MOST_PATHS = 10_000  # of one prompt: more is a slip of the pen
_BRANCH = re.compile(r"([0-9]{1,9})@([0-9]{1,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One depth at which paths branch.

    Attributes:
        ways: paths that each path goes on as, itself among them, >= 1.
        depth: tokens of the answer before that, counted from the prompt, >= 0.
    """

    ways: int
    depth: int


class Fork(NamedTuple):
    """Where a path that is a request of its own begins.

    Attributes:
        request_id: of the path: its parent's id, a dot, and a number that counts the parent's children from 1.
        parent_id: of the path that it leaves.
        depth: tokens of answer that both share.
    """

    request_id: str
    parent_id: str
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """How every prompt of a run branches.

    Attributes:
        branches: with depths that ascend.

    Raises:
        ArgumentError: no branch, fewer than one way, depths that do not ascend, or more than 10,000 paths.
    """

    branches: tuple[Branch, ...]

    def __post_init__(self) -> None:
        if not self.branches:
            raise ArgumentError("`rollouts` must branch somewhere, such as 4@0, got nothing")
        last = -1
        for branch in self.branches:
            if branch.ways < 1:
                raise ArgumentError(f"`rollouts` must have >= 1 ways at depth {branch.depth}, got {branch.ways}")
            if branch.depth <= last:
                rule = "must be >= 0" if last < 0 else f"must ascend, each greater than the one before ({last})"
                raise ArgumentError(f"`rollouts` depths {rule}, got {branch.depth}")
            last = branch.depth
        if self.num_paths > MOST_PATHS:
            raise ArgumentError(f"`rollouts` must make <= {MOST_PATHS:,} paths of a prompt, got {self.num_paths:,}")

    def __str__(self) -> str:
        return "/".join(f"{branch.ways}@{branch.depth}" for branch in self.branches)

    @property
    def num_paths(self) -> int:
        """Answers to each prompt."""
        return prod(branch.ways for branch in self.branches)

    def forks(self, request_id: str) -> tuple[Fork, ...]:
        """All paths of a prompt but the first, which has its id; in order of depth, and of their parents there."""
        children = {request_id: 0}
        forks: list[Fork] = []
        for branch in self.branches:
            for parent in list(children):
                for _ in range(branch.ways - 1):
                    children[parent] += 1
                    child = f"{parent}.{children[parent]}"
                    children[child] = 0
                    forks.append(Fork(child, parent, branch.depth))
        return tuple(forks)

    def check(self, request_ids: Iterable[str], max_new_tokens: int) -> None:
        """Refuse what no run can be.

        Raises:
            ArgumentError: a path that would have no token left, or that would be called as a prompt is.
        """
        deepest = self.branches[-1].depth
        if deepest >= max_new_tokens:
            rule = f"depths must be < {max_new_tokens}, the `max_new_tokens` of an answer"
            raise ArgumentError(f"`rollouts` {rule}, got {deepest}")
        prompts = set(request_ids)
        for prompt in prompts:
            for fork in self.forks(prompt):
                if fork.request_id in prompts:
                    rule = f"a path of prompt {prompt!r} is called {fork.request_id!r}, as another prompt is"
                    raise ArgumentError(f"`rollouts` must give ids of their own: {rule}")


def rollouts_of(given: str | Rollouts) -> Rollouts:
    """What a text such as `4@0/2@32` says; raises ArgumentError for one that says nothing, and as `Rollouts`."""
    if isinstance(given, Rollouts):
        return given
    branches = []
    for part in given.split("/"):
        found = _BRANCH.fullmatch(part)
        if found is None:
            raise ArgumentError(f"`rollouts` must be WAYS@DEPTH/..., such as 4@0/2@32, got {given!r}")
        branches.append(Branch(ways=int(found[1]), depth=int(found[2])))
    return Rollouts(branches=tuple(branches))
