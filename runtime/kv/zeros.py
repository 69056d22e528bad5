"""Memory of zeros for keys and values."""

from math import prod

import numpy as np
import torch
from torch import Tensor

# What a device without so much memory raises.
NO_MEMORY = (MemoryError, torch.OutOfMemoryError)
# Bytes of a line of the processor's cache. Torch begins memory at one, as attention likes it, numpy 16 bytes behind.
_ALIGNED = 64


def zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of zeros: a slot that nobody may look at must still hold finite numbers.

    On a CPU the pages are taken as they are first written (numpy asks for memory that is zero already, where torch
    writes every zero): slots that rows may need later cost neither seconds nor memory until they do.

    Raises:
        MemoryError: a CPU has not so much memory.
        torch.OutOfMemoryError: another device has not.
    """
    if device.type != "cpu" or not prod(size):
        return torch.zeros(size, dtype=dtype, device=device)
    num_bytes = prod(size) * dtype.itemsize
    as_bytes = np.zeros(num_bytes + _ALIGNED, dtype=np.uint8)  # numpy knows no bfloat16
    first = -as_bytes.ctypes.data % _ALIGNED
    return torch.from_numpy(as_bytes)[first : first + num_bytes].view(dtype).view(size)
