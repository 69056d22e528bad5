"""The session of a served request: as long as its workload says, in what a recorded request answers, again and again.

A **segment** is one recorded answer. A request that wants more tokens than that starts it anew; drafts stop at a
segment's end as at an answer's end, and an end-of-sequence token ends a segment, not the request. What came before
the segment counts as prompt, so that all lengths stay right.
"""

from typing import NamedTuple

from ....decoding.contract import Commit, Outcome, Verify
from ....decoding.observation import Observation
from ....decoding.pool import Pool
from ....decoding.results import Judged
from ....decoding.session import Session
from ....traces.workloads.arrival import Arrival
from ...recorded_answers import RecordedAnswers, Replayed

NEVER = -1


class Deadline(NamedTuple):
    """When a class of service levels wants tokens, seconds.

    Attributes:
        first_token_s: after the arrival.
        token_s: for each token after the first.
    """

    first_token_s: float
    token_s: float

    def after(self, arrived_at_s: float) -> "Deadline":
        """The same of a request that arrived then, its first one on the clock of the run."""
        return Deadline(arrived_at_s + self.first_token_s, self.token_s)


class ServedSession(Session):
    """One request while it is served.

    Args:
        pool: the members.
        arrival: what is wanted.
        serial: of the request in its run.
        answers: of the recording.
        recorded_id: the request of the recording that it replays.
        due: when tokens are due, on the clock of the run: the first one, and seconds for each further; None: never.

    Attributes (and those of `Session`; `emitted` is that of the segment, `num_prompt` all that stands before it):
        arrival, serial, recorded_id, due: see above.
        earlier: tokens of the segments before.
        depths: tokens of the answer that others of its session wait for, and that are not written yet.
        order: number of its latest admission, which grows with every one; NEVER while it waits.
        chunk: tokens that the next forward of the member at `chunk_level` is fed, if not all that it lacks; else 0.
        scheduled: whether it was ever admitted.
        most_tokens: that its text ever has, prompt and answer.
        room_held: `[L]` tokens that the blocks of each member have room for, while it runs.
        full_at: `[L]` tokens from which on a further block of each member may enter the prefix cache.
        num_first: tokens of the first segment, once it is over.
        num_noted: tokens of the answer that were written down, the last of them at `noted_at_ps`.
    """

    __slots__ = (
        "_answers",
        "arrival",
        "chunk",
        "chunk_level",
        "depths",
        "due",
        "earlier",
        "full_at",
        "most_tokens",
        "noted_at_ps",
        "num_first",
        "num_noted",
        "order",
        "recorded_id",
        "room_held",
        "scheduled",
        "serial",
    )

    def __init__(
        self,
        *,
        pool: Pool,
        arrival: Arrival,
        serial: int,
        answers: RecordedAnswers,
        recorded_id: str,
        due: Deadline | None = None,
    ) -> None:
        replayed = answers.replay(arrival.request_id, recorded_id)
        super().__init__(
            pool=pool,
            request_id=arrival.request_id,
            tag=replayed.tag,
            prompt=replayed.prompt,
            budget=replayed.budget,
            eos=replayed.eos,
        )
        self._answers = answers
        self.recorded_id = recorded_id
        self.arrival = arrival
        self.serial = serial
        self.due = due
        self.depths = arrival.depths
        self.num_prompt = arrival.prompt_tokens
        self.most_tokens = arrival.prompt_tokens + arrival.output_tokens
        self.room_held = [0] * len(pool.members)
        self.full_at = [0] * len(pool.members)
        self.earlier: list[int] = []
        self.order = NEVER
        self.scheduled = False
        self.chunk = 0
        self.chunk_level = pool.target_level
        self.num_first = 0
        self.num_noted = 0
        self.noted_at_ps = NEVER
        self._begin(replayed)

    @property
    def num_text(self) -> int:
        """Prompt and committed tokens."""
        return self.num_prompt + len(self.emitted)

    @property
    def num_answer(self) -> int:
        """Tokens of the answer so far."""
        return len(self.earlier) + len(self.emitted)

    @property
    def prefill_left(self) -> int:
        """Tokens of the text that the target has not read."""
        return self.num_text - self.cached[self._target]

    def feed(self, level: int, *, verify: bool) -> tuple[int, int]:
        """See `Session`; a chunk, if one is planned for the member."""
        if self.chunk and level == self.chunk_level:
            return self.chunk, self.cached[level]
        return Session.feed(self, level, verify=verify)

    def judged(self, step: Verify, level: int, judged: Judged, *, duration_s: float, num_rows: int) -> Outcome:
        """See `Session`; the end of a segment is not that of the request."""
        outcome = super().judged(step, level, judged, duration_s=duration_s, num_rows=num_rows)
        return self._going_on(outcome) if outcome.done else outcome

    def committed(self, step: Commit) -> Outcome:
        """See `Session`, and `judged`."""
        outcome = super().committed(step)
        return self._going_on(outcome) if outcome.done else outcome

    def _going_on(self, outcome: Outcome) -> Outcome:
        """What came of a step at a segment's end: the next segment begins, unless the request is done."""
        if self.num_answer >= self.arrival.output_tokens:
            return outcome
        self.num_prompt += len(self.emitted)
        self.num_first = self.num_first or len(self.emitted)
        self.earlier += self.emitted
        self.emitted = []
        self._begin(self._answers.replay(self.request_id, self.recorded_id))
        self.last = outcome = outcome._replace(done=False)
        return outcome

    def _begin(self, replayed: Replayed) -> None:
        """Stand at the start of a segment, which the request's own end may cut."""
        self.place = replayed.place
        self.budget = min(replayed.budget, self.arrival.output_tokens - len(self.earlier))
        self._ending = replayed.ending
        self._ended = False


class ServedView(Observation):
    """What a policy sees of a served request: its whole answer, not the segment."""

    __slots__ = ()

    _session: ServedSession

    @property
    def slo(self) -> str:
        """See `Observation`."""
        return self._session.arrival.slo

    @property
    def deadline_s(self) -> float | None:
        """See `Observation`."""
        session = self._session
        due = session.due
        return None if due is None else due.first_token_s + due.token_s * session.num_answer

    @property
    def num_prompt(self) -> int:
        """See `Observation`."""
        return self._session.arrival.prompt_tokens

    @property
    def num_emitted(self) -> int:
        """See `Observation`."""
        return self._session.num_answer

    def emitted_from(self, start: int) -> list[int]:
        """See `Observation`."""
        session = self._session
        index = start - len(session.earlier)
        return session.emitted[index:] if index >= 0 else session.earlier[start:] + session.emitted

    @property
    def remaining(self) -> int:
        """See `Observation`."""
        session = self._session
        return session.arrival.output_tokens - session.num_answer
