"""Which preset a name means, as in `Llama-3.1-8B-Instruct`, `Qwen2.5-7B`, `EAGLE3-LLaMA3.1-Instruct-8B`."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from ..meta import ModelInfo
from .decoder import presets
from .heads import HEADS, head_of

# Weights of another width than the preset's: a preset would say too many bytes.
_QUANTISED = re.compile(r"awq|gptq|gguf|fp8|fp4|int[48]|w[48]a(?:8|16)|[48]bit|\bq[2-8]\b|q[2-8]_")
_FAMILY = re.compile(r"(tinyllama|vicuna|mixtral|llama|qwen|gemma)[-_ ]?(?:v?(\d(?:\.\d)?)(?![\d.]*[bm](?![a-z])))?")
# In all, and of a mixture of experts what a token goes through, as in `30b-a3b`, or one expert's, as in `8x7b`.
_SIZE = re.compile(r"(?<![\d.])((?:\d+x)?\d+(?:\.\d+)?[bm](?:-a\d+(?:\.\d+)?b)?)(?![a-z0-9])")
_NO_VERSION = {"vicuna", "tinyllama", "mixtral"}
_HEADS = (
    ("eagle3", re.compile(r"eagle[-_]?3")),
    ("eagle", re.compile(r"eagle")),
    ("mtp", re.compile(r"mtp|nextn")),
    ("medusa", re.compile(r"medusa")),
)


_COPIES = re.compile(r"n[-_]?gram|lookup|suffix|(?<![a-z])pld(?![a-z])")


class Named(NamedTuple):
    """A shape, None of a member that copies text and has no weights; and what was assumed for it, in words."""

    shape: ModelInfo | None
    words: str


def preset_names() -> tuple[str, ...]:
    """Names of models, and of heads, which stand before a model's name (`eagle3-llama-3.1-8b`) or alone."""
    return (*sorted(presets()), *HEADS)


def named_shapes(
    names: Iterable[str], target: str, *, known: ModelInfo | None = None, served: str = ""
) -> dict[str, Named]:
    """Shapes of those members whose names are known.

    Args:
        names: of members.
        target: the member that verifies; heads without a model's name are of its shape.
        known: the target's shape, if it is known otherwise than by its name.
        served: what the log calls the target, "" if it does not say.

    Returns:
        By member; without members whose names say nothing.
    """
    base = model_called(served) or model_called(target) if known is None else preset_like(known)
    found = {name: _named(name, name if name != target else base or "", base) for name in names}
    return {name: named for name, named in found.items() if named is not None}


def model_called(text: str) -> str | None:
    """The preset of a model, `llama-3.1-8b`; None for a name that says none, or weights of another width."""
    plain = text.lower().rpartition("/")[2]
    family, size = _FAMILY.search(plain), _SIZE.search(plain)
    if family is None or size is None or _QUANTISED.search(plain):
        return None
    version = family[2]
    name = "-".join([family[1], *([version] if version and family[1] not in _NO_VERSION else []), size[1]])
    return name if name in presets() else None


def head_called(text: str) -> str | None:
    """The kind of head that a name says, a key of `HEADS`; None if it says none."""
    plain = text.lower()
    return next((kind for kind, pattern in _HEADS if pattern.search(plain)), None)


def shape_called(text: str, name: str, base: str | None) -> ModelInfo | None:
    """The shape of a member of this name: of the model, or of the head for it or else for `base`, that a text says."""
    kind, model = head_called(text), model_called(text)
    whose = model if kind is None else model or base
    if whose is None:
        return None
    return presets()[whose].info(name) if kind is None else head_of(kind, presets()[whose], name)


def preset_like(shape: ModelInfo) -> str | None:
    """A preset of this very shape; None if there is none."""
    return next((name for name, decoder in presets().items() if decoder.info(shape.name) == shape), None)


def _named(member: str, text: str, base: str | None) -> Named | None:
    """What a text says of a member: its own name, or of the target what it is."""
    kind, model, shape = head_called(text), model_called(text), shape_called(text, member, base)
    if shape is None:
        return Named(None, f"{member} copies text") if kind is None and _COPIES.search(text.lower()) else None
    of = model or "the target"
    return Named(shape, f"{member} is {of}" if kind is None else f"{member} is the {HEADS[kind]} head of {of}")
