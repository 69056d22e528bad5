"""Refuses a batch whose caches cannot be held at all, before anything runs."""

from collections.abc import Sequence

import torch

from ..arguments import ArgumentError
from ..counted import counted
from ..decoding.session import Session
from .kv.device_memory import total_bytes
from .memory import Memory
from .pools.loaded_members import LoadedMembers


def check_fit(pool: LoadedMembers, sessions: Sequence[Session], memory: Memory) -> None:
    """Compare what the first requests may come to hold, and prefix caches do, with what the devices have in all.

    On a device with a limit the runtime preempts instead, so a batch of any size is served.

    Raises:
        ArgumentError: some device has less memory than that.
    """
    if not sessions:
        return
    longest = max(session.num_prompt + session.budget for session in sessions)
    of_prefixes = 0 if memory.prefixes is None else memory.prefixes.num_tokens
    needed: dict[torch.device, int] = {}
    for member in pool.members:
        if member.model is not None:
            device = member.model.device
            held = (len(sessions) * longest + of_prefixes) * member.kv_bytes_per_token
            needed[device] = needed.get(device, 0) + held
    limits = memory.limits(needed)
    for device, num_bytes in needed.items():
        if device in limits:
            continue
        total = total_bytes(device)
        if num_bytes > total:
            prefixes = f" and prefix caches of {counted(of_prefixes, 'token')} each" if of_prefixes else ""
            raise ArgumentError(
                f"batch must fit into memory: {len(sessions)} requests of up to {longest} tokens{prefixes} take "
                f"{num_bytes:,} bytes of keys and values on {device}, which has {total:,}; "
                "give a KV limit to have requests preempted"
            )
