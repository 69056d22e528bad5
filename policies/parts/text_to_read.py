"""What a drafter has yet to read before it can draft: prompts, as far as no cache holds them, and text since."""

from typing import NamedTuple

from .acceptance_rate import RunningRatio

MEMORY = 8  # requests that means reach back


class _Request(NamedTuple):
    """Tokens that the drafter's cache lacks, those that may still come, and as many when it was first seen."""

    lacking: int
    remaining: int
    most: int


class TextToRead:
    """Tokens that a drafter's cache lacks, by token of the answers to come. Mutated by `see` and `end`.

    Answers are as long, of what they may be, as those that are done were; half as long before any is.
    """

    __slots__ = ("_lacking", "_new", "_open", "_remaining", "_used")

    def __init__(self) -> None:
        self._open: dict[str, _Request] = {}
        self._new = RunningRatio(memory=MEMORY)
        self._used = RunningRatio(memory=MEMORY, above=0.5, below=1.0)
        self._lacking = self._remaining = 0

    def see(self, request_id: str, lacking: int, remaining: int) -> None:
        """A request that runs, whose answer may have so many tokens yet, >= 1."""
        before = self._open.get(request_id)
        if before is None:
            self._new.note(lacking, remaining)
            before = _Request(0, 0, remaining)
        self._open[request_id] = _Request(lacking, remaining, before.most)
        self._lacking += lacking - before.lacking
        self._remaining += remaining - before.remaining

    def end(self, request_id: str, num_emitted: int) -> None:
        """A request is done, with so many tokens since it was seen last."""
        lacking, remaining, most = self._open.pop(request_id)
        self._lacking -= lacking
        self._remaining -= remaining
        self._used.note(most - remaining + num_emitted, most)

    @property
    def by_answer_token(self) -> float:
        """Tokens by token: of requests as they come, or of those that run if these lack more.

        One must have been seen and not be done.
        """
        return max(self._new.rate, self._lacking / self._remaining) / self._used.rate
