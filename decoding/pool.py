"""The models a chain may be built from, as a policy sees them: names and their order, nothing that runs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One pool member."""

    name: str  # unique in the pool; what steps and chains call it
    model_free: bool = False  # True for a member without weights (prompt lookup): it drafts, it cannot verify
    # True for a model that cannot judge the target's tokens: it has a tokenizer of its own, or the recording that is
    # replayed holds no verdicts of it
    drafts_only: bool = False
    # True for a model that reads the target's last hidden states: its tokens depend also on how much of the text the
    # target has judged (`Session.num_judged`)
    from_features: bool = False

    @property
    def verifies(self) -> bool:
        """Whether it can judge the target's tokens."""
        return not (self.model_free or self.drafts_only)


class Pool:
    """Members from smallest to largest; a member's index is its level, the last one is the target.

    Attributes:
        members, names: in level order.
        target_level: the number of members less one.
        num_free: model-free members, which come first.
        feature_level: of the member that reads the target's states; None if there is none.

    Raises:
        ValueError: no members, a repeated name, a target that cannot verify, a model-free member that is not below
            every model, or several members, or the target, that read the target's states.
    """

    __slots__ = ("_levels", "feature_level", "members", "names", "num_free", "target_level")

    def __init__(self, members: tuple[Member, ...]) -> None:
        names = tuple(member.name for member in members)
        if len(set(names)) != len(names):
            raise ValueError(f"pool member names must be unique, got {', '.join(names)}")
        if not members or members[-1].model_free:
            raise ValueError("a pool needs at least one model, and its last member (the target) must be a model")
        if members[-1].drafts_only:
            raise ValueError(f"the last member of a pool (the target) must be able to verify, got {names[-1]}")
        free = [member.model_free for member in members]
        if free != sorted(free, reverse=True):
            raise ValueError("model-free members come first in a pool (they are the smallest)")
        readers = [level for level, member in enumerate(members) if member.from_features]
        if len(readers) > 1 or len(names) - 1 in readers:
            raise ValueError(f"one member below the target may read its states, got {[names[at] for at in readers]}")
        self.num_free = sum(free)
        self.feature_level = readers[0] if readers else None
        self.members = members
        self.names = names
        self.target_level = len(names) - 1
        self._levels = {name: level for level, name in enumerate(names)}

    @property
    def target(self) -> str:
        """Name of the largest model, whose text is wanted."""
        return self.names[-1]

    def level(self, name: str) -> int:
        """Level of a member, 0 (smallest) to `target_level`; raises ValueError for an unknown name."""
        try:
            return self._levels[name]
        except (KeyError, TypeError):  # a list cannot be looked up
            raise ValueError(f"unknown model {name!r}; this pool has {', '.join(self.names)}") from None

    def is_model_free(self, name: str) -> bool:
        """Whether the member has no weights; raises ValueError for an unknown name."""
        return self.members[self.level(name)].model_free
