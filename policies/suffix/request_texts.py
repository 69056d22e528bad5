"""Texts of the requests that run, each with its index, and where it ends: in itself and in earlier answers."""

from collections.abc import Iterator

from ...decoding.contract import Outcome
from ...decoding.observation import Observation
from .answers import EarlierAnswers, Match, Place
from .automaton import SuffixAutomaton


class RequestText:
    """A request's text and its index. Mutated by `extend`.

    Args:
        prompt: ids.

    Attributes:
        answer: ids of the committed tokens.
        index: of prompt and answer.
        match: where the text ends in earlier answers.
    """

    __slots__ = ("answer", "index", "match")

    def __init__(self, prompt: tuple[int, ...]) -> None:
        self.answer: list[int] = []
        self.match = Match()
        self.index = SuffixAutomaton()
        for token in prompt:
            self.index.extend(token)

    def extend(self, tokens: list[int]) -> None:
        """The answer goes on."""
        self.answer += tokens
        for token in tokens:
            self.index.extend(token)

    @property
    def repeated(self) -> Place:
        """Of the longest suffix of the text that stands in it elsewhere, too."""
        index = self.index
        state = max(index.links[index.last], 0)
        return Place(index, state, index.lengths[state])


class RequestTexts:
    """What requests have written so far. Mutated by `read` and `learn`.

    An answer is known to others once its request is done, up to the last round, whose tokens no policy is shown.

    Args:
        store: tokens of earlier answers that are kept, 0 or >= 2; between half of them and all.
    """

    def __init__(self, store: int) -> None:
        self._earlier = EarlierAnswers(store) if store else None
        self._open: dict[str, RequestText] = {}

    def read(self, seen: Observation) -> RequestText:
        """The text of a request, with what was committed since it was read last."""
        text = self._open.get(seen.request_id)
        if text is None:
            text = self._open[seen.request_id] = RequestText(seen.prompt)
            if self._earlier is not None:
                self._earlier.follow(text.match, seen.prompt)
        new = seen.emitted_from(len(text.answer))
        text.extend(new)
        if self._earlier is not None:
            self._earlier.follow(text.match, new)
        return text

    def elsewhere(self, text: RequestText) -> Iterator[Place]:
        """Where a text that was just read ends in earlier answers, older ones first."""
        return iter(()) if self._earlier is None else self._earlier.places(text.match)

    def learn(self, outcome: Outcome) -> None:
        """What a request that is done has answered is there for others."""
        if outcome.done:
            text = self._open.pop(outcome.request_id, None)
            if text is not None and self._earlier is not None:
                self._earlier.add(text.answer)
