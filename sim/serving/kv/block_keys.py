"""Keys of a request's blocks: the workload's ids where it has them, private ones behind."""

from array import array

import numpy as np

from ....traces.workloads.arrival import Ids

_MOST_BLOCKS = 2**32  # of a text, so that private keys of two requests differ
_END_OF_IDS = 2**63  # as keys are of 64 bits, and private ones below 0


class BlockKeys:
    """One integer of 64 bits per block of a member, made when first asked for; as many as anybody asks for.

    A block that has an id for all of its text has that id, >= 0, as its key, equal for all requests; blocks of one unit
    have the same key, and are told apart by what they follow. Any other, such as those of generated tokens that nobody
    else reads, has a key of the request's own, < 0: nobody else finds it, but the request itself does when it resumes.
    Two prompts that part within a unit share none of that unit's blocks, however small, since ids tell
    units apart and not what is equal in them.
    """

    __slots__ = (
        "_answer", "_block_tokens", "_blocks", "_keys", "_num_known", "_num_shared", "_private", "_unit_tokens",
    )  # fmt: skip

    def __init__(
        self,
        blocks: Ids,
        unit_tokens: int,
        block_tokens: int,
        prompt_tokens: int,
        serial: int,
        answer: Ids = (),
    ) -> None:
        """Take what the keys follow from.

        Args:
            blocks: ids in [0, 2^63) of the prompt's units, each for the text up to and with its unit. The last may be
                partial; fewer than the prompt has units leave the rest without ids.
            unit_tokens: of a unit of the workload; 0 if there are no ids.
            block_tokens: of a block of the member, >= 1.
            prompt_tokens: of the prompt, >= 1.
            serial: of the request, >= 0, unlike that of any other.
            answer: ids of the units that the answer fills; see `Arrival`. Then each full unit of the prompt has one.

        Raises:
            ValueError: ids for more units than the prompt has, or for fewer and an answer, ids without a unit, an id
                out of range, or blocks that neither divide units nor are multiples of them.
        """
        if blocks:
            _check_units(blocks, unit_tokens, block_tokens, prompt_tokens)
        self._num_shared = num_known = min(prompt_tokens, len(blocks) * unit_tokens) // block_tokens
        if answer:
            _check_answer(blocks, answer, unit_tokens, block_tokens, prompt_tokens)
            blocks = blocks[: prompt_tokens // unit_tokens]
            num_known = (len(blocks) + len(answer)) * unit_tokens // block_tokens
        self._blocks = blocks
        self._answer = answer
        self._num_known = num_known
        self._unit_tokens = unit_tokens
        self._block_tokens = block_tokens
        self._private = -1 - serial * _MOST_BLOCKS
        self._keys = array("q")

    def __getitem__(self, blocks: slice, /) -> "array[int]":
        """Keys of a range of blocks, which has an end."""
        if blocks.stop > len(self._keys):
            self._make(blocks.stop)
        return self._keys[blocks]

    def of_prompt(self) -> "array[int]":
        """Keys of the blocks that others may share."""
        return self[: self._num_shared]

    def _make(self, num_blocks: int) -> None:
        keys = self._keys
        if not keys:
            self._keys = keys = self._named()
        if num_blocks > len(keys):
            keys.extend(range(self._private - len(keys), self._private - num_blocks, -1))

    def _named(self) -> "array[int]":
        unit, block, count = self._unit_tokens, self._block_tokens, self._num_known
        ids = array("q", self._blocks)
        ids.extend(self._answer)
        if block == unit:
            return ids[:count]
        if block > unit:
            width = block // unit if unit else 1
            return ids[width - 1 : count * width : width]
        return array("q", np.array(ids, dtype=np.int64).repeat(unit // block)[:count].tobytes())


def _check_units(blocks: Ids, unit_tokens: int, block_tokens: int, prompt_tokens: int) -> None:
    if unit_tokens < 1:
        raise ValueError(f"unit_tokens must be >= 1 where there are blocks, got {unit_tokens}")
    if unit_tokens % block_tokens and block_tokens % unit_tokens:
        raise ValueError(
            f"block_tokens must divide unit_tokens={unit_tokens} or be a multiple of it, got {block_tokens}"
        )
    most = -(-prompt_tokens // unit_tokens)
    if len(blocks) > most:
        raise ValueError(f"blocks of a prompt of {prompt_tokens} tokens must be <= {most}, got {len(blocks)}")
    if blocks:
        _check_ids(blocks)


def _check_answer(blocks: Ids, answer: Ids, unit_tokens: int, block_tokens: int, prompt_tokens: int) -> None:
    if not blocks:
        _check_units(blocks, unit_tokens, block_tokens, prompt_tokens)
    if len(blocks) < prompt_tokens // unit_tokens:
        least = prompt_tokens // unit_tokens
        raise ValueError(f"blocks of a prompt must be >= {least} where its answer has ids, got {len(blocks)}")
    _check_ids(answer)


def _check_ids(blocks: Ids) -> None:
    least, most = (blocks[0], blocks[-1]) if isinstance(blocks, array) else (min(blocks), max(blocks))
    if not (0 <= least < _END_OF_IDS and 0 <= most < _END_OF_IDS):
        wrong = most if 0 <= least < _END_OF_IDS else least
        raise ValueError(f"ids of blocks must be in [0, 2^63), got {wrong}")
