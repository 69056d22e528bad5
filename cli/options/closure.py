"""The option `--closure` of `record` and `agree`."""

from enum import StrEnum

from ...traces.meta import Closure


class ClosureKind(StrEnum):
    """Which contexts off the trunk are recorded."""

    monotone = "monotone"
    full = "full"


def closure_of(kind: ClosureKind, *, reach: int, run: int) -> Closure:
    """The closure asked for."""
    return Closure(kind="full" if kind is ClosureKind.full else "monotone", reach=reach, run=run)
