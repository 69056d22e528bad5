"""Which texts a prefix cache may hold anything of: told by their first blocks, before any text is looked up."""

from collections.abc import Container
from typing import NamedTuple

from ....traces.workloads.arrival import Arrival
from .member_kv import MemberKv


class FirstBlocks(NamedTuple):
    """The first blocks of cached texts.

    Attributes:
        unit_tokens: of a unit of the workload; 0 if there are no ids.
        block_tokens: of a block, >= 1.
        keys: of all texts' first blocks, as they are whenever one looks.
    """

    unit_tokens: int
    block_tokens: int
    keys: Container[int]


def first_blocks_of(kv: MemberKv, unit_tokens: int) -> FirstBlocks:
    """Of the texts in a member's prefix cache; `unit_tokens` as there."""
    return FirstBlocks(unit_tokens, kv.limits.block_tokens, kv.first_keys)


def first_key(arrival: Arrival, unit_tokens: int, block_tokens: int) -> int | None:
    """Key of a prompt's first block, as `BlockKeys` has it; None: others can share no block of the prompt."""
    blocks = arrival.blocks
    if min(arrival.prompt_tokens, len(blocks) * unit_tokens) < block_tokens:
        return None
    return blocks[max(block_tokens // unit_tokens, 1) - 1]
