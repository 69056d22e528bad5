"""What a lossy rule is told of a token, and what the token follows after the rule's verdict.

Numbers are on the grid of recordings, so that a rule draws its line at the same place in both worlds. Letters: V
vocabulary.
"""

from math import exp, nan
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...decoding.rules.acceptance import Rule
from ...decoding.rules.facts import Facts
from ...traces.tries.stored_resolution import ENTROPIES, LOG_PROBS
from ..next_token_views import entropies
from ..sampling.rejection import probabilities
from ..state.request_state import PendingView

Flags = NDArray[np.bool_]


def facts_of(view: PendingView, logits: Tensor, own_token: int, *, tvd: float, judge: int) -> Facts:
    """What a rule is told of one token, from the verifier's distribution `[V]` at the context before it.

    Args:
        view: of the token.
        logits: of the verifier.
        own_token: what the verifier would write.
        tvd: distance to the verifier's distribution.
        judge: level of whoever endorses the token.
    """
    log_probs = torch.log_softmax(logits, dim=-1)
    target_log_prob, top_log_prob = _rounded(log_probs, view.token)
    draft_top_prob = own_draft_prob = nan
    if view.drafter is not None:
        drafted = torch.log_softmax(view.drafter, dim=-1)
        own_draft_prob, draft_top_prob = map(exp, _rounded(drafted, own_token))
    return Facts(
        same=own_token == view.token,
        draft_prob=view.signal().prob,
        target_prob=exp(target_log_prob),
        top_prob=exp(top_log_prob),
        entropy=_entropy(log_probs),
        tvd=tvd,
        judge=judge,
        draft_top_prob=draft_top_prob,
        own_draft_prob=own_draft_prob,
    )


def facts_of_all(view: PendingView, logits: Tensor, own_token: int, *, tvd: float, judge: int) -> Facts:
    """The same of every token that could stand there: `same`, `draft_prob` and `target_prob` are `[V]`."""
    log_probs = torch.log_softmax(logits, dim=-1)
    theirs = np.exp(LOG_PROBS.round(log_probs.cpu().numpy()))
    drafted = np.full_like(theirs, nan)
    if view.drafter is not None:
        drafted = np.exp(LOG_PROBS.round(torch.log_softmax(view.drafter, dim=-1).cpu().numpy()))
    return Facts(
        same=np.arange(len(theirs)) == own_token,
        draft_prob=drafted,
        target_prob=theirs,
        top_prob=theirs.max(),
        entropy=_entropy(log_probs),
        tvd=tvd,
        judge=judge,
        draft_top_prob=drafted.max(),
        own_draft_prob=drafted[own_token],
    )


def ruled(rule: Rule, facts: Facts) -> tuple[Flags, Flags]:
    """(`[V]` tokens the rule keeps, `[V]` tokens it leaves to the next verifier), by `facts_of_all`."""
    shape = facts.target_prob.shape
    keeps = np.broadcast_to(rule.accepts(facts), shape)
    escalates: Any = getattr(rule, "escalates", None)
    return keeps, np.zeros(shape, dtype=bool) if escalates is None else np.broadcast_to(escalates(facts), shape)


def law_after(view: PendingView, probs: Tensor, stays: Flags) -> Tensor | None:
    """What the token at this place follows, given the text before it, once a lossy rule has judged it: logits `[V]`.

    It followed `draft_probs`; it stays if `stays`, else a draw from the verifier takes its place. So it follows
    draft_probs where tokens stay, and probs in the share of all others. A next level that judges losslessly needs
    just this distribution: it makes what it keeps follow its own, whatever the rule did.

    Args:
        view: of the token that was drafted.
        probs: `[V]` float64 of the verifier.
        stays: `[V]` tokens the rule does not refuse.

    Returns:
        None for a token that is certain: drafted without a distribution, and not refused.
    """
    if view.judge is None:
        return None if stays[view.token] else probs.log()
    draft_probs = probabilities(view.judge).to(probs.device)
    kept = torch.from_numpy(stays.copy()).to(probs.device)
    return (draft_probs * kept + (draft_probs * ~kept).sum() * probs).log()


def _entropy(log_probs: Tensor) -> float:
    return float(ENTROPIES.round(entropies(log_probs.exp()).cpu().numpy()))


def _rounded(log_probs: Tensor, token: int) -> tuple[float, float]:
    """Log-probabilities of a token and of the most probable one, on the grid of recordings."""
    both = torch.stack([log_probs[token], log_probs.max()]).cpu().numpy()
    of_token, of_top = LOG_PROBS.round(both).tolist()
    return of_token, of_top
