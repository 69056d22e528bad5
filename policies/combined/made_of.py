"""What a policy made of others says of itself: what they say."""

from collections.abc import Iterable, Sequence

from ...decoding.policy import Policy
from ..about import About, about_of


class MadeOf:
    """A policy made of others.

    Args:
        parts: the policies.
        tags: for which one of them is there.

    Attributes:
        about: lossless if all parts are, in need of all that they need; None if one says nothing.
        most_pending: tokens that the parts may have pending, at most, as far as they say.
        most_off_trunk: of these, tokens that may follow one another, at most.
        trees: token trees that the parts may draft, as far as they say.
        named_tags: for which a policy is there, here or within one of the parts.

    Raises:
        ValueError: a part is an oracle, to which nobody would show the future here.
    """

    about: About | None

    def __init__(self, parts: Sequence[Policy], tags: Iterable[str] = ()) -> None:
        self.about = _about(parts)
        self.most_pending = max(getattr(part, "most_pending", 0) for part in parts)
        self.most_off_trunk = max(getattr(part, "most_off_trunk", getattr(part, "most_pending", 0)) for part in parts)
        trees = [tree for part in parts for tree in getattr(part, "trees", ())]
        self.trees = tuple(dict.fromkeys(trees))
        self.named_tags = frozenset(tags).union(*(getattr(part, "named_tags", ()) for part in parts))


def check_step_by_step(parts: Iterable[Policy]) -> None:
    """Raise ValueError for a part that works ahead: seconds of what runs at once cannot be added up."""
    for part in parts:
        about = about_of(part)
        if about is not None and about.works_ahead:
            raise ValueError(
                f"a policy that works ahead cannot be judged by its seconds, step by step, got {type(part).__name__}"
            )


def _about(parts: Sequence[Policy]) -> About | None:
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
        works_ahead=any(about.works_ahead for about in known),
    )
