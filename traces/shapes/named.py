"""Which preset a name means, as in `Llama-3.1-8B-Instruct`, `Qwen2.5-7B`, `EAGLE3-LLaMA3.1-Instruct-8B`.

A name is read whole: beside family, version, size and kind of head it may hold words that change no shape, and nothing
else. So `Qwen3-8B-DFlash-b16`, `llama3-8b-accelerator` or `Qwen3-8B-FP8` mean no preset: what they are made of is not
in their names.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from ..meta import ModelInfo
from .decoder import Decoder, presets
from .heads import HEADS, MEDUSA_HEADS, head_of
from .weights import KV_WIDTHS

_FAMILY = re.compile(
    r"(?<![a-z])(tinyllama|vicuna|mixtral|llama|qwen|gemma)[-_ ]?(?:v?(\d(?:\.\d)?)(?![\d.]*[bm](?![a-z])))?(?![\da-z])"
)
# In all, and of a mixture of experts what a token goes through, as in `30b-a3b`, or one expert's, as in `8x7b`.
_SIZE = re.compile(r"(?<![\d.a-z])((?:\d+x)?\d+(?:\.\d+)?[bm](?:-a\d+(?:\.\d+)?b)?)(?![a-z0-9])")
_NO_VERSION = {"vicuna", "tinyllama", "mixtral"}
_HEADS = (
    ("eagle3", re.compile(r"(?<![a-z0-9])eagle[-_]?3(?![.\d])")),
    ("eagle", re.compile(r"(?<![a-z0-9])eagle(?:[-_]?2(?![.\d]))?(?![-_]?\d)")),
    ("mtp", re.compile(r"(?<![a-z0-9])(?:mtp|nextn)(?![a-z0-9])")),
    ("medusa", re.compile(r"(?<![a-z0-9])medusa(?![-_]?\d)")),
)
# What else a name may hold: how the same shape was trained or released, in which of the widths that presets have.
_WORDS = re.compile(
    r"instruct|chat|it|pt|base|hf|thinking|coder|math|meta|sglang|speculator|head|draft|drafter|target|vanilla|"
    r"temp|float16|bfloat16|fp16|bf16|v?\d\.\d|v\d|2[3-9](?:0[1-9]|1[0-2])|latest"
)
_PARTS = re.compile(r"[-_ :/+]+|(?<!\d)\.|\.(?!\d)")
_COPIES = re.compile(r"(?<![a-z])(?:n[-_]?gram|lookup|suffix|pld)(?![a-z])")
_COPY_WORDS = re.compile(r"prompt|decoding|cpu|gpu|simple|mod|map|cache|tree|array|k|k4v|\d+|")


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
    called = model_called(served) or model_called(target)
    base = presets().get(called or "") if known is None else _decoder_like(known)
    own = base.info(target) if base is not None and known is None else known
    found: dict[str, Named] = {}
    for name in names:
        if name == target:
            named = None if own is None or called is None else Named(own, f"{name} is {called}")
        else:
            named = _named(name, base, own)
        if named is not None:
            found[name] = named
    return found


def model_called(text: str) -> str | None:
    """The preset of a model, `llama-3.1-8b`; None for a name that says none, or weights of another width."""
    read = _read(text)
    return None if read is None else read.model


def head_called(text: str) -> str | None:
    """The kind of head that a name says, a key of `HEADS`; None if it says none."""
    read = _read(text)
    return None if read is None else read.head


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


def _decoder_like(shape: ModelInfo) -> Decoder | None:
    """The preset that a shape is of, with the cache that it has; its weights may be quantised."""
    plain = shape.model_copy(update={"quantised": None})
    caches = ("", *KV_WIDTHS)
    served = (replace(decoder, kv_dtype=cache) for decoder in presets().values() for cache in caches)
    return next((decoder for decoder in served if decoder.info(shape.name) == plain), None)


class _Read(NamedTuple):
    """A preset, and a kind of head, that a name says; None where it says none."""

    model: str | None
    head: str | None


def _read(text: str) -> _Read | None:
    """What a name says; None if it holds more than that."""
    rest = text.lower().rpartition("/")[2]
    head = None
    for kind, pattern in _HEADS:
        if found := pattern.search(rest):
            head, rest = kind, f"{rest[: found.start()]}-{rest[found.end() :]}"
            break
    family, size = _FAMILY.search(rest), _SIZE.search(rest)
    model = None
    if family is not None and size is not None:
        version = family[2]
        model = "-".join([family[1], *([version] if version and family[1] not in _NO_VERSION else []), size[1]])
        if model not in presets():
            return None
        rest = _without(rest, family, size)
    elif family is not None or size is not None or head is None:
        return None
    words = [word for word in _PARTS.split(rest) if word]
    return _Read(model, head) if all(_WORDS.fullmatch(word) for word in words) else None


def _without(text: str, *matches: re.Match[str]) -> str:
    """A text with what was read in it left out."""
    left = list(text)
    for found in matches:
        left[found.start() : found.end()] = "-" * (found.end() - found.start())
    return "".join(left)


def _named(member: str, base: Decoder | None, target: ModelInfo | None) -> Named | None:
    """What the name of a drafter says; None too where sizes say otherwise.

    A drafter is smaller than its target, and a head as wide.
    """
    if _copies(member):
        return Named(None, f"{member} copies text")
    read = _read(member)
    if read is None:
        return None
    if read.head is None:
        shape = None if read.model is None else presets()[read.model].info(member)
        if shape is None or target is None or shape.parameters >= target.parameters:
            return None
        return Named(shape, f"{member} is {read.model}")
    whose = base if read.model is None else presets()[read.model]
    head = None if whose is None else head_of(read.head, whose, member)
    if head is None or (target is not None and head.hidden_size != target.hidden_size):
        return None
    if target is not None and head.parameters >= target.parameters:
        return None
    kind = f"{MEDUSA_HEADS} Medusa heads" if read.head == "medusa" else f"the {HEADS[read.head]} head"
    return Named(head, f"{member} is {kind} of {read.model or 'the target'}")


def _copies(text: str) -> bool:
    """Whether a name says that its member copies text, and nothing else."""
    plain = text.lower()
    rest = _COPIES.sub("-", plain)
    return rest != plain and all(_COPY_WORDS.fullmatch(word) for word in _PARTS.split(rest))
