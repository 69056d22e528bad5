"""Policies beyond chains: members that work at the same time (`pearl`, `dsi`, `pipespec`), and token trees.

docs/policies.md describes each, and where it differs from its paper. PEARL's window is the ratio of the speeds (section
4.3), so that neither waits; DSI's the least with ceil(target_s / (lookahead draft_s)) <= servers (equation 1), of which
a request has one here.
"""

from abc import ABC
from math import ceil

from ..base.errors import ArgumentError, check_within
from ..decoding.pool import Pool
from ..decoding.seen import Observation
from ..decoding.steps import ONE_STEP, Draft, Outcome, Overlap, Step, Verify
from ..decoding.trees import DraftTree, DynamicTree, FixedTree, TreeShape, tree_shape
from .about import BRANCHES, About
from .blocks import (
    A_DRAFTER,
    A_SURE_DRAFTER,
    A_VERIFIER_BETWEEN,
    drafter_of,
    middle_verifier,
    sure_drafter,
    verifiers_between,
)
from .estimates import MemberSeconds

START, MOST, MEMORY = 4, 8, 64


class Pearl:
    """Two levels, both always running.

    Args:
        draft: the drafter; default the smallest model.
        window: tokens written ahead in each step, 1 to 1,000,000; None: as many as take the target's time. The other
            options are about the choice of these.
        start: window until both members' seconds are known, 1 to `most`; default 4, or `most` if that is less.
        most: longest window, 1 to 1,000,000; default 8.
        memory: measured steps that averages of seconds reach back, >= 1; default 64.
        costs: of forwards, as `draft:1/target:10`, in place of measured seconds.

    Attributes:
        window: of the next step.
        most_pending: tokens it may have pending, at most, those that are written ahead among them.

    Raises:
        ValueError: an option out of range or without effect beside another one, or a drafter that is not below the
            target.
    """

    about = About(paper="PEARL, arXiv:2408.11850", lossless=True, members=A_DRAFTER, works_ahead=True)

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        window: int | None = None,
        start: int | None = None,
        most: int | None = None,
        memory: int | None = None,
        costs: str | None = None,
    ) -> None:
        self._drafter, self._target = drafter_of(pool, draft), pool.target
        self._chooses = window is None
        if window is not None:
            check_within("window", window, ONE_STEP)
            _check_beside(f"window={window}", start=start, most=most, memory=memory, costs=costs)
        if costs is not None:
            _check_beside(f"costs={costs}", memory=memory)
        self._seconds = MemberSeconds(pool, costs, memory=MEMORY if memory is None else memory)
        self._most = window or (MOST if most is None else most)
        check_within("most", self._most, ONE_STEP)
        if start is not None:
            check_within("start", start, f"[1, most={self._most}]")
        self._verify = Verify(pool.target)
        self._aheads = [Overlap((self._verify, Draft(self._drafter, count))) for count in range(1, self._most + 1)]
        self.most_pending = 2 * self._most
        self.window = window or start or min(START, self._most)
        if self._chooses and self._choose() and start is not None:
            _check_beside(f"costs={costs}", start=start)

    def decide(self, seen: Observation) -> Step:
        """Judge what is pending and write after it; at the end of the text only judge."""
        room = seen.room
        if room < 1:
            return self._verify
        return self._aheads[min(self.window, room) - 1]

    def learn(self, outcome: Outcome) -> None:
        """Note the seconds, and choose the window again."""
        if self._chooses:
            self._seconds.charge(outcome)
            self._choose()

    def _choose(self) -> bool:
        """Set the window to the tokens drafted while the target judges; returns whether seconds are known."""
        verify_s = self._seconds.verify_s(self._target, self.window)
        draft_s = self._seconds.draft_s(self._drafter, 1)
        if verify_s is None or draft_s is None or draft_s <= 0.0:
            return False
        self.window = self.fitting(verify_s / draft_s)
        return True

    def fitting(self, ratio: float) -> int:
        """The window for a target that takes `ratio` times as long as a drafted token, 1 to `most`."""
        return min(max(round(ratio), 1), self._most)


def _check_beside(given: str, **options: object) -> None:
    """Raise ArgumentError for the first option that is not None: with what is given it would have no effect."""
    for name, value in options.items():
        if value is not None:
            raise ArgumentError(f"{name} does nothing beside {given}, got {value!r}")


class Dsi(Pearl):
    """Two levels; the least lookahead with which one target keeps up.

    Args:
        draft, window, start, most, memory, costs: as of `pearl`.
    """

    about = About(paper="DSI, arXiv:2405.14105", lossless=True, members=A_DRAFTER, works_ahead=True)

    def fitting(self, ratio: float) -> int:
        """The least window that takes as long as the target, 1 to `most`."""
        return min(max(ceil(ratio), 1), self._most)


class PipeSpec:
    """The drafter, members between, and the target, all running in each step.

    Args:
        draft: the drafter; default the smallest model.
        middle: the one member between; None takes all that can verify.
        window: tokens that the drafter writes in each step, 1 to 1,000,000.

    Attributes:
        most_pending: tokens it may have pending, at most, those that are written ahead among them.

    Raises:
        ValueError: an option out of range, or a pool without a member between that can verify.
    """

    about = About(paper="PipeSpec, arXiv:2505.01572", lossless=True, members=A_VERIFIER_BETWEEN, works_ahead=True)

    def __init__(self, pool: Pool, *, draft: str | None = None, middle: str | None = None, window: int = 4) -> None:
        check_within("window", window, ONE_STEP)
        drafter = drafter_of(pool, draft)
        largest = middle_verifier(pool, middle, drafter, "pipespec")
        between = verifiers_between(pool, drafter) if middle is None else [largest]
        self._verifies = tuple([Verify(name) for name in (pool.target, *reversed(between))])
        # Each verifier's own token may follow what it was given.
        self.most_pending = window * (len(self._verifies) + 1) + len(between)
        self._pipeline = Overlap((*self._verifies, Draft(drafter, window)))

    def decide(self, seen: Observation) -> Step:
        """All members at once; at the end of the text those that have tokens to judge, and no drafter."""
        if seen.has_room:
            return self._pipeline
        # A member that endorses all pending tokens, or is above one that does, has nothing to do, unless it is the
        # target.
        at_work = tuple([step for step in self._verifies if step.model == seen.pool.target or seen.waiting(step.model)])
        return Overlap(at_work) if len(at_work) > 1 else at_work[0]

    def learn(self, outcome: Outcome) -> None:
        """Nothing is learnt: the steps follow from the text alone."""


class DraftedTrees(ABC):
    """Draft a tree and judge it in turns; where a token at most has room, the target decodes alone.

    Args:
        policy: its name, for errors.
        draft: the drafter; None is the smallest model.
        through: a member that judges the tree before the target does; None is the target at once.
        shape: of the trees.

    Attributes:
        trees: the step that drafts, for a recorder of what it needs.
        most_pending: tokens that may be pending, at most.
        most_off_trunk: tokens that may follow one another off the target's text, at most.
    """

    about: About

    def __init__(self, pool: Pool, policy: str, draft: str | None, through: str | None, shape: TreeShape) -> None:
        drafter = sure_drafter(pool, draft, policy)
        self.trees = (DraftTree(drafter, shape),)
        self._middle = None if through is None else Verify(middle_verifier(pool, through, drafter, policy))
        self._target = Verify(pool.target)
        self.most_pending = shape.most_nodes
        self.most_off_trunk = shape.depth + (self._middle is not None)

    def decide(self, seen: Observation) -> Step:
        """A tree where nothing is pending, then its judgements."""
        if not seen.num_pending:
            return self.trees[0] if seen.room > 1 else self._target
        return self._target if self._middle is None or seen.parents is None else self._middle

    def learn(self, outcome: Outcome) -> None:  # noqa: B027 - a policy that learns nothing is whole
        """Nothing to learn."""


class TreeDynamic(DraftedTrees):
    """Of each layer the most probable nodes grow on, and of all nodes the most probable are judged.

    EAGLE-2 sets ten beams, six layers and 60 tokens; a drafter here runs a whole model for each layer, so that the
    defaults are smaller.

    Args:
        draft: the drafter; default the smallest model with probabilities.
        beams: nodes of a layer that grow on, and children of each, 1 to 32.
        depth: layers, >= 1.
        tokens: nodes that are judged, 1 to 1,024.
        through: a member between the two that judges first; default none.

    Raises:
        ValueError: an option out of range, or members that cannot do it.
    """

    about = About(paper="EAGLE-2, arXiv:2406.16858", lossless=True, members=A_SURE_DRAFTER, observes=BRANCHES)

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        beams: int = 4,
        depth: int = 5,
        tokens: int = 16,
        through: str | None = None,
    ) -> None:
        super().__init__(pool, "tree-dynamic", draft, through, DynamicTree(beams, depth, tokens))


class TreeByRanks(DraftedTrees):
    """Trees by ranks: widths by depth as in SpecInfer, or paths as a search over shapes finds them (Sequoia, Medusa).

    Args:
        draft: the drafter; default the smallest model with probabilities.
        shape: `4x2x1`, children by depth, or paths of ranks `0+0.0+1`.
        through: a member between the two that judges first; default none.

    Raises:
        ValueError: a shape that is none, or members that cannot do it.
    """

    about = About(
        paper="SpecInfer, arXiv:2305.09781; Sequoia, arXiv:2402.12374",
        lossless=True,
        members=A_SURE_DRAFTER,
        observes=BRANCHES,
    )

    def __init__(
        self, pool: Pool, *, draft: str | None = None, shape: str = "4x2x1x1", through: str | None = None
    ) -> None:
        fixed = tree_shape(shape)
        if not isinstance(fixed, FixedTree):
            raise ValueError(f"shape must be widths (4x2x1) or paths of ranks (0+0.0+1), got {shape!r}")
        super().__init__(pool, "tree", draft, through, fixed)
