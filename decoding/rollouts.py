"""Where the continuations of a prompt branch, in words such as `4@0/2@32/2@64`, and which of them may start.

Here four paths start at the prompt, each becomes two after 32 tokens of answer, and each of those two after 64: 16
answers. The parent path continues under its own id as the first. The others are sessions of their own: their prompts
hold what the path has written until then, their budgets are what the answer has left, and they draw by their own ids.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..base.errors import ArgumentError
from ..base.names import Branch, as_text, branches_of, check_branches, num_paths_of
from .session import Session

_NAME = "`rollouts`"


class Fork(NamedTuple):
    """Where a path that is a request of its own begins."""

    request_id: str  # of the path: its parent's id, a dot, and the child's number from 1
    parent_id: str  # of the path that it branches from
    depth: int  # tokens of answer that both share


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """How every prompt of a run branches; raises ArgumentError as `check_branches`."""

    branches: tuple[Branch, ...]  # with depths that ascend

    def __post_init__(self) -> None:
        check_branches(_NAME, self.branches)

    def __str__(self) -> str:
        return as_text(self.branches)

    @property
    def num_paths(self) -> int:
        """Answers per prompt."""
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
        """Raises ArgumentError for a path that would have no token left, or that would have the id of a prompt."""
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
    """Parse a text such as `4@0/2@32`; raises ArgumentError for anything else, for an empty text, and as `Rollouts`."""
    if isinstance(given, Rollouts):
        return given
    if not isinstance(given, str):
        raise ArgumentError(f"{_NAME} must be text, as 4@0/2@32, got {given!r}")
    return Rollouts(branches=branches_of(_NAME, given))


class Lost(NamedTuple):
    """A path that cannot start."""

    fork: Fork  # where it would have begun
    tag: str  # of its prompt
    num_prompt: int  # tokens that its prompt would have had
    reason: str  # one line that names the path


class RolloutGrowth:
    """The rollouts of one run. Mutated by `ripe` and `ended`, which the caller of the loop calls with sessions.

    `roots` has one session for each prompt, whose paths `Rollouts.check` has seen.

    Attributes:
        sessions: of all paths that could start so far, by id.
        starts: by path that branched from another, the tokens of answer that its prompt holds.
        lost: paths that could not start, by id.
    """

    def __init__(self, rollouts: Rollouts, roots: Sequence[Session]) -> None:
        self.rollouts = rollouts
        self.sessions = {root.request_id: root for root in roots}
        self.starts: dict[str, int] = {}
        self.lost: dict[str, Lost] = {}
        self._roots = tuple(root.request_id for root in roots)
        self._awaited: dict[str, list[Fork]] = {}
        for root in self._roots:
            for fork in rollouts.forks(root):
                self._awaited.setdefault(fork.parent_id, []).append(fork)

    @property
    def num_paths(self) -> int:
        """Answers of the whole run."""
        return len(self._roots) * self.rollouts.num_paths

    def paths(self) -> Iterable[tuple[str, Fork | None]]:
        """Ids of all paths, prompt by prompt, and where they begin; None at the prompt itself."""
        for root in self._roots:
            yield root, None
            for fork in self.rollouts.forks(root):
                yield fork.request_id, fork

    def ripe(self, session: Session) -> list[Session]:
        """The paths that may branch from this one now, and those that may at once branch from them."""
        awaited = self._awaited.get(session.request_id)
        if not awaited:
            return []
        grown: list[Session] = []
        start = self.starts.get(session.request_id, 0)
        while awaited and _goes_beyond(session, awaited[0].depth - start):
            child = self._leave(session, awaited.pop(0))
            grown += [child, *self.ripe(child)]
        return grown

    def ended(self, session: Session, error: Exception | None) -> list[Lost]:
        """The paths that cannot start, as this one has ended (`error`: it failed); to be called after `ripe`."""
        length = self.starts.get(session.request_id, 0) + len(session.emitted)
        why = f"ended after {length}" if error is None else "failed before"
        return self._lost(session, session.request_id, why)

    def _lost(self, session: Session, parent_id: str, why: str) -> list[Lost]:
        lost: list[Lost] = []
        start = self.starts.get(session.request_id, 0)
        for fork in self._awaited.pop(parent_id, ()):
            rule = f"must leave {fork.parent_id} after {fork.depth} tokens of answer, which {why}"
            one = Lost(fork, session.tag, session.num_prompt + fork.depth - start, f"request {fork.request_id}: {rule}")
            self.lost[fork.request_id] = one
            lost += [one, *self._lost(session, fork.request_id, "never started")]
        return lost

    def _leave(self, parent: Session, fork: Fork) -> Session:
        start = self.starts.get(parent.request_id, 0)
        shared = parent.emitted[: fork.depth - start]
        self.starts[fork.request_id] = fork.depth
        child = parent.branch(fork.request_id, shared)
        self.sessions[fork.request_id] = child
        return child


def _goes_beyond(session: Session, num_tokens: int) -> bool:
    """Whether something may follow the first `num_tokens` of a session's own answer."""
    num_emitted = len(session.emitted)
    return num_emitted > num_tokens or (num_emitted == num_tokens and not session.done)


def growth_of(rollouts: Rollouts, roots: Sequence[Session], sampling: str) -> RolloutGrowth:
    """The rollouts of a new run, with one session for each prompt, all of one budget.

    Raises ArgumentError as `Rollouts.check`, or for several paths of greedy sampling, which would all be the same.
    """
    if sampling == "greedy" and rollouts.num_paths > 1:
        rule = "`rollouts` must be sampled (`sampling` coupled or rejection), as greedy paths would all be the same"
        raise ArgumentError(f"{rule}, got {rollouts} with greedy")
    if roots:
        rollouts.check((root.request_id for root in roots), roots[0].budget)
    return RolloutGrowth(rollouts, roots)
