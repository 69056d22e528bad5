"""How long the target's own answers to recorded requests are: of these a served request repeats one."""

from ....decoding.contract import Verify
from ....decoding.pool import Pool
from ....decoding.session import Session
from ...recorded_answers import RecordedAnswers


class AnswerLengths:
    """Plays each request once, when it is first asked for.

    Args:
        pool: members of the recording.
        answers: of the recording.
    """

    def __init__(self, pool: Pool, answers: RecordedAnswers) -> None:
        self._pool = pool
        self._answers = answers
        self._lengths: dict[str, tuple[int, int]] = {}

    def of(self, request_id: str) -> int:
        """Tokens that the target alone writes, >= 1; raises KeyError for a request that the recording does not hold."""
        return self._of(request_id)[0]

    def most_of(self, request_id: str) -> int:
        """Tokens that the recording allowed the answer, which may end before; raises KeyError as `of`."""
        return self._of(request_id)[1]

    def _of(self, request_id: str) -> tuple[int, int]:
        lengths = self._lengths.get(request_id)
        if lengths is None:
            lengths = self._lengths[request_id] = self._played(request_id)
        return lengths

    def _played(self, request_id: str) -> tuple[int, int]:
        answers, level, step = self._answers, self._pool.target_level, Verify(self._pool.target)
        name = f"\0{request_id}"  # unlike that of any served request
        replayed = answers.replay(name, request_id)
        session = Session(
            pool=self._pool,
            request_id=name,
            tag=replayed.tag,
            prompt=replayed.prompt,
            budget=replayed.budget,
            eos=replayed.eos,
            ending=replayed.ending,
        )
        session.place = replayed.place
        while not session.done:
            judged = answers.judged(session, step, level)
            assert not judged.num_modelled, "a recorded answer is recorded to its end"
            session.judged(step, level, judged, duration_s=0.0, num_rows=1)
        answers.release(name)
        return len(session.emitted), replayed.budget
