"""What a request copies, of its own text or of earlier answers, which level judges it, and whether that pays.

Copied is what most often followed the longest suffix of the text that also occurs elsewhere (`suffix`, after
SuffixDecoding, Oliaro et al. 2024, arXiv:2411.04975): the look-up takes no operation. S_k is the probability that the
first k tokens of a candidate are right (`estimates.CopiedTokens`). Handing n of them to level i, in place of what the
levels up to i would write, saves

    tau_i (1 + S_1 + ... + S_n) - v_i(n + 1) - c

seconds: tau_i the seconds per token of the chain up to level i, v_i those of its forward, c those of a copy. The
candidate, i and n that save most are taken; nothing is copied where none saves any. The target judges copies alone, at
the beginning of a round. In step it is the only judge, and a copy has to gain more than the request's draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...decoding.pool import Pool
from ...decoding.results import made
from ...decoding.seen import Observation
from ...decoding.steps import Draft, Outcome, Verify
from ..suffix import ROOT, Place, RequestTexts
from .estimates import EARLIER, OWN, CopiedTokens, cell_of
from .options import CONSTANTS, RouterOptions
from .plan import CopyWorth


class Copy(NamedTuple):
    """What to copy, and its verifier."""

    draft: Draft
    judge: Verify


class _Candidate(NamedTuple):
    """Tokens that may be copied, the cell of each, and S_1 + ... + S_k."""

    tokens: list[int]
    cells: list[int]
    sums: list[float]


@dataclass(slots=True)
class _Reading:
    """At a round's beginning: tokens of the answer, where the text's end occurs elsewhere, and candidates."""

    num_known: int
    places: list[tuple[int, Place]]
    candidates: list[_Candidate]


class Copies:
    """Texts, and how right copies of them were, in a pool whose lowest members are model-free.

    Mutated by `begin` and `learn`.
    """

    def __init__(self, pool: Pool, options: RouterOptions) -> None:
        self._model = pool.names[pool.num_free - 1]
        self._target = pool.target
        self._most = options.most
        self._takes_own = options.takes("lookups")
        self._texts = RequestTexts(options.stores if options.takes("answers") else 0)
        self._least = CONSTANTS.copy_chance
        self._copied = CopiedTokens()
        self._open: dict[str, _Reading] = {}

    def begin(self, seen: Observation) -> None:
        """A round begins: read what was committed, and note which copies would have been right."""
        request_id, tag = seen.request_id, seen.tag
        text = self._texts.read(seen)
        reading = self._open.get(request_id)
        if reading is None:
            reading = self._open[request_id] = _Reading(0, [], [])
        else:
            new = text.answer[reading.num_known :]
            for tokens, cells, _ in reading.candidates:
                self._copied.note(tag, cells, tokens, new)
        places = [(OWN, text.repeated)] if self._takes_own else []
        places += [(EARLIER, place) for place in self._texts.elsewhere(text)]
        rates = self._copied.rates(tag)
        reading.num_known, reading.places = len(text.answer), places
        reading.candidates = [self._follow(rates, source, place) for source, place in places if place.state]

    def best(self, seen: Observation, worths: Sequence[CopyWorth]) -> Copy | None:
        """The copy that saves most seconds after what is pending; None where none saves any. The round has begun.

        `worths` are of copies by verifier; the target judges them only where nothing is pending.
        """
        most = seen.room - 1  # the target writes the last token of the budget itself
        if most < 1:
            return None
        reading, rates = self._open[seen.request_id], self._copied.rates(seen.tag)
        candidates = reading.candidates
        if seen.num_pending:
            worths = [worth for worth in worths if worth.verify.model != self._target]
            if not worths:
                return None
            pending = [token.token for token in seen.pending]
            candidates = [self._follow(rates, source, place.after(pending)) for source, place in reading.places]
        most_s, judge, copied = 0.0, None, tuple[int, ...]()
        for tokens, _, sums in candidates:
            expected = sums if len(sums) <= most else sums[:most]
            for verify, token_s, cost_s, least_s in worths if expected else ():
                if token_s * expected[-1] - least_s <= most_s:  # it can save no more than the best so far
                    continue
                saved_s = [token_s * number - each_s for number, each_s in zip(expected, cost_s, strict=False)]
                best_s = max(saved_s)
                if best_s > most_s:
                    most_s, judge, copied = best_s, verify, tuple(tokens[: saved_s.index(best_s) + 1])
        return None if judge is None else Copy(Draft(self._model, len(copied), copy=copied), judge)

    def learn(self, outcome: Outcome) -> None:
        """Offer the answer of a request that is done to others."""
        self._texts.learn(outcome)
        if outcome.done:
            self._open.pop(outcome.request_id, None)

    def _follow(self, rates: Sequence[float], source: int, place: Place) -> _Candidate:
        """The most frequent tokens one after another; of equals the one that came first."""
        index, state, length = place
        counts, likeliest, least = index.counts, index.likeliest, self._least
        while state != ROOT and not index.follows[state]:  # nothing follows it
            state = index.links[state]
            length = index.lengths[state]
        tokens, cells, sums = found = made(_Candidate, ([], [], []))
        if state == ROOT:
            return found
        chance, expected = 1.0, 0.0
        for matches in range(length, length + self._most):
            after = likeliest(state)
            if after is None:
                break
            token, state, share = after
            if token < 0:  # logs have numbers below 0 for unknown tokens
                break
            cell = cell_of(source, matches, share, counts[state])
            chance *= rates[cell]
            expected += chance
            tokens.append(token)
            cells.append(cell)
            sums.append(expected)
            if chance < least:
                break
        return found
