"""How far a model is from the target, teacher-forced on the target's text."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from .calibration import Calibration, next_token_probs


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """Of a model to the target, over all tokens of the target's text.

    Attributes:
        tvd: mean total variation distance of the two distributions of the next token, 0 to 1. One less it is the
            SimScore of SpecRouter (arXiv:2505.07680), and the share of tokens that rejection sampling accepts
            (Leviathan et al. 2023, arXiv:2211.17192, Cor. 3.6).
        disagreement: share of tokens for which the two likeliest differ, 0 to 1; one less it is the share of tokens
            that greedy decoding accepts.
    """

    tvd: float
    disagreement: float


def measure_distance(model: PreTrainedModel, calibration: Calibration) -> Distance:
    """Mean over the calibration's tokens; logits that are not finite count as a distance of 1."""
    apart, unequal = 0.0, 0
    for text in calibration.texts:
        probs = next_token_probs(model, text.prompt, text.tokens, calibration.sampling)
        finite = probs.isfinite().all(dim=-1)
        differences = (probs - text.target_probs).abs().sum(dim=-1).double() / 2
        apart += float(torch.where(finite, differences, 1.0).sum())
        unequal += int((~finite | (probs.argmax(dim=-1) != text.target_probs.argmax(dim=-1))).sum())
    num_tokens = calibration.num_tokens
    return Distance(tvd=apart / num_tokens, disagreement=unequal / num_tokens)
