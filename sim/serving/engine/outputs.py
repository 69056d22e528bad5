"""When tokens of requests come out: first tokens, and gaps between outputs."""

from collections import Counter
from collections.abc import Iterable

from ....runs.serving.recorder import ServingRecorder
from .served_session import ServedSession


def note_outputs(recorder: ServingRecorder, sessions: Iterable[ServedSession], at_ps: int) -> tuple[int, int]:
    """Write down what is new in the answers of requests; all tokens of one request that are new came out together.

    Returns:
        New tokens, and how many of them came after the first pass of a recorded answer.
    """
    gaps: Counter[int] = Counter()
    num_new = num_cycled = 0
    for session in sessions:
        num_answer = session.num_answer
        if num_answer == session.num_noted:
            continue
        if session.num_noted:
            gaps[at_ps - session.noted_at_ps] += 1
        else:
            recorder.first_token(session.serial, at_ps)
        num_new += num_answer - session.num_noted
        if session.earlier:
            num_cycled += num_answer - max(session.num_noted, session.num_first)
        session.num_noted = num_answer
        session.noted_at_ps = at_ps
    for gap_ps, rows in gaps.items():
        recorder.gaps(gap_ps, 0, 1, rows)
    return num_new, num_cycled
