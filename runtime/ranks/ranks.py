"""What the processes of one run tell each other, besides what models do: seconds, and that they do the same."""

import signal
import threading
from datetime import timedelta
from math import inf
from types import FrameType
from zlib import crc32

import torch
import torch.distributed as dist

from .launched import Launched

# A rank that waits longer has lost another one. Loading takes longest, since ranks need not read at the same pace.
PATIENCE = timedelta(minutes=10)


class RanksApartError(ValueError):
    """Two processes were about to do different things, which would mix two texts in one forward."""


class Ranks:
    """All processes of a run; every one of them makes this object, and calls its methods in the same order.

    From then on an interrupt (Ctrl-C, or an order to end) is rank 0's to hear: all ranks raise KeyboardInterrupt where
    they next hear from it, so that none of them waits for one that has left.

    Args:
        launched: this process.
        group: of all of them, for numbers in the machine's own memory.

    Attributes:
        num_ranks: processes, >= 2.
        rank: of this one.
    """

    def __init__(self, launched: Launched, group: dist.ProcessGroup) -> None:
        self.num_ranks = launched.num_ranks
        self.rank = launched.rank
        self._group = group
        self._interrupted = False
        if threading.current_thread() is threading.main_thread():  # others have no say in signals
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self._note_interrupt)

    def _note_interrupt(self, *_: int | FrameType | None) -> None:
        self._interrupted = self.rank == 0

    def of_the_first(self, number: float) -> float:
        """Rank 0's finite number, which every rank returns; raises KeyboardInterrupt in all if rank 0 heard one."""
        heard, self._interrupted = self._interrupted, False
        told = torch.tensor(inf if heard else number, dtype=torch.float64)
        dist.broadcast(told, 0, group=self._group)
        if told == inf:
            raise KeyboardInterrupt
        return float(told)

    def check_alike(self, doing: object) -> None:
        """Raise RanksApartError unless this rank is about to do what rank 0 is.

        Args:
            doing: of plain values, whose `repr` is the same in every process.
        """
        own = crc32(repr(doing).encode())
        if self.of_the_first(own) != own:
            raise RanksApartError(
                f"policies, rules and stops must decide by what they are shown alone, alike in every process, but rank "
                f"{self.rank} is not about to do what rank 0 is"
            )


def join(launched: Launched) -> Ranks:
    """Meet the other processes; waits for them.

    On a machine with GPUs each process takes the one of its local rank, which `cuda` means from here on.

    Raises:
        ValueError: more processes than GPUs.
        RuntimeError: another process does not come.
    """
    num_gpus = torch.cuda.device_count()
    if num_gpus and launched.num_here > num_gpus:
        raise ValueError(f"torchrun must start at most {num_gpus} processes, one for each GPU, got {launched.num_here}")
    if num_gpus:
        torch.cuda.set_device(launched.local_rank)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if num_gpus else "gloo", timeout=PATIENCE)
    return Ranks(launched, dist.new_group(backend="gloo", timeout=PATIENCE))


def leave() -> None:
    """Part from the other processes, if they were met."""
    if dist.is_initialized():
        dist.destroy_process_group()
