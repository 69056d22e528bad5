"""Which training sequences a step sees."""

import torch


def rows_at(step: int, *, num_rows: int, num_sequences: int, seed: int) -> torch.Tensor:
    """Indices of the sequences of a step; each pass over the data has its own order.

    Returns:
        Indices, int64, `[num_rows]`.
    """
    first = step * num_rows
    picked = []
    for position in range(first, first + num_rows):
        epoch, place = divmod(position, num_sequences)
        picked.append(_order(num_sequences, seed + epoch)[place])
    return torch.stack(picked)


def _order(num_sequences: int, seed: int) -> torch.Tensor:
    return torch.randperm(num_sequences, generator=torch.Generator().manual_seed(seed))
