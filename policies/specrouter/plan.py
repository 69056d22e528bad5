"""A chosen chain as steps, and when to choose again for a tag, or for all running requests (`Selector`).

Level i gathers tokens while S g tau_(i+1) >= tau_i + w: tau_i the seconds of a token of level i, S the chance that its
tokens survive (`estimates`), g that of the tokens that one more round of the level below adds, w the next level's
seconds to judge one more token. The lowest level, which adds single tokens, looks ahead: with n tokens it drafts while
S (a + ... + a^k) tau_1 >= k tau_0 + v(n + k) - v(n) for any k, a its rate, v(n) the next level's seconds to judge n
tokens: of some widths a forward is quicker than of fewer tokens. SpecRouter (arXiv:2505.07680) has fixed windows, as
`stop=window` has.

The paper does not describe when to choose again. Here a selection holds for a number of rounds, for fewer at first.
Another set of members must be predicted to be better by a share; windows follow at once. The rest is in
`SelectorPerTag` and `InStep`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import exp, inf, log
from typing import ClassVar, NamedTuple

from ...decoding.pool import Pool
from ...decoding.rules import Stop, SurvivalBelow
from ...decoding.steps import Draft, Verify
from ..about import Floats
from ..chain_text import ChainSpec
from ..fixed import Chain
from .estimates import Hazard, Knowledge, Survival
from .options import CONSTANTS, RouterOptions
from .search import FoundChain, SearchFigures, best_chain

# Limits of memory and time, not tuned: the least differences that count.
NO_DOUBT = 0.02  # of the hazard of a nat of doubt: below it a fixed window is as good
STEP = 0.125  # grid of ln h, ln g and thresholds, so that few different stops are made
ALIKE = 0.5  # nats between thresholds that one draft may span


class CopyWorth(NamedTuple):
    """The worth of copies that one level judges. Letters: N the longest one."""

    verify: Verify  # by the level
    token_s: float  # worth of a token that it keeps, seconds
    # `[N]` seconds of copies of 1 to N tokens, less the worth of the level's own token
    cost_s: tuple[float, ...]
    least_s: float  # of these


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A round of requests of one key. Letters: K levels of the chain."""

    chain: FoundChain  # the members, windows and predicted seconds
    verifies: tuple[Verify, ...]  # `[K - 1]` of the levels above the lowest, or the target's alone
    # the worth of copies to levels that may judge them at once, the target last; empty: nothing is copied
    copies: tuple[CopyWorth, ...] = ()
    draft: Draft | None = None  # of the lowest level; None for the target alone
    # one for each of `verifies`, -ln of the least survival at which a level gathers more; -inf hands over at once
    most_doubt: tuple[float, ...] = ()
    # the same of the lowest level by the tokens that it has, from 0 on; beyond the last it hands over
    draft_doubt: tuple[float, ...] = ()
    # for each of `verifies` and by drafter, those of the tokens that it is to judge
    hazards: tuple[dict[str, Hazard], ...] = ()
    fixed: Chain | None = None  # follows fixed windows instead; None: the rules above
    trial: bool = False  # whether it is for one round only, a trial
    in_step: bool = False  # whether all running requests share it
    least: int = 1  # tokens that the lowest level drafts before the first verifier judges, where room allows, >= 1


class Planner:
    """Makes plans; equal steps are one object."""

    def __init__(self, pool: Pool, options: RouterOptions, survival: Survival) -> None:
        self._pool = pool
        self._survival = survival
        self._front = pool.num_free - 1  # that copies; -1: none
        self._most = options.most
        self._ladder = CONSTANTS.ladder_tokens
        self._fixed = options.stop == "window"
        self._drafts: dict[tuple[str, int, Stop | None], Draft] = {}
        self._stops: dict[tuple[float, float, float], SurvivalBelow] = {}
        self._verifies = [Verify(name) for name in pool.names]
        self._chains: dict[FoundChain, Chain] = {}

    def alone(self) -> Plan:
        """The target alone, once."""
        target = self._pool.target_level
        chain = FoundChain(levels=(target,), windows=(), level_s=(inf,))
        return Plan(chain=chain, verifies=self._above(chain), trial=True)

    def ladder(self, levels: tuple[int, ...]) -> Plan:
        """Every member once: the lowest drafts a few tokens, each of the others judges and hands over at once.

        Drafted token by token, since the first one, which reads the prompt, has to be timed apart from the others.
        """
        windows = (self._ladder, *[1] * (len(levels) - 2))
        chain = FoundChain(levels=levels, windows=windows, level_s=(inf,) * len(levels))
        return Plan(
            chain=chain,
            verifies=self._above(chain),
            draft=self.draft(self._pool.names[levels[0]], 1),
            most_doubt=(-inf,) * len(windows),
            trial=True,
            least=self._ladder,
        )

    def plan(
        self,
        tag: str,
        chain: FoundChain,
        figures: SearchFigures,
        *,
        copies: tuple[CopyWorth, ...] = (),
        in_step: bool = False,
    ) -> Plan:
        """The plan of a found chain, with the rules of its levels; `figures` are those of the whole pool.

        In step, levels hand over at once, and the window is the longest draft.
        """
        draft, fixed = None, None
        lowest = self._pool.names[chain.levels[0]]
        most_doubt: tuple[float, ...] = (-inf,) * len(chain.windows)
        draft_doubt: tuple[float, ...] = ()
        hazards: tuple[dict[str, Hazard], ...] = ()
        if chain.windows:
            draft = self.draft(lowest, chain.windows[0])
            if not self._fixed:
                ruled = range(1 if in_step else len(chain.windows))
                hazards = tuple(self._hazards(tag, chain, index) for index in ruled)
                base, of_doubt = hazards[0][lowest]
                if in_step:
                    most = max(_most_doubt(chain, 0, figures), 0.0)
                    longest = min(chain.windows[0], 1 + int(min(most / base, self._most - 1)))
                    draft = self.draft(lowest, longest, self._stop(most, base, of_doubt))
                else:
                    most_doubt = (-inf, *(_most_doubt(chain, index, figures) for index in ruled[1:]))
                    draft_doubt = draft_doubts(chain, figures, base, self._most)
                    draft = self._onward(lowest, draft_doubt, 0, 0.0, hazards[0][lowest])
            if self._fixed and not in_step:
                fixed = self._chains.get(chain)
                if fixed is None:
                    fixed = self._chains[chain] = Chain(self._pool, self.notation(chain))
        return Plan(
            chain=chain,
            verifies=self._above(chain),
            copies=copies,
            draft=draft,
            most_doubt=most_doubt,
            draft_doubt=draft_doubt,
            hazards=hazards,
            fixed=fixed,
            in_step=in_step,
        )

    def draft(self, model: str, tokens: int, stop: Stop | None = None) -> Draft:
        """A draft; equal ones are one object."""
        key = (model, tokens, stop)
        draft = self._drafts.get(key)
        if draft is None:
            draft = self._drafts[key] = Draft(model, tokens, stop)
        return draft

    def worth(self, level: int, token_s: float, cost_s: Floats) -> CopyWorth:
        """The worth of copies that a level judges."""
        each_s = tuple(cost_s.tolist())
        return CopyWorth(self._verifies[level], token_s, each_s, min(each_s))

    def notation(self, chain: FoundChain) -> str:
        """A found chain as text, with its windows."""
        members = tuple(self._pool.names[level] for level in chain.levels)
        return str(ChainSpec(members=members, windows=chain.windows))

    def _above(self, chain: FoundChain) -> tuple[Verify, ...]:
        return tuple(self._verifies[level] for level in (chain.levels[1:] or chain.levels))

    def onward(self, plan: Plan, num_tokens: int, doubted: float) -> Draft:
        """The lowest level's next draft, after `num_tokens` of its own, which are doubted so much together."""
        name = self._pool.names[plan.chain.levels[0]]
        return self._onward(name, plan.draft_doubt, num_tokens, doubted, plan.hazards[0][name])

    def _onward(self, name: str, most: tuple[float, ...], num_tokens: int, doubted: float, hazard: Hazard) -> Draft:
        """It reaches as far as thresholds are about the same, since a draft has one stop."""
        begin = num_tokens
        while begin < len(most) and most[begin] == inf:
            begin += 1
        end = begin
        while end < len(most) and abs(most[end] - most[begin]) <= ALIKE:
            end += 1
        stop = self._stop(most[begin] - doubted, *hazard) if begin < end else None
        return self.draft(name, end - num_tokens, stop)

    def _stop(self, most_doubt: float, base: float, of_doubt: float) -> Stop | None:
        """A stop at a survival of exp(-most_doubt)."""
        if of_doubt < NO_DOUBT:
            return None
        least = exp(-STEP * round(max(most_doubt, 0.0) / STEP)) if most_doubt < inf else 0.0
        key = least, _rounded(base), _rounded(of_doubt)
        stop = self._stops.get(key)
        if stop is None:
            stop = self._stops[key] = SurvivalBelow(chance=key[0], hazard=key[1], of_doubt=key[2])
        return stop

    def _hazards(self, tag: str, chain: FoundChain, index: int) -> dict[str, Hazard]:
        """By drafter, for the tokens that a level holds."""
        names, hazard = self._pool.names, self._survival.hazard
        judge, verifier = chain.levels[index], chain.levels[index + 1]
        hazards = {names[writer]: hazard(tag, (writer, judge, verifier)) for writer in chain.levels[: index + 1]}
        if self._front >= 0:
            hazards[names[self._front]] = hazard(tag, (self._front, judge, verifier))
        return hazards


def _rounded(value: float) -> float:
    return exp(STEP * round(log(value) / STEP))


def _most_doubt(chain: FoundChain, index: int, figures: SearchFigures) -> float:
    """-ln of the survival S at which S g tau_(i+1) = tau_i + w; see the module."""
    rates = figures.rates
    judging = figures.seconds[chain.levels[index + 1]]
    wider = max(0.0, float(judging[-1] - judging[1]) / (len(judging) - 2)) if len(judging) > 2 else 0.0
    rate = float(rates[chain.levels[index], chain.levels[index + 1]])
    added = 1
    if index:
        below = float(rates[chain.levels[index - 1], chain.levels[index]])
        added = max(1, round(sum(below**kept for kept in range(chain.windows[index - 1] + 1))))
    gain = sum(rate**kept for kept in range(1, added + 1)) / added
    least = (chain.level_s[index] + wider) / chain.level_s[index + 1]
    return log(gain / least) if gain > 0.0 and least > 0.0 else -inf if gain <= 0.0 else inf


def draft_doubts(chain: FoundChain, figures: SearchFigures, base: float, most: int) -> tuple[float, ...]:
    """By the lowest level's tokens n, from 0 on, the most doubt with which it drafts on; see the module.

    inf: any doubt, as without tokens. The last entry is that of the most tokens with which it may draft on at all, as
    each token has a doubt of at least `base`.
    """
    low, judge = chain.levels[:2]
    token_s, worth_s = chain.level_s[:2]
    judging: list[float] = figures.seconds[judge].tolist()
    rate = float(figures.rates[low, judge])
    kept, worth = 0.0, [0.0]  # by tokens added: what is kept of them, in seconds of the judge
    for _ in range(most):
        kept = rate * (1.0 + kept)
        worth.append(worth_s * kept)
    found = [inf]
    for n in range(1, most):
        # Below 0 where the judge is quicker with more tokens: then any doubt will do.
        ratios = [(more * token_s + judging[n + more] - judging[n]) / worth[more] for more in range(1, most + 1 - n)]
        least = min(ratios)
        doubt = -log(least) if least > 0.0 else inf
        if n * base > doubt:
            break
        found.append(doubt)
    return tuple(found)


@dataclass(slots=True, kw_only=True)
class SchedulerCounts:
    """Counts of a scheduler. Mutated by it and its selectors."""

    selections: int = 0  # searches
    switches: int = 0  # selections that changed the members of a chain
    trials: int = 0  # rounds of trials, the warm-up included
    rounds: int = 0  # commits by the target
    judged: dict[str, int] = field(default_factory=dict)  # pending tokens that each member judged
    # of those, tokens rejected or dropped by a member below the target, which the target never judged
    refused_early: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Choice:
    """The choice of a tag, or of all running requests. Mutated by the selector."""

    chain: FoundChain | None = None  # the members and windows; None before the first selection
    figures: SearchFigures | None = None  # of the selection
    num_rows: int = 0  # requests of an operation then
    plans: dict[str, Plan] = field(default_factory=dict)  # by tag
    rounds: int = 0  # since the selection
    total: int = 0  # rounds in all


class Selector(ABC):
    """Plans of requests by their selection. Mutated by `plan` and `note_round`."""

    shared: ClassVar[bool]  # whether one choice is for all tags

    def __init__(
        self, pool: Pool, options: RouterOptions, knowledge: Knowledge, planner: Planner, counters: SchedulerCounts
    ) -> None:
        self._options, self._knowledge, self._planner, self._counters = options, knowledge, planner, counters
        self._pool = pool
        self._judges = [member.verifies for member in pool.members]
        # The largest member that copies; -1: none.
        self._front = pool.num_free - 1
        self._choices: dict[str | None, Choice] = {}

    def plan(self, tag: str, num_rows: int) -> Plan:
        """The plan of a request of this tag for the round that begins now, in operations of `num_rows` requests."""
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
        plan = choice.plans.get(tag)
        if plan is None:
            assert choice.chain is not None
            assert choice.figures is not None
            plan = choice.plans[tag] = self._planned(tag, choice.chain, choice.figures)
        return plan

    def note_round(self, tag: str) -> None:
        """The target committed for a request of this tag."""
        choice = self._choices.get(self._key(tag))
        if choice is not None:
            choice.rounds += 1
            choice.total += 1

    @abstractmethod
    def _before_selecting(self, choice: Choice, num_rows: int) -> Plan | None:
        """The plan while too little is known to select; None: select."""

    @abstractmethod
    def _is_due(self, choice: Choice, num_rows: int) -> bool:
        """Whether a choice has held for long enough."""

    @abstractmethod
    def _select(self, choice: Choice, tag: str, num_rows: int) -> Plan | None:
        """Search again; returns the plan of a trial where one is due and worth its seconds."""

    @abstractmethod
    def _planned(self, tag: str, chain: FoundChain, figures: SearchFigures) -> Plan:
        """A tag's plan of a chain."""

    def _lookup_s(self, choice: Choice) -> float:
        """Seconds of the copying itself, for all requests of an operation; 0 while unknown."""
        profiler = self._knowledge.profiler
        if profiler.stated is not None:
            return float(profiler.table(1)[self._front, 0])
        return choice.num_rows * (profiler.narrowest_s(self._front, 1) or 0.0)

    def _key(self, tag: str) -> str | None:
        return None if self.shared else tag

    def _search(self, figures: SearchFigures) -> FoundChain:
        return best_chain(figures, members=self._knowledge.models(), judges=self._judges, in_step=self.shared)
