"""Which device each member of a pool is on: devices of this machine, and others than those the pool file names."""

from collections.abc import Mapping

import torch

from ...arguments import ArgumentError
from .pool_file import PoolFile


def usable_device(name: str) -> torch.device | None:
    """The device of that name; None for unknown ones, absent ones, and for `meta`, which holds no values."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError):
        return None
    return device


def a_device() -> str:
    """What a device has to be, with the names of those that are there, for a message."""
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return f"a device of this machine ({', '.join(['cpu', *gpus])})"


def on_devices(content: PoolFile, devices: Mapping[str, str]) -> PoolFile:
    """The same pool with some members elsewhere; a submodel, which shares layers, goes where its model goes.

    Args:
        content: as read.
        devices: by the name of a member.

    Raises:
        ArgumentError: no such member, one without weights of its own, or no such device.
    """
    own = [entry.name for entry in content.members if entry.kind == "model"]
    for name, device in devices.items():
        if name not in own:
            raise ArgumentError(
                f"`devices` must name members with weights of their own ({', '.join(own)}), as a submodel is where its "
                f"model is, got {name!r}"
            )
        if usable_device(device) is None:
            raise ArgumentError(f"`devices` of {name} must be {a_device()}, got {device!r}")
    members = tuple(
        entry.model_copy(update={"device": devices[entry.name]}) if entry.name in devices else entry
        for entry in content.members
    )
    return content.model_copy(update={"members": members})
