"""What a policy sees that says that pending tokens alone decide: those, and an error for anything else."""

from ...decoding.observation import Observation

SHOWN = ("found_nothing", "has_room", "num_pending", "pool", "waiting")
_ITS_OWN = frozenset(("_session", *SHOWN))


class PendingView(Observation):
    """A view of one request that shows what `About.by_pending` allows.

    Raises:
        ValueError: from reading anything else of it; the loop says whose policy it was.
    """

    __slots__ = ()

    def __getattribute__(self, name: str) -> object:
        """As ever, if it may be seen."""
        if name in _ITS_OWN or name.startswith("__"):
            return super().__getattribute__(name)
        raise ValueError(
            f"a policy that says by_pending may look at {', '.join(SHOWN)} of what it sees, and not at {name}"
        )
