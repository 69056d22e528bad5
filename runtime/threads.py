"""How many threads torch uses: always stated, since more than there are free cores is far slower than one."""

import torch

from ..arguments import check_least


def use_threads(count: int) -> None:
    """Set torch's threads for this process; raises ArgumentError below 1."""
    check_least("`threads`", count, 1)
    torch.set_num_threads(count)
