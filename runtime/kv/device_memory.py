"""How much memory a device has in all, and memory of it that is zero."""

import os
from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

# Vector instructions and the products of the maths libraries like rows that begin at a cache line, as torch's own do.
_ALIGNMENT_BYTES = 64


def total_bytes(device: torch.device) -> int:
    """Of a GPU its own, else the machine's."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def zeros(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros `size`; of the machine's own memory a page is taken when it is first written, not now.

    Raises:
        torch.OutOfMemoryError: the device has none.
    """
    if device.type != "cpu":
        return torch.zeros(tuple(size), dtype=dtype, device=device)
    num_bytes = prod(size) * dtype.itemsize
    try:
        # `torch.zeros` writes every byte; numpy asks the system for pages that are zero already.
        taken = torch.from_numpy(np.zeros(num_bytes + _ALIGNMENT_BYTES, dtype=np.uint8))
    except MemoryError as error:
        raise torch.OutOfMemoryError(str(error)) from error
    first = -taken.data_ptr() % _ALIGNMENT_BYTES
    return taken[first : first + num_bytes].view(dtype).view(tuple(size))
