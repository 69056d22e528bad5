"""The resolution at which probabilities are observed: 16 bits, the same in a recording and on a real model.

A policy compares probabilities with thresholds. If a recording stored rounded numbers and the runtime showed
unrounded ones, the two would now and then decide differently. So both show the rounded number: log-probabilities are
multiples of 1/1024 nat, entropies of 1/4096 nat, gaps and distances of 1/32768. All fit an unsigned 16-bit integer.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_CODE = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """One quantity's grid: value = sign x code x step, code an integer in [0, 65535].

    Attributes:
        step: distance of neighbouring values.
        sign: +1 or -1 (log-probabilities are stored by magnitude).
        high: largest code the quantity may take; larger magnitudes saturate for log-probabilities only.
    """

    step: float
    sign: int
    high: int

    def encode(self, values: NDArray[Any]) -> NDArray[np.uint16]:
        """Nearest codes; raises ValueError for NaN or a value of the wrong sign or beyond the grid."""
        scaled = np.rint(np.asarray(values, dtype=np.float64) * (self.sign / self.step))
        if np.isnan(scaled).any():
            raise ValueError("holds NaN")
        if self.sign < 0:
            scaled = np.minimum(scaled, self.high)
        # A float32 softmax may overshoot its bound by a rounding error; more than a step is a defect.
        if (scaled < -1).any() or (scaled > self.high + 1).any():
            raise ValueError(f"holds a value beyond {self.sign * self.high * self.step:g}")
        return np.clip(scaled, 0, self.high).astype(np.uint16)

    def decode(self, codes: NDArray[np.uint16]) -> NDArray[np.float64]:
        """The values that codes stand for."""
        return codes.astype(np.float64) * (self.sign * self.step) + 0.0  # + 0.0: no negative zeros

    def round(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """The nearest values on the grid; what a policy may see."""
        return self.decode(self.encode(values))

    def nearest(self, value: float) -> float:
        """As `round`, for one number: numpy takes many times as long over a few."""
        scaled = value * (self.sign / self.step)
        if scaled != scaled:
            raise ValueError("holds NaN")
        # Bounded before it is rounded, as an infinity has no nearest code.
        code = round(min(max(scaled, -2.0), self.high if self.sign < 0 else self.high + 2.0))
        if not -1 <= code <= self.high + 1:
            raise ValueError(f"holds a value beyond {self.sign * self.high * self.step:g}")
        return min(max(code, 0), self.high) * (self.sign * self.step) + 0.0


LOG_PROBS = Grid(step=1.0 / 1024.0, sign=-1, high=MAX_CODE)
ENTROPIES = Grid(step=1.0 / 4096.0, sign=1, high=MAX_CODE)
UNITS = Grid(step=1.0 / 32768.0, sign=1, high=32768)
# Of what is stored of a view, by name.
GRIDS: dict[str, Grid] = {
    "next_log_prob": LOG_PROBS,
    "top_log_prob": LOG_PROBS,
    "gap": UNITS,
    "entropy": ENTROPIES,
    "own_log_prob": LOG_PROBS,
    "tvd": UNITS,
}
