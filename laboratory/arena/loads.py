"""Loads of the arena: how many requests run at a time, or how fast they come.

A batch is a closed loop: one request finishes, the next starts. Arrivals are as many requests as the recording has,
with their lengths and tags; they come as a Poisson process to one replica, which runs `MOST_RUNNING` at a time at
most. Their rate is a share of capacity: the output tokens a second of the target alone in the same cell with
`MOST_RUNNING` running.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ...arguments import ArgumentError

MOST_RUNNING = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How requests come; one of both is given.

    Attributes:
        batch: requests that run at a time, >= 1.
        share: of capacity that arrives, 0 to 1.
    """

    batch: int | None = None
    share: float | None = None

    @property
    def what(self) -> str:
        """It is, in words."""
        if self.batch is not None:
            return "one request at a time" if self.batch == 1 else f"{self.batch} requests at a time"
        return f"arrivals at {self.share:g} of what the target alone can serve, {MOST_RUNNING} at a time at most"


def loads() -> Mapping[str, Load]:
    """By name."""
    return {
        "batch-1": Load(batch=1),
        "batch-8": Load(batch=8),
        "batch-32": Load(batch=MOST_RUNNING),
        "half": Load(share=0.5),
        "ninety": Load(share=0.9),
    }


def load(name: str) -> Load:
    """The load of a name; raises ArgumentError for one that is none."""
    known = loads()
    if name not in known:
        raise ArgumentError(f"the load of a cell must be one of {', '.join(known)}, got {name!r}")
    return known[name]
