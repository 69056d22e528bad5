"""Memory that the system gets back while weights are laid out anew, copied and timed.

What was read of a mapped file counts as memory of the process as long as anything of the file is in use: unless the
system is told, all old weights stay beside the new ones. And the C library may keep what is freed for itself.
"""

import ctypes
import sys
from pathlib import Path

from torch import Tensor

_MAPS = Path("/proc/self/maps")
# `MADV_PAGEOUT` of Linux: the system may take pages away. It changes no value: they are read anew when asked for.
_PAGE_OUT, _PAGE_BYTES = 21, 4096


def let_go(values: Tensor) -> None:
    """Tell the system that values without gaps are not needed in memory; does nothing where they are in no file."""
    first = values.data_ptr()
    if values.device.type != "cpu" or not _in_a_file(first):
        return
    start, end = -(-first // _PAGE_BYTES) * _PAGE_BYTES, (first + values.nbytes) // _PAGE_BYTES * _PAGE_BYTES
    if start < end:  # a hint, so what comes of it is not asked
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _PAGE_OUT)


def _in_a_file(address: int) -> bool:
    """Whether an address is one of a mapped file; False where the system does not say."""
    if not _MAPS.exists():
        return False
    for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        span, *_, path = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return path.startswith("/")
    return False


def trim() -> None:
    """Let the C library give back what was freed, where it can."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
