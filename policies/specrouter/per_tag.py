"""A chain for the requests of each tag: what few requests do.

Chains are compared by seconds per token, all by one measure. What is predicted for members is corrected by what they
took where they were played (`estimates.played`). And every candidate is given the benefit of its doubt: rates are
raised by their standard errors, and the correction of members that were seldom played is lowered by its own. So what is
little known is played while it may be the best, and no longer; nothing else is played to learn. A selection holds for a
third of the rounds that the tag has seen, for `every` at most.

Candidates are the members that are best by the rates as they are and as they are hoped for, those in use, and those
that were played.
"""

from math import inf
from typing import ClassVar

from ...decoding.pool import Pool
from .constants import RouterConstants
from .estimates.played import Played
from .knowledge import Knowledge
from .options import RouterOptions
from .plan import CopyWorth, Plan, Planner
from .search import Figures, FoundChain, best_windows
from .selector import Choice, Counters, Selector


class PerTag(Selector):
    """A choice for every tag; see the module and `Selector`.

    Args:
        pool, options, knowledge, planner, counters: see `Selector`.
        constants: of the policy.
    """

    shared: ClassVar[bool] = False

    def __init__(
        self,
        pool: Pool,
        options: RouterOptions,
        knowledge: Knowledge,
        planner: Planner,
        counters: Counters,
        *,
        constants: RouterConstants,
    ) -> None:
        super().__init__(pool, options, knowledge, planner, counters)
        self._early = constants.early
        self._stays = constants.tag_hysteresis * options.hysteresis
        self._errors = constants.optimism if options.takes("optimism") else 0.0
        self._corrects = options.takes("played")
        self.played = Played(constants)
        self._spent: dict[str, tuple[int, int, float]] = {}  # rounds, tokens and seconds since a tag's selection

    def has(self, tag: str) -> bool:
        """Whether a tag has a chain of its own."""
        return tag in self._choices

    def chains(self) -> dict[str, str]:
        """By tag, the chain in use in notation."""
        chains = {str(tag): choice.chain for tag, choice in self._choices.items()}
        return {tag: self._planner.notation(chain) for tag, chain in chains.items() if chain is not None}

    def note_seconds(self, tag: str, *, num_tokens: int, seconds: float) -> None:
        """A round of the tag's present plan, and what it took."""
        rounds, tokens, spent = self._spent.get(tag, (0, 0, 0.0))
        self._spent[tag] = rounds + 1, tokens + num_tokens, spent + seconds

    def _before_selecting(self, choice: Choice, num_rows: int) -> Plan | None:
        if self._knowledge.profiler.known(self._pool.target_level):
            return None
        return self._planner.alone()  # the warm-up of another request of the batch is under way

    def _is_due(self, choice: Choice, num_rows: int) -> bool:
        return choice.rounds >= min(self._options.every, max(1, round(choice.total * self._early)))

    def _select(self, choice: Choice, tag: str, num_rows: int) -> Plan | None:
        """Search anew. What the plan before took is compared with what its verdicts now predict for it."""
        knowledge = self._knowledge
        knowledge.digest()
        self._counters.selections += 1
        figures = knowledge.figures(tag, num_rows)
        rounds, tokens, seconds = self._spent.pop(tag, (0, 0, 0.0))
        if rounds and choice.chain is not None:
            levels = choice.chain.levels
            predicted_s = tokens * best_windows(levels, figures).token_s
            self.played.note(levels, predicted_s=predicted_s, seconds=seconds, num_rounds=rounds)
        best = self._best(choice, tag, figures)
        self._counters.switches += choice.chain is not None and best.levels != choice.chain.levels
        choice.chain, choice.figures = best, figures
        choice.num_rows, choice.rounds = num_rows, 0
        choice.plans.clear()
        return None

    def _best(self, choice: Choice, tag: str, figures: Figures) -> FoundChain:
        """The members that may be the best, with the windows of the rates as they are."""
        hoped = self._knowledge.optimistic(tag, figures) if self._errors else figures
        candidates = [self._search(figures).levels, self._search(hoped).levels, *self.played.chains()]
        stays = () if choice.chain is None else choice.chain.levels
        least_s, best = inf, candidates[0]
        for levels in dict.fromkeys([*candidates, stays] if stays else candidates):
            token_s = best_windows(levels, hoped).token_s * self._correction(levels)
            if levels == stays:
                token_s *= 1.0 - self._stays
            if token_s < least_s:
                least_s, best = token_s, levels
        return best_windows(best, figures)

    def _correction(self, levels: tuple[int, ...]) -> float:
        if not self._corrects:
            return 1.0
        return self.played.hopeful(levels) if self._errors else self.played.ratio(levels)

    def _planned(self, tag: str, chain: FoundChain, figures: Figures) -> Plan:
        return self._planner.plan(tag, chain, figures, copies=self._copies(chain, figures))

    def _copies(self, chain: FoundChain, figures: Figures) -> tuple[CopyWorth, ...]:
        """A copy is worth to a level what the chain up to it would take for as many tokens."""
        if self._front < 0:
            return ()
        ratio = self.played.ratio(chain.levels) if self._corrects else 1.0
        worth_s = dict(zip(chain.levels, chain.level_s, strict=True)) if self._options.stop == "confidence" else {}
        worth_s[self._pool.target_level] = chain.token_s * ratio
        return tuple(
            self._planner.worth(level, token_s, figures.seconds[level, 1:] + self._lookup_s(figures) - token_s)
            for level, token_s in worth_s.items()
            if self._judges[level]
        )
