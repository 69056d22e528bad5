"""Policies to compare on an imported recording if none are named."""

from ..decoding.pool import Pool
from ..traces.rounds.meta import DrafterInfo
from ..traces.rounds.recording import RoundsRecording


def imported_policies(recording: RoundsRecording, pool: Pool, baseline: str) -> list[str]:
    """The target alone, every drafter with the window it was recorded with, prompt lookup, and a window that adapts.

    Policies that look at probabilities are left out: rounds hold none.
    """
    meta = recording.meta
    windows = {drafter.name: _window(recording, drafter) for drafter in meta.drafters}
    names = [baseline, *(f"{name}:{window}/{meta.target}" for name, window in windows.items())]
    if any(member.model_free for member in pool.members):
        names.append("ngram")
    return names + [f"adaptive,draft={name},start={min(4, most)},most={most}" for name, most in windows.items()]


def _window(recording: RoundsRecording, drafter: DrafterInfo) -> int:
    """As many tokens as the drafter drafts in a round; the most it was seen to draft or keep where nobody said."""
    if drafter.window is not None:
        return drafter.window
    most = 1
    for request in recording.requests:
        rounds = request.rounds.get(drafter.name)
        if rounds is not None and len(rounds.start):
            most = max(most, int(rounds.drafted.max()), int(rounds.accepted.max()))
    return most
