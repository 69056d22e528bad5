"""A chain for the requests of each tag: what few requests do.

Chains are compared by predicted seconds per token, and every pair of members is given the benefit of its doubt: rates
are raised by their standard errors (`Knowledge.optimistic`), and the chain that is best by these is played. So what is
little known is played while it may be the best, and no longer; nothing else is played to learn. The errors count for
more the more of the tag was seen, up to `pair_memory` tokens: until then a pair that looked bad in a few tokens is
looked at again once they are few beside those of the others. A selection holds for a third of the rounds that the tag
has seen, for `every` at most.
"""

from typing import ClassVar

from .plan import CopyWorth, Plan
from .search import Figures, FoundChain, best_windows
from .selector import Choice, Selector


class PerTag(Selector):
    """A choice for every tag; see the module and `Selector`."""

    shared: ClassVar[bool] = False

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
        return choice.rounds >= min(self._options.every, max(1, round(choice.total * self._constants.early)))

    def _select(self, choice: Choice, tag: str, num_rows: int) -> Plan | None:
        """Search anew."""
        knowledge = self._knowledge
        knowledge.digest()
        self._counters.selections += 1
        figures = knowledge.figures(tag, num_rows)
        best = self._best(choice, tag, figures)
        self._counters.switches += choice.chain is not None and best.levels != choice.chain.levels
        choice.chain, choice.figures = best, figures
        choice.num_rows, choice.rounds = num_rows, 0
        choice.plans.clear()
        return None

    def _best(self, choice: Choice, tag: str, figures: Figures) -> FoundChain:
        """The members that may be the best, with the windows of the rates as they are."""
        hoped = self._knowledge.optimistic(tag, figures) if self._options.takes("optimism") else figures
        best = self._search(hoped).levels
        if choice.chain is not None:
            stays = choice.chain.levels
            gain = self._constants.tag_hysteresis * self._options.hysteresis
            least_s = best_windows(stays, hoped).token_s * (1.0 - gain)
            best = stays if least_s <= best_windows(best, hoped).token_s else best
        return best_windows(best, figures)

    def _planned(self, tag: str, chain: FoundChain, figures: Figures) -> Plan:
        return self._planner.plan(tag, chain, figures, copies=self._copies(tag, chain, figures))

    def _copies(self, tag: str, chain: FoundChain, figures: Figures) -> tuple[CopyWorth, ...]:
        """A copy is worth to a level what the chain up to it would take for as many tokens."""
        if self._front < 0:
            return ()
        worth_s = dict(zip(chain.levels, chain.level_s, strict=True)) if self._options.stop == "confidence" else {}
        worth_s[self._pool.target_level] = chain.token_s
        lookup_s = self._lookup_s(self._choices[tag])
        return tuple(
            self._planner.worth(level, token_s, figures.seconds[level, 1:] + lookup_s - token_s)
            for level, token_s in worth_s.items()
            if self._judges[level]
        )
