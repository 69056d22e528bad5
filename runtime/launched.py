"""Which of the processes that torchrun started this one is; needs no torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

# Variables that torchrun sets, all or none.
_RANK, _LOCAL_RANK, _NUM_RANKS, _NUM_HERE = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """This process among those that torchrun started."""

    rank: int = 0  # 0 to `num_ranks` - 1; 0 prints and writes
    num_ranks: int = 1  # processes in all, >= 1
    local_rank: int = 0  # on this machine, 0 to `num_here` - 1: the number of its GPU
    num_here: int = 1  # processes on this machine


def launched(environment: Mapping[str, str] = os.environ) -> Launched:
    """As torchrun set it; a single process without torchrun.

    Raises:
        ValueError: a variable that is no number in its range.
    """
    if any(name not in environment for name in (_RANK, _LOCAL_RANK, _NUM_RANKS, _NUM_HERE)):
        return Launched()
    num_ranks, num_here = (_number(environment, name, 1) for name in (_NUM_RANKS, _NUM_HERE))
    return Launched(
        rank=_number(environment, _RANK, 0, num_ranks - 1),
        num_ranks=num_ranks,
        local_rank=_number(environment, _LOCAL_RANK, 0, num_here - 1),
        num_here=num_here,
    )


def _number(environment: Mapping[str, str], name: str, least: int, most: int | None = None) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdecimal()) or int(text) < least or (most is not None and int(text) > most):
        rule = f">= {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}, which torchrun sets, must be a whole number {rule}, got {text!r}")
    return int(text)
