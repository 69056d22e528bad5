"""The world that replays a recording of either form: its answers row by row, charged operation by operation."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..decoding.pool import Pool
from ..decoding.results import DraftResults, VerifyResults, made
from ..decoding.session import Session
from ..decoding.world import DraftItem, VerifyItem, World
from ..runs.log import TextQuality
from ..traces.recording import Recording
from .charges import Charges
from .recorded import RecordedAnswers
from .rounds_once import Automaton, Lead


class RecordedWorld(RecordedAnswers, World, Protocol):
    """A world that replays a recording: its answers, row by row, and seconds of whole operations.

    A class of one form of recordings derives from its answers, then from this one, and says how a request starts and
    what is kept of it in the end.
    """

    num_reanchored: dict[str, int]  # per request, times replay resumed on the trunk after it had left the record
    # per closed request, committed tokens that differ from the trunk at their position, and positions that only one of
    # the two texts has
    num_divergent: dict[str, int]
    # per closed request, the quality of its text by the target; none where the recording holds no log-probabilities
    quality: dict[str, TextQuality]
    _recording: Recording
    _pool: Pool  # its members in level order
    _charges: Charges

    def sessions(self, prefill_before: tuple[bool, ...]) -> Iterator[Session]:
        """The requests in file order, each made when it is reached; `prefill_before` as in `Session`."""
        for request in self._recording.requests:
            yield self.session(request.request_id, prefill_before)

    def session(self, request_id: str, prefill_before: tuple[bool, ...]) -> Session:
        """One request, from its start; raises KeyError for an unknown one."""

    def paths(self, automaton: Automaton, session: Session) -> Iterable[Sequence[Lead]] | None:
        """The leads of a request, commit by commit, from its prefill on; its session then has the text.

        None: it is not recorded to its end.
        """

    def was_drawn(self, modelled: NDArray[np.integer[Any]]) -> bool:
        """Whether another seed may give other steps; `modelled` has the modelled decisions of each."""
        return bool(modelled.any())

    def draft(self, level: int, items: Sequence[DraftItem]) -> DraftResults:
        """Answer every draft, then charge the operation."""
        if level < self.num_free:
            looked_up = [self.looked_up(session, step) for session, step in items]
            return DraftResults(looked_up, [], self._charges.lookup_s(len(items)))
        drafted = [self.drafted(session, step, level) for session, step in items]
        forwards, seconds = self._charges.draft(level, items, drafted)
        return made(DraftResults, (drafted, forwards, seconds, 1.0, self._charges.counts(level)))

    def verify(self, level: int, items: Sequence[VerifyItem]) -> VerifyResults:
        """Judge every request's pending tokens, then charge the operation."""
        judged = [self.judged(session, step, level) for session, step in items]
        forwards, seconds = self._charges.verify(level, items)
        return made(VerifyResults, (judged, forwards, seconds, 1.0, self._charges.counts(level)))
