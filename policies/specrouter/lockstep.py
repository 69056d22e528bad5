"""One chain for all requests that run, in step: what a batch does (`lockstep_search`).

Rows of a batch that follow chains of their own share few operations, and each of these holds up all the others on their
way to the target. Here the requests share a chain and its window; every tag shortens the window to where its tokens
still pay, down to none, and `stop=confidence` shortens it token by token.

The first `probe` requests draft a little for the target, all others run alone until these are back: what they learn is
for all. Selections are `every` rounds of every request apart, fewer at first, and follow at once when the number of
requests changes by a quarter.
"""

from math import ceil

import numpy as np

from ...decoding.contract import Draft
from ...decoding.pool import Pool
from .counters import Counters
from .knowledge import Figures, Knowledge
from .lockstep_search import best_in_step, in_step
from .plan import Plan, Planner
from .search import FoundChain

EARLY = 8  # rounds of every request for each of which a selection holds one round longer, up to `every`
CHANGED = 0.25  # of the number of requests, for which a selection does not wait
LONGER = 1.5  # windows that may stop early reach so much beyond the best one that may not
HOPE = 0.05


class Lockstep:
    """Plans of a batch. Mutated by `plan` and `note_round`.

    Args:
        pool: the members.
        knowledge: to select by.
        planner: makes plans.
        counters: of what is done.
        every: rounds of every request between two selections, >= 1.
        probe: requests that draft to learn before the first selection, >= 0.
        explore: rounds of every request between two trials of stale pairs, >= 0; 0 never tries.
        hysteresis: predicted gain that another set of members must promise, 0 to below 1.
    """

    def __init__(
        self,
        pool: Pool,
        knowledge: Knowledge,
        planner: Planner,
        counters: Counters,
        *,
        every: int,
        probe: int,
        explore: int,
        hysteresis: float,
    ) -> None:
        self._counters = counters
        self._pool = pool
        self._target = pool.target_level
        self._knowledge = knowledge
        self._planner = planner
        self._every, self._explore, self._hysteresis = every, explore, hysteresis
        free = [level for level, member in enumerate(pool.members) if member.model_free]
        self._front = free[-1] if free else None
        self._lowest = len(free)
        self._to_probe = probe if self._lowest < self._target else 0
        self._rounds = self._total = self._untried = self._rows = 0
        self._chain: FoundChain | None = None
        self._figures: Figures | None = None
        self._trial: FoundChain | None = None
        self._plans: dict[str, Plan] = {}

    def plan(self, key: str, *, num_rows: int) -> Plan:
        """What a request of this tag does in the round that begins now, `num_rows` of them running."""
        if self._chain is None:
            if self._to_probe:
                self._to_probe -= 1
                self._counters.trials += 1
                return self._planner.ladder((self._lowest, self._target))
            # A first round reads the prompt and tells little of what a round takes.
            if self._total < 2 * num_rows or not self._knowledge.profiler.known(self._target):
                return self._planner.alone()
        if self._due(num_rows):
            self._select(num_rows)
        assert self._chain is not None
        assert self._figures is not None
        if self._trial is not None:
            trial, self._trial = self._trial, None
            self._counters.trials += 1
            return self._planned(key, trial, self._figures, trial=True)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._planned(key, self._chain, self._figures, trial=False)
        return plan

    def note_round(self) -> None:
        """The target committed for one request."""
        self._rounds += 1
        self._total += 1
        self._untried += 1

    def notation(self) -> str | None:
        """The chain in use; None before the first selection."""
        return None if self._chain is None else self._planner.notation(self._chain)

    def _due(self, num_rows: int) -> bool:
        if self._chain is None or abs(num_rows - self._rows) > CHANGED * self._rows:
            return True
        return self._rounds >= num_rows * min(self._every, 1 + self._total // (EARLY * num_rows))

    def _select(self, num_rows: int) -> None:
        knowledge = self._knowledge
        knowledge.digest()
        figures = knowledge.figures(None, num_rows)
        found = self._better(figures)
        self._counters.selections += 1
        self._counters.switches += self._chain is not None and found.levels != self._chain.levels
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
        found = best_in_step(
            figures.rates[np.ix_(models, models)],
            figures.seconds[models],
            verifies=[self._pool.members[level].verifies for level in models],
            entry_s=figures.entry_s[models],
        )
        levels = tuple(models[level] for level in found.levels)
        return FoundChain(levels=levels, windows=found.windows, level_s=found.level_s)

    def _stale(self, present: FoundChain, figures: Figures) -> FoundChain | None:
        """A chain of other members that thin or old evidence may hide."""
        found = self._search(self._knowledge.hopeful(None, figures, HOPE))
        return found if found.levels != present.levels and len(found.levels) > 1 else None

    def _planned(self, key: str, chain: FoundChain, figures: Figures, *, trial: bool) -> Plan:
        """What a tag makes of the chain: its window ends where a token of this tag no longer pays."""
        own = self._knowledge.hopeful(key, figures, HOPE)
        window, gain_s = 0, 0.0
        if len(chain.levels) > 1:
            longer = 1.0 if self._planner.fixed else LONGER
            most = ceil(longer * chain.windows[0])
            window, gain_s = _pays(chain.levels[0], chain.levels[1:], own, chain.level_s[1], most)
        front = None if self._front is None else self._copies(chain, own, gain_s)
        if not window:
            chain = FoundChain(levels=chain.levels[-1:], windows=(), level_s=chain.level_s[-1:])
        else:
            chain = FoundChain(levels=chain.levels, windows=(window, *chain.windows[1:]), level_s=chain.level_s)
        return self._planner.in_step(chain, own, self._knowledge.survival, key, front=front, trial=trial)

    def _copies(self, chain: FoundChain, own: Figures, least_s: float) -> Draft | None:
        """The copy that goes before the lowest level, where it gains more than a draft does."""
        assert self._front is not None
        above = chain.levels[1:] or chain.levels
        worth_s = chain.level_s[1] if len(chain.levels) > 1 else chain.level_s[0]
        window, gain_s = _pays(self._front, above, own, worth_s, own.seconds.shape[1] - 1)
        if not window or gain_s <= least_s:
            return None
        return self._planner.draft(self._pool.names[self._front], window, None)


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
