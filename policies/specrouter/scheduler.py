"""Which chain a tag of requests should use now: warm-up, re-selection every N rounds, hysteresis, stale pairs.

SpecRouter (arXiv:2505.07680) has a scheduler pick the chain of least predicted time per token from running profiles.
When it re-selects, how a member gets its first profile and what keeps it from going to and fro are not described. Here:

- Warm-up is one *ladder* for all: a round in which the smallest member drafts and every other one judges in turn. It
  times every member and, by `evidence`, scores every pair. One plain step of the target follows.
- A tag begins with the *probing chain*: the best one if a member misses half of what the next smaller one misses, so
  that only seconds decide. It mostly has three levels, and the verdicts of three tell of every chain of two of them.
- Every `every` rounds of a tag, and more often while it is young, the search runs anew. Another set of members must be
  predicted to be better by the share `hysteresis`; windows follow at once. Predictions are corrected by what chains of
  these members took (`realised`).
- A pair is stale as its evidence in this tag is thin or old. Every `explore` rounds of a tag the search runs with some
  hope on top of the rate of stale pairs; if that favours other members, they get one round.
- A batch shares one chain, in step (`lockstep`).
"""

from math import inf
from typing import Literal

import numpy as np

from ...decoding.contract import Draft
from ...decoding.pool import Pool
from ..parts.counts import check_count
from .counters import Counters
from .knowledge import Figures, Knowledge
from .lockstep import Lockstep
from .plan import Plan, Planner
from .search import Floats, Form, FoundChain, best_chain
from .similarity import Similarity

HOPE = 0.1
EARLY = 1 / 3  # of the rounds that a tag has seen; after so many it selects again, at most `every`

TOGETHER = 4  # requests that run, from which on `select=auto` has them share a chain
PATIENCE = 32  # rounds for which a tag goes on in step when fewer run, before it looks for a chain of its own

Stopping = Literal["confidence", "window"]
Select = Literal["auto", "request", "batch"]


class _Choice:
    """What a tag uses, and since when."""

    __slots__ = ("plan", "rounds", "total", "trial", "untried")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.trial: Plan | None = None
        self.rounds = 0
        self.total = 0
        self.untried = 0


class ModelChainScheduler:
    """Plans by tag, or of a batch in step. Mutated by `plan`, `note_round` and through `knowledge`.

    Args:
        pool: the members.
        every: rounds between two selections of a key, >= 1.
        most: longest window, 1 to 1,000.
        form: of the prediction; see `search`.
        similarity: what agreement is made of; see `similarity`.
        select: "request": a chain for every tag; "batch": one for all that run, in step (`lockstep`); "auto": a chain
            for every tag below `TOGETHER` requests, one for all from there on.
        stop: "confidence" or "window"; see `plan`.
        explore: rounds between two trials of a key, >= 0; 0 never tries and leaves the warm-up as the one source.
        probe: rounds of a key in which it keeps to the probing chain, >= 0.
        hysteresis: predicted gain that another set of members must promise, 0 to below 1.
        costs: of a forward by member, as `draft:1/target:10`; None measures.

    Attributes:
        counters: what was done.
        knowledge: what selections go by; takes verdicts.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        every: int,
        most: int,
        form: Form,
        similarity: Similarity,
        select: Select,
        stop: Stopping,
        explore: int,
        probe: int,
        hysteresis: float,
        costs: str | None,
    ) -> None:
        _check(
            every=every,
            most=most,
            form=form,
            select=select,
            stop=stop,
            explore=explore,
            probe=probe,
            hysteresis=hysteresis,
        )
        self.counters = Counters()
        self._together = {"auto": TOGETHER, "batch": 1, "request": inf}[select]
        self.knowledge = Knowledge(pool, most=most, similarity=similarity, costs=costs)
        self._planner = Planner(pool, most=most, fixed=stop == "window")
        self._lockstep = Lockstep(
            pool,
            self.knowledge,
            self._planner,
            self.counters,
            every=every,
            probe=probe,
            explore=explore,
            hysteresis=hysteresis,
        )
        self._pool = pool
        self._every, self._most, self._form = every, most, form
        self._explore, self._probe, self._hysteresis = explore, probe, hysteresis
        self._models = [level for level, member in enumerate(pool.members) if not member.model_free]
        free = [level for level, member in enumerate(pool.members) if member.model_free]
        self._front = free[-1] if free else None
        self._choices: dict[str, _Choice] = {}
        self._left: dict[str, int] = {}  # rounds that a tag goes on in step when few requests run
        self._probed: tuple[Floats, tuple[int, ...]] | None = None
        self._warm_up = self._warming()

    @property
    def planner(self) -> Planner:
        """Makes its steps."""
        return self._planner

    def plan(self, key: str, *, num_rows: int, num_running: int) -> Plan:
        """What a request of this tag does in the round that begins now.

        Args:
            key: the tag.
            num_rows: requests that the target met last.
            num_running: requests that run.
        """
        if self._warm_up:
            self.counters.trials += 1
            return self._warm_up.pop(0)
        choice = self._choices.get(key)
        together = num_running >= self._together
        if together or (choice is None and self._left.get(key, 0)):
            self._left[key] = PATIENCE if together else self._left[key] - 1
            return self._lockstep.plan(key, num_rows=num_running)
        if choice is None and not self.knowledge.profiler.known(self._pool.target_level):
            return self._planner.alone()  # the warm-up of another request of the batch is under way
        if choice is None:
            choice = self._choices[key] = _Choice(self._select(key, None, num_rows))
        elif choice.rounds >= min(self._every, max(1, round(choice.total * EARLY))):
            choice.plan = self._select(key, choice, num_rows)
            choice.rounds = 0
            if self._explore and choice.untried >= self._explore:
                self.knowledge.agreement.fade(key)
                choice.untried = 0
                choice.trial = self._stale(key, choice.plan, num_rows)
        trial, choice.trial = choice.trial, None
        if trial is not None:
            self.counters.trials += 1
            return trial
        return choice.plan

    def note_round(self, key: str, plan: Plan, *, num_tokens: int, seconds: float | None) -> None:
        """The target committed for a request of this key; seconds of the round, None where they are not typical."""
        self.counters.rounds += 1
        if self._together < inf:
            self._lockstep.note_round()
        if plan.in_step:
            return
        if seconds is not None and not plan.trial:
            self.knowledge.realised.note(plan.chain.levels, num_tokens * plan.chain.token_s, seconds)
        choice = self._choices.get(key)
        if choice is not None:
            choice.rounds += 1
            choice.total += 1
            choice.untried += 1

    def chains(self) -> dict[str, str]:
        """By tag, the chain in use in notation."""
        return {key: self._planner.notation(choice.plan.chain) for key, choice in self._choices.items()}

    @property
    def shared_chain(self) -> str | None:
        """The chain of all that run, in notation; None as long as there was none."""
        return self._lockstep.notation()

    def _warming(self) -> list[Plan]:
        plans = []
        lowest, *above = self._models
        judges = [level for level in above if self._pool.members[level].verifies]
        if judges:
            plans = [self._planner.ladder((lowest, *judges)), self._planner.alone()]
        # A member that cannot judge is known by drafting for the target.
        others = [level for level in above if level not in judges]
        return plans + [self._planner.ladder((level, self._pool.target_level)) for level in others]

    def _select(self, key: str, choice: _Choice | None, num_rows: int) -> Plan:
        """A plan for a key whose choice is due, or that has none yet."""
        self.knowledge.digest()
        self.counters.selections += 1
        figures = self.knowledge.figures(key, num_rows)
        if choice is None or choice.total < self._probe:
            found = figures.windows(self._probing(figures))
        else:
            current = choice.plan.chain.levels
            found = self._better(current, figures)
            self.counters.switches += found.levels != current
        return self._planned(key, found, figures, self._copies(found, figures), trial=False)

    def _probing(self, figures: Figures) -> tuple[int, ...]:
        """Members of the probing chain, searched anew only when seconds have moved: all tags share it."""
        if self._probed is None or self._probed[0] is not figures.seconds:
            found = self._search(figures._replace(rates=self.knowledge.agreement.guess()))
            self._probed = (figures.seconds, found.levels)
        return self._probed[1]

    def _stale(self, key: str, plan: Plan, num_rows: int) -> Plan | None:
        """A plan for what thin or old evidence may hide; None where it hides nothing that would change the plan."""
        figures = self.knowledge.figures(key, num_rows)
        hoped = self.knowledge.hopeful(key, figures, HOPE)
        found = self._better(plan.chain.levels, hoped)
        front = self._copies(found, hoped)
        if found.levels == plan.chain.levels and (front is None or plan.front is not None):
            return None
        return self._planned(key, figures.windows(found.levels), figures, front, trial=True)

    def _planned(self, key: str, found: FoundChain, figures: Figures, front: Draft | None, *, trial: bool) -> Plan:
        return self._planner.chosen(found, figures, self.knowledge.survival, key, front=front, trial=trial)

    def _better(self, current: tuple[int, ...], figures: Figures) -> FoundChain:
        """The present members, or those of another chain if it is better by more than the hysteresis.

        Chains that were played are candidates beside the one that the search finds: what they took corrects what is
        predicted for them.
        """
        found = self._search(figures)
        best = present = figures.windows(current)
        least = present.token_s * self.knowledge.realised.ratio(current) * (1.0 - self._hysteresis)
        for levels in [found.levels, *self.knowledge.realised.known()]:
            chain = figures.windows(levels)
            token_s = chain.token_s * self.knowledge.realised.ratio(levels)
            if levels != current and token_s < least:
                best, least = chain, token_s
        if best.levels == found.levels:
            return found
        return best

    def _search(self, figures: Figures) -> FoundChain:
        models = [level for level in self._models if self.knowledge.profiler.known(level)]
        found = best_chain(
            figures.rates[np.ix_(models, models)],
            figures.seconds[models],
            verifies=[self._pool.members[level].verifies for level in models],
            entry_s=figures.entry_s[models],
            form=self._form,
        )
        levels = tuple(models[level] for level in found.levels)
        return FoundChain(levels=levels, windows=found.windows, level_s=found.level_s)

    def _copies(self, chain: FoundChain, figures: Figures) -> Draft | None:
        """The copy that goes before the lowest level, where it is the quicker way to feed the level above it."""
        if self._front is None:
            return None
        above = chain.levels[1] if len(chain.levels) > 1 else chain.levels[0]
        widths = np.arange(1.0, figures.seconds.shape[1])
        tokens = 1.0 + np.cumsum(figures.rates[self._front, above] ** widths)
        per_token = figures.seconds[above, 1:] / tokens
        best = int(per_token.argmin())
        if per_token[best] >= chain.level_s[min(1, len(chain.level_s) - 1)]:
            return None
        return self._planner.draft(self._pool.names[self._front], best + 1, None)


def _check(
    *, every: int, most: int, form: str, select: str, stop: str, explore: int, probe: int, hysteresis: float
) -> None:
    check_count("every", every)
    check_count("most", most, most=1000)
    if form not in ("nested", "filter"):
        raise ValueError(f"form must be nested or filter, got {form!r}")
    if select not in ("auto", "request", "batch"):
        raise ValueError(f"select must be auto, request or batch, got {select!r}")
    if stop not in ("confidence", "window"):
        raise ValueError(f"stop must be confidence or window, got {stop!r}")
    if explore < 0 or probe < 0:
        raise ValueError(f"explore and probe must be >= 0, got explore={explore}, probe={probe}")
    if not 0.0 <= hysteresis < 1.0:
        raise ValueError(f"hysteresis must be in [0, 1), got {hysteresis!r}")
