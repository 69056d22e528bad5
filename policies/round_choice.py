"""One of several chains for each round, by a few numbers of the rounds before, on which a learner can be trained.

The numbers are the same where it is trained (`paceline.sim.gym`) and where it decides, since both come from here.
Letter: K chains to choose among.
"""

from collections import deque
from collections.abc import Callable, Sequence
from operator import index
from typing import ClassVar

from ..base.errors import ArgumentError, repeated
from ..decoding.pool import Pool
from ..decoding.seen import Observation
from ..decoding.steps import Outcome, Step
from .about import About
from .fixed import Chain

LAST_ROUNDS = 4
NUM_NUMBERS = LAST_ROUNDS + 2
NONE = -1.0  # in place of a missing value


class RoundHistory:
    """The last rounds of one request, as numbers; `num_chains` is K. Mutated by `note`."""

    __slots__ = ("_chosen", "_most", "_shares")

    def __init__(self, num_chains: int) -> None:
        self._most = max(num_chains - 1, 1)
        self._shares = deque([NONE] * LAST_ROUNDS, maxlen=LAST_ROUNDS)
        self._chosen = NONE

    def note(self, chosen: int, outcome: Outcome) -> None:
        """Note a round of the chain `chosen`, 0 to K - 1, which the target has committed."""
        self._chosen = chosen / self._most
        self._shares.appendleft(outcome.num_accepted / outcome.num_judged if outcome.num_judged else NONE)

    def numbers(self, seen: Observation) -> tuple[float, ...]:
        """`[6]` what the next choice may go by, each from -1 to 1.

        That is, of the last four rounds, the latest first, the share of the tokens given to the target that it
        accepted (0 to 1; -1: it was given none, or there was no such round); the chain of the latest round, its index
        / (K - 1) (-1: there was none); and the share of the budget that is committed (0 to 1).
        """
        spent = seen.num_emitted / (seen.num_emitted + seen.remaining)
        return (*self._shares, self._chosen, spent)


class RoundChoice:
    """Plays in each round the chain that `choose` picks when it begins.

    A round ends where the target commits. A policy of yours inherits it, or calls it.

    Args:
        chains: K >= 1 in notation, such as "draft:4/target"; "target" is the target alone.
        choose: of `RoundHistory.numbers`, the index of a chain.

    Attributes:
        most_pending: tokens it may have pending, at most.
        chains: in notation.

    Raises:
        ValueError: a text that is no chain of this pool; ArgumentError for none, or one that is given twice.
    """

    about: ClassVar[About] = About(lossless=True, members="those of the chains to choose among")

    def __init__(self, pool: Pool, chains: Sequence[str], choose: Callable[[tuple[float, ...]], int]) -> None:
        if isinstance(chains, str) or not chains:
            raise ArgumentError(f"`chains` must be a list of at least one chain, got {chains!r}")
        self._chains = [Chain(pool, text) for text in chains]
        self.chains = tuple(str(chain.spec) for chain in self._chains)
        twice = repeated(self.chains)
        if twice:
            raise ArgumentError(f"`chains` must differ, got {twice[0]} twice")
        self.most_pending = max(chain.most_pending for chain in self._chains)
        self._choose = choose
        self._histories: dict[str, RoundHistory] = {}
        self._playing: dict[str, int] = {}  # of every unfinished round

    def history(self, request_id: str) -> RoundHistory:
        """Of a request that has not ended; forgotten when it ends."""
        found = self._histories.get(request_id)
        if found is None:
            found = self._histories[request_id] = RoundHistory(len(self._chains))
        return found

    def forget(self, request_id: str) -> None:
        """Reset a request, in any state."""
        self._histories.pop(request_id, None)
        self._playing.pop(request_id, None)

    def decide(self, seen: Observation) -> Step:
        """The next step of the round's chain; raises ValueError for a choice that is no index of a chain."""
        chosen = self._playing.get(seen.request_id)
        if chosen is None:
            chosen = index(self._choose(self.history(seen.request_id).numbers(seen)))
            if not 0 <= chosen < len(self._chains):
                raise ValueError(f"a choice must be an index in [0, {len(self._chains) - 1}], got {chosen}")
            self._playing[seen.request_id] = chosen
        return self._chains[chosen].decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """Note the round where the target has committed."""
        if not outcome.num_emitted:
            return
        request_id = outcome.request_id
        self.history(request_id).note(self._playing.pop(request_id), outcome)
        if outcome.done:
            self.forget(request_id)
