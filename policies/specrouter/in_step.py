"""One chain for all requests that run, in step: what a batch does.

Rows of a batch that follow chains of their own share few operations, and each of these holds up all the others on their
way to the target. Here the requests share a chain and its window; every tag shortens the window to where its tokens
still pay, down to none, and `stop=confidence` shortens it token by token.

The first `probe` requests draft a little for the target, all others run alone until these are back: what they learn is
for all. Selections are `every` rounds of every request apart, fewer at first, and follow at once when the number of
requests changes by a quarter.
"""

from math import ceil
from typing import ClassVar

import numpy as np

from ...decoding.contract import Draft
from ...decoding.pool import Pool
from .knowledge import Knowledge
from .options import RouterOptions
from .plan import Plan, Planner
from .search import Figures, FoundChain
from .selector import Choice, Counters, Selector

EARLY = 8  # rounds of every request for each of which a selection holds one round longer
CHANGED = 0.25  # of the number of requests, for which a selection does not wait
LONGER = 1.5  # windows that may stop early reach so much beyond the best one that may not


class InStep(Selector):
    """One choice for all; see the module and `Selector`."""

    hope: ClassVar[float] = 0.05
    shared: ClassVar[bool] = True

    def __init__(
        self, pool: Pool, options: RouterOptions, knowledge: Knowledge, planner: Planner, counters: Counters
    ) -> None:
        super().__init__(pool, options, knowledge, planner, counters)
        self._form = "in step"
        self._lowest = self._front + 1
        self._to_probe = options.probe if self._lowest < pool.target_level else 0
        self._longer = 1.0 if options.stop == "window" else LONGER
        self._choices[None] = Choice()  # counts rounds from the start

    @property
    def chain(self) -> FoundChain | None:
        """The chain in use; None before the first selection."""
        return self._choices[None].chain

    def _before_selecting(self, choice: Choice, num_rows: int) -> Plan | None:
        if self._to_probe:
            self._to_probe -= 1
            self._counters.trials += 1
            return self._planner.ladder((self._lowest, self._pool.target_level))
        # A first round reads the prompt and tells little of what a round takes.
        if choice.total < 2 * num_rows or not self._knowledge.profiler.known(self._pool.target_level):
            return self._planner.alone()
        return None

    def _is_due(self, choice: Choice, num_rows: int) -> bool:
        if abs(num_rows - choice.num_rows) > CHANGED * choice.num_rows:
            return True
        return choice.rounds >= num_rows * min(self._options.every, 1 + choice.total // (EARLY * num_rows))

    def _stale(self, choice: Choice, tag: str, hoped: Figures) -> Plan | None:
        found = self._search(hoped)
        assert choice.chain is not None
        assert choice.figures is not None
        if found.levels == choice.chain.levels or len(found.levels) == 1:
            return None
        return self._planned(tag, found, choice.figures)

    def _planned(self, tag: str, chain: FoundChain, figures: Figures) -> Plan:
        """What a tag makes of the chain: its window ends where a token of this tag no longer pays."""
        own = self._knowledge.hopeful(tag, figures, self.hope)
        levels, windows, level_s = chain.levels, chain.windows, chain.level_s
        window, gain_s = 0, 0.0
        if windows:
            window, gain_s = _pays(levels[0], levels[1:], own, level_s[1], ceil(self._longer * windows[0]))
        front = self._copies(chain, own, gain_s)
        if window:
            kept = FoundChain(levels=levels, windows=(window, *windows[1:]), level_s=level_s)
        else:
            kept = FoundChain(levels=levels[-1:], windows=(), level_s=level_s[-1:])
        return self._planner.plan(tag, kept, own, front=front, in_step=True)

    def _copies(self, chain: FoundChain, own: Figures, least_s: float) -> Draft | None:
        """The copy that goes before the lowest level, where it gains more than a draft does."""
        if self._front < 0:
            return None
        above = chain.levels[1:] or chain.levels
        worth_s = chain.level_s[min(1, len(chain.level_s) - 1)]
        window, gain_s = _pays(self._front, above, own, worth_s, own.seconds.shape[1] - 1)
        if not window or gain_s <= least_s:
            return None
        return self._planner.draft(self._pool.names[self._front], window)


def _pays(writer: int, above: tuple[int, ...], own: Figures, worth_s: float, most: int) -> tuple[int, float]:
    """How many tokens of a member are worth more than they cost, at most `most`, and what they gain in seconds."""
    seconds = own.seconds
    cost_s = np.diff(seconds[list(above), : most + 1], axis=1).clip(0.0).sum(axis=0)
    if np.isfinite(seconds[writer, 0]):
        cost_s = cost_s + seconds[writer, 0]
    gains = worth_s * own.rates[writer, above[0]] ** np.arange(1.0, len(cost_s) + 1.0) - cost_s
    total_s = gains.cumsum()
    best = int(total_s.argmax())
    return (best + 1, float(total_s[best])) if total_s[best] > 0.0 else (0, 0.0)
