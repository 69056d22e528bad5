"""Suffix decoding: the draft is what most often followed the newest tokens, in this request's text and earlier answers.

The index of some texts is a suffix automaton: every piece, how often it occurs, and what follows it. Of n tokens it has
at most 2n states, and a suffix tree of them as its links (Blumer et al. 1985, Theoretical Computer Science 40). A state
stands for all pieces that end in the same places: the longest of them, and suffixes of it down to one token more than
the longest piece of the state it links to.

SuffixDecoding (Oliaro et al. 2024, arXiv:2411.04975; docs/policies.md has D and SCORE) looks up a suffix of p tokens in
an index of the request's own text and in one of earlier answers. Ours: a line is verified, not a tree; p has no
bound; other requests use an answer once its request is done, up to its last round, whose tokens policies do not see;
and the oldest half of earlier answers is dropped at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..base.errors import check_within
from ..decoding.pool import Pool
from ..decoding.results import made
from ..decoding.seen import Observation
from ..decoding.steps import MOST_TOKENS, ONE_STEP, Draft, Outcome, Step, Verify
from .about import About, Observable
from .blocks import DraftedBlocks, drafter_of, lookup_member

ROOT = 0
SHORT = 16  # tokens; most matches are shorter: for speed, not tuned


Likeliest = tuple[int, int, float]  # a next token, the state after it, and its share of all that followed


class SuffixAutomaton:
    """An index of texts. Mutated by `begin` and `extend`, which takes as long as the text has repeated suffixes.

    Attributes:
        num_tokens: of all texts.
        last: state of the whole text so far.
        follows: by state, the state after each next token, in the order in which they came first.
        links: by state, that of its longest suffix that also ends elsewhere; the root's own is -1.
        lengths: by state, tokens of its longest piece.
        counts: by state, places where its pieces end.
    """

    __slots__ = ("_likeliest", "counts", "follows", "last", "lengths", "links", "num_tokens")

    def __init__(self) -> None:
        self.follows: list[dict[int, int]] = [{}]
        self.links, self.lengths, self.counts = [-1], [0], [0]
        self.last = ROOT
        self.num_tokens = 0
        self._likeliest: dict[int, Likeliest] = {}  # by state, of those with several next tokens; cleared by `extend`

    def begin(self) -> None:
        """Begin another text."""
        self.last = ROOT

    def extend(self, tokens: Iterable[int]) -> None:
        """Append to the text."""
        follows, links, lengths, counts = self.follows, self.links, self.lengths, self.counts
        last = self.last
        self._likeliest.clear()
        for token in tokens:
            self.num_tokens += 1
            before, known = last, follows[last].get(token)
            if known is None:
                last = self._add({}, lengths[before] + 1, 0)
                while before >= 0 and (known := follows[before].setdefault(token, last)) == last:
                    before = links[before]
                links[last] = ROOT if before < 0 else self._exactly(before, token)
            else:
                last = known if lengths[known] == lengths[before] + 1 else self._exactly(before, token)
            state = last
            while state:
                counts[state] += 1
                state = links[state]
        self.last = last

    def copy(self) -> "SuffixAutomaton":
        """Another index of the same texts."""
        other = SuffixAutomaton()
        other.follows = [follows.copy() for follows in self.follows]
        other.links, other.lengths, other.counts = self.links.copy(), self.lengths.copy(), self.counts.copy()
        other.last, other.num_tokens = self.last, self.num_tokens
        return other

    def likeliest(self, state: int) -> "Likeliest | None":
        """The most frequent next token, the first of equals; None where there is none."""
        follows, counts = self.follows[state], self.counts
        if len(follows) == 1:
            ((token, after),) = follows.items()
            return token, after, 1.0
        if not follows:
            return None
        found = self._likeliest.get(state)
        if found is None:
            times = [counts[after] for after in follows.values()]
            most = max(times)
            token = list(follows)[times.index(most)]
            found = self._likeliest[state] = token, follows[token], most / sum(times)
        return found

    def at(self, state: int, length: int) -> tuple[int, int]:
        """(state, tokens) of a piece that was found at `state`, which may have been split since."""
        while state and length <= self.lengths[self.links[state]]:
            state = self.links[state]
        return state, length

    def walk(self, state: int, length: int, tokens: Iterable[int]) -> tuple[int, int]:
        """(state, tokens) of the longest indexed suffix of a piece that was found at `state` with `tokens` after it."""
        follows, links, lengths = self.follows, self.links, self.lengths
        state, length = self.at(state, length)
        for token in tokens:
            after = follows[state].get(token)
            while after is None and state:
                state = links[state]
                length = lengths[state]
                after = follows[state].get(token)
            state, length = (ROOT, 0) if after is None else (after, length + 1)
        return state, length

    def end_of(self, text: Sequence[int]) -> tuple[int, int]:
        """(state, tokens) of the longest indexed suffix of a text; reads its end, then more if all of that matches."""
        size = SHORT
        while True:
            state, length = self.walk(ROOT, 0, text[-size:])
            if length < size:
                return state, length
            size *= 4

    def _exactly(self, before: int, token: int) -> int:
        """The state of the longest piece of `before` and the token; split from longer ones if need be."""
        after = self.follows[before][token]
        length = self.lengths[before] + 1
        if self.lengths[after] == length:
            return after
        apart = self._add(dict(self.follows[after]), length, self.counts[after])
        self.links[apart], self.links[after] = self.links[after], apart
        while before >= 0 and self.follows[before].get(token) == after:
            self.follows[before][token] = apart
            before = self.links[before]
        return apart

    def _add(self, follows: dict[int, int], length: int, count: int) -> int:
        self.follows.append(follows)
        self.links.append(ROOT)
        self.lengths.append(length)
        self.counts.append(count)
        return len(self.follows) - 1


class Place(NamedTuple):
    """Where a piece of text occurs in an index."""

    within: SuffixAutomaton  # the index that it was found in
    state: int  # of the index
    length: int  # tokens of it; 0 where nothing was found

    def after(self, tokens: Sequence[int]) -> "Place":
        """The place after these tokens."""
        return Place(self.within, *self.within.walk(self.state, self.length, tokens))


class Match:
    """Where the newest tokens of a request occur in earlier answers. Mutated by `EarlierAnswers.follow`."""

    __slots__ = ("places", "serial")

    def __init__(self) -> None:
        self.serial = -1
        self.places: list[tuple[int, int]] = []


class EarlierAnswers:
    """An index of the newest answers, in two generations. Mutated by `add`.

    When the younger one is full it becomes the older one, which is dropped: between half of `most` >= 2 tokens and all
    of them are kept, once there were as many.
    """

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._generations = [SuffixAutomaton()]
        self._serial = 0  # of the younger generation

    @property
    def num_tokens(self) -> int:
        """Tokens kept."""
        return sum(index.num_tokens for index in self._generations)

    def add(self, answer: Sequence[int]) -> None:
        """Add an answer, cut to half of `most`."""
        answer = answer[: self._half]
        if self._generations[-1].num_tokens + len(answer) > self._half:
            self._generations = [self._generations[-1], SuffixAutomaton()]
            self._serial += 1
        index = self._generations[-1]
        index.begin()
        index.extend(answer)

    def follow(self, match: Match, tokens: Sequence[int]) -> None:
        """Advance a request's match by these tokens. A new generation is matched from here on."""
        if match.serial != self._serial:
            # The place in the older generation is known if that was the younger one at the last call.
            known = match.places[-1:] if match.serial == self._serial - 1 else []
            match.places = [*known, *[(ROOT, 0)] * (len(self._generations) - len(known))]
            match.serial = self._serial
        for generation, index in enumerate(self._generations):
            state, length = match.places[generation]
            match.places[generation] = index.walk(state, length, tokens) if length else index.end_of(tokens)

    def places(self, match: Match) -> Iterator[Place]:
        """Where a request's text ends in each generation by the last `follow`, the older one first."""
        for index, (state, length) in zip(self._generations, match.places, strict=True):
            yield made(Place, (index, *index.at(state, length)))


class IndexedText:
    """A request's text and its index. Mutated by `extend`.

    Args:
        index: of the prompt.

    Attributes:
        answer: ids of the committed tokens.
        index: of prompt and answer.
        match: of the text's end in earlier answers.
    """

    __slots__ = ("answer", "index", "match")

    def __init__(self, index: SuffixAutomaton) -> None:
        self.answer: list[int] = []
        self.match = Match()
        self.index = index

    def extend(self, tokens: list[int]) -> None:
        """Append to the answer."""
        self.answer += tokens
        self.index.extend(tokens)

    @property
    def repeated(self) -> Place:
        """The place of the longest suffix of the text that also occurs elsewhere in it."""
        index = self.index
        state = max(index.links[index.last], 0)
        return made(Place, (index, state, index.lengths[state]))


MOST_PROMPTS = 64  # with a kept index: limits memory, not tuned


class RequestTexts:
    """The texts of requests so far. Mutated by `read` and `learn`.

    Other requests use an answer once its request is done, up to the last round, whose tokens policies do not see.
    `store` tokens of earlier answers are kept, 0 or >= 2: between half of them and all.
    """

    def __init__(self, store: int) -> None:
        self._earlier = EarlierAnswers(store) if store else None
        self._open: dict[str, IndexedText] = {}
        self._prompts: dict[tuple[int, ...], SuffixAutomaton] = {}  # the newest: copying is faster than indexing

    def read(self, seen: Observation) -> IndexedText:
        """The text of a request, extended by what was committed since the last call."""
        text = self._open.get(seen.request_id)
        if text is None:
            index = self._prompts.pop(seen.prompt, None)
            if index is None:
                index = SuffixAutomaton()
                index.extend(seen.prompt)
                if len(self._prompts) >= MOST_PROMPTS:
                    del self._prompts[next(iter(self._prompts))]
            self._prompts[seen.prompt] = index  # the newest one
            text = self._open[seen.request_id] = IndexedText(index.copy())
            if self._earlier is not None:
                self._earlier.follow(text.match, seen.prompt)
        new = seen.emitted_from(len(text.answer))
        text.extend(new)
        if self._earlier is not None:
            self._earlier.follow(text.match, new)
        return text

    def elsewhere(self, text: IndexedText) -> Iterator[Place]:
        """Where a text that was just read ends in earlier answers, older ones first."""
        return iter(()) if self._earlier is None else self._earlier.places(text.match)

    def learn(self, outcome: Outcome) -> None:
        """Offer the answer of a request that is done to others."""
        if outcome.done:
            text = self._open.pop(outcome.request_id, None)
            if text is not None and self._earlier is not None:
                self._earlier.add(text.answer)


MOST_PATTERNS = 8  # suffixes of the newest tokens that are tried, the longest first


class Candidate(NamedTuple):
    """Tokens that may follow, and their score."""

    score: float  # expected right tokens, if continuations are as frequent as before
    tokens: tuple[int, ...]  # of the copy


NOTHING = Candidate(0.0, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationRule:
    """How far candidates go."""

    factor: float  # alpha > 0; a match of p tokens is followed by alpha p tokens at most
    least_prob: float  # share of the continuations that a token and those before it must have, 0 to 1
    most: int  # tokens at most, >= 1

    def best_of(self, index: SuffixAutomaton, state: int, length: int) -> Candidate:
        """The candidate of most score after a match of `length` tokens at `state`, or a suffix of it."""
        best = NOTHING
        for _ in range(MOST_PATTERNS):
            most = min(int(self.factor * length), self.most)
            if state == ROOT or most <= best.score:  # a token adds at most 1, and shorter matches allow fewer
                break
            best = max(best, self._after(index, state, most), key=lambda found: found.score)
            state = index.links[state]
            length = index.lengths[state]
        return best

    def _after(self, index: SuffixAutomaton, state: int, most: int) -> Candidate:
        """Most frequent tokens one after another; of equals the one that came first."""
        prob, score = 1.0, 0.0
        tokens: list[int] = []
        while len(tokens) < most:
            after = index.likeliest(state)
            if after is None:
                break
            token, state, share = after
            prob *= share
            if prob < self.least_prob or token < 0:  # logs have numbers below 0 for unknown tokens
                break
            score += prob
            tokens.append(token)
        return Candidate(score, tuple(tokens))


class Suffix(DraftedBlocks):
    """Copy what most often followed the newest tokens, here or in earlier answers; else plain decoding, or a model.

    Args:
        pool: must hold a model-free member, which writes the copies.
        draft: a model that drafts where the score is below `score`; None decodes plainly where nothing matches.
        window: tokens the model drafts, >= 1.
        score: least score of a copy where there is a model, >= 0.
        factor: alpha, > 0: tokens copied by token that matches, at most.
        least: threshold of D, 0 to 1.
        most: longest copy, >= 1.
        store: tokens of earlier answers that are kept, 0 or >= 2; between half of them and all.

    Raises:
        ValueError: no model-free member, a draft that is no model below the target, or an option out of range.
    """

    about = About(
        paper="SuffixDecoding, arXiv:2411.04975",
        lossless=True,
        members="a model-free member",
        observes=frozenset({Observable.text}),
    )

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        window: int = 4,
        score: float = 1.5,
        factor: float = 1.0,
        least: float = 0.1,
        most: int = 16,
        store: int = 65_536,
    ) -> None:
        lookup = lookup_member(pool, "suffix")
        check_within("window", window, ONE_STEP)
        check_within("score", score, "[0, inf)")
        check_within("factor", factor, "(0, inf)")
        check_within("least", least, "[0, 1]")
        check_within("most", most, ONE_STEP)
        if store != 0:
            check_within("store", store, f"[2, {MOST_TOKENS:,}]")
        self._model = None if draft is None else Draft(drafter_of(pool, draft), window)
        others = () if self._model is None else (self._model.model,)
        super().__init__(Draft(lookup, most), Verify(pool.target), others=others)
        if self._model is not None and pool.is_model_free(self._model.model):
            raise ValueError(f"draft must be a model, got {draft!r}, which is model-free")
        self.most_pending = most if self._model is None else max(most, window)
        self._least_score = score if self._model is not None else 0.0
        self._rule = SpeculationRule(factor=factor, least_prob=least, most=most)
        self._texts = RequestTexts(store)

    def block(self, seen: Observation) -> Step:
        """The copy of most score; without one the model, or the target alone."""
        text = self._texts.read(seen)
        places = (text.repeated, *self._texts.elsewhere(text))
        found = max((self._rule.best_of(*place) for place in places), key=lambda each: each.score)
        if not found.tokens or found.score < self._least_score:
            return self._verify if self._model is None else self._model
        return Draft(self._draft.model, len(found.tokens), copy=found.tokens)

    def learn(self, outcome: Outcome) -> None:
        """Offer the answer of a request that is done to others."""
        self._texts.learn(outcome)
