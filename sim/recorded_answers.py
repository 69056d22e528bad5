"""What a recording answers, row by row, whichever its form; what rows cost together is another matter."""

from typing import NamedTuple, Protocol

from ..decoding.contract import Draft, Verify
from ..decoding.request_tokens import Ending
from ..decoding.results import Drafted, Judged
from ..decoding.rules.signal import Signal
from ..decoding.session import Session


class Replayed(NamedTuple):
    """What a session starts with that replays a request of a recording.

    Attributes:
        tag: of the request.
        prompt: its token ids, at least one; zeros where nobody logged them.
        budget: tokens that its answer may have.
        eos: tokens that end its answer.
        ending: ends it otherwise; None: nothing else does.
        place: of its prompt.
    """

    tag: str
    prompt: tuple[int, ...]
    budget: int
    eos: frozenset[int]
    ending: Ending | None
    place: int


class RecordedAnswers(Protocol):
    """Answers for sessions, each of which replays a request; several may replay the same one.

    Attributes:
        num_free: model-free members, which come first in the pool.
    """

    num_free: int

    def replay(self, session_id: str, request_id: str) -> Replayed:
        """Let a session replay a request of the recording from its start, in place of the one before, if any.

        Raises:
            KeyError: a request that the recording does not hold.
        """
        ...

    def release(self, session_id: str) -> None:
        """Forget a session; raises KeyError for one that replays nothing."""
        ...

    def drafted(self, session: Session, step: Draft, level: int) -> Drafted:
        """What the model at `level` drafts."""
        ...

    def looked_up(self, session: Session, step: Draft) -> Drafted:
        """What prompt lookup finds."""
        ...

    def judged(self, session: Session, step: Verify, level: int) -> Judged:
        """What the model at `level` says of what is pending."""
        ...

    def signal(self, session: Session, index: int) -> Signal:
        """What the drafter said of the pending token at `index`."""
        ...
