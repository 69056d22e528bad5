"""When to search anew for a chain, and what keeps the choice from going to and fro: for a tag, or for all that run.

SpecRouter (arXiv:2505.07680) has its scheduler re-select while it serves and does not describe when. Here:

- A selection holds for a number of rounds, for fewer at first. Another set of members must be predicted to be better by
  the share `hysteresis`; windows follow at once.
- A pair is stale as its evidence is thin or old. Every `explore` rounds the search runs with some hope on top of the
  rate of stale pairs; if that favours other members, they get one round.

Whose choice it is, how long it holds, what is learnt before the first one and how a chain becomes a plan is said by the
two strategies: `per_tag` and `in_step`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ...decoding.pool import Pool
from .knowledge import Knowledge
from .options import RouterOptions
from .plan import Plan, Planner
from .search import Figures, FoundChain, best_chain, best_windows

MEMORY = 64.0  # rounds that what a chain took reaches back
PRIOR_WEIGHT = 16.0  # rounds that a prediction which is right counts for


@dataclass(slots=True, kw_only=True)
class Counters:
    """What a scheduler did. Mutated by it and its selectors; for whoever wants to look.

    Attributes:
        selections: searches.
        switches: selections that changed the members of a chain.
        trials: rounds that were played to learn, the warm-up among them.
        rounds: commits by the target.
        judged: pending tokens that each member judged.
        refused_early: of those, tokens refused or dropped by a member below the target: the target never met them.
    """

    selections: int = 0
    switches: int = 0
    trials: int = 0
    rounds: int = 0
    judged: dict[str, int] = field(default_factory=dict)
    refused_early: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Choice:
    """What a tag, or all that run, use. Mutated by the selector.

    Attributes:
        chain: the members and windows; None before the first selection.
        figures: that it was selected by.
        num_rows: requests of an operation then.
        plans: made of it, by tag.
        rounds: since the selection.
        total: rounds in all.
        untried: rounds since the last trial.
    """

    chain: FoundChain | None = None
    figures: Figures | None = None
    num_rows: int = 0
    plans: dict[str, Plan] = field(default_factory=dict)
    rounds: int = 0
    total: int = 0
    untried: int = 0


class Realised:
    """Seconds that chains took against what was predicted for them, by their members. Mutated by `note`.

    The prediction takes tokens as independent and all alike, and windows as fixed. Where they are not, and where
    windows stop token by token, it is off by a factor that depends on the members of a chain more than on the text:
    chains of three levels gain more from stopping early than chains of two. So it is learnt from rounds of all tags.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[int, ...], tuple[float, float, float]] = {}

    def note(self, levels: tuple[int, ...], predicted_s: float, seconds: float) -> None:
        """Take in a round: what its tokens were predicted to take, and took."""
        rounds, predicted, taken = self._sums.get(levels, (0.0, 0.0, 0.0))
        kept = 1.0 - 1.0 / MEMORY
        self._sums[levels] = (kept * rounds + 1.0, kept * predicted + predicted_s, kept * taken + seconds)

    def known(self) -> list[tuple[int, ...]]:
        """Chains that were played."""
        return list(self._sums)

    def ratio(self, levels: tuple[int, ...]) -> float:
        """Seconds taken over seconds predicted, > 0; 1 for a chain that was never played."""
        rounds, predicted, taken = self._sums.get(levels, (0.0, 0.0, 0.0))
        if not rounds:
            return 1.0
        prior = PRIOR_WEIGHT * predicted / rounds
        return (taken + prior) / (predicted + prior)


class Selector(ABC):
    """Plans of requests by what was selected for them. Mutated by `plan` and `note_round`.

    Args:
        pool: the members.
        options: of the policy.
        knowledge: to select by.
        planner: makes plans.
        counters: of what is done.

    Attributes:
        realised: what chains took against what was predicted; empty, where nobody tells of it.
    """

    hope: ClassVar[float]  # on top of the rate of a pair of which nothing is known
    shared: ClassVar[bool]  # whether one choice is for all tags

    def __init__(
        self, pool: Pool, options: RouterOptions, knowledge: Knowledge, planner: Planner, counters: Counters
    ) -> None:
        self._options, self._knowledge, self._planner, self._counters = options, knowledge, planner, counters
        self.realised = Realised()
        self._form = options.form
        self._pool = pool
        self._judges = [member.verifies for member in pool.members]
        # The one that copies first; -1: there is none.
        self._front = sum(member.model_free for member in pool.members) - 1
        self._choices: dict[str | None, Choice] = {}

    def plan(self, tag: str, num_rows: int) -> Plan:
        """What a request of this tag does in the round that begins now, in operations of `num_rows` requests."""
        key = self._key(tag)
        choice = self._choices.get(key) or Choice()
        if choice.chain is None:
            first = self._before_selecting(choice, num_rows)
            if first is not None:
                return first
        if choice.chain is None or self._is_due(choice, num_rows):
            self._choices[key] = choice
            trial = self._select(choice, tag, num_rows)
            if trial is not None:
                self._counters.trials += 1
                return replace(trial, trial=True)
        return self._plan_of(choice, tag)

    def note_round(self, tag: str) -> None:
        """The target committed for a request of this tag."""
        choice = self._choices.get(self._key(tag))
        if choice is not None:
            choice.rounds += 1
            choice.total += 1
            choice.untried += 1

    @abstractmethod
    def _before_selecting(self, choice: Choice, num_rows: int) -> Plan | None:
        """What is played as long as too little is known to select."""

    @abstractmethod
    def _is_due(self, choice: Choice, num_rows: int) -> bool:
        """Whether a choice has held for long enough."""

    @abstractmethod
    def _stale(self, choice: Choice, tag: str, hoped: Figures) -> Plan | None:
        """A plan for what thin or old evidence may hide, by hopeful figures; None if it would change nothing."""

    @abstractmethod
    def _planned(self, tag: str, chain: FoundChain, figures: Figures) -> Plan:
        """What a tag makes of a chain."""

    def _key(self, tag: str) -> str | None:
        return None if self.shared else tag

    def _plan_of(self, choice: Choice, tag: str) -> Plan:
        plan = choice.plans.get(tag)
        if plan is None:
            assert choice.chain is not None
            assert choice.figures is not None
            plan = choice.plans[tag] = self._planned(tag, choice.chain, choice.figures)
        return plan

    def _select(self, choice: Choice, tag: str, num_rows: int) -> Plan | None:
        """Search anew; the plan of a trial where one is due and promises something."""
        knowledge, key = self._knowledge, self._key(tag)
        knowledge.digest()
        self._counters.selections += 1
        figures = knowledge.figures(key, num_rows)
        choice.chain, choice.figures = self._found(choice, figures), figures
        choice.num_rows, choice.rounds = num_rows, 0
        choice.plans.clear()
        rounds = self._options.explore * (num_rows if self.shared else 1)
        if not rounds or choice.untried < rounds:
            return None
        choice.untried = 0
        knowledge.agreement.fade(key)
        return self._stale(choice, tag, knowledge.hopeful(key, figures, self.hope))

    def _found(self, choice: Choice, figures: Figures) -> FoundChain:
        """The present members, or better ones."""
        if choice.chain is None:
            return self._search(figures)
        found = self._better(choice.chain.levels, figures)
        self._counters.switches += found.levels != choice.chain.levels
        return found

    def _search(self, figures: Figures) -> FoundChain:
        return best_chain(figures, members=self._knowledge.models(), judges=self._judges, form=self._form)

    def _better(self, current: tuple[int, ...], figures: Figures) -> FoundChain:
        """The present members, or those of another chain if it is better by more than the hysteresis.

        Chains that were played on their own are candidates beside the one that the search finds: what they took
        corrects what is predicted for them.
        """
        found, played = self._search(figures), self.realised.known()
        if found.levels == current and not played:
            return found
        best = present = best_windows(current, figures, self._form)
        least_s = present.token_s * self.realised.ratio(current) * (1.0 - self._options.hysteresis)
        for levels in dict.fromkeys((found.levels, *played)):
            if levels == current:
                continue
            chain = best_windows(levels, figures, self._form)
            token_s = chain.token_s * self.realised.ratio(levels)
            if token_s < least_s:
                best, least_s = chain, token_s
        return found if best.levels == found.levels else best
