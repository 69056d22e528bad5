"""How many threads torch uses: always stated, since more than there are free cores is far slower than one."""

import torch


def use_threads(count: int) -> None:
    """Set torch's threads for this process; raises ValueError below 1."""
    if count < 1:
        raise ValueError(f"threads must be >= 1, got {count}")
    torch.set_num_threads(count)
