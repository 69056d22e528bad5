"""What a policy made of others says of itself."""

from collections.abc import Sequence

from ...decoding.policy import Policy
from ..about import About, about_of


def about_parts(parts: Sequence[Policy]) -> About | None:
    """Lossless if all parts are, in need of all they need; None if a part says nothing of itself.

    Raises:
        ValueError: a part is an oracle, to which nobody would show the future here.
    """
    abouts = [about_of(part) for part in parts]
    known = [about for about in abouts if about is not None]
    if any(about.oracle for about in known):
        raise ValueError("an oracle cannot be part of another policy")
    if len(known) < len(abouts):
        return None
    return About(
        paper="; ".join(dict.fromkeys(about.paper for about in known if about.paper)),
        lossless=all(about.lossless for about in known),
        members="; ".join(dict.fromkeys(about.members for about in known)),
        observes=frozenset().union(*(about.observes for about in known)),
    )


def most_pending(parts: Sequence[Policy]) -> int:
    """The most tokens that any part says it may have pending; 0 of one that does not say."""
    return max(getattr(part, "most_pending", 0) for part in parts)
