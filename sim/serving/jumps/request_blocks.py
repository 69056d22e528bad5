"""Which blocks of the target a request of a replica that jumps holds, with a prefix cache and without.

Only while a request is prefilled its blocks are its own: rows that decode take theirs together (`MemberKv.take`), and
what each of them holds follows from its text. Letter: b tokens of a block.
"""

from typing import Protocol

from ..engine.replica_memory import ReplicaMemory
from ..kv.block_keys import BlockKeys
from .jumping_request import JumpingRequest


class RequestBlocks(Protocol):
    """Blocks of requests, from their admission to their release."""

    def admit(self, request: JumpingRequest, budget: int) -> int:
        """Take the prefix hit of a text, which counts as read, and blocks for its first chunk.

        Returns:
            Tokens of the chunk, at most `budget`; 0: memory is short, and nothing has changed.
        """
        ...

    def may_fit_next(self, request: JumpingRequest, budget: int) -> bool:
        """Whether a request that was not admitted may be in the next step, though memory is shorter then.

        Once a block of its hit is evicted, the budget no more suffices for all of its text, and so it needs no place
        for the next token yet.
        """
        ...

    def reserve(self, request: JumpingRequest, num_tokens: int) -> bool:
        """Hold blocks for so many tokens in all; False, and nothing has changed, if memory is short."""
        ...

    def read(self, request: JumpingRequest) -> None:
        """The target has read the first `request.read` tokens of a text."""
        ...

    def hold_text(self, request: JumpingRequest, num_tokens: int) -> None:
        """A row's own blocks are those of so many tokens, of those that were taken for all rows."""
        ...

    def release(self, request: JumpingRequest) -> None:
        """A row gives up the blocks of its text; full ones that the target has computed stay cached."""
        ...

    def drop(self, request: JumpingRequest) -> None:
        """A request that is prefilled gives up its blocks."""
        ...

    def show(self, request: JumpingRequest) -> None:
        """A row goes on, and others may find the full blocks of its text that the target has computed."""
        ...


class PlainBlocks:
    """Without a prefix cache blocks are only counted.

    Args:
        memory: of the replica.
    """

    def __init__(self, memory: ReplicaMemory) -> None:
        self._kv = memory.target
        self._block_tokens = memory.target.limits.block_tokens

    def admit(self, request: JumpingRequest, budget: int) -> int:
        """See `RequestBlocks`."""
        text = request.text
        wanted, chunk = (text + 1, text) if text <= budget else (budget, budget)
        blocks = -(-wanted // self._block_tokens)
        if not self._kv.take(blocks):
            return 0
        request.blocks = blocks
        request.read = 0
        return chunk

    def may_fit_next(self, request: JumpingRequest, budget: int) -> bool:
        """See `RequestBlocks`: there are no hits."""
        return False

    def reserve(self, request: JumpingRequest, num_tokens: int) -> bool:
        """See `RequestBlocks`."""
        blocks = -(-num_tokens // self._block_tokens)
        if blocks > request.blocks:
            if not self._kv.take(blocks - request.blocks):
                return False
            request.blocks = blocks
        return True

    def read(self, request: JumpingRequest) -> None:
        """See `RequestBlocks`: nothing stays of it."""

    def hold_text(self, request: JumpingRequest, num_tokens: int) -> None:
        """See `RequestBlocks`."""
        request.blocks = -(-num_tokens // self._block_tokens)

    def release(self, request: JumpingRequest) -> None:
        """See `RequestBlocks`."""
        self._kv.free_blocks += -(-request.text // self._block_tokens)

    def drop(self, request: JumpingRequest) -> None:
        """See `RequestBlocks`."""
        self._kv.free_blocks += request.blocks

    def show(self, request: JumpingRequest) -> None:
        """See `RequestBlocks`: nobody finds any."""


class CachedBlocks:
    """With a prefix cache. Full blocks of a row enter it when it leaves the batch, or when others follow what it wrote.

    Nobody else can find them before: what a row writes has keys that only those know who follow it. A stale snapshot
    of the cache, which those who follow are routed by, takes in what rows have written so far.

    Args:
        memory: of the replica.
    """

    def __init__(self, memory: ReplicaMemory) -> None:
        self._memory = memory
        self._kv = memory.target

    def admit(self, request: JumpingRequest, budget: int) -> int:
        """See `RequestBlocks`."""
        kv, text, keys = self._kv, request.text, self._keys(request)
        hit = kv.hit_tokens(keys, text)
        chunk = min(text - hit, budget)
        upto = hit + chunk
        wanted = upto + (upto == text)
        if not kv.fits(keys, text, wanted):
            return 0
        kv.open(request.serial, keys, text, resumes=request.first_pass > 0, hit_tokens=hit)
        kv.reserve(request.serial, wanted)
        request.read = hit
        return chunk

    def may_fit_next(self, request: JumpingRequest, budget: int) -> bool:
        """See `RequestBlocks`."""
        hit = self._kv.hit_tokens(self._keys(request), request.text)
        return 0 < hit == request.text - budget

    def reserve(self, request: JumpingRequest, num_tokens: int) -> bool:
        """See `RequestBlocks`."""
        return self._kv.reserve(request.serial, num_tokens)

    def read(self, request: JumpingRequest) -> None:
        """See `RequestBlocks`."""
        self._kv.commit(request.serial, request.read, self._keys(request))

    def hold_text(self, request: JumpingRequest, num_tokens: int) -> None:
        """See `RequestBlocks`."""
        self._kv.hold(request.serial, num_tokens)

    def release(self, request: JumpingRequest) -> None:
        """See `RequestBlocks`."""
        self.show(request)
        self._kv.close(request.serial)

    def drop(self, request: JumpingRequest) -> None:
        """See `RequestBlocks`."""
        self._kv.close(request.serial)

    def show(self, request: JumpingRequest) -> None:
        """See `RequestBlocks`."""
        kv, serial, text = self._kv, request.serial, request.text
        kv.hold(serial, text)
        kv.commit(serial, text - 1, self._keys(request))

    def _keys(self, request: JumpingRequest) -> BlockKeys:
        if request.keys is None:
            request.keys = self._memory.block_keys(request.arrival, request.serial, self._kv)
        return request.keys


def request_blocks(memory: ReplicaMemory) -> RequestBlocks:
    """As the memory of a replica's target is."""
    return CachedBlocks(memory) if memory.target.limits.prefix_cache else PlainBlocks(memory)
