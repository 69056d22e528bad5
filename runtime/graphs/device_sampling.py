"""How tokens are chosen and kept where the logits are: nothing here waits for the device.

The same arithmetic as `executor.sampler.SameToken` and `state.request_state.signals`. Letters: N contexts, R rows, Q
tokens of a row, V vocabulary.
"""

import torch
from torch import Tensor

from ..next_token_views import entropies, gaps


def choose(rows: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """`[N]` tokens and `[N]` their scores, from `[N, V]` distributions and, if coupled, `[N, V]` noise."""
    best, tokens = (rows if noise is None else rows + noise).max(dim=-1)
    return tokens, best


def said_of(rows: Tensor, tokens: Tensor) -> Tensor:
    """`[N, 3]` log-probability of each token, entropy, and gap of the two largest probabilities, unrounded."""
    log_probs = torch.log_softmax(rows, dim=-1)
    probs = log_probs.exp()
    return torch.stack([log_probs.gather(-1, tokens[:, None])[:, 0], entropies(probs), gaps(probs)], dim=-1)


def accept(ids: Tensor, written: Tensor, best: Tensor, starts: Tensor, judged: Tensor) -> Tensor:
    """`[R, 3]` how many judged tokens of each row stay, the verifier's own after them, whether logits are finite.

    A judged token stays if it and all before it are what the verifier writes.

    Args:
        ids: `[R, Q]` what was read.
        written: `[R, Q]` what the verifier writes after each of them.
        best: `[R, Q]` its scores.
        starts: `[R]` column of the context of the first judged token, which stands in the next column.
        judged: `[R]` how many tokens are judged, >= 0, all within Q.
    """
    columns = torch.arange(ids.shape[1], device=ids.device)
    after_start = columns - starts[:, None]
    # Column c says what follows the token in c, so the token in c + 1 is compared with it.
    same = written == ids.roll(-1, dims=1)
    judging = (after_start >= 0) & (after_start < judged[:, None])
    accepted = ((same & judging) | (after_start < 0)).long().cumprod(dim=1).sum(dim=1) - starts
    own = written.gather(1, (starts + accepted)[:, None])[:, 0]
    outside = (after_start < 0) | (after_start > judged[:, None])
    finite = (best.isfinite() | outside).all(dim=1)
    return torch.stack([accepted, own, finite.long()], dim=-1)
