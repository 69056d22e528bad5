"""One request of a replica that jumps: how long its text is, and what the target has read of it."""

from ....traces.workloads.arrival import Arrival
from ..engine.served_session import NEVER
from ..kv.block_keys import BlockKeys


class JumpingRequest:
    """Mutated by its replica.

    Attributes:
        arrival: what is wanted.
        serial: of the request in its run.
        most_tokens: that its text ever has, prompt and answer.
        text: tokens of its prompt and answer, unless it decodes.
        base: of its row while it decodes (`decoding_rows`), else None.
        depths: tokens of the answer that others of its session wait for, and that are not written yet.
        shown_at: tokens of its text with which others may find what it wrote.
        read: tokens of its text that the target has read, while it is prefilled.
        order: number of its latest admission; NEVER while it waits.
        since_ps: when it began to wait, or was admitted last.
        first_pass: tokens of the recorded answer that it repeats; 0 until it is first admitted.
        keys: of its blocks; None until it is first looked at, or where there is no prefix cache.
        blocks: that it holds while it is prefilled, where there is no prefix cache.
        out_at_ps: when its latest token came out, of one that does not decode.
    """

    __slots__ = (
        "arrival", "base", "blocks", "depths", "first_pass", "keys", "most_tokens", "order", "out_at_ps", "read",
        "serial", "shown_at", "since_ps", "text",
    )  # fmt: skip

    def __init__(self, arrival: Arrival, serial: int, at_ps: int) -> None:
        self.arrival = arrival
        self.serial = serial
        self.text = arrival.prompt_tokens
        self.most_tokens = self.text + arrival.output_tokens
        self.base: int | None = None
        self.depths = depths = arrival.depths
        self.shown_at = _shown_at(self.text, depths) if depths else ()
        self.read = self.first_pass = self.blocks = 0
        self.order = self.out_at_ps = NEVER
        self.since_ps = at_ps
        self.keys: BlockKeys | None = None

    @property
    def num_answer(self) -> int:
        """Tokens of its answer so far, unless it decodes."""
        return self.text - self.arrival.prompt_tokens


def _shown_at(prompt_tokens: int, depths: tuple[int, ...]) -> tuple[int, ...]:
    """At each depth, and a token later: the token at the depth is then computed, and may fill a block."""
    return tuple(sorted({prompt_tokens + depth + more for depth in depths for more in (0, 1)}))
