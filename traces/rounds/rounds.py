"""Recordings that know rounds, not contexts: what an engine's log says of speculation, drafter by drafter.

A round starts at an output position, drafts some tokens, and the target keeps the first few of them. A round whose
draft was kept whole is *censored*: it says that at least so many would have been kept. A round that drafted nothing is
a plain step: there the drafter had nothing to say. What no round says is unknown, and is drawn from `hazard`, never
filled in silently.

Letters: R rounds of one drafter in one request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNKNOWN_DRAFTED = -1
OPEN_DRAFTED = -2
TARGET_ALONE = ""  # the method that drafts nothing

# The fields of `Rounds` by their types, and what stands for those that may be unknown in a round that does not say.
KINDS = {
    "start": np.int32,
    "accepted": np.int32,
    "drafted": np.int32,
    "draft_s": np.float64,
    "verify_s": np.float64,
    "placed": np.bool_,
}
UNKNOWN = {"draft_s": nan, "verify_s": nan, "placed": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """One drafter's recorded rounds of one request, by ascending start.

    Attributes:
        start: `[R]` output position of the first drafted token: tokens emitted before the round; strictly ascending.
        accepted: `[R]` drafted tokens that stayed, the target's own token (correction or bonus) excluded, >= 0.
        drafted: `[R]` tokens drafted, >= accepted, 0 in a plain step; -1 where the log does not say, and -2 where it
            was more than `accepted` and nothing is known of the rest.
        draft_s: `[R]` seconds of drafting, NaN if unknown; None if none is known.
        verify_s: `[R]` seconds of the target's forward, NaN if unknown; None if none is known.
        placed: `[R]` whether the log does not say where the round stood, so that it was placed by a draw: what it says
            counts as modelled; None if none was.
    """

    start: NDArray[np.int32]
    accepted: NDArray[np.int32]
    drafted: NDArray[np.int32]
    draft_s: NDArray[np.float64] | None = None
    verify_s: NDArray[np.float64] | None = None
    placed: NDArray[np.bool_] | None = None

    def censored(self, window: int | None) -> NDArray[np.bool_]:
        """`[R]` whether the draft was kept whole, so that more might have been.

        Args:
            window: most tokens the drafter drafts, for rounds that do not say how many they drafted.
        """
        most = np.iinfo(np.int32).max if window is None else window
        return self.accepted >= np.where(self.drafted == UNKNOWN_DRAFTED, most, self.drafted)

    def short(self, window: int | None, length: int) -> NDArray[np.bool_]:
        """`[R]` whether the drafter itself stopped drafting: with less than its window, and before the text ended.

        Args:
            window: most tokens the drafter drafts; None if unknown, so that only an empty draft is known to be short.
            length: tokens of the text.
        """
        stopped = (self.drafted >= 0) & (self.drafted < (1 if window is None else window))
        return stopped & (self.start + self.drafted < length)

    @property
    def where_placed(self) -> NDArray[np.bool_]:
        """`[R]` `placed`, also where it is None."""
        return self.filled("placed")

    def filled(self, name: str) -> NDArray[Any]:
        """`[R]` a field, also where it is None."""
        values = getattr(self, name)
        return np.full(len(self.start), UNKNOWN[name], KINDS[name]) if values is None else values

    def at(self, rows: slice | NDArray[np.intp]) -> "Rounds":
        """Some of the rounds."""
        fields = {name: values for name in KINDS if (values := getattr(self, name)) is not None}
        return Rounds(**{name: values[rows] for name, values in fields.items()})


def joined(parts: Sequence[Rounds]) -> Rounds:
    """The rounds of all parts, one after another; a field is None if none of them knows it."""
    names = [name for name in KINDS if name not in UNKNOWN or any(getattr(one, name) is not None for one in parts)]
    return Rounds(
        **{name: np.concatenate([np.empty(0, KINDS[name]), *(one.filled(name) for one in parts)]) for name in names}
    )


def is_known(values: NDArray[Any]) -> NDArray[np.bool_]:
    """`[R]` of which rounds a field of `UNKNOWN` says anything: no NaN, and True if it was placed."""
    return values if values.dtype == np.bool_ else ~np.isnan(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsRequest:
    """One request of an imported recording.

    Attributes:
        request_id: unique in the recording.
        tag: task or domain; "" if unknown.
        prompt_tokens: length of the prompt, 0 if unknown (its prefill is then charged as one token).
        num_tokens: output tokens by method: "" is the target alone, others are drafters. Methods that should write the
            same text may differ a little (half-precision ties), so each keeps its own length; at least one, all >= 1.
        rounds: by drafter; a drafter that never ran on this request is absent.
        wall_s: measured seconds of the whole answer by method, as `num_tokens`; methods without are absent.
        prefill_s: of those, seconds before the first round, by method; methods without are absent.
        prompt: token ids, empty if unknown.
        output: token ids of the target's text, empty if unknown.
    """

    request_id: str
    tag: str = ""
    prompt_tokens: int = 0
    num_tokens: Mapping[str, int]
    rounds: Mapping[str, Rounds]
    wall_s: Mapping[str, float] = field(default_factory=dict)
    prefill_s: Mapping[str, float] = field(default_factory=dict)
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()

    def length(self, method: str) -> int:
        """Output tokens under `method`; one that never ran here writes what the target alone, or the first one, did."""
        lengths = self.num_tokens
        return lengths[method] if method in lengths else lengths.get(TARGET_ALONE, next(iter(lengths.values())))

    def seconds(self, method: str) -> float:
        """Measured seconds of the answer under `method`, NaN if unknown."""
        return self.wall_s.get(method, nan)
