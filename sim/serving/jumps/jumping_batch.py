"""Who waits, who runs and who holds which blocks, on a replica that jumps; the order of things is that of `engine`."""

from collections import deque
from typing import cast

from ..engine.replica_memory import ReplicaMemory
from ..engine.replica_spec import ServedFrom
from ..engine.served_session import NEVER
from .decoding_rows import DecodingRows
from .jumping_books import JumpingBooks
from .jumping_request import JumpingRequest
from .request_blocks import request_blocks


class JumpingBatch:
    """The queues of a replica. Only the target's memory counts: no other member ever runs.

    Args:
        memory: of the replica.
        most_running: requests in the batch at most.
        shared: what the replica shares with others.
        books: of the replica.

    Attributes:
        blocks: who holds which.
        rows: requests that decode.
        running: by the order of their admission.
        waiting: in the order in which they are admitted.
        waiting_tokens: of their texts.
        prefilling: whose text the target has begun to read; at most one, the latest of `running`, since nobody is
            admitted before the one before is read to its end.
        looks_again: whether the first that waits did not fit, and may in the next step.
    """

    def __init__(self, memory: ReplicaMemory, most_running: int, shared: ServedFrom, books: JumpingBooks) -> None:
        self.blocks = request_blocks(memory)
        self.rows = DecodingRows(memory.target.limits.block_tokens)
        self.running: dict[int, JumpingRequest] = {}
        self.waiting: deque[JumpingRequest] = deque()
        self.waiting_tokens = 0
        self.prefilling: JumpingRequest | None = None
        self.looks_again = False
        self._most_running = most_running
        self._shared = shared
        self._books = books
        self._admissions = 0

    def arrive(self, request: JumpingRequest) -> None:
        """A request waits, after all others."""
        self.waiting.append(request)
        self.waiting_tokens += request.text
        self._books.wait(len(self.waiting))

    def show_answers(self) -> None:
        """Answers of rows that others will follow are in the prefix cache as far as they are computed now."""
        for request in self.running.values():
            if request.base is not None and request.arrival.answer:
                request.text = request.base + self.rows.beats
                self.blocks.show(request)

    def admit(self, left: int, now_ps: int) -> list[tuple[JumpingRequest, int]]:
        """The first that wait enter the batch, as long as there is room; returns their first chunks.

        Args:
            left: of the step's token budget.
            now_ps: when the step begins.
        """
        waiting, running, blocks = self.waiting, self.running, self.blocks
        chunks: list[tuple[JumpingRequest, int]] = []
        self.looks_again = False
        while waiting and left > 0 and len(running) < self._most_running:
            request = waiting[0]
            chunk = blocks.admit(request, left)
            if not chunk:
                self.looks_again = blocks.may_fit_next(request, left)
                break
            waiting.popleft()
            self.waiting_tokens -= request.text
            request.order = order = self._admissions
            self._admissions = order + 1
            running[order] = request
            self._books.admitted(request, now_ps)
            if not request.first_pass:
                arrival, shared = request.arrival, self._shared
                request.first_pass = shared.lengths.of(shared.drawn.of(arrival.request_id, arrival.tag))
            self.prefilling = request
            chunks.append((request, chunk))
            left -= chunk
        return chunks

    def make_room(self, now_ps: int) -> None:
        """Every row gets the block that it needs in the next step, if need be from the latest of them."""
        beats, blocks = self.rows.beats, self.blocks
        decoding = [request for request in self.running.values() if request.base is not None]
        for request in decoding:
            blocks.hold_text(request, cast(int, request.base) + beats)
        for request in decoding:
            while request.order != NEVER:
                if blocks.reserve(request, cast(int, request.base) + beats + 1):
                    break
                self.put_back(now_ps)

    def put_back(self, now_ps: int) -> None:
        """The latest that was admitted waits again, before all others."""
        _, request = self.running.popitem()
        if request.base is None:
            self.blocks.drop(request)
        else:
            self.rows.leave(request)
            request.out_at_ps = now_ps
            self.blocks.release(request)
        if request is self.prefilling:
            self.prefilling = None
        request.order = NEVER
        request.read = 0
        self.waiting.appendleft(request)
        self.waiting_tokens += request.text
        self._books.put_back(request, now_ps, len(self.waiting))

    def end(self, request: JumpingRequest, at_ps: int) -> None:
        """A request has all of its tokens."""
        del self.running[request.order]
        self.blocks.release(request)
        self._books.ended(request, at_ps)
        self._shared.on_ended(request.arrival, at_ps)
