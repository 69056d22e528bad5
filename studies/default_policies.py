"""Policies to compare if none are named, and the one that all are measured against."""

from ..decoding.pool import Pool
from ..traces.rounds.meta import DrafterInfo
from ..traces.rounds.recording import RoundsRecording
from ..traces.tries.recording import TrieRecording

BASELINE = "plain"


def default_policies(pool: Pool) -> list[str]:
    """A representative set for any pool: the target alone, chains of two and three levels, and policies that adapt."""
    target = pool.target
    free = [member.name for member in pool.members if member.model_free]
    below = [member.name for member in pool.members[:-1] if not member.model_free]
    names = [BASELINE, *(f"{model}:4/{target}" for model in below)]
    if len(below) > 1:
        names += [f"{below[0]}:3/{model}:6/{target}" for model in below[1:]]
    if free:
        names.append("ngram")
        names += [f"{free[0]}:6/{model}:6/{target}" for model in below[1:2]]
    if below:
        names += ["adaptive", "confident"]
    return names


def compared_policies(recording: TrieRecording | RoundsRecording, pool: Pool) -> list[str]:
    """A representative set for a comparison on `recording`, with its `pool`."""
    if isinstance(recording, RoundsRecording):
        return _of_rounds(recording, pool)
    names = default_policies(pool)
    # Not for `agree`, whose recording would have to be as deep as the longest chain it may ever choose.
    return [*names, "specrouter"] if pool.target_level > 0 else names


def _of_rounds(recording: RoundsRecording, pool: Pool) -> list[str]:
    """The target alone, every drafter with the window it was recorded with, prompt lookup, and a window that adapts.

    Policies that look at probabilities are left out: rounds hold none.
    """
    meta = recording.meta
    windows = {drafter.name: _window(recording, drafter) for drafter in meta.drafters}
    names = [BASELINE, *(f"{name}:{window}/{meta.target}" for name, window in windows.items())]
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
