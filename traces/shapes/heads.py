"""Drafters that are made for one target and read its features: EAGLE, EAGLE-3, multi-token prediction, Medusa.

Parameters are those that one drafted token reads, so the target's output counts where the head goes through it.
Letters: H hidden size, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import replace

from ..meta import ModelInfo
from .decoder import Decoder

# Of the published EAGLE-3 heads for Llama, Vicuna and Qwen: tokens that they can draft.
EAGLE3_VOCABULARY = 32_000

Head = Callable[[Decoder, str], ModelInfo]
# By name, and what to call them in words.
HEADS: dict[str, str] = {"eagle": "EAGLE", "eagle3": "EAGLE-3", "mtp": "MTP", "medusa": "Medusa"}


def head_of(kind: str, target: Decoder, name: str) -> ModelInfo | None:
    """The shape of a head of this kind for `target`; None of one with a layer of its own for a mixture of experts.

    What feed-forward part such a head has does not follow from the target: published ones are dense, some have experts.

    Args:
        kind: a key of `HEADS`.
        target: that it drafts for.
        name: of the member.
    """
    if target.mixture is not None and kind != "medusa":
        return None
    makers: dict[str, Head] = {"eagle": _one_layer, "eagle3": eagle3, "mtp": _one_layer, "medusa": _medusa}
    return makers[kind](target, name)


def eagle3(target: Decoder, name: str, *, vocabulary: int = EAGLE3_VOCABULARY) -> ModelInfo:
    """One layer whose attention reads embedding and features side by side, and an output of its own.

    (Li et al. 2025, arXiv:2503.01840.) The features of three of the target's layers are first joined, 3 H to H.
    """
    hidden = target.hidden
    layer = target.attention_parameters(2 * hidden) + target.feed_forward_parameters + 3 * hidden
    return _info(target, name, layer + 3 * hidden * hidden + hidden + min(vocabulary, target.vocabulary) * hidden)


def _one_layer(target: Decoder, name: str) -> ModelInfo:
    """A layer of the target after a projection of embedding and feature, 2 H to H, and the target's output.

    (EAGLE: Li et al. 2024, arXiv:2401.15077; multi-token prediction modules: DeepSeek-V3, arXiv:2412.19437.)
    """
    joined = 2 * target.hidden * target.hidden
    return _info(target, name, target.layer_parameters + joined + target.table_parameters)


def _medusa(target: Decoder, name: str) -> ModelInfo:
    """One head: a residual layer and an output (Cai et al. 2024, arXiv:2401.10774). It keeps no keys and values."""
    found = _info(target, name, target.hidden * target.hidden + target.hidden + target.table_parameters)
    return found.model_copy(update={"kv_bytes_per_token": 0})


def _info(target: Decoder, name: str, parameters: int) -> ModelInfo:
    return replace(target, layers=1).info(name).model_copy(update={"parameters": parameters})
