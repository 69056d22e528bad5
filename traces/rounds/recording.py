"""An imported recording: rounds of each request, drafter by drafter."""

from dataclasses import dataclass

from .meta import RoundsMeta
from .rounds import RoundsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsRecording:
    """An imported recording: what it says of itself, and its requests in file order."""

    meta: RoundsMeta
    requests: tuple[RoundsRequest, ...]
