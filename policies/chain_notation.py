"""Reading `draft:4/mid:8/target`: members from smallest to target, each but the last with its window."""

from dataclasses import dataclass

from ..arguments import repeated
from ..decoding.pool import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSpec:
    """A chain.

    Attributes:
        members: names from smallest to target.
        windows: one per member but the last, >= 1: tokens the lowest drafts, or a verifier keeps, before the next
            level judges them.
    """

    members: tuple[str, ...]
    windows: tuple[int, ...]

    def __str__(self) -> str:
        below = [f"{name}:{window}" for name, window in zip(self.members, self.windows, strict=False)]
        return "/".join([*below, self.members[-1]])


def parse_chain(text: str, pool: Pool) -> ChainSpec:
    """The chain `text` names; raises ValueError with the part that is wrong."""
    *below, target = text.split("/")
    members: list[str] = []
    windows: list[int] = []
    for part in below:
        name, colon, window = part.partition(":")
        if not colon:
            raise ValueError(f"chain {text!r}: {part!r} needs a window, as in {name}:4")
        if not window.isascii() or not window.isdigit() or int(window) < 1:
            raise ValueError(f"chain {text!r}: the window of {name} must be a whole number >= 1, got {window!r}")
        members.append(name)
        windows.append(int(window))
    if ":" in target:
        raise ValueError(
            f"chain {text!r}: it must end in the target, {pool.target}, without a window; its last part is {target!r}"
        )
    members.append(target)
    _check_order(text, members, pool)
    return ChainSpec(members=tuple(members), windows=tuple(windows))


def _check_order(text: str, members: list[str], pool: Pool) -> None:
    try:
        levels = [pool.level(name) for name in members]
    except ValueError as error:
        raise ValueError(f"chain {text!r}: {error}") from None
    twice = repeated(members)
    if twice:
        raise ValueError(f"chain {text!r}: {twice[0]} stands twice")
    if levels != sorted(levels):
        raise ValueError(f"chain {text!r}: members must go from smallest to largest: {', '.join(pool.names)}")
    for level in levels[1:]:
        if not pool.members[level].verifies:
            raise ValueError(f"chain {text!r}: {pool.names[level]} cannot verify and can only stand first")
    if levels[-1] != pool.target_level:
        raise ValueError(f"chain {text!r}: the last member must be the target {pool.target}, got {members[-1]!r}")
