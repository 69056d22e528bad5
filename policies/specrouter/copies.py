"""What a request copies at the beginning of a round: of its own text or of earlier answers, where that pays.

The longest suffix of the text that stands elsewhere in it, and the longest that stands in earlier answers, are followed
by what most often came next there (`suffix`, after SuffixDecoding, Oliaro et al. 2024, arXiv:2411.04975). That is known
before anything is played: where nothing matches, no operation is spent on looking. S_k is the probability that the
first k tokens of a candidate are right, a product of rates (`estimates.copied`), and n of them are handed to the target
where what they bring is worth more than what they take,

    tau (1 + S_1 + ... + S_n) > v(n + 1) + c,

tau the seconds per token of the chain without copies, v those of the target's forward and c those of a copy; the
candidate and n of the largest difference win. In a batch in step a copy has to gain more than the row's draft would.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...decoding.contract import Draft, Outcome
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..suffix.answers import Place
from ..suffix.automaton import ROOT
from ..suffix.request_texts import RequestText, RequestTexts
from .constants import RouterConstants
from .estimates.copied import EARLIER, OWN, CopiedTokens, cell_of
from .options import RouterOptions
from .plan import CopyWorth

LEAST_CHANCE = 0.05  # S_k from which on a candidate is not followed


class _Candidate(NamedTuple):
    """Tokens that might be copied, and the cell of each."""

    tokens: list[int]
    cells: list[int]


class Copies:
    """Texts, and what is known of copying them. Mutated by `begin` and `learn`.

    Args:
        pool: the lowest members are model-free.
        options: the longest copy, how much is kept, and what to do without.
        constants: of the policy.
    """

    def __init__(self, pool: Pool, options: RouterOptions, constants: RouterConstants) -> None:
        self._model = pool.names[sum(member.model_free for member in pool.members) - 1]
        self._most = options.most
        self._takes_own = options.takes("lookups")
        self._texts = RequestTexts(options.store if options.takes("answers") else 0)
        self._copied = CopiedTokens(constants)
        self._before: dict[str, tuple[int, list[_Candidate]]] = {}  # tokens of the answer, and what they might go on by

    def begin(self, seen: Observation, worth: CopyWorth | None) -> Draft | None:
        """Read what was committed, and say what to copy in the round that begins; None where nothing pays.

        Args:
            seen: the request, with nothing pending.
            worth: of copies; None: nothing is copied, but it is learnt what might have been.
        """
        text, name = self._texts.read(seen), seen.request_id
        num_known, candidates = self._before.get(name, (0, []))
        new = text.answer[num_known:]
        for candidate in candidates:
            self._judge(seen.tag, candidate, new)
        rates = self._copied.rates(seen.tag)
        candidates = [self._follow(rates, source, place) for source, place in self._places(text)]
        self._before[name] = len(text.answer), candidates
        if worth is None:
            return None
        most = seen.room - 1  # the target writes the last token of the budget itself
        parts = [_best_part(rates, found, worth, most) for found in candidates]
        _, tokens = max(parts, key=lambda part: part[0], default=(0.0, []))
        return Draft(self._model, len(tokens), copy=tuple(tokens)) if tokens else None

    def learn(self, outcome: Outcome) -> None:
        """The answer of a request that is done is there for others."""
        self._texts.learn(outcome)
        if outcome.done:
            self._before.pop(outcome.request_id, None)

    def _places(self, text: RequestText) -> Iterator[tuple[int, Place]]:
        if self._takes_own:
            yield OWN, text.repeated
        for place in self._texts.elsewhere(text):
            yield EARLIER, place

    def _judge(self, tag: str, candidate: _Candidate, new: Sequence[int]) -> None:
        """Tokens tell of a candidate up to the first one that is another."""
        for token, written, cell in zip(new, *candidate, strict=False):
            self._copied.note(tag, cell, kept=token == written)
            if token != written:
                return

    def _follow(self, rates: Sequence[float], source: int, place: Place) -> _Candidate:
        """The most frequent tokens one after another; of equals the one that came first."""
        index, state, length = place
        follows, counts = index.follows, index.counts
        found = _Candidate([], [])
        while state != ROOT and not follows[state]:  # nothing came after it
            state = index.links[state]
            length = index.lengths[state]
        chance = 1.0
        while state != ROOT and follows[state] and len(found.tokens) < self._most and chance > LEAST_CHANCE:
            after = follows[state]
            token = next(iter(after)) if len(after) == 1 else max(after, key=lambda each: counts[after[each]])
            if token < 0:  # logs have numbers below 0 for tokens that nobody knows
                break
            state = after[token]
            share = 1.0 if len(after) == 1 else counts[state] / sum([counts[each] for each in after.values()])
            cell = cell_of(source, length, share, counts[state])
            found.tokens.append(token)
            found.cells.append(cell)
            chance *= rates[cell]
            length += 1
        return found


def _best_part(rates: Sequence[float], found: _Candidate, worth: CopyWorth, most: int) -> tuple[float, list[int]]:
    """Seconds that the best beginning of a candidate saves, and its tokens; none if it saves nothing."""
    least_s, window = 0.0, 0
    chance, gain_s = 1.0, 0.0
    for index, cell in enumerate(found.cells[: max(most, 0)]):
        chance *= rates[cell]
        gain_s += worth.token_s * chance
        if gain_s - worth.cost_s[index] > least_s:
            least_s, window = gain_s - worth.cost_s[index], index + 1
    return least_s, found.tokens[:window]
