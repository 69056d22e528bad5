"""Where the continuations of a prompt branch, in words such as `4@0/2@32/2@64`.

Four paths start at the prompt, each goes on as two after 32 tokens of answer, and each of those as two after 64: 16
answers. The path that is there goes on under its own id as the first of them; the others are requests of their own,
whose prompts hold what the path has written until then.

Where the answer of a path ends whose prompt holds the beginning of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..base.errors import ArgumentError
from ..base.names import Branch, as_text, branches_of, check_branches, num_paths_of
from .request_text import Ending

_NAME = "`rollouts`"


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
        ArgumentError: as `check_branches`.
    """

    branches: tuple[Branch, ...]

    def __post_init__(self) -> None:
        check_branches(_NAME, self.branches)

    def __str__(self) -> str:
        return as_text(self.branches)

    @property
    def num_paths(self) -> int:
        """Answers to each prompt."""
        return num_paths_of(self.branches)

    def forks(self, request_id: str) -> tuple[Fork, ...]:
        """All paths of a prompt but the first, which has its id; in order of depth, and of their parents there."""
        children = {request_id: 0}
        forks: list[Fork] = []
        for branch in self.branches:
            for parent in list(children):
                for _ in range(branch.num_paths - 1):
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
            raise ArgumentError(f"{_NAME} {rule}, got {deepest}")
        prompts = set(request_ids)
        for prompt in prompts:
            for fork in self.forks(prompt):
                if fork.request_id in prompts:
                    rule = f"a path of prompt {prompt!r} is called {fork.request_id!r}, as another prompt is"
                    raise ArgumentError(f"{_NAME} must give ids of their own: {rule}")


def rollouts_of(given: object) -> Rollouts:
    """What a text such as `4@0/2@32` says; raises ArgumentError for what is none or says nothing, and as `Rollouts`."""
    if isinstance(given, Rollouts):
        return given
    if not isinstance(given, str):
        raise ArgumentError(f"{_NAME} must be text, as 4@0/2@32, got {given!r}")
    return Rollouts(branches=branches_of(_NAME, given))


def ending_after(ending: Ending, before: Sequence[int]) -> Ending:
    """The ending of a path whose prompt holds part of its answer: what ends the whole answer ends it."""
    known = list(before)

    def ends(emitted: list[int], num_before: int) -> int | None:
        kept = ending([*known, *emitted], len(known) + num_before)
        return None if kept is None else kept - len(known)

    return ends
