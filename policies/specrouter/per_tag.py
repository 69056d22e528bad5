"""A chain for the requests of each tag: what few requests do.

A tag begins with the *probing chain*: the best one if a member misses half of what the next smaller one misses, so that
only seconds decide. It mostly has three levels, and the verdicts of three tell of every chain of two of them. Then a
selection holds for a third of the rounds that the tag has seen, for `every` at most. Predictions are corrected by what
chains of the same members took.
"""

from typing import ClassVar

from ...decoding.contract import Draft
from ..speed import Floats
from .plan import Plan
from .search import Figures, FoundChain, best_windows, round_token_s
from .selector import Choice, Selector

EARLY = 1 / 3  # of the rounds that a tag has seen


class PerTag(Selector):
    """A choice for every tag; see the module and `Selector`."""

    hope: ClassVar[float] = 0.1
    shared: ClassVar[bool] = False
    _probed: tuple[Floats, tuple[int, ...]] | None = None  # seconds that the probing chain was searched by

    def has(self, tag: str) -> bool:
        """Whether a tag has a chain of its own."""
        return tag in self._choices

    def chains(self) -> dict[str, str]:
        """By tag, the chain in use in notation."""
        chains = {str(tag): choice.chain for tag, choice in self._choices.items()}
        return {tag: self._planner.notation(chain) for tag, chain in chains.items() if chain is not None}

    def _before_selecting(self, choice: Choice, num_rows: int) -> Plan | None:
        if self._knowledge.profiler.known(self._pool.target_level):
            return None
        return self._planner.alone()  # the warm-up of another request of the batch is under way

    def _is_due(self, choice: Choice, num_rows: int) -> bool:
        return choice.rounds >= min(self._options.every, max(1, round(choice.total * EARLY)))

    def _found(self, choice: Choice, figures: Figures) -> FoundChain:
        if choice.chain is None or choice.total < self._options.probe:
            return best_windows(self._probing(figures), figures)
        return super()._found(choice, figures)

    def _probing(self, figures: Figures) -> tuple[int, ...]:
        """Members of the probing chain, searched anew only when seconds have moved: all tags share it."""
        if self._probed is None or self._probed[0] is not figures.seconds:
            found = self._search(figures._replace(rates=self._knowledge.agreement.guess()))
            self._probed = (figures.seconds, found.levels)
        return self._probed[1]

    def _stale(self, choice: Choice, tag: str, hoped: Figures) -> Plan | None:
        present = self._plan_of(choice, tag)
        found = self._better(present.chain.levels, hoped)
        front = self._copies(found, hoped)
        if found.levels == present.chain.levels and (front is None or present.front is not None):
            return None
        assert choice.figures is not None
        chain = best_windows(found.levels, choice.figures)
        return self._planner.plan(tag, chain, choice.figures, front=front)

    def _planned(self, tag: str, chain: FoundChain, figures: Figures) -> Plan:
        return self._planner.plan(tag, chain, figures, front=self._copies(chain, figures))

    def _copies(self, chain: FoundChain, figures: Figures) -> Draft | None:
        """The copy that goes before the lowest level, where it is the quicker way to feed the level above it."""
        if self._front < 0:
            return None
        above = chain.levels[1] if len(chain.levels) > 1 else chain.levels[0]
        token_s = round_token_s(figures.rates[self._front, above], 0.0, figures.seconds[above])
        best = int(token_s.argmin())
        if token_s[best] >= chain.level_s[min(1, len(chain.level_s) - 1)]:
            return None
        return self._planner.draft(self._pool.names[self._front], best + 1)
