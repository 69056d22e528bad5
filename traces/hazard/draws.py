"""Decisions that imported rounds do not tell, drawn from what they do tell: acceptance by depth, request and place.

See `depths` for the estimate and `difficulty` for what neighbouring rounds have in common. Draws are keyed by (seed,
request, position, drafter), so that two policies that come to the same unknown meet the same luck (common random
numbers).
"""

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np

from ..imported.rounds import RoundsTrace
from .difficulty import walk
from .drafter import DrafterFit, fit_drafter

_MOST_CACHED = 4096


class _Luck:
    """One drafter's draws in one request.

    Args:
        hazards: `[D]` probability of agreement by depth, the last for all deeper ones.
        more: blocks of uniform draws, one for each output position in order.
    """

    __slots__ = ("_hazards", "_more", "_survival", "_uniforms")

    def __init__(self, hazards: list[float], more: Iterator[list[float]]) -> None:
        self._hazards = hazards
        self._more = more
        self._survival = [1.0]
        self._uniforms: list[float] = []

    def uniform(self, position: int) -> float:
        """The draw at an output position."""
        while position >= len(self._uniforms):
            self._uniforms += next(self._more)
        return self._uniforms[position]

    def hazard(self, depth: int) -> float:
        """Probability of agreement at `depth` among rounds that got there."""
        return self._hazards[min(depth, len(self._hazards) - 1)]

    def survives(self, tokens: int) -> float:
        """Probability that at least `tokens` stay."""
        survival = self._survival
        while tokens >= len(survival):
            survival.append(survival[-1] * self.hazard(len(survival) - 1))
        return survival[tokens]


class Hazard:
    """Draws what a recording of rounds does not tell.

    Args:
        trace: what the hazards are fitted on, at the first draw: an exact run never needs them.
        seed: of the draws.
    """

    def __init__(self, trace: RoundsTrace, *, seed: int = 0) -> None:
        self._trace = trace
        self._seed = seed
        self._fits: dict[int, DrafterFit] = {}
        self._luck: dict[tuple[str, int], _Luck] = {}
        self._index = {request.request_id: index for index, request in enumerate(trace.requests)}

    def reseeded(self, seed: int) -> "Hazard":
        """Draws with another seed from the same estimate, which is shared, not made again."""
        other = Hazard(self._trace, seed=seed)
        other._fits = self._fits
        return other

    def agrees(self, request_id: str, drafter: int, *, start: int, depth: int, known: int) -> bool:
        """Whether a drafted token is the target's.

        Args:
            request_id: of the recording.
            drafter: index into `meta.drafters`.
            start: output position of the round's first token, >= 0.
            depth: of the token in its round, 0 for the first.
            known: leading tokens of the round that are recorded as agreeing, <= depth; those between were drawn.

        Raises:
            ValueError: the recording says nothing of this drafter's acceptance.
        """
        luck = self._luck.get((request_id, drafter)) or self._draw(request_id, drafter)
        if self._trace.meta.drafters[drafter].by_start:
            return luck.uniform(start) * luck.survives(known) < luck.survives(depth + 1)
        return luck.uniform(start + depth) < luck.hazard(depth)

    def fit(self, drafter: int) -> DrafterFit:
        """The estimate for a drafter, made at first use; raises as `agrees`."""
        if drafter not in self._fits:
            self._fits[drafter] = fit_drafter(self._trace.requests, self._trace.meta.drafters[drafter])
        return self._fits[drafter]

    def _draw(self, request_id: str, drafter: int) -> _Luck:
        if len(self._luck) >= _MOST_CACHED:
            del self._luck[next(iter(self._luck))]
        fit = self.fit(drafter)
        key = f"{self._seed}/{drafter}/{request_id}".encode()
        generator = np.random.default_rng(int.from_bytes(blake2b(key, digest_size=16).digest(), "big"))
        like = fit.stand_ins.of(self._index[request_id], float(generator.random()))
        beta = float(fit.depths.beta[like] + fit.depths.spread[like] * generator.standard_normal())
        luck = _Luck(fit.depths.hazards(beta), walk(generator, fit.difficulty))
        self._luck[request_id, drafter] = luck
        return luck
