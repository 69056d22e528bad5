"""Rounds of one request out of the steps that a log tells of.

Letters: R rounds of one drafter in one request.
"""

import numpy as np
from numpy.typing import NDArray

from ..meta import MOST
from ..rounds.rounds import UNKNOWN_DRAFTED, Rounds
from .ongoing import Ongoing
from .reading.fields import Fields

_CUT = "rounds reached beyond the end of their text; they are cut there, and censored"


def starts_of(emitted: NDArray[np.int64]) -> NDArray[np.int64]:
    """`[R]` tokens emitted before each round of a log that holds them one after another."""
    return np.cumsum(emitted) - emitted


def after_prefill(emitted: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], int]:
    """(`[R]` tokens emitted before each round, tokens of the text) of a log that begins after a prefill.

    It counts for each step the token that the step before it has sampled, the prefill for the first one, and not the
    one that the step samples itself. So a round starts one position after where its step does, and what the last step
    sampled is no part of the text, unless that is all it gave: then the text has it.

    Args:
        emitted: `[R]` tokens that the log counts for each step.
        length: of the text, as the log counts it.
    """
    start = starts_of(emitted) + 1
    return start, max(length, int(start[-1]) + 1) if len(start) else length


def rounds_at(
    ongoing: Ongoing,
    name: str,
    fields: Fields,
    start: NDArray[np.int64],
    accepted: NDArray[np.int64],
    *,
    length: int,
    drafted: NDArray[np.int64] | None = None,
    draft_s: NDArray[np.float64] | None = None,
    verify_s: NDArray[np.float64] | None = None,
    placed: NDArray[np.bool_] | None = None,
) -> Rounds:
    """Rounds of one request, cut where the text ends.

    Args:
        ongoing: takes note.
        name: of the drafter.
        fields: where they stood, for errors.
        start: `[R]` tokens emitted before the round, all < length.
        accepted: `[R]` drafted tokens that stayed.
        length: of the text.
        drafted: `[R]` tokens drafted, None if the log does not say.
        draft_s: `[R]` seconds of drafting.
        verify_s: `[R]` seconds of the target's forward.
        placed: `[R]` whether the log does not say where the round stood; None if it does of all.

    Raises:
        TraceFormatError: a text beyond 32 bits, or more drafted or accepted than the window the user gave.
    """
    if length > MOST:
        raise fields.error(name, f"must add up to at most {MOST} tokens", length)
    most = int((accepted if drafted is None else drafted).max(initial=0))
    window = ongoing.drafters.given_window(name, fields, most)
    if drafted is None:
        drafted = np.full(len(accepted), UNKNOWN_DRAFTED if window is None else window)
    cut = start + accepted > length
    if cut.any():
        ongoing.findings.note(_CUT, int(cut.sum()))
        accepted = np.where(cut, length - start, accepted)
        drafted = np.where(cut, accepted, drafted)
    return Rounds(
        start=start.astype(np.int32),
        accepted=accepted.astype(np.int32),
        drafted=drafted.astype(np.int32),
        draft_s=draft_s,
        verify_s=verify_s,
        placed=placed,
    )


def check_drafted(fields: Fields, accepted: NDArray[np.int64], drafted: NDArray[np.int64]) -> None:
    """Raise TraceFormatError unless `[R]` counts of accepted and drafted tokens fit each other."""
    if len(drafted) != len(accepted):
        raise fields.error("drafted", f"must hold one entry for each of the {len(accepted)} steps", len(drafted))
    if (accepted > drafted).any():
        step = int(np.argmax(accepted > drafted))
        raise fields.error(
            f"accepted, step {step}", f"must be at most the {drafted[step]} drafted", int(accepted[step])
        )
