"""Small heads, and embeddings of another model.

A drafter may read and write tokens by the embeddings of another model, as EAGLE's do by their target's, or have a head
over some tokens alone (FR-Spec, Zhao et al. 2025, arXiv:2502.14856; EAGLE-3, Li et al. 2025, arXiv:2503.01840), which
gives all others a probability of exactly 0. Letters: N contexts, H width of the residual stream, K tokens of the head,
V vocabulary.
"""

from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ...base.files import kind_of_json, read_json
from ..refusals import BrokenRuleError

# A head of one token would have no choice, and no second-best token for the gap that policies read.
FEWEST = 2


def read_head_tokens(path: Path, vocab_size: int) -> list[int]:
    """The ids in a file, in its order, each below `vocab_size`.

    Raises:
        ValueError: the rule that the file breaks, with the value; without the file's name.
        OSError: it cannot be read.
    """
    found = read_json(path)
    if not isinstance(found, list):
        raise ValueError(f"must be a list of token ids, got {kind_of_json(found)}")
    last = -1
    for place, token in enumerate(found):
        if type(token) is not int or not last < token < vocab_size:
            rule = f"must be token ids below {vocab_size} in ascending order, each once"
            raise ValueError(f"{rule}, got {token!r} at place {place}")
        last = token
    if not FEWEST <= len(found) < vocab_size:
        raise ValueError(f"must hold {FEWEST} to {vocab_size - 1} of {vocab_size} tokens, got {len(found)}")
    return found


def embedding_names(model: PreTrainedModel) -> set[str]:
    """Names of the weights of the token embeddings and of the output head."""
    modules = (model.get_input_embeddings(), model.get_output_embeddings())
    names = {module: name for name, module in model.named_modules()}
    return {f"{names[module]}.{weight}" for module in modules for weight, _ in module.named_parameters()}


def own_embeddings(model: PreTrainedModel) -> set[str]:
    """Those of `embedding_names` that the model's own weights hold: a tied head is not one."""
    names = embedding_names(model)
    if not model.config.tie_word_embeddings:
        return names
    table = model.get_input_embeddings().weight
    return {name for name in names if model.get_parameter(name) is table}


def share_embeddings(model: PreTrainedModel, owner: PreTrainedModel, *, may_round: bool) -> None:
    """Let `model` use the token embeddings and the output head of `owner`, of as many tokens.

    They are the same modules, or rounded copies in the format of `model` where that differs and `may_round`.

    Raises:
        BrokenRuleError: they are of another width or device, or of another format and may not be rounded.
    """
    embeddings, head = owner.get_input_embeddings(), owner.get_output_embeddings()
    table = embeddings.weight
    rounded = may_round and model.dtype != table.dtype
    for what, own, other in (
        ("hidden size", int(model.config.hidden_size), table.shape[1]),
        ("device", str(model.device), str(table.device)),
        ("dtype", str(model.dtype).removeprefix("torch."), str(table.dtype).removeprefix("torch.")),
    ):
        if own != other and not (rounded and what == "dtype"):
            raise BrokenRuleError(f"must be a member of the same {what} ({own})", str(other))
    if rounded:
        # Together, so that what is tied stays tied.
        embeddings, head = deepcopy(nn.ModuleList([embeddings, head])).to(model.dtype)
    model.set_input_embeddings(embeddings)
    model.set_output_embeddings(head)
    model.config.vocab_size = owner.config.vocab_size


class SubsetHead(nn.Linear):
    """The rows of a head that belong to some tokens.

    `head` is `[V, H]`, whose rows are copied; `tokens` int64 `[K]`, different ones below V, on its device.
    `is_of_another`: `head` and the embeddings belong to another model.
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
