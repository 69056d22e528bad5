"""Attention over a common prefix and over what each row has of its own, put together by their log-sum-exps.

A softmax over keys in two parts is that over each part, weighted by the parts' sums of exponentials (Hydragen, Juravsky
et al. 2024, arXiv:2402.05099, section 3.1, and the cascade attention of FlashInfer): with l_1, l_2 the log-sum-exps of
both parts, attention = sigmoid(l_1 - l_2) a_1 + (1 - sigmoid(l_1 - l_2)) a_2. The queries of all rows go over the
common part as those of one row, in one product of matrices that reads its keys and values once.

Letters: B rows, Q queries of a row, H key and value heads, C common slots, S slots of a row's own, D head width.
"""

import torch
from torch import Tensor

# keys and values
KeysValues = tuple[Tensor, Tensor]


def attend_in_two_parts(
    queries: Tensor,
    common: KeysValues,
    own: KeysValues,
    *,
    common_mask: Tensor | None,
    own_mask: Tensor | None,
    scale: float,
) -> Tensor:
    """`[B, H, Q, D]`, what attention over both parts together gives but for rounding.

    Args:
        queries: `[B, H, Q, D]`.
        common: two of `[H, C, D]`.
        own: two of `[B, H, S, D]`.
        common_mask: `[B, 1, Q, C]` added to scores, 0 or -inf; None looks at all. A query may look at none of it.
        own_mask: `[B, 1, Q, S]` likewise; every query looks at its own token at least.
        scale: of the scores.
    """
    rows, heads, count, width = queries.shape
    flat = queries.transpose(0, 1).reshape(1, heads, rows * count, width)
    flat_mask = None if common_mask is None else common_mask.reshape(1, 1, rows * count, -1)
    found, sums = attend_with_sums(flat, common[0][None], common[1][None], flat_mask, scale)
    found = found.view(heads, rows, count, width).transpose(0, 1)
    sums = sums.view(heads, rows, count).transpose(0, 1)
    own_found, own_sums = attend_with_sums(queries, *own, own_mask, scale)
    share = torch.sigmoid(sums - own_sums)[..., None].to(found.dtype)
    if common_mask is not None:
        blind = torch.isneginf(common_mask).all(dim=-1)[..., None]
        # Over nothing there is no mean: whatever stands there must not reach the sum, not even times 0.
        share, found = share.masked_fill(blind, 0.0), found.masked_fill(blind, 0.0)
    return torch.lerp(own_found, found, share)


def attend_with_sums(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention `[B, H, Q, D]`, and the log-sum-exps `[B, H, Q]` of its scores; as in `attend_in_two_parts`."""
    # Not public, but what torch's own attention calls on a CPU; another torch may not have it.
    kernel = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
    if queries.device.type == "cpu" and kernel is not None:
        found, sums = kernel(queries, keys, values, 0.0, False, attn_mask=mask, scale=scale)  # noqa: FBT003
        return found, sums
    return by_products(queries, keys, values, mask, scale)


def by_products(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """As `attend_with_sums`, by two products of matrices, on every device."""
    scores = torch.matmul(queries * scale, keys.transpose(-1, -2)).float()
    if mask is not None:
        scores = scores + mask
    sums = torch.logsumexp(scores, dim=-1)
    probs = torch.exp(scores - sums[..., None]).to(values.dtype)
    return torch.matmul(probs, values), sums
