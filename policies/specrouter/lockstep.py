"""One chain for all requests that run, in step: what a batch does (`lockstep_search`).

Rows of a batch that follow chains of their own share few operations, and each of these holds up all the others on their
way to the target. Here the requests share a chain and its window; every tag shortens the window to where its tokens
still pay, down to none, and `stop=confidence` shortens it token by token.

The first `probe` requests draft a little for the target, all others run alone until these are back: what they learn is
for all. Selections are as far apart as `every` rounds of every request, closer at first, and follow at once when the
number of requests changes by a quarter.
"""

from collections.abc import Sequence
from math import ceil

import numpy as np

from ..contract import Draft
from ..pool import Pool
from .knowledge import Figures, Knowledge
from .plan import Plan, Planner, marginal_s
from .search import FoundChain, Floats

EARLY = 8  # as of `scheduler`, in rounds of every request
CHANGED = 0.25  # of the number of requests, for which a selection does not wait
LONGER = 1.5  # windows that may stop early go so much beyond the best window that may not
HOPE = 0.1


class Lockstep:
    """Plans of a batch. Mutated by `plan` and `note_round`.

    Args:
        pool: the members.
        knowledge: to select by.
        planner: makes plans.
        every: rounds of every request between two selections, >= 1.
        probe: requests that draft to learn before the first selection, >= 0.
        explore: rounds of every request between two trials of stale pairs, >= 0; 0 never tries.
        hysteresis: predicted gain that another set of members must promise, 0 to below 1.
        fixed: windows do not stop early.
    """

    def __init__(
        self,
        pool: Pool,
        knowledge: Knowledge,
        planner: Planner,
        *,
        every: int,
        probe: int,
        explore: int,
        hysteresis: float,
        fixed: bool,
    ) -> None:
        self._pool = pool
        self._knowledge = knowledge
        self._planner = planner
        self._every, self._explore, self._hysteresis = every, explore, hysteresis
        self._longer = 1.0 if fixed else LONGER
        free = [level for level, member in enumerate(pool.members) if member.model_free]
        self._front = free[-1] if free else None
        self._lowest = len(free)
        self._to_probe = self._probing = probe
        self._rounds = self._total = 0
        self._rows = 0
        self._chain: FoundChain | None = None
        self._figures: Figures | None = None
        self._plans: dict[str, Plan] = {}
        self.selections = self.switches = 0

    def plan(self, key: str, *, num_rows: int) -> Plan:
        """What a request of this tag does in the round that begins now, `num_rows` of them running."""
        if self._chain is None:
            if self._to_probe and self._lowest < self._pool.target_level:
                self._to_probe -= 1
                return self._planner.ladder((self._lowest, self._pool.target_level))
            # A request's first round reads its prompt and tells little of what a round takes.
            if self._total <= num_rows or not self._knowledge.profiler.known(self._pool.target_level):
                return self._planner.alone()
        if self._due(num_rows):
            self._select(num_rows)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._planned(key)
        return plan

    def note_round(self) -> None:
        """The target committed for one request."""
        self._rounds += 1
        self._total += 1

    def notation(self) -> str | None:
        """The chain in use; None before the first selection."""
        return None if self._chain is None else self._planner.chain_notation(self._chain)

    def _due(self, num_rows: int) -> bool:
        if self._chain is None or abs(num_rows - self._rows) > CHANGED * self._rows:
            return True
        return self._rounds >= num_rows * min(self._every, 1 + self._total // (EARLY * num_rows))

    def _select(self, num_rows: int) -> None:
        knowledge = self._knowledge
        knowledge.digest()
        self.selections += 1
        figures = knowledge.figures(None, num_rows)
        found = self._better(figures)
        self.switches += self._chain is not None and found.levels != self._chain.levels
        self._trial = None
        if self._explore and self._untried >= self._explore * num_rows:
            self._untried = 0
            knowledge.agreement.fade(None)
            self._trial = self._stale(found, figures)
        self._chain, self._figures = found, figures
        self._rows, self._rounds = num_rows, 0
        self._plans.clear()

    def _better(self, figures: Figures) -> FoundChain:
        """The present members, or others that are better by more than the hysteresis."""
        found = self._search(figures)
        if self._chain is None or found.levels == self._chain.levels:
            return found
        present = in_step(self._chain.levels, *figures)
        return found if found.token_s < (1.0 - self._hysteresis) * present.token_s else present

    def _search(self, figures: Figures) -> FoundChain:
        models = self._knowledge.models()
        verifies = [self._pool.members[level].verifies for level in models]
        rates = figures.rates[np.ix_(models, models)]
        found = best_in_step(rates, figures.seconds[models], verifies=verifies, entry_s=figures.entry_s[models])
        levels = tuple(models[level] for level in found.levels)
        return FoundChain(levels=levels, windows=found.windows, level_s=found.level_s)

    def _stale(self, present: FoundChain, figures: Figures) -> FoundChain | None:
        """Members that thin or old evidence may hide."""
        fresh = self._knowledge.agreement.freshness(None)
        hoped = figures._replace(rates=np.minimum(figures.rates + HOPE / np.sqrt(fresh + 1.0), 1.0))
        found = self._search(hoped)
        return found if found.levels != present.levels and len(found.levels) > 1 else None

    def _planned(self, key: str, chain: FoundChain, figures: Figures, *, trial: bool) -> Plan:
        """What a tag makes of the chain: its window ends where a token of this tag no longer pays."""
        agreement = self._knowledge.agreement
        rates = agreement.rates(key)
        own = figures._replace(rates=np.minimum(rates + HOPE / np.sqrt(agreement.freshness(key) + 1.0), 1.0))
        window, gain_s = self._pays(chain, own, chain.levels[0]) if len(chain.levels) > 1 else (0, 0.0)
        front = self._copies(chain, own, gain_s)
        if not window:
            alone = FoundChain(levels=chain.levels[-1:], windows=(), level_s=chain.level_s[-1:])
            return self._planner.in_step(alone, own, self._knowledge.survival, key, front=front, trial=trial)
        shortened = FoundChain(levels=chain.levels, windows=(window, *chain.windows[1:]), level_s=chain.level_s)
        return self._planner.in_step(shortened, own, self._knowledge.survival, key, front=front, trial=trial)
