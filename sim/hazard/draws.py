"""Decisions that imported rounds do not tell, drawn from what they do tell: acceptance by depth, request and place.

`estimate` fits them, `difficulty` knows what neighbouring rounds have in common, `beside` what a round from another
start says of a token, and `lengths` drafts that end by themselves. Draws are keyed by (seed, request, position,
drafter), so that two policies that come to the same unknown meet the same luck (common random numbers).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from ...traces.rounds.recording import RoundsRecording
from ...traces.shifted_decisions import keyed_generator
from .beside import Beside, filter_positions
from .difficulty import walk
from .drafter import DrafterFit, fit_drafter

# `Positions.chance`, each worked out once: replay asks for few of them, over and over.
Chances = Callable[[int, Beside], float]

_MOST_CACHED = 4096
_BLOCK = 128
_BETA_STEP = 0.1  # in which requests share what is worked out of positions: rates that differ by less than 0.03


class _Draws:
    """Numbers from [0, 1), one for each output position.

    Args:
        more: blocks of them, in order.
    """

    __slots__ = ("_more", "_numbers")

    def __init__(self, more: Iterator[list[float]]) -> None:
        self._more = more
        self._numbers: list[float] = []

    def at(self, position: int) -> float:
        """The draw at an output position."""
        while position >= len(self._numbers):
            self._numbers += next(self._more)
        return self._numbers[position]


@dataclass(slots=True, kw_only=True)
class _Luck:
    """One drafter's draws in one request, and its rates there.

    Attributes:
        beta: the request's offset, see `estimate`.
        hazards: `[D]` probability of agreement by depth, the last for all deeper ones.
        rounds: draws that decide a round, alike for neighbouring positions.
        tokens: draws that decide a token, each apart.
        lengths: two draws for each position, of how much is drafted there.
        survival: probability that at least so many tokens stay, as far as it was asked for.
        chances: those of tokens of which another round says something, once one was asked for.
    """

    beta: float
    hazards: list[float]
    rounds: _Draws
    tokens: _Draws
    lengths: _Draws
    survival: list[float]
    chances: Chances | None = None

    def hazard(self, depth: int) -> float:
        """Probability of agreement at `depth` among rounds that got there."""
        return self.hazards[min(depth, len(self.hazards) - 1)]

    def survives(self, tokens: int) -> float:
        """Probability that at least `tokens` stay."""
        survival = self.survival
        while tokens >= len(survival):
            survival.append(survival[-1] * self.hazard(len(survival) - 1))
        return survival[tokens]


class Hazard:
    """Draws what a recording of rounds does not tell.

    Args:
        trace: what the hazards are fitted on, at the first draw: an exact run never needs them.
        seed: of the draws.
    """

    def __init__(self, trace: RoundsRecording, *, seed: int = 0) -> None:
        self._trace = trace
        self._seed = seed
        self._fits: dict[int, DrafterFit] = {}
        self._chances: dict[tuple[int, int], Chances] = {}
        self._luck: dict[tuple[str, int], _Luck] = {}
        self._index = {request.request_id: index for index, request in enumerate(trace.requests)}

    def reseeded(self, seed: int) -> "Hazard":
        """Draws with another seed from the same estimate, which is shared, not made again."""
        other = Hazard(self._trace, seed=seed)
        other._fits, other._chances = self._fits, self._chances
        return other

    def agrees(
        self, request_id: str, drafter: int, *, start: int, depth: int, known: int, beside: Beside | None = None
    ) -> bool:
        """Whether a drafted token is the target's.

        Args:
            request_id: of the recording.
            drafter: index into `meta.drafters`.
            start: output position of the round's first token, >= 0.
            depth: of the token in its round, 0 for the first.
            known: leading tokens of the round that are recorded as agreeing, or that were decided by what other rounds
                say of them, <= depth; those between were drawn.
            beside: what rounds that started elsewhere say of the token's position.

        Raises:
            ValueError: the recording says nothing of this drafter's acceptance.
        """
        luck = self._luck.get((request_id, drafter)) or self._draw(request_id, drafter)
        if beside is not None:
            return luck.tokens.at(start + depth) < self._chance(drafter, luck, depth, beside)
        if self._trace.meta.drafters[drafter].by_start:
            return luck.rounds.at(start) * luck.survives(known) < luck.survives(depth + 1)
        return luck.tokens.at(start + depth) < luck.hazard(depth)

    def num_drafted(self, request_id: str, drafter: int, *, start: int, asked: int) -> int | None:
        """Tokens after which a round stops that was not recorded; None if no draft ever stopped before `asked` >= 1.

        Other arguments and errors as of `agrees`.
        """
        lengths = self.fit(drafter).lengths
        if lengths is None or asked <= lengths.fewest:
            return None
        draws = (self._luck.get((request_id, drafter)) or self._draw(request_id, drafter)).lengths
        return lengths.draw(self._index[request_id], draws.at(2 * start), draws.at(2 * start + 1))

    def fit(self, drafter: int) -> DrafterFit:
        """The estimate for a drafter, made at first use; raises as `agrees`."""
        if drafter not in self._fits:
            self._fits[drafter] = fit_drafter(self._trace.requests, self._trace.meta.drafters[drafter])
        return self._fits[drafter]

    def _chance(self, drafter: int, luck: _Luck, depth: int, beside: Beside) -> float:
        """Probability that a token agrees of which another round says something."""
        if not self._trace.meta.drafters[drafter].by_start:
            # Rounds that came to the token refused nothing before it, and this one has no less of the truth.
            return max(luck.hazard(depth), luck.hazard(beside.depth))
        if luck.chances is None:
            luck.chances = self._chances_of(drafter, round(luck.beta / _BETA_STEP))
        return luck.chances(depth, beside)

    def _chances_of(self, drafter: int, step: int) -> Chances:
        """Those of requests whose offset rounds to `step`, which share them."""
        found = self._chances.get((drafter, step))
        if found is None:
            fit = self.fit(drafter)
            hazards = fit.depths.hazards(step * _BETA_STEP)
            found = cache(filter_positions(hazards, fit.decisions, fit.window, fit.persistence).chance)
            self._chances[drafter, step] = found
        return found

    def _draw(self, request_id: str, drafter: int) -> _Luck:
        if len(self._luck) >= _MOST_CACHED:
            del self._luck[next(iter(self._luck))]
        fit = self.fit(drafter)
        key = f"{self._seed}/{drafter}/{request_id}"
        generator = keyed_generator(key)
        like = fit.stand_ins.of(self._index[request_id], float(generator.random()))
        beta = float(fit.depths.beta[like] + fit.depths.spread[like] * generator.standard_normal())
        luck = _Luck(
            beta=beta,
            hazards=fit.depths.hazards(beta),
            rounds=_Draws(walk(generator, fit.difficulty)),
            tokens=_Draws(_blocks(f"{key}/tokens")),
            lengths=_Draws(_blocks(f"{key}/lengths")),
            survival=[1.0],
        )
        self._luck[request_id, drafter] = luck
        return luck


def _blocks(key: str) -> Iterator[list[float]]:
    """Independent numbers, without end; the generator is made when the first is asked for."""
    generator = keyed_generator(key)
    while True:
        block: list[float] = generator.random(_BLOCK).tolist()
        yield block
