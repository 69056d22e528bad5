"""What a drafter that reads the target's last hidden states says at every depth, of all positions of a text at once.

Beyond what the target has judged it reads its own states, so it has to learn from these, too, as in HASS (Zhang et al.
2024, arXiv:2408.15766) and the training-time test of EAGLE-3 (Li et al. 2025, arXiv:2503.01840). Pass d says of every
position what is said there at depth d + 1: it reads the state that pass d - 1 had one position before, and looks at
keys and values as they are in decoding, those of pass 0 up to d positions before, then one of each later pass.

Letters: B texts of a batch, T tokens of the longest one, W width of the target.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel

from ....runtime.features.input_layer import INPUT
from ....runtime.forward.module_forward import cache_argument


def states_at_depths(student: PreTrainedModel, embedded: Tensor, states: Tensor, num_depths: int) -> Iterator[Tensor]:
    """The student's states `[B, T, W]` at depths 1, 2, ... of every position.

    Args:
        student: with an input layer.
        embedded: `[B, T, W]` of the tokens.
        states: `[B, T, W]` the target's at the same tokens.
        num_depths: how many, >= 1.
    """
    length = embedded.shape[1]
    cache: Any = DynamicCache()
    for depth in range(num_depths):
        before = functional.pad(states, (0, 0, 1, 0))[:, :-1]
        output = student.base_model(
            inputs_embeds=student.get_submodule(INPUT)(torch.cat([embedded, before], dim=-1)),
            position_ids=torch.arange(length)[None], attention_mask=_seen(length, depth)[None, None],
            use_cache=True, **{cache_argument(student): cache},
        )  # fmt: skip
        states = output.last_hidden_state
        yield states


def _seen(length: int, depth: int) -> Tensor:
    """`[T, (depth + 1) T]` which keys of all passes the queries of this one look at; each at its own at least."""
    rows, columns = torch.arange(length)[:, None], torch.arange(length)[None]
    own = [columns == rows - depth + number for number in range(1, depth + 1)]
    return torch.cat([columns <= rows - depth, *own], dim=-1)
