"""What an oracle is shown: the rounds that lie ahead in a request, and what forwards cost.

Letters: L levels of the pool. A *position* is a number of tokens of the answer, counted on the trunk.
"""

from typing import NamedTuple, Protocol

from ..lossless.chain import Chain


class Feed(NamedTuple):
    """The first forward of one member in a round, if its cache lacked nothing but the last token of the context.

    Attributes:
        level: of the member, which has weights.
        new_tokens: fed to the forward, >= 1.
        held_tokens: in its cache before, >= 0.
        behind: tokens its cache lacks behind the round, the last one of the context not counted.
    """

    level: int
    new_tokens: int
    held_tokens: int
    behind: int


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


class Foresight(Protocol):
    """The future of every request, which only a recording knows.

    Attributes:
        request_ids: in the order of the recording.
    """

    request_ids: tuple[str, ...]

    def num_prompt(self, request_id: str) -> int:
        """Tokens of the prompt."""
        ...

    def num_tokens(self, request_id: str) -> int:
        """Tokens of the answer, as far as it is recorded."""
        ...

    def round_of(self, request_id: str, position: int, chain: Chain) -> Round | None:
        """The round of `chain` from `position` on; None where the recording does not answer for all of it.

        Where the run starts with the prefill, the round from position 0 is the prefill, whatever the chain.
        """
        ...

    def climbs(self, request_id: str, position: int, chain: Chain) -> list[Round]:
        """Rounds of a chain of three or more members, by its last window: the one it has, and every smaller one.

        Windows that come to the same round are one. The list ends at the first round in which the target refuses a
        token, since a longer climb emits no more, and where the recording ends.
        """
        ...

    def forward_s(self, level: int, new_tokens: int, held_tokens: int) -> float:
        """Seconds of one forward at batch 1; inf where nothing is known of one so large."""
        ...


def answered(*rounds: Round | None) -> list[Round]:
    """Those that the recording answers for."""
    return [choice for choice in rounds if choice is not None]
