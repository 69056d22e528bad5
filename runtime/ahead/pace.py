"""Whether members that may work at the same time do so in threads, and what was measured of it.

Threads share the processors, so on a small machine they may cost more than they save. What they answer is the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ...arguments import ArgumentError
from ...decoding.policy import Policy
from ...policies.about import may_work_ahead

AheadKind = Literal["auto", "threads", "turns"]
AHEAD_KINDS: tuple[AheadKind, ...] = ("auto", "threads", "turns")
# Operations that `auto` tries each way: after one that pays for what comes up once, enough to outlast a disturbance.
TRIED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AheadPace:
    """What came of a run's operations in which several members worked.

    Attributes:
        asked: as it was asked for.
        used: how most of them ran, "" if there was none.
        threads_s, turns_s: median seconds of the operations that were tried, None where none was.
        why: why threads were not even tried; empty if they were, or nobody asked for them.
    """

    asked: AheadKind
    used: str
    threads_s: float | None
    turns_s: float | None
    why: str


def check_ahead(asked: str) -> AheadKind:
    """How members are to work ahead; raises ArgumentError for another word."""
    for kind in AHEAD_KINDS:
        if asked == kind:
            return kind
    raise ArgumentError(f"`overlap` must be one of {', '.join(AHEAD_KINDS)}, got {asked!r}")


def check_has_use(asked: AheadKind, policies: Mapping[str, Policy]) -> None:
    """Refuse to choose how policies, by name, work ahead where none ever does; raises ArgumentError."""
    if asked != "auto" and not any(map(may_work_ahead, policies.values())):
        names = " nor ".join(policies)
        raise ArgumentError(f"`overlap` is for policies that work ahead, such as pearl, got {asked!r} for {names}")


def why_no_threads(sampling: str, *, whole: bool, limited: bool, graphs: bool) -> str:
    """Why members cannot work in threads, empty if they can.

    Args:
        sampling: mode of the run.
        whole: whether all models are in this process.
        limited: whether the memory of their caches is.
        graphs: whether a member replays captured graphs.
    """
    if sampling == "rejection":
        return "rejection sampling draws from one stream of chance per request, in order"
    if not whole:
        return "several processes have to run the same forwards in the same order"
    if limited:
        return "members that share limited memory take it from one another"
    return "captured graphs replay one at a time" if graphs else ""


class Pace:
    """Chooses, operation by operation. Mutated by `note`.

    Args:
        asked: `auto` tries both ways in turn, and goes on with the quicker one.
        why_not: why threads cannot be, empty if they can.

    Raises:
        ArgumentError: `threads` where there can be none.
    """

    def __init__(self, asked: AheadKind, why_not: str) -> None:
        if asked == "threads" and why_not:
            raise ArgumentError(f"`overlap` cannot be threads: {why_not}")
        self._asked = asked
        self._why_not = why_not
        self._seconds: Mapping[bool, list[float]] = {True: [], False: []}
        self._num_ops = {True: 0, False: 0}

    @property
    def threads_next(self) -> bool:
        """Whether the next operation runs in threads."""
        if self._asked == "turns" or self._why_not:
            return False
        if self._asked == "threads":
            return True
        in_threads, in_turns = self._num_ops[True], self._num_ops[False]
        if min(in_threads, in_turns) <= TRIED:
            return in_threads < in_turns
        return _median(self._seconds[True]) < _median(self._seconds[False])

    def note(self, seconds: float, *, threads: bool) -> None:
        """An operation took so long; the first one of either kind pays for what comes up once and is left out."""
        self._num_ops[threads] += 1
        if 1 < self._num_ops[threads] <= TRIED + 1:
            self._seconds[threads].append(seconds)

    def told(self) -> AheadPace:
        """What there is to say of the run so far."""
        ran = max(self._num_ops, key=self._num_ops.__getitem__)
        used = "" if not self._num_ops[ran] else "threads" if ran else "turns"
        return AheadPace(
            asked=self._asked,
            used=used,
            threads_s=_median(self._seconds[True]) if self._seconds[True] else None,
            turns_s=_median(self._seconds[False]) if self._seconds[False] else None,
            why="" if self._asked == "turns" else self._why_not,
        )


def _median(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) // 2]
