"""The processes of one run that torchrun started: how they connect, what they exchange, and what they split.

They exchange seconds, checks that they do the same, and which one failed first; the others only notice that it is gone.
"""

import os
import signal
import threading
from datetime import timedelta
from importlib.util import find_spec
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from transformers.distributed import DistributedConfig

from ..base.errors import install_hint
from .launched import Launched, launched
from .pools.configs import MemberConfig
from .pools.pool_file import MemberEntry, PoolFile, PoolFileError

_PATIENCE = timedelta(seconds=10)


def first_to_fail() -> bool:
    """Whether no other process has failed before this one, as far as is known. Marks this one as failed."""
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(host, port, is_master=False, timeout=_PATIENCE)  # type: ignore[attr-defined]
        return store.add(f"paceline/failed/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", 1) == 1
    except (KeyError, ValueError, RuntimeError):  # no process is left that answers
        return True


def of_a_lost_rank(error: BaseException) -> str | None:
    """The message for an error caused by another process that ended or stalled; None for other errors."""
    if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error)):
        return f"another process of torchrun has ended, or does not answer ({error})"
    return None


# A rank that waits longer has lost another one. Waits are longest in loading, where ranks read at their own pace.
PATIENCE = timedelta(minutes=10)


class RanksApartError(ValueError):
    """Two processes were about to do different things, which would mix two texts in one forward."""


class Ranks:
    """All processes of a run; each makes this object, and calls its methods in the same order.

    From then on only rank 0 handles interrupts (Ctrl-C or SIGTERM): all ranks raise KeyboardInterrupt at the next
    number from it, so that none waits for one that has left. `group` is all of them, for numbers in the machine's own
    memory; `num_ranks` >= 2.
    """

    def __init__(self, launched: Launched, group: dist.ProcessGroup) -> None:
        self.num_ranks = launched.num_ranks
        self.rank = launched.rank
        self._group = group
        self._interrupted = False
        if threading.current_thread() is threading.main_thread():  # other threads cannot set signal handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self._note_interrupt)

    def _note_interrupt(self, *_: int | FrameType | None) -> None:
        self._interrupted = self.rank == 0

    def of_the_first(self, number: float) -> float:
        """Rank 0's finite number, on every rank; raises KeyboardInterrupt on all if rank 0 was interrupted."""
        heard, self._interrupted = self._interrupted, False
        told = torch.tensor(inf if heard else number, dtype=torch.float64)
        dist.broadcast(told, 0, group=self._group)
        if told == inf:
            raise KeyboardInterrupt
        return float(told)

    def check_alike(self, doing: object) -> None:
        """Raise RanksApartError unless this rank is about to do the same as rank 0.

        `doing` is of plain values, whose `repr` is the same in every process.
        """
        own = crc32(repr(doing).encode())
        if self.of_the_first(own) != own:
            raise RanksApartError(
                f"policies, rules and stops must decide by what they are shown alone, alike in every process, but rank "
                f"{self.rank} would do something else than rank 0"
            )


def join(launched: Launched) -> Ranks:
    """Connect to the other processes; waits for them.

    On a machine with GPUs each process takes the one of its local rank, which `cuda` means from here on.

    Raises:
        ValueError: more processes than GPUs.
        RuntimeError: another process does not connect.
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
    """Disconnect from the other processes, if connected."""
    if dist.is_initialized():
        dist.destroy_process_group()


_HEADS = ("num_attention_heads", "num_key_value_heads")


def ranks_of(file: Path, content: PoolFile) -> Ranks | None:
    """The processes that hold the pool together, this one among them; None if no member is split.

    Raises:
        PoolFileError: a single process, or devices that are not each process's own.
        ModuleNotFoundError: a package that transformers needs to split models is missing.
        ValueError, RuntimeError: as `ranks.join`.
    """
    split = [row for row, entry in enumerate(content.members) if entry.tp_plan is not None]
    if not split:
        return None
    own = launched()
    if own.num_ranks == 1:
        rule = "needs two processes or more (torchrun --nproc-per-node 2 -m paceline run ...)"
        raise PoolFileError(file, f"members[{split[0]}].tp_plan", rule, own.num_ranks)
    if find_spec("accelerate") is None:
        raise ModuleNotFoundError(f"tp_plan needs accelerate: {install_hint('parallel')}")
    here = "cuda" if torch.cuda.is_available() else "cpu"
    for row, entry in enumerate(content.members):
        wanted = (here,) if entry.tp_plan is not None else ("cpu", here)
        if entry.kind == "model" and entry.device not in wanted:
            rule = f"must be {' or '.join(dict.fromkeys(wanted))} in several processes, each of which has its own"
            raise PoolFileError(file, f"members[{row}].device", rule, entry.device)
    return join(own)


def check_split(file: Path, field: str, found: MemberConfig, num_ranks: int) -> None:
    """Raises PoolFileError for a model that cannot be split over `num_ranks` processes with its keys and values."""
    config: Any = found.config
    plan: dict[str, str] = getattr(config, "base_model_tp_plan", None) or {}
    if not any(name.endswith(".k_proj") and style == "colwise" for name, style in plan.items()):
        rule = "must be left out for a model whose own plan does not split attention by heads"
        raise PoolFileError(file, f"{field}.tp_plan", rule, config.model_type)
    for name in _HEADS:
        if getattr(config, name) % num_ranks:
            rule = f"needs a model whose {name} can be divided by {num_ranks} processes"
            raise PoolFileError(file, f"{field}.tp_plan", rule, getattr(config, name))


def split_options(entry: MemberEntry, ranks: Ranks | None) -> dict[str, object]:
    """Arguments of `from_pretrained` for a split member; empty for others."""
    if entry.tp_plan is None or ranks is None:
        return {}
    return {"distributed_config": DistributedConfig(tp_size=ranks.num_ranks, tp_plan=entry.tp_plan)}
