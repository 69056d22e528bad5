"""What is unlikely of any log, whatever its format: a drafter of which nothing was ever refused, or none at all."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..rounds.meta import DrafterInfo
from ..rounds.rounds import UNKNOWN_DRAFTED, RoundsRequest

_ALL_KEPT = (
    "nothing that {} drafted was ever refused{}, which is unlikely: some engines count only what was kept whole "
    "(llama.cpp on hybrid models), or the text was a copy"
)
_WHOLE = 1 - 1e-9  # a probability that was found by halving
_NO_DRAFTS = "nothing in these files tells of drafts: every answer is taken to be the target's alone"


@dataclass(slots=True, kw_only=True)
class _Kept:
    """What was kept of one drafter: tokens, whether any was refused, and the kept counts of rounds that do not say."""

    tokens: int = 0
    any_refused: bool = False
    least: int | None = None
    most: int = 0


class KeptTokens:
    """Looks at requests as they pass. Final."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._any_request = False

    def see(self, request: RoundsRequest) -> None:
        """Take note of a request's rounds."""
        self._any_request = True
        for name, rounds in request.rounds.items():
            kept = self._kept.setdefault(name, _Kept())
            kept.tokens += int(rounds.accepted.sum())
            silent = rounds.drafted == UNKNOWN_DRAFTED
            kept.any_refused |= bool(np.any(~silent & (rounds.drafted != rounds.accepted)))
            if silent.any():
                counts = rounds.accepted[silent]
                kept.least = int(counts.min()) if kept.least is None else min(kept.least, int(counts.min()))
                kept.most = max(kept.most, int(counts.max()))

    def remarks(self, drafters: Iterable[DrafterInfo]) -> list[str]:
        """What to say once all requests were seen.

        Args:
            drafters: of the recording.
        """
        drafters = list(drafters)
        if self._any_request and not drafters:
            return [_NO_DRAFTS]
        return [words for one in drafters if (words := self._of(one))]

    def _of(self, drafter: DrafterInfo) -> str:
        if drafter.stated is not None:
            return _ALL_KEPT.format(drafter.name, "") if min(drafter.stated.hazards) >= _WHOLE else ""
        kept = self._kept.get(drafter.name, _Kept())
        whole = kept.most if drafter.window is None else drafter.window
        refused = kept.any_refused or (kept.least is not None and kept.least < whole)
        if refused or not kept.tokens:
            return ""
        return _ALL_KEPT.format(drafter.name, f" ({kept.tokens:,} tokens)")
