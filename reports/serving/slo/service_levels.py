"""What a request is promised, and which requests got it."""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from ....arguments import check_within
from ....runs.serving.log import ServingLog
from ....traces.workloads.exact_seconds import MOST_PS, PS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevels:
    """The longest times that meet a promise (SLO), seconds; None where nothing is promised.

    Attributes:
        ttft: to the first token.
        tpot: for each token after the first, the request's mean. A request of one token meets any.
        e2e: to the last token.
        queue: until the request is first scheduled.

    Raises:
        ArgumentError: a time that is not above 0 and finite.
    """

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    queue: float | None = None

    def __post_init__(self) -> None:
        for name, seconds in self.promised.items():
            check_within(f"`slo` {name}", seconds, "(0, inf)")

    @property
    def promised(self) -> dict[str, float]:
        """Seconds by name, of what is promised."""
        return {name: seconds for name, seconds in asdict(self).items() if seconds is not None}

    def met(self, log: ServingLog) -> NDArray[np.bool_]:
        """`[R]` whether each request finished and met all of them; a time that equals its bound meets it."""
        columns, met = log.requests, log.finished
        for name, seconds in self.promised.items():
            since, until = ENDS[name]
            took = columns[f"{until}_at_ps"] - columns[f"{since}_at_ps"]
            if name == "tpot":
                took = -(-took // np.maximum(columns["output_tokens"] - 1, 1))  # rounded up, as whole as the bound
            met = met & (took <= round(min(seconds * PS_PER_S, MOST_PS)))
        return met


# Between which times of a request each of its latencies lies.
ENDS = {
    "ttft": ("arrived", "first_token"),
    "tpot": ("first_token", "ended"),
    "e2e": ("arrived", "ended"),
    "queue": ("arrived", "scheduled"),
}
