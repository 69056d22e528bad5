"""When to search anew for a chain, and what keeps the choice from going to and fro: for a tag, or for all that run.

SpecRouter (arXiv:2505.07680) has its scheduler re-select while it serves and does not describe when. Here a selection
holds for a number of rounds, for fewer at first. Another set of members must be predicted to be better by a share;
windows follow at once.

Whose choice it is, how long it holds, what is learnt before the first one, how candidates are compared and how a chain
becomes a plan is said by the two strategies: `per_tag` and `in_step`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from ...decoding.pool import Pool
from .constants import RouterConstants
from .knowledge import Knowledge
from .options import FORM, RouterOptions
from .plan import Plan, Planner
from .search import Figures, FoundChain, best_chain


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
    """

    chain: FoundChain | None = None
    figures: Figures | None = None
    num_rows: int = 0
    plans: dict[str, Plan] = field(default_factory=dict)
    rounds: int = 0
    total: int = 0


class Selector(ABC):
    """Plans of requests by what was selected for them. Mutated by `plan` and `note_round`.

    Args:
        pool: the members.
        options: of the policy.
        knowledge: to select by.
        planner: makes plans.
        counters: of what is done.
        constants: of the policy.
    """

    shared: ClassVar[bool]  # whether one choice is for all tags

    def __init__(
        self,
        pool: Pool,
        options: RouterOptions,
        knowledge: Knowledge,
        planner: Planner,
        counters: Counters,
        constants: RouterConstants,
    ) -> None:
        self._constants = constants
        self._options, self._knowledge, self._planner, self._counters = options, knowledge, planner, counters
        self._form = options.form or FORM
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
                return trial
        return self._plan_of(choice, tag)

    def note_round(self, tag: str) -> None:
        """The target committed for a request of this tag."""
        choice = self._choices.get(self._key(tag))
        if choice is not None:
            choice.rounds += 1
            choice.total += 1

    @abstractmethod
    def _before_selecting(self, choice: Choice, num_rows: int) -> Plan | None:
        """What is played as long as too little is known to select."""

    @abstractmethod
    def _is_due(self, choice: Choice, num_rows: int) -> bool:
        """Whether a choice has held for long enough."""

    @abstractmethod
    def _select(self, choice: Choice, tag: str, num_rows: int) -> Plan | None:
        """Search anew; the plan of a trial where one is due and promises something."""

    @abstractmethod
    def _planned(self, tag: str, chain: FoundChain, figures: Figures) -> Plan:
        """What a tag makes of a chain."""

    def _lookup_s(self, choice: Choice) -> float:
        """What copies of all requests of an operation take themselves; nothing as long as nobody knows."""
        profiler = self._knowledge.profiler
        if profiler.stated is not None:
            return float(profiler.table(1)[self._front, 0])
        return choice.num_rows * (profiler.narrowest_s(self._front, 1) or 0.0)

    def _key(self, tag: str) -> str | None:
        return None if self.shared else tag

    def _plan_of(self, choice: Choice, tag: str) -> Plan:
        plan = choice.plans.get(tag)
        if plan is None:
            assert choice.chain is not None
            assert choice.figures is not None
            plan = choice.plans[tag] = self._planned(tag, choice.chain, choice.figures)
        return plan

    def _search(self, figures: Figures) -> FoundChain:
        return best_chain(figures, members=self._knowledge.models(), judges=self._judges, form=self._form)
