"""What models said of one pending token: its drafter, and the highest member that stands behind it.

Numbers leave here on the grids of `traces.resolution`, as a recording stores them, so that a policy sees the same in
both worlds. Letters: V vocabulary.
"""

from dataclasses import dataclass, field
from math import exp

import numpy as np
from torch import Tensor

from ..policies.signal import NO_SIGNAL, Signal
from ..traces.resolution import ENTROPIES, LOG_PROBS, UNITS, Grid
from .views import entropies, gaps


@dataclass(slots=True, kw_only=True)
class PendingView:
    """Distributions behind one pending token; mutated when a larger member accepts it.

    Attributes:
        token: its id.
        drafter_log_probs: `[V]` of the member that wrote it, at the context before it; None if model-free.
        judge_log_probs: `[V]` of the highest member that stands behind it; None if that is model-free.
    """

    token: int
    drafter_log_probs: Tensor | None
    judge_log_probs: Tensor | None
    _signal: Signal | None = field(default=None, init=False)

    def signal(self) -> Signal:
        """What the drafter said of the token; computed at the first call, NaN for a model-free drafter."""
        if self._signal is None:
            log_probs = self.drafter_log_probs
            self._signal = NO_SIGNAL if log_probs is None else signal_of(log_probs, self.token)
        return self._signal


def signal_of(log_probs: Tensor, token: int) -> Signal:
    """What a member with the distribution `[V]` says of `token`."""
    probs = log_probs.exp()
    log_prob = observed(LOG_PROBS, log_probs[token])
    return Signal(exp(log_prob), observed(ENTROPIES, entropies(probs)), observed(UNITS, gaps(probs)))


def observed(grid: Grid, value: Tensor) -> float:
    """One number `[]` at the resolution it is observed at."""
    return float(grid.round(np.asarray(value.cpu())))
