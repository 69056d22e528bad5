"""Drafters that are made for one target and read its features: EAGLE, EAGLE-3, MTP, Medusa, DFlash.

Parameters are those that a forward reads, so the target's output counts where the head goes through it. EAGLE and
multi-token prediction draft a token a forward; Medusa's heads and DFlash draft all of a round's in one.
Letters: H hidden size, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import replace

from ..meta import DraftBlock, ModelInfo
from .decoder import Decoder

# Of the published EAGLE-3 heads for Llama, Vicuna and Qwen: tokens that they can draft.
EAGLE3_VOCABULARY = 32_000
EAGLE3_FEATURES = 3  # layers of the target whose states they join
MEDUSA_HEADS = 5  # that the paper recommends to train

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


def eagle3(target: Decoder, name: str, *, vocabulary: int = EAGLE3_VOCABULARY, joined: int | None = None) -> ModelInfo:
    """One layer whose attention reads embedding and features side by side, and an output of its own.

    (Li et al. 2025, arXiv:2503.01840.) The features of three of the target's layers are first joined, 3 H to H.

    Args:
        target: that it drafts for, or the decoder that its layer is like.
        name: of the member.
        vocabulary: tokens that it can draft.
        joined: width of the features side by side; None: 3 H.
    """
    hidden = target.hidden
    layer = target.attention_parameters(2 * hidden) + target.feed_forward_parameters + 3 * hidden
    joining = (EAGLE3_FEATURES * hidden if joined is None else joined) * hidden
    return _info(target, name, layer + joining + hidden + min(vocabulary, target.vocabulary) * hidden)


def dflash(layers: Decoder, name: str, *, features: int, tokens: int) -> ModelInfo:
    """Layers over the last token and a mask for each drafted one, which attend to the target's features.

    The states of some of the target's layers are joined, `features` x H to H; embedding and output are the target's, of
    which the output is read. (As transformers and z-lab's code have it, `DFlashDraftModel`.)

    Args:
        layers: what its own layers are like, with the target's vocabulary.
        name: of the member.
        features: layers of the target that it reads.
        tokens: that a forward drafts at most, the block without the last token.
    """
    hidden = layers.hidden
    own = layers.layers * layers.layer_parameters + features * hidden * hidden + 2 * hidden
    block = DraftBlock(tokens=tokens, fed="block")
    found = replace(layers, quantised=None).info(name)
    return found.model_copy(update={"parameters": own + layers.table_parameters, "draft_block": block})


def medusa(name: str, *, hidden: int, vocabulary: int, dtype: str, heads: int, layers: int = 1) -> ModelInfo:
    """Heads side by side, each with residual layers and an output (Cai et al. 2024, arXiv:2401.10774).

    All of them are read in each round, whatever is asked for. They keep no keys and values, and do not wait for each
    other: a forward is as deep as one.
    """
    return ModelInfo(
        name=name,
        parameters=heads * (layers * (hidden * hidden + hidden) + vocabulary * hidden),
        layers=layers,
        hidden_size=hidden,
        kv_bytes_per_token=0,
        dtype=dtype,
        draft_block=DraftBlock(tokens=heads, fed="last"),
    )


def _one_layer(target: Decoder, name: str) -> ModelInfo:
    """A layer of the target after a projection of embedding and feature, 2 H to H, and the target's output.

    (EAGLE: Li et al. 2024, arXiv:2401.15077; multi-token prediction modules: DeepSeek-V3, arXiv:2412.19437.)
    """
    joined = 2 * target.hidden * target.hidden
    return _info(target, name, target.layer_parameters + joined + target.table_parameters)


def _medusa(target: Decoder, name: str) -> ModelInfo:
    return medusa(name, hidden=target.hidden, vocabulary=target.vocabulary, dtype=target.dtype, heads=MEDUSA_HEADS)


def _info(target: Decoder, name: str, parameters: int) -> ModelInfo:
    return replace(target, layers=1, quantised=None).info(name).model_copy(update={"parameters": parameters})
