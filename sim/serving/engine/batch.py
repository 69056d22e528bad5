"""Who waits, who runs, and in which order: the two queues of a replica."""

from collections import deque
from dataclasses import dataclass

from ....decoding.world import VerifyItem
from ....traces.workloads.arrival import Arrival
from .served_session import NEVER, ServedSession


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that waits.

    Attributes:
        arrival: what is wanted.
        serial: of the request in its run.
        session: None until memory is first asked for.
    """

    arrival: Arrival
    serial: int
    session: ServedSession | None = None


def retracted_last(session: ServedSession) -> tuple[int, int, int]:
    """Sorts requests that run so that the last one is retracted first: it has the fewest tokens of an answer.

    Of equal ones it has the longest prompt, then it is the latest. So SGLang sorts a batch without speculation
    (`ScheduleBatch.retract_decode`).
    """
    return -session.num_answer, session.arrival.prompt_tokens, session.order


class Batch:
    """The queues of a replica: first come, first served; who was put back stands at the front, who was retracted last.

    Attributes:
        waiting: in the order in which they are admitted.
        running: in the order in which they were admitted, `[-1]` the latest.
        prefilling: those of them whose text the target has not read to its end, in the same order, with their prefill.
        waiting_tokens: of the texts of those that wait.
    """

    __slots__ = ("_admissions", "prefilling", "running", "waiting", "waiting_tokens")

    def __init__(self) -> None:
        self.waiting: deque[Waiting] = deque()
        self.running: list[ServedSession] = []
        self.prefilling: dict[ServedSession, VerifyItem] = {}
        self.waiting_tokens = 0
        self._admissions = 0

    @property
    def queued_tokens(self) -> int:
        """Tokens of texts that the target has still to read."""
        return self.waiting_tokens + sum(session.prefill_left for session in self.prefilling)

    def arrived(self, request: Waiting) -> None:
        """A request waits, after all others."""
        self.waiting.append(request)
        self.waiting_tokens += request.arrival.prompt_tokens

    def admitted(self, session: ServedSession, item: VerifyItem) -> None:
        """The first that waits runs now."""
        self.waiting.popleft()
        self.waiting_tokens -= session.num_text
        self.joined(session)
        self.prefilling[session] = item

    def joined(self, session: ServedSession) -> None:
        """One runs whose text the target has read."""
        session.order = self._admissions
        self._admissions += 1
        self.running.append(session)

    def put_back(self) -> ServedSession:
        """The latest that was admitted waits again, before all others."""
        session = self.running.pop()
        self.waiting.appendleft(self._waits_again(session))
        return session

    def retract(self, asking: ServedSession) -> ServedSession:
        """One that runs waits again, after all others; which, is said by `retracted_last`.

        A prefill that asks for memory is not worth the tokens of others, and goes itself. Before the last one that
        decodes goes the prefill that has begun; where there is none, others than the batch hold the blocks.
        """
        session = asking
        if asking not in self.prefilling:
            decoding = [one for one in self.running if one not in self.prefilling]
            session = max(decoding, key=retracted_last) if len(decoding) > 1 else next(iter(self.prefilling), asking)
        self.running.remove(session)
        self.waiting.append(self._waits_again(session))
        return session

    def _waits_again(self, session: ServedSession) -> Waiting:
        session.order = NEVER
        session.chunk = 0
        self.prefilling.pop(session, None)
        self.waiting_tokens += session.num_text
        return Waiting(session.arrival, session.serial, session)

    def read(self, session: ServedSession) -> None:
        """The target has read the whole text of a request."""
        del self.prefilling[session]

    def ended(self, session: ServedSession) -> None:
        """A request is done."""
        self.running.remove(session)
        session.order = NEVER
