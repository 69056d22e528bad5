"""Who waits, who runs and who holds which blocks, on a replica that jumps; the order of things is that of `engine`."""

from collections import deque
from typing import cast

from ..engine.replica_memory import ReplicaMemory
from ..engine.replica_spec import ServedFrom
from ..engine.served_session import NEVER
from ..kv.block_keys import BlockKeys
from .decoding_rows import DecodingRows
from .jumping_books import JumpingBooks
from .jumping_request import JumpingRequest


class JumpingBatch:
    """The queues of a replica. Only the target's memory counts: no other member ever runs.

    Full blocks of a row enter the prefix cache when it leaves the batch. Nobody else can find them before: what a row
    writes has keys of its own.

    Args:
        memory: of the replica.
        most_running: requests in the batch at most.
        shared: what the replica shares with others.
        books: of the replica.

    Attributes:
        kv: memory of the target.
        rows: requests that decode.
        running: by the order of their admission.
        waiting: in the order in which they are admitted.
        waiting_tokens: of their texts.
        prefilling: whose text the target has begun to read; at most one, the latest of `running`, since nobody is
            admitted before the one before is read to its end.
    """

    def __init__(self, memory: ReplicaMemory, most_running: int, shared: ServedFrom, books: JumpingBooks) -> None:
        self.kv = memory.target
        self.rows = DecodingRows(self.kv.limits.block_tokens)
        self.running: dict[int, JumpingRequest] = {}
        self.waiting: deque[JumpingRequest] = deque()
        self.waiting_tokens = 0
        self.prefilling: JumpingRequest | None = None
        self._memory = memory
        self._most_running = most_running
        self._shared = shared
        self._books = books
        self._admissions = 0

    def admit(self, left: int, now_ps: int) -> list[tuple[JumpingRequest, int]]:
        """The first that wait enter the batch, as long as there is room; returns their first chunks.

        Args:
            left: of the step's token budget.
            now_ps: when the step begins.
        """
        kv, waiting, running = self.kv, self.waiting, self.running
        chunks: list[tuple[JumpingRequest, int]] = []
        while waiting and left > 0 and len(running) < self._most_running:
            request = waiting[0]
            keys = request.keys or self._looked_at(request)
            text = request.text
            hit = kv.hit_tokens(keys, text)
            upto = hit + min(text - hit, left)
            wanted = upto + (upto == text)
            if not kv.fits(keys, text, wanted):
                break
            waiting.popleft()
            self.waiting_tokens -= text
            kv.open(request.serial, keys, text, resumes=request.scheduled)
            kv.reserve(request.serial, wanted)
            request.read = hit
            request.order = self._admissions
            self._admissions += 1
            running[request.order] = request
            self._books.admitted(request, hit, now_ps)
            self.prefilling = request
            chunks.append((request, upto - hit))
            left -= upto - hit
        return chunks

    def _looked_at(self, request: JumpingRequest) -> BlockKeys:
        """A request is looked at for the first time: what it replays, and its keys."""
        arrival, shared = request.arrival, self._shared
        request.first_pass = shared.lengths.of(shared.drawn.of(arrival.request_id, arrival.tag))
        request.keys = self._memory.block_keys(arrival, request.serial, self.kv)
        return request.keys

    def make_room(self, now_ps: int) -> None:
        """Every row gets the block that it needs in the next step, if need be from the latest of them."""
        decoding = [request for request in self.running.values() if request.base is not None]
        for request in decoding:
            self.kv.hold(request.serial, cast(int, request.base) + self.rows.beats)
        for request in decoding:
            while request.order != NEVER:
                if self.kv.reserve(request.serial, cast(int, request.base) + self.rows.beats + 1):
                    break
                self.put_back(now_ps)

    def put_back(self, now_ps: int) -> None:
        """The latest that was admitted waits again, before all others."""
        _, request = self.running.popitem()
        if request.base is None:
            self.kv.close(request.serial)
        else:
            self.rows.leave(request)
            request.out_at_ps = now_ps
            self.release(request)
        if request is self.prefilling:
            self.prefilling = None
        request.order = NEVER
        request.read = 0
        self.waiting.appendleft(request)
        self.waiting_tokens += request.text
        self._shared.recorder.preempted(request.serial, now_ps)

    def release(self, request: JumpingRequest) -> None:
        """A row that decodes no more gives up its blocks; full ones that the target has computed stay cached."""
        kv, serial, text = self.kv, request.serial, request.text
        assert request.keys is not None
        kv.hold(serial, text)
        kv.commit(serial, text - 1, request.keys)
        kv.close(serial)
