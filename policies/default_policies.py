"""Policies to compare if none are named, and the one that all are measured against; as texts."""

from collections.abc import Mapping

from ..decoding.pool import Pool

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


def policies_at_windows(pool: Pool, windows: Mapping[str, int]) -> list[str]:
    """The target alone, every drafter with its window, prompt lookup, and a window that adapts.

    None looks at probabilities.

    Args:
        pool: of a log of rounds.
        windows: by drafter, tokens that it drafts in a round, >= 1.
    """
    names = [BASELINE, *(f"{name}:{window}/{pool.target}" for name, window in windows.items())]
    if any(member.model_free for member in pool.members):
        names.append("ngram")
    return names + [f"adaptive,draft={name},start={min(4, most)},most={most}" for name, most in windows.items()]
