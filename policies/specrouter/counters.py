"""What a scheduler did."""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Counters:
    """What a scheduler did. Mutated by it; for whoever wants to look.

    Attributes:
        selections: searches.
        switches: selections that changed the members of a chain.
        trials: rounds that were played to learn, the warm-up among them.
        rounds: commits by the target.
        judged: pending tokens that each member judged.
        refused_early: of those, tokens refused or dropped by a member below the target: the target never met them.
    """

    selections: int = 0
    switches: int = 0
    trials: int = 0
    rounds: int = 0
    judged: dict[str, int] = field(default_factory=dict)
    refused_early: dict[str, int] = field(default_factory=dict)
