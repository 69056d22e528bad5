"""One chain for all running requests, in step: the plan of a batch.

Each operation of a batch delays all rows on their way to the target, so requests share a chain in which each level runs
once a round.

- The window is best for the mix of tags that run: a draft lasts as long as its longest row, and its expected tokens are
  a sum over tags. A row leaves the draft where its own next token is not worth being judged (`stop=confidence`).
- A request that copies (`copies`) does not draft in that round: chains are compared at the share that drafts, with the
  tokens of copies.
- In the first round up to `probe` requests draft a little for the target, the others not.
- Where rates raised by their standard errors favour another chain, its new member judges what a few rows draft, for one
  round, within `trial_share` of the seconds of decoding so far. A member that would not pay if it were always right is
  never tried.

Selections are `every` rounds of every request apart, fewer at first, and come at once when the number of requests
changes by a quarter.
"""

from dataclasses import replace
from math import inf
from typing import ClassVar, NamedTuple

import numpy as np

from ...decoding.pool import Pool
from ..blocks import RunningRatio
from .estimates import Knowledge
from .options import CONSTANTS, RouterOptions
from .plan import Choice, CopyWorth, Plan, Planner, SchedulerCounts, Selector
from .search import FoundChain, SearchFigures, best_windows


class _Share(NamedTuple):
    """A tag's part in the mix."""

    share: float  # of the rounds, without those that copy, 0 to 1
    kept: float  # rate at which the level above the lowest keeps a token, 0 to 1
    rate: float  # of that level's tokens at the target, 0 to 1


class InStep(Selector):
    """One choice for all; see the module and `Selector`."""

    shared: ClassVar[bool] = True

    def __init__(
        self, pool: Pool, options: RouterOptions, knowledge: Knowledge, planner: Planner, counters: SchedulerCounts
    ) -> None:
        super().__init__(pool, options, knowledge, planner, counters)
        self._lowest = self._front + 1
        self._choices[None] = Choice()  # counts rounds from the start
        self._mix: dict[str, float] = {}  # rounds that began by tag since the last selection
        self._trial: FoundChain | None = None
        self._probed = 0  # requests that drafted before the first selection
        self._trying = 0  # rows yet to play the trial
        self._trials_s = 0.0  # seconds of trials
        self._tokens = 0.0  # of every request so far
        self._faded_at = 0  # rounds until evidence last faded
        memory = CONSTANTS.rounds_memory
        self._copying = RunningRatio(memory=memory, below=1.0)  # rounds that copied
        self._copied = RunningRatio(memory=memory, below=1.0)  # tokens that they added to the target's own

    @property
    def chain(self) -> FoundChain | None:
        """The chain in use; None before the first selection."""
        return self._choices[None].chain

    def plan(self, tag: str, num_rows: int) -> Plan:
        """The plan of a request of this tag for the round that begins now; see `Selector`."""
        self._mix[tag] = self._mix.get(tag, 0.0) + 1.0
        if self._trying and self._trial is not None:
            self._trying -= 1
            self._counters.trials += 1
            return self._tried(tag, self._trial)
        return super().plan(tag, num_rows)

    def note_commit(self, num_tokens: int, num_rows: int, *, copied: bool) -> None:
        """Note `num_tokens` of a request's round, with `num_rows` running requests; `copied`: after a copy."""
        self._tokens += num_tokens / num_rows
        self._copying.note(copied, 1.0)
        self._copied.note(num_tokens - 1.0 if copied else 0.0, 1.0)

    def _before_selecting(self, choice: Choice, num_rows: int) -> Plan | None:
        target, known = self._pool.target_level, self._knowledge.profiler.known
        learning = self._lowest < target and self._options.probes > 0
        if not known(target) or (learning and (choice.total < num_rows or not known(self._lowest))):
            if not learning or self._probed >= self._options.probes:
                return self._planner.alone()
            self._probed += 1
            self._counters.trials += 1
            return self._planner.ladder((self._lowest, target))
        return None

    def _is_due(self, choice: Choice, num_rows: int) -> bool:
        if abs(num_rows - choice.num_rows) > CONSTANTS.rows_changed * choice.num_rows:
            return True
        early = 1 + int(choice.total * CONSTANTS.early_in_step / num_rows)
        return choice.rounds >= num_rows * min(self._options.every, early)

    def _select(self, choice: Choice, tag: str, num_rows: int) -> Plan | None:
        knowledge = self._knowledge
        knowledge.digest()
        self._counters.selections += 1
        figures = knowledge.figures(None, num_rows)._replace(
            drafting=1.0 - self._copying.rate, undrafted=1.0 + self._copied.rate
        )
        choice.chain, choice.figures = self._mixed(self._found(choice, figures), figures), figures
        choice.num_rows, choice.rounds = num_rows, 0
        choice.plans.clear()
        faded = self._options.explores * num_rows  # rounds after which evidence against trying a pair again halves
        if faded and choice.total - self._faded_at >= faded:
            self._faded_at = choice.total
            knowledge.agreement.fade()
        self._mix.clear()
        rows = min(CONSTANTS.trial_rows, num_rows)
        self._trial = self._worth_trying(choice.chain, figures, rows) if self._options.explores else None
        if self._trial is None:
            return None
        self._trying = rows - 1
        return self._tried(tag, self._trial)

    def _found(self, choice: Choice, figures: SearchFigures) -> FoundChain:
        """The members that the search finds, or the present ones unless those are better by the hysteresis."""
        found = self._search(figures)
        if choice.chain is None or found.levels == choice.chain.levels:
            return found
        present = best_windows(choice.chain.levels, figures, in_step=True)
        if found.token_s >= present.token_s * (1.0 - self._options.hysteresis):
            return present
        self._counters.switches += 1
        return found

    def _tried(self, tag: str, chain: FoundChain) -> Plan:
        figures = self._choices[None].figures
        assert figures is not None
        return replace(self._planner.plan(tag, chain, figures, in_step=True), trial=True)

    def _worth_trying(self, chain: FoundChain, figures: SearchFigures, rows: int) -> FoundChain | None:
        """A chain of `rows` rows to try a member of whose pairs little is known; None if none is worth its seconds."""
        tokens, rates = self._knowledge.agreement.freshness(), figures.rates
        raised = rates + CONSTANTS.trial_doubt * np.sqrt(
            (rates * (1.0 - rates) + CONSTANTS.least_variance) / (tokens + 1.0)
        )
        found = self._search(figures._replace(rates=np.minimum(raised, 1.0)))
        new = [level for level in found.levels if level not in chain.levels]
        if not new or found.token_s >= chain.token_s * (1.0 - self._options.hysteresis):
            return None
        low, target, member = chain.levels[0], self._pool.target_level, new[-1]
        profiler = self._knowledge.profiler
        if low < member and self._judges[member]:  # if it judges, one forward scores many tokens
            levels, windows = [low, member, target], [chain.windows[0], 1]
            trial_s = float(profiler.table(chain.windows[0] + 1, num_rows=rows)[member, -1])
        else:
            levels, windows = [member, target], [found.windows[0]]
            trial_s = float(profiler.table(1, num_rows=rows)[member, 0]) * found.windows[0]
        trial_s += float(profiler.prompts_s(rows)[member])
        if self._trials_s + trial_s > (1.0 + CONSTANTS.trial_share * self._tokens) * chain.token_s:
            return None
        self._trials_s += trial_s
        level_s = (0.0, *[chain.token_s] * len(windows))
        return FoundChain(levels=tuple(levels), windows=tuple(windows), level_s=level_s)

    def _mixed(self, chain: FoundChain, figures: SearchFigures) -> FoundChain:
        """The same members with the best window for the tags that run."""
        levels, seconds = chain.levels, figures.seconds
        if len(levels) == 1:
            return chain
        low, above, target = levels[0], levels[1], levels[-1]
        mix, drafting = list[_Share](), figures.drafting / sum(self._mix.values())
        for tag, rounds in self._mix.items():
            rates = self._knowledge.agreement.rates(tag)
            mix.append(_Share(rounds * drafting, float(rates[low, above]), float(rates[above, target])))
        draft_s, target_s = float(seconds[low, 0]), seconds[target].tolist()
        if above == target:
            window, token_s = _best_of_two(mix, figures.undrafted, draft_s, target_s)
        else:
            window, token_s = _best_of_three(mix, figures.undrafted, draft_s, seconds[above].tolist(), target_s)
        token_s += float(figures.entry_s[list(levels[:-1])].sum())
        between = [worth_s * token_s / chain.token_s for worth_s in chain.level_s[1:-1]]
        return replace(chain, windows=(window, *chain.windows[1:]), level_s=(draft_s, *between, token_s))

    def _planned(self, tag: str, chain: FoundChain, figures: SearchFigures) -> Plan:
        """A tag's plan of the chain: its window ends where a token of this tag no longer pays."""
        own = figures._replace(rates=self._knowledge.agreement.rates(tag))
        levels, windows, level_s = chain.levels, chain.windows, chain.level_s
        window, gain_s = 0, 0.0
        if windows:
            # One more token costs a row only its judging: the draft continues for the others anyway.
            window, gain_s = _pays(levels[0], levels[1:], own, level_s[1], windows[0])
        copies: tuple[CopyWorth, ...] = ()
        if self._front >= 0:  # a copy that the target judges in place of a draft has to gain more than a draft does
            judging_s = own.seconds[-1]
            cost_s = (judging_s[1:] - judging_s[0]).clip(0.0) + self._lookup_s(self._choices[None]) + gain_s
            copies = (self._planner.worth(self._pool.target_level, chain.token_s, cost_s),)
        if window:
            kept = FoundChain(levels=levels, windows=(window, *windows[1:]), level_s=(0.0, *level_s[1:]))
        else:
            kept = FoundChain(levels=levels[-1:], windows=(), level_s=level_s[-1:])
        return self._planner.plan(tag, kept, own, copies=copies, in_step=True)


def _best_of_two(mix: list[_Share], undrafted: float, draft_s: float, target_s: list[float]) -> tuple[int, float]:
    """The window of least seconds per token of a request, and those; the sums of `search`, over tags."""
    window, least_s = 1, inf
    seconds, tokens = target_s[0], undrafted
    reached = [tag.share for tag in mix]
    for width in range(1, len(target_s)):
        reached = [chance * tag.kept for chance, tag in zip(reached, mix, strict=True)]
        seconds += draft_s + target_s[width] - target_s[width - 1]
        tokens += sum(reached)
        if seconds < least_s * tokens:
            window, least_s = width, seconds / tokens
    return window, least_s


def _best_of_three(
    mix: list[_Share], undrafted: float, draft_s: float, middle_s: list[float], target_s: list[float]
) -> tuple[int, float]:
    """The same over a level between."""
    window, least_s, widest = 1, inf, len(target_s) - 1
    seconds, tokens = middle_s[0] + target_s[1], undrafted + sum(tag.share * tag.rate for tag in mix)
    reached = [tag.share for tag in mix]
    kept = [tag.share * tag.rate for tag in mix]
    for width in range(1, max(1, widest - 1) + 1):
        reached = [chance * tag.kept for chance, tag in zip(reached, mix, strict=True)]
        kept = [chance * tag.kept * tag.rate for chance, tag in zip(kept, mix, strict=True)]
        seconds += draft_s + middle_s[width] - middle_s[width - 1]
        seconds += sum(reached) * (target_s[min(width + 1, widest)] - target_s[width])
        tokens += sum(kept)
        if seconds < least_s * tokens:
            window, least_s = width, seconds / tokens
    return window, least_s


def _pays(writer: int, above: tuple[int, ...], own: SearchFigures, worth_s: float, most: int) -> tuple[int, float]:
    """How many tokens of a member, at most `most`, are worth more than judging them (by the levels `above`) takes.

    Also their gain in all, seconds, without the member's own forwards.
    """
    cost_s = np.diff(own.seconds[list(above), : most + 1], axis=1).clip(0.0).sum(axis=0)
    gains = worth_s * own.rates[writer, above[0]] ** np.arange(1.0, len(cost_s) + 1.0) - cost_s
    total_s = gains.cumsum()
    best = int(total_s.argmax())
    return (best + 1, float(total_s[best])) if total_s[best] > 0.0 else (0, 0.0)
