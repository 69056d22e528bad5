"""An output head over some tokens of a vocabulary: a small drafter's head may cost more than all its layers.

So draft FR-Spec (Zhao et al. 2025, arXiv:2502.14856) and EAGLE-3 (Li et al. 2025, arXiv:2503.01840). Whoever reads the
logits sees the whole vocabulary, in which other tokens have a probability of exactly 0.

Letters: N contexts, H width of the residual stream, K tokens of the head, V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class SubsetHead(nn.Linear):
    """The rows of a head that belong to some tokens.

    Args:
        head: `[V, H]`; its rows are copied.
        tokens: int64 `[K]`, different ones below V, on the device of `head`.
        is_of_another: whether `head` and the embeddings belong to another model.
    """

    def __init__(self, head: nn.Linear, tokens: Tensor, *, is_of_another: bool) -> None:
        super().__init__(head.in_features, len(tokens), bias=head.bias is not None, device="meta")
        self.vocab_size = head.out_features
        self.is_of_another = is_of_another
        self.weight = nn.Parameter(head.weight.detach()[tokens], requires_grad=False)
        if head.bias is not None:
            self.bias = nn.Parameter(head.bias.detach()[tokens], requires_grad=False)
        self.tokens: Tensor
        self.register_buffer("tokens", tokens, persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """`[..., V]` logits of `[..., H]`."""
        return self.spread(functional.linear(hidden, self.weight, self.bias))

    def spread(self, logits: Tensor) -> Tensor:
        """`[..., V]` of the `[..., K]` logits of the head's tokens; -inf for the others."""
        whole = logits.new_full((*logits.shape[:-1], self.vocab_size), -torch.inf)
        return whole.index_copy_(-1, self.tokens, logits)
