"""SpecRouter with one of its constants changed, as a policy that a text names.

paceline.laboratory.arena.varied.varied_router:VariedRouter,change=pair_memory*2
"""

from inspect import signature
from typing import ClassVar

from ....decoding.contract import Outcome, Step
from ....decoding.observation import Observation
from ....decoding.pool import Pool
from ....policies.about import About
from ....policies.specrouter.constants import CONSTANTS
from ....policies.specrouter.options import RouterOptions
from ....policies.specrouter.policy import SpecRouter
from .change import Change, changed


class VariedRouter:
    """SpecRouter as it is by default, but for a constant.

    Args:
        pool: the members.
        change: as `Change` reads it.

    Raises:
        ArgumentError: a text that is no change, or a change of nothing.
        ValueError: a value that the constants do not take.
    """

    about: ClassVar[About] = SpecRouter.about

    def __init__(self, pool: Pool, *, change: str) -> None:
        self._router = SpecRouter.of(pool, default_options(), changed(CONSTANTS, Change.parse(change)))

    def decide(self, seen: Observation) -> Step:
        """What the router says."""
        return self._router.decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """Tell the router."""
        self._router.learn(outcome)


def default_options() -> RouterOptions:
    """Those of `specrouter` without any."""
    _, *options = signature(SpecRouter).parameters.values()  # the pool comes first
    return RouterOptions(**{option.name: option.default for option in options})
