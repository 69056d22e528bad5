"""What an oracle plans with: a round that lies ahead in a request, and what its forwards feed."""

from typing import NamedTuple

from ..lossless.chain import Chain


class Feed(NamedTuple):
    """The first forward of one member in a round, if its cache lacked nothing but the last token of the context.

    Attributes:
        level: of the member, which has weights.
        new_tokens: fed to the forward, >= 1.
        held_tokens: in its cache before, >= 0.
        lacking: tokens its cache lacks after the round, the last one of the context not counted.
    """

    level: int
    new_tokens: int
    held_tokens: int
    lacking: int


class Round(NamedTuple):
    """One round of a chain from a position.

    Attributes:
        chain: that decides every step of it.
        num_emitted: tokens it commits, >= 1.
        warm_s: its seconds at batch 1, if no cache lacked anything but the last token of the context.
        feeds: one per member with weights that runs; a cache that lacks more makes the first forward larger.
    """

    chain: Chain
    num_emitted: int
    warm_s: float
    feeds: tuple[Feed, ...]


def answered(*rounds: Round | None) -> list[Round]:
    """Those that the recording answers for."""
    return [choice for choice in rounds if choice is not None]
