"""How much memory a device has in all."""

import os

import torch


def total_bytes(device: torch.device) -> int:
    """Of a GPU its own, else the machine's."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
