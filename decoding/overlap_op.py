"""What a world in which members work ahead is asked for, and the operation that asks.

A world need not know it: then the step is refused. Letters: B requests of one operation, P parts.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from .results import OverlapResults
from .session import Session
from .steps import Commit, Draft, Overlap, UnknownHereError, Verify
from .tree_ops import tree_world
from .trees import DraftTree

_EVERYWHERE = (Draft, Verify, Commit)  # steps that any world carries out

OverlapItem = tuple[Session, Overlap]


@runtime_checkable
class AheadWorld(Protocol):
    """Carries out every part of an `Overlap`; what `decoding.world.World` says of its operations holds here as well."""

    def check_ahead(self) -> None:
        """Raises ValueError where no member may work ahead in this run, with the reason."""
        ...

    def overlap(self, levels: tuple[int, ...], items: Sequence[OverlapItem]) -> OverlapResults:
        """Let the members at `levels` do their parts for `[B]` requests, whatever runs at the same time."""
        ...


class OverlapOp(NamedTuple):
    """A batched `Overlap`.

    Attributes:
        levels: `[P]` the members of its parts.
        drafts: whether the last part is a Draft.
        items: `[B]`.
    """

    levels: tuple[int, ...]
    drafts: bool
    items: list[OverlapItem]

    @property
    def level(self) -> int:
        """Of the largest member."""
        return self.levels[0]

    def run(self, world: object) -> OverlapResults:
        """Let a world carry it out."""
        assert isinstance(world, AheadWorld)  # its loop has looked
        return world.overlap(self.levels, self.items)


def check_known(world: object, step: object, level: int) -> None:
    """Refuse a step that only some worlds carry out, a tree or an Overlap, in another; raises UnknownHereError."""
    if isinstance(step, _EVERYWHERE):
        return
    try:
        _ask(world, step, level)
    except ValueError as error:
        raise UnknownHereError(str(error)) from error


def _ask(world: object, step: object, level: int) -> None:
    if isinstance(step, DraftTree):
        tree_world(world, level)
    elif isinstance(step, Overlap):
        if not isinstance(world, AheadWorld):
            name = type(world).__name__
            raise ValueError(f"nobody works ahead here: {name} carries out one step of a request at a time")
        world.check_ahead()
