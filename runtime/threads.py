"""How many threads torch uses: always stated, since more than there are free cores is far slower than one."""

import torch

from ..arguments import ArgumentError, check_least
from ..counted import counted
from ..machine import num_processors


def use_threads(count: int) -> None:
    """Set torch's threads for this process; raises ArgumentError below 1, and beyond its processors."""
    check_processors("`threads`", count)
    torch.set_num_threads(count)


def check_processors(name: str, count: int) -> None:
    """Refuse, as an ArgumentError about `name`, less than one and more than this process may run on."""
    check_least(name, count, 1)
    if count > (most := num_processors()):
        raise ArgumentError(f"{name} must be <= {most}, as there {_are(most)}, got {count}")


def _are(count: int) -> str:
    return f"{'is' if count == 1 else 'are'} {counted(count, 'processor')} to run on"
