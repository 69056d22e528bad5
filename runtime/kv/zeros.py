"""Memory of zeros for keys and values."""

from math import prod

import numpy as np
import torch
from torch import Tensor


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
    as_bytes = np.zeros(prod(size) * dtype.itemsize, dtype=np.uint8)  # numpy knows no bfloat16
    return torch.from_numpy(as_bytes).view(dtype).view(size)
