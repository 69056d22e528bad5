"""How a function over static buffers is run again and again: as a CUDA graph, or by calling it."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ...arguments import ArgumentError

Run = Callable[[], tuple[Tensor, ...]]

# Calls before a capture: libraries set up their workspaces and choose kernels in the first ones.
_WARM_UPS = 2


class Capture(Protocol):
    """Makes a function repeatable that reads and writes what stays where it is, and never waits for the device."""

    def capture(self, run: Run) -> Run:
        """A function that does what `run` does on what is then in the same buffers.

        Its results lie in the same place at every call, and may be overwritten by any other captured function.

        Raises:
            RuntimeError: `run` cannot be captured; it can be called as it is.
        """

    def free_bytes(self) -> int | None:
        """Memory that captures may still take; None where they take none."""

    def used_bytes(self) -> int:
        """Memory that captures took so far, those that are gone among them."""


class CalledEachTime:
    """No capture: the function itself. What tests run where there is no GPU."""

    def capture(self, run: Run) -> Run:
        """`run`."""
        return run

    def free_bytes(self) -> int | None:
        """None: nothing is taken."""
        return None

    def used_bytes(self) -> int:
        """0."""
        return 0


class CudaGraphs:
    """CUDA graphs that share one private pool of memory, so that only the largest one's temporaries count.

    Graphs that share a pool must not run at the same time: all of them are replayed on the current stream.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._used_bytes = 0

    def capture(self, run: Run) -> Run:
        """Warm up on a side stream, then capture there."""
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    run()
            current.wait_stream(self._stream)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # as the capture does, too, which must not count as memory that it gave back
            before = torch.cuda.memory_reserved()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                results = run()
            self._used_bytes += max(0, torch.cuda.memory_reserved() - before)

        def replay() -> tuple[Tensor, ...]:
            graph.replay()
            return results

        return replay

    def free_bytes(self) -> int | None:
        """What the driver has left, and what torch holds without using it."""
        free, _ = torch.cuda.mem_get_info(self._device)
        unused = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return int(free + max(0, unused))

    def used_bytes(self) -> int:
        """By which captures made torch's memory grow; what they gave back to the pool is used by later ones."""
        return self._used_bytes


def capture_on(device: torch.device) -> Capture:
    """How functions are captured on a device; raises ArgumentError where there are no CUDA graphs."""
    if device.type != "cuda":
        raise ArgumentError(f"`forward` graphs needs models on a CUDA device, got one on {device.type}")
    return CudaGraphs(device)
