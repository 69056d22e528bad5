"""The quality of a lossy policy's texts on real models, measured when they are written.

The target continues the same prompts alone, and one forward of it over each text, without a cache of anybody's, says
what it would have written at every place and how probable the text is to it.

Letters: T tokens of an answer, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple, Required, TypedDict

import numpy as np
import torch

from ..policies.lossless.plain import Plain
from ..runs.text_quality import UNKNOWN_COUNT, TextQuality, same_counts
from ..traces.meta import Sampling
from ..traces.tries.stored_resolution import LOG_PROBS
from .decode import Output, decode, whole
from .forward.forward_choice import ForwardKind
from .memory import Memory
from .next_token_views import scores
from .pools.loaded_members import loaded_pool
from .pools.pool import ModelPool
from .prompts import Prompt
from .recording.tree_forward import text_logits
from .sampling.coupled_noise import noise_of
from .sampling.truncation import truncated
from .tasks.scores import Scorer


class Alone(TypedDict, total=False):
    """How the target is to write alone: arguments of `decode`, as of the run that it is compared with."""

    sampling: Required[Sampling]
    max_new_tokens: Required[int]
    batch: int
    memory: Memory | None
    forward: ForwardKind
    stop: Sequence[str]


class Verdict(NamedTuple):
    """What the target says of an answer.

    Attributes:
        log_prob: sum over its tokens, nats, <= 0, each rounded as recordings are.
        divergences: tokens it would not have written in their contexts; -1 with rejection sampling, which draws.
    """

    log_prob: float
    divergences: int


def text_qualities(
    pool: ModelPool,
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    alone: Alone,
    scorer: Scorer | None = None,
) -> dict[str, TextQuality]:
    """Measure every answer that was finished.

    With rejection sampling two texts of one prompt are two draws: where they part means nothing and stays unknown.
    Rounding may turn a near tie, so that a token of the target's own counts as a divergence.

    Args:
        pool: that wrote them.
        prompts: of the run.
        outputs: of the run; failed ones are left out.
        alone: how the target writes.
        scorer: of answers; None runs no tests.

    Raises:
        KeyboardInterrupt: the user would not wait.
    """
    answered = {output.request_id: output for output in outputs if not output.error}
    asked = [prompt for prompt in prompts if prompt.request_id in answered]
    if not asked:
        return {}
    plain, scorer = Plain(loaded_pool(pool)), scorer or Scorer()
    owns, _ = whole(decode(pool, plain, asked, name="plain", **alone))
    return {
        own.request_id: _quality(pool, prompt, answered[own.request_id], own, alone["sampling"], scorer)
        for prompt, own in zip(asked, owns, strict=True)
        if not own.error
    }


def _quality(
    pool: ModelPool, prompt: Prompt, output: Output, own: Output, sampling: Sampling, scorer: Scorer
) -> TextQuality:
    context = pool.encode(prompt.text)
    tokens, trunk = list(output.tokens), list(own.tokens)
    own_verdict = verdict_on(pool, prompt.request_id, context, trunk, sampling)
    if tokens == trunk:
        verdict = own_verdict._replace(divergences=min(own_verdict.divergences, 0))
    else:
        verdict = verdict_on(pool, prompt.request_id, context, tokens, sampling)
    draws = sampling.mode == "rejection"
    same = (UNKNOWN_COUNT, UNKNOWN_COUNT) if draws else same_counts(tokens, trunk)
    return TextQuality(
        divergences=verdict.divergences,
        seen_tokens=len(tokens),
        scored_tokens=len(tokens),
        log_prob=verdict.log_prob,
        trunk_tokens=len(trunk),
        trunk_log_prob=own_verdict.log_prob,
        same_tokens=same[0],
        same_start=same[1],
        exact_start=len(tokens),
        right=_right(scorer, prompt, output),
        trunk_right=_right(scorer, prompt, own),
    )


@torch.inference_mode()
def verdict_on(
    pool: ModelPool, request_id: str, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling
) -> Verdict:
    """What the target says of `tokens` after `prompt`: one forward over both."""
    model = pool.target.model
    assert model is not None
    count = len(tokens)
    logits = text_logits(model, [*prompt, *tokens[:-1]], count)
    log_probs = torch.log_softmax(truncated(logits, sampling), dim=-1)
    written = torch.tensor(list(tokens), device=logits.device)
    of_tokens = LOG_PROBS.round(log_probs.gather(-1, written[:, None])[:, 0].cpu().numpy())
    if sampling.mode == "rejection":
        return Verdict(float(of_tokens.sum()), UNKNOWN_COUNT)
    noise = noise_of(sampling, request_id, logits.shape[-1])
    chosen = scores(logits, sampling, None if noise is None else noise.rows(range(count))).argmax(dim=-1).cpu().numpy()
    return Verdict(float(of_tokens.sum()), int((chosen != np.asarray(tokens)).sum()))


def _right(scorer: Scorer, prompt: Prompt, output: Output) -> int:
    """1 if the answer is the one expected, 0 if not, -1 where nobody knows."""
    score = scorer.score(prompt, output.text)
    return UNKNOWN_COUNT if score is None or score.right is None else int(score.right)
