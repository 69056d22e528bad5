"""Which pools a prefix cache is right for; the others are refused by name."""

from collections.abc import Mapping

import torch

from ...arguments import ArgumentError
from ...decoding.prefixes.size import PrefixCacheSize
from ..forward.model_forward import ModelForward
from ..kv.device_memory import total_bytes
from ..kv.prefixed_kv import store_bytes
from ..pools.loaded_members import LoadedMembers


def check_shareable(
    pool: LoadedMembers,
    forwards: Mapping[int, ModelForward],
    size: PrefixCacheSize,
    limits: Mapping[torch.device, int],
) -> None:
    """Refuse a pool whose members cannot have prefix caches of this size.

    Args:
        pool: the members.
        forwards: how they run, by level.
        size: of each member's cache.
        limits: bytes of all caches, by device.

    Raises:
        ArgumentError: CUDA graphs, several processes, a drafter from hidden states or with a tokenizer of its own, or a
            limit, or a device without one, that leaves no room beside the blocks.
    """
    if pool.ranks is not None:
        raise ArgumentError(f"`prefix_cache` goes with one process, got {pool.ranks.num_ranks}")
    needed: dict[torch.device, int] = {}
    for level, forward in forwards.items():
        member = pool.members[level]
        if forward.name == "graphs":
            raise ArgumentError(f"`forward` must not be graphs with `prefix_cache`, got graphs for {member.name}")
        if member.from_features:
            rule = "reads hidden states, which a prefix cache does not hold"
            raise ArgumentError(f"`prefix_cache` does not go with {member.name}, which {rule}")
        if member.tokenizer is not None:
            raise ArgumentError(f"`prefix_cache` goes with one tokenizer, and {member.name} has one of its own")
        device = forward.kv_shape.device
        needed[device] = needed.get(device, 0) + store_bytes(forward.kv_shape, size)
    for device, taken in needed.items():
        blocks = f"{size.num_blocks} blocks of {size.block_tokens} tokens take of all members there"
        if device in limits and taken >= limits[device]:
            raise ArgumentError(f"`limit_bytes` of {device} must be > {taken}, which {blocks}, got {limits[device]}")
        total = total_bytes(device)
        if taken >= total:
            raise ArgumentError(
                f"`prefix_cache` must fit into the {total} bytes of {device}, got {taken}, which {blocks}"
            )
