"""Decoder-only transformers, their parts and counts: models and heads that people serve, by name.

Heads are drafters that are made for one target and read its features: EAGLE, EAGLE-3, MTP, Medusa, DFlash. Parameters
are those that a forward reads, so the target's output counts where the head uses it. EAGLE and multi-token prediction
draft one token per forward; Medusa's heads and DFlash draft all tokens of a round in one.

A name is read completely: in addition to family, version, size and kind of head it may have words that do not change
the shape (`Llama-3.1-8B-Instruct`, `EAGLE3-LLaMA3.1-Instruct-8B`), and nothing else. So `Qwen3-8B-DFlash-b16`,
`llama3-8b-accelerator` or `Qwen3-8B-FP8` match no preset. A submodel whose model gets another shape than was recorded
keeps the same share of its layers.

Letters: H hidden size, D size of a head, V vocabulary, L layers, G weights that share a scale.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from math import ceil
from typing import Any, NamedTuple

from ..base.errors import ArgumentError
from .meta import WIDTHS, Arithmetic, DraftBlock, Experts, ModelInfo, Quantised, Windowed

# Bytes of a key's or a value's number, by the formats that caches have.
KV_WIDTHS: dict[str, float] = {**WIDTHS, "fp8": 1, "int8": 1, "nvfp4": 0.5625}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """Bytes of one weight, and its arithmetic."""

    name: str  # in the field's words
    bytes_each: float  # with its share of scales and zero points
    arithmetic: Arithmetic | None = None  # see `Quantised`


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedWeights:
    """Which weights of a decoder are quantised."""

    format: WeightFormat  # theirs
    in_layers: int  # parameters of all layers together, without routed experts
    of_layers: int  # L, the layers in `in_layers`
    is_even: bool  # whether all layers have the same number
    experts: bool  # whether all routed experts are; else none is
    in_tables: int  # parameters of embedding and output
    embedding: bool  # whether an embedding that the output does not share is

    def quantised(self, layers: int, experts: Experts | None) -> Quantised | None:
        """The record for a shape of `layers` layers; None where nothing is quantised.

        `layers` may differ from `of_layers` only where all layers have the same number.
        """
        routed = experts if self.experts else None
        in_layers = self.in_layers * layers // self.of_layers
        parameters = in_layers + self.in_tables + (0 if routed is None else routed.all_parameters)
        if not parameters:
            return None
        return Quantised(
            format=self.format.name,
            parameters=parameters,
            bytes_per_parameter=self.format.bytes_each,
            arithmetic=self.format.arithmetic,
            experts=routed is not None,
            embedding=self.embedding,
        )


def grouped(bits: int, group: int | None, *, scale_bytes: float, zero: bool = False) -> float:
    """Bytes of a weight of `bits`, if `group` of them share a scale and, with `zero`, a zero point of as many bits.

    Without a group a row or a whole matrix shares a scale, below a thousandth of its size, which is left out.
    """
    if group is None:
        return bits / 8
    return bits / 8 + (scale_bytes + (bits / 8 if zero else 0)) / group


# By the words after `@` in `models`, as these formats are usually published.
FORMATS: dict[str, WeightFormat] = {
    "fp8": WeightFormat(name="fp8", bytes_each=1, arithmetic="fp8"),
    "int8": WeightFormat(name="int8", bytes_each=1, arithmetic="int8"),
    "int4": WeightFormat(name="int4", bytes_each=grouped(4, 128, scale_bytes=2, zero=True)),
    "nvfp4": WeightFormat(name="nvfp4", bytes_each=grouped(4, 16, scale_bytes=1), arithmetic="fp4"),
    "mxfp4": WeightFormat(name="mxfp4", bytes_each=grouped(4, 32, scale_bytes=1)),
}


SHAPES_PAGE = "docs/costs.md"  # lists all known presets, architectures and methods of quantisation


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Feed-forward parts that are mixtures of gated experts."""

    experts: int  # of a layer
    per_token: int  # experts that a token uses
    intermediate: int  # width of an expert
    shared: int = 0  # width of the expert that every token uses; 0 without one
    shared_gate: bool = False  # whether that one is gated by itself, as in Qwen 2
    dense_layers: int = 0  # that have one feed-forward part and no experts
    bias: bool = False  # whether the products of an expert, and the router, have one
    predicts: bool = False  # whether a module like its last layer predicts a further token


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Attention with keys and values in one compressed state of a token (DeepSeek-V2, arXiv:2405.04434)."""

    queries: int  # width of compressed queries; 0: they are not
    state: int  # width of the state
    plain: int  # of a head's queries and keys, the part without positions
    turned: int  # the part with positions, one key for all heads
    values: int  # of a head's values


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """A decoder with gated feed-forward parts, as Llama, Qwen, Gemma and DeepSeek have them."""

    hidden: int  # H
    layers: int  # L
    heads: int  # of queries
    kv_heads: int  # of keys and values
    head_size: int  # D; not read where `latent` is given, as `kv_heads`
    intermediate: int  # width of the feed-forward part; of a mixture of experts, in layers without experts
    vocabulary: int  # V
    tied: bool = False  # whether the output shares the embedding's weights
    bias: bool = False  # whether queries, keys and values have one
    output_bias: bool = False  # whether attention's output has one
    feed_forward_bias: bool = False  # whether the three products of a dense feed-forward part have one
    norms: int = 2  # of H, in a layer
    head_norms: int = 0  # of D, in a layer
    dtype: str = "bfloat16"  # of activations, and of weights and cache unless given below
    mixture: Mixture | None = None  # of experts; None: every layer is dense
    windowed: Windowed | None = None  # layers that attend to a window alone; None: none
    sinks: bool = False  # whether each head has a logit of its own beside those of keys
    latent: Latent | None = None  # compressed keys and values; None: each head of `kv_heads` has its own
    quantised: QuantisedWeights | None = None  # weights in a narrower format; None: none are
    kv_dtype: str = ""  # of the cache, of `KV_WIDTHS`; "" is `dtype`

    @property
    def layer_parameters(self) -> int:
        """Of one layer without experts."""
        return self.attention_parameters(self.hidden) + self.feed_forward_parameters + self.norms * self.hidden

    @property
    def feed_forward_parameters(self) -> int:
        """Of one layer's feed-forward part."""
        return self._gated(self.intermediate, bias=self.feed_forward_bias)

    @property
    def layer_matrices(self) -> int:
        """Parameters of all layers' matrices together, without routers and routed experts."""
        mixture, attention = self.mixture, sum(self.attention_matrices.values())
        mixed = 0 if mixture is None else self.layers - mixture.dense_layers
        shared = 0 if mixture is None else mixed * self._gated(mixture.shared)
        return self.layers * attention + (self.layers - mixed) * self._gated(self.intermediate) + shared

    @property
    def table_parameters(self) -> int:
        """Of the embedding, or of the output."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Of the whole model, tied ones once."""
        tables = self.table_parameters * (1 if self.tied else 2)
        return tables + self.layers * self.layer_parameters + self.hidden + self._beyond_dense

    @property
    def experts(self) -> Experts | None:
        """Of a mixture."""
        if self.mixture is None:
            return None
        return Experts(
            number=self.mixture.experts,
            per_token=self.mixture.per_token,
            layers=self.layers - self.mixture.dense_layers,
            parameters=self._gated(self.mixture.intermediate, bias=self.mixture.bias),
        )

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values of one token in one layer."""
        numbers = 2 * self.kv_heads * self.head_size
        if self.latent is not None:
            numbers = self.latent.state + self.latent.turned
        return ceil(numbers * KV_WIDTHS[self.kv_dtype or self.dtype])

    @property
    def attention_matrices(self) -> dict[str, int]:
        """Parameters of attention's matrices in a layer, without biases, by the names of their modules."""
        hidden, heads, latent = self.hidden, self.heads, self.latent
        if latent is None:
            own, shared = heads * self.head_size, self.kv_heads * self.head_size
            widths = {"q_proj": own, "k_proj": shared, "v_proj": shared, "o_proj": own}
            return {name: hidden * width for name, width in widths.items()}
        asked = heads * (latent.plain + latent.turned)
        compressed = {"q_a_proj": hidden * latent.queries, "q_b_proj": latent.queries * asked}
        return {
            **(compressed if latent.queries else {"q_proj": hidden * asked}),
            "kv_a_proj_with_mqa": hidden * (latent.state + latent.turned),
            "kv_b_proj": latent.state * heads * (latent.plain + latent.values),
            "o_proj": heads * latent.values * hidden,
        }

    def attention_parameters(self, width: int) -> int:
        """Of one layer's attention with an input of `width`, which is H where keys and values are compressed."""
        if self.latent is not None:
            assert width == self.hidden
            return sum(self.attention_matrices.values()) + self.latent.queries + self.latent.state
        outputs = (self.heads + 2 * self.kv_heads) * self.head_size
        own = self.heads * self.head_size * self.hidden + (self.hidden if self.output_bias else 0)
        own += self.head_norms * self.head_size + (self.heads if self.sinks else 0)
        return width * outputs + own + (outputs if self.bias else 0)

    def info(self, name: str) -> ModelInfo:
        """The shape of a member of this name."""
        wide, latent = self.heads * self.head_size, self.latent
        if latent is not None:  # products of queries with keys, and with values, in the mean
            wide = self.heads * (latent.plain + latent.turned + latent.values) // 2
        return ModelInfo(
            name=name,
            parameters=self.parameters,
            layers=self.layers,
            hidden_size=self.hidden,
            kv_bytes_per_token=self.layers * self.kv_bytes,
            dtype=self.dtype,
            experts=self.experts,
            quantised=None if self.quantised is None else self.quantised.quantised(self.layers, self.experts),
            attention_size=None if wide == self.hidden else wide,
            kv_heads=self.kv_heads if latent is None else 1,
            embedding_parameters=None if self.tied else self.table_parameters,
            windowed=self.windowed,
        )

    @property
    def _beyond_dense(self) -> int:
        """Parameters that layers with experts, their routers and shared experts have beyond those of dense layers."""
        if self.mixture is None:
            return 0
        mixture = self.mixture
        shared = self._gated(mixture.shared) + (self.hidden if mixture.shared_gate else 0)
        each = self._gated(mixture.intermediate, bias=mixture.bias) + self.hidden
        routed = mixture.experts * each + (mixture.experts if mixture.bias else 0)
        return (self.layers - mixture.dense_layers) * (routed + shared - self.feed_forward_parameters)

    def _gated(self, width: int, *, bias: bool = False) -> int:
        return 3 * self.hidden * width + (2 * width + self.hidden if bias else 0)


@cache
def presets() -> Mapping[str, DecoderShape]:
    """Every known model by name, as published configs give it (`presets.toml`); vision towers are left out."""
    found = tomllib.loads(files(__package__).joinpath("presets.toml").read_text(encoding="utf-8"))
    parts: dict[str, Any] = {"mixture": Mixture, "windowed": Windowed}
    shapes = {}
    for name, shape in found.items():
        weights = shape.pop("experts_in", None)
        decoder = DecoderShape(**{key: parts[key](**said) if key in parts else said for key, said in shape.items()})
        shapes[name] = decoder if weights is None else replace(decoder, quantised=experts_alone(decoder, weights))
    return shapes


def experts_alone(decoder: DecoderShape, weights: str) -> QuantisedWeights:
    """Of a mixture whose experts alone are quantised, in a format of `FORMATS`."""
    return QuantisedWeights(
        format=FORMATS[weights],
        in_layers=0,
        of_layers=decoder.layers,
        is_even=True,
        experts=True,
        in_tables=0,
        embedding=False,
    )


# Of the published EAGLE-3 heads for Llama, Vicuna and Qwen: tokens that they can draft.
EAGLE3_VOCABULARY = 32_000
EAGLE3_FEATURES = 3  # layers of the target whose states they join
MEDUSA_HEADS = 5  # that the paper recommends to train

# Heads by name, and in words.
HEADS: dict[str, str] = {"eagle": "EAGLE", "eagle3": "EAGLE-3", "mtp": "MTP", "medusa": "Medusa"}


def head_of(kind: str, target: DecoderShape, name: str) -> ModelInfo | None:
    """The shape of a head of this kind of `HEADS` for `target`; None of most with a layer of their own for a mixture.

    EAGLE-3 has no head for compressed keys and values.

    The feed-forward part of such a head does not follow from the target: published ones are dense, some have experts.
    A mixture that comes with a prediction module has a layer like its last one in it, in fp8 where all of its layers
    are; of other formats it is not known.
    """
    assert kind in HEADS
    if target.latent is not None and kind == "eagle3":
        return None
    if target.mixture is not None and kind != "medusa":
        if kind != "mtp" or not target.mixture.predicts:
            return None
        narrow = target.quantised
        if narrow is not None and not (
            narrow.format.name == "fp8" and narrow.experts and narrow.in_layers == target.layer_matrices
        ):
            return None
    if kind == "medusa":
        sizes: dict[str, Any] = {"hidden": target.hidden, "vocabulary": target.vocabulary, "dtype": target.dtype}
        return medusa(name, heads=MEDUSA_HEADS, **sizes)
    return eagle3(target, name) if kind == "eagle3" else eagle(target, name)


def eagle3(
    target: DecoderShape, name: str, *, vocabulary: int = EAGLE3_VOCABULARY, joined: int | None = None, layers: int = 1
) -> ModelInfo:
    """A layer whose attention reads embedding and features concatenated, and an output of its own.

    (Li et al. 2025, arXiv:2503.01840.) The features of three of the target's layers, `joined` wide, are first joined
    to H. It can draft the tokens of `vocabulary`. Of several layers the others read the first one's state alone.
    """
    hidden = target.hidden
    first = target.attention_parameters(2 * hidden) + target.feed_forward_parameters + 3 * hidden
    joining = (EAGLE3_FEATURES * hidden if joined is None else joined) * hidden
    own = first + (layers - 1) * target.layer_parameters + joining + hidden
    return _info(target, name, own + min(vocabulary, target.vocabulary) * hidden, layers)


def eagle(target: DecoderShape, name: str, *, layers: int = 1) -> ModelInfo:
    """Layers of the target after a projection of embedding and feature, 2 H to H, and the target's output.

    (EAGLE: Li et al. 2024, arXiv:2401.15077; multi-token prediction modules: DeepSeek-V3, arXiv:2412.19437.)
    """
    joined = 2 * target.hidden * target.hidden
    whole = _head_layers(target, layers)
    head = _info(target, name, whole.parameters - whole.hidden + joined, layers)
    if target.mixture is None or target.quantised is None:
        return head
    narrow = replace(target.quantised, in_layers=whole.layer_matrices, of_layers=layers, in_tables=0, embedding=False)
    return head.model_copy(update={"quantised": narrow.quantised(layers, whole.experts)})


def dflash(layers: DecoderShape, name: str, *, features: int, tokens: int) -> ModelInfo:
    """Layers over the last token and a mask for each drafted one, which attend to the target's features.

    The states of some of the target's layers are joined, `features` x H to H; embedding and output are the target's, of
    which the output is read. (As in transformers and z-lab's code, `DFlashDraftModel`.) A forward drafts `tokens` at
    most, the block without the last token.
    """
    hidden = layers.hidden
    own = layers.layers * layers.layer_parameters + features * hidden * hidden + 2 * hidden
    block = DraftBlock(tokens=tokens, fed="block")
    own += layers.table_parameters
    found = replace(layers, quantised=None, tied=True).info(name)
    return found.model_copy(update={"parameters": own, "draft_block": block})


def medusa(name: str, *, hidden: int, vocabulary: int, dtype: str, heads: int, layers: int = 1) -> ModelInfo:
    """Parallel heads, each with residual layers and an output (Cai et al. 2024, arXiv:2401.10774).

    All of them are read in each round, for any window. They keep no keys and values, and run in parallel: a forward is
    as deep as one.
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


def _head_layers(target: DecoderShape, layers: int) -> DecoderShape:
    """Such layers with the target's output; the embedding is the target's, and not counted."""
    mixture = None if target.mixture is None else replace(target.mixture, dense_layers=0)
    return replace(target, layers=layers, quantised=None, tied=True, mixture=mixture, windowed=None)


def _info(target: DecoderShape, name: str, parameters: int, layers: int) -> ModelInfo:
    return _head_layers(target, layers).info(name).model_copy(update={"parameters": parameters})


_FAMILY = re.compile(
    r"(?<![a-z])(tinyllama|vicuna|mixtral|gpt-oss|llama|qwen|gemma)[-_ ]?"
    r"(?:v?(\d(?:\.\d)?)(?![\d.]*[bm](?![a-z])))?(?![\da-z])"
)
# In total, and of a mixture of experts those that a token uses, as in `30b-a3b`, or one expert's, as in `8x7b`.
_SIZE = re.compile(r"(?<![\d.a-z])((?:\d+x)?\d+(?:\.\d+)?[bm](?:-a\d+(?:\.\d+)?b)?)(?![a-z0-9])")
_NO_VERSION = {"vicuna", "tinyllama", "mixtral", "gpt-oss"}
_HEADS = (
    ("eagle3", re.compile(r"(?<![a-z0-9])eagle[-_]?3(?![.\d])")),
    ("eagle", re.compile(r"(?<![a-z0-9])eagle(?:[-_]?2(?![.\d]))?(?![-_]?\d)")),
    ("mtp", re.compile(r"(?<![a-z0-9])(?:mtp|nextn)(?![a-z0-9])")),
    ("medusa", re.compile(r"(?<![a-z0-9])medusa(?![-_]?\d)")),
)
# Other words of names: training or release of the same shape, in a width that presets have.
_WORDS = re.compile(
    r"instruct|chat|it|pt|base|hf|thinking|coder|math|meta|sglang|draft|drafter|target|vanilla|"
    r"temp|float16|bfloat16|fp16|bf16|v?\d\.\d|v\d|2[3-9](?:0[1-9]|1[0-2])|latest"
)
_OF_HEADS = ("speculator", "head")  # and these of a head whose kind it says
_PARTS = re.compile(r"[-_ :/+]+|(?<!\d)\.|\.(?!\d)")
_COPIES = re.compile(r"(?<![a-z])(?:n[-_]?gram|lookup|suffix|pld)(?![a-z])")
_COPY_WORDS = re.compile(r"prompt|decoding|cpu|gpu|simple|mod|map|cache|tree|array|k|k4v|\d+|")


class Named(NamedTuple):
    """A shape, None of a member that copies text and has no weights; and its assumptions in words."""

    shape: ModelInfo | None
    words: str


def preset_names() -> tuple[str, ...]:
    """Names of models, and of heads, which precede a model's name (`eagle3-llama-3.1-8b`) or are alone."""
    return (*sorted(presets()), *HEADS)


def named_shapes(
    names: Iterable[str], target: str, *, known: ModelInfo | None = None, served: str = ""
) -> dict[str, Named]:
    """Shapes of those members whose names are known, by member.

    Heads without a model's name are for the target's shape: `known`, or by its name, or by its name in the log,
    `served`.
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
    """The preset of a model, `llama-3.1-8b`; None for a name without one, or with weights of another width."""
    read = _read(text)
    return None if read is None else read.model


def head_called(text: str) -> str | None:
    """The kind of head in a name, a key of `HEADS`; None if there is none."""
    read = _read(text)
    return None if read is None else read.head


def shape_called(text: str, name: str, base: str | None) -> ModelInfo | None:
    """The shape of a member called `name`: the model in `text`, or the head in it, for its model or else for `base`."""
    kind, model = head_called(text), model_called(text)
    whose = model if kind is None else model or base
    if whose is None:
        return None
    return presets()[whose].info(name) if kind is None else head_of(kind, presets()[whose], name)


def preset_like(shape: ModelInfo) -> str | None:
    """A preset of exactly this shape; None if there is none."""
    named = ((name, decoder.info(shape.name)) for name, decoder in presets().items())
    return next((name for name, info in named if info.as_said_by(shape) == shape), None)


def _decoder_like(shape: ModelInfo) -> DecoderShape | None:
    """The preset of a shape, with the shape's cache; its weights may be quantised."""
    plain = shape.model_copy(update={"quantised": None})
    caches = ("", *KV_WIDTHS)
    served = (replace(decoder, kv_dtype=cache) for decoder in presets().values() for cache in caches)
    return next((decoder for decoder in served if decoder.info(shape.name).as_said_by(plain) == plain), None)


class _Read(NamedTuple):
    """The preset, and the kind of head, in a name; None where there is none."""

    model: str | None
    head: str | None


def _read(text: str) -> _Read | None:
    """The content of a name; None if it has other words."""
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
        for found in (family, size):
            rest = rest[: found.start()] + "-" * len(found[0]) + rest[found.end() :]
    elif family is not None or size is not None or head is None:
        return None
    words = [word for word in _PARTS.split(rest) if word]
    known = all(_WORDS.fullmatch(word) or (head and word in _OF_HEADS) for word in words)
    return _Read(model, head) if known else None


def _named(member: str, base: DecoderShape | None, target: ModelInfo | None) -> Named | None:
    """The shape by a drafter's name; None where there is none, or sizes contradict it.

    A drafter is smaller than its target, and a head as wide.
    """
    plain = member.lower()
    rest = _COPIES.sub("-", plain)
    if rest != plain and all(_COPY_WORDS.fullmatch(word) for word in _PARTS.split(rest)):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """The shape of a submodel that follows from the shape given to its model."""

    # As many of the model's layers, to the nearest, as the share of them that was recorded; at least one.
    shape: ModelInfo
    words: str  # its derivation


def derived_submodels(
    recorded: Sequence[ModelInfo], given: Sequence[ModelInfo], decoders: Mapping[str, DecoderShape]
) -> tuple[Derived, ...]:
    """Shapes of recorded submodels whose models are given other shapes, and which are given none themselves.

    A submodel keeps layers of its model whole, and all that is not in layers (embedding, last norm, output).

    Args:
        recorded: shapes of members before.
        given: shapes that replace them.
        decoders: of given shapes, by member, where known; presets are recognised by their shape.

    Raises:
        ArgumentError: a submodel given more layers or parameters than its model has, or one that is given no shape and
            whose shape does not follow from its model's.
    """
    known, found = {shape.name: shape for shape in recorded}, {shape.name: shape for shape in given}
    made = dict(decoders)
    derived: dict[str, Derived] = {}
    while left := [shape for shape in recorded if _is_left_behind(shape, known, found)]:
        own = left[0]
        assert own.submodel_of is not None
        whole = found[own.submodel_of]
        decoder = _submodel(own, known.get(whole.name), whole, made.get(whole.name))
        shape = decoder.info(own.name).model_copy(update={"submodel_of": whole.name})
        was = known[whole.name].layers
        words = (
            f"{own.name} counts as {shape.layers} of the {whole.layers} layers of {whole.name}, as it was {own.layers} "
            f"of {was}, with embedding and output whole"
        )
        found[own.name], made[own.name], derived[own.name] = shape, decoder, Derived(shape=shape, words=words)
    known |= found
    for shape in given:  # a recorded submodel must not be larger than its model
        model = next((own.submodel_of for own in recorded if own.name == shape.name), None)
        most = None if model is None else known.get(model)
        if most is not None and (shape.layers > most.layers or shape.parameters > most.parameters):
            raise ArgumentError(
                f"`models` must give {shape.name}, a submodel of {model}, no more layers and parameters than {model} "
                f"has ({most.layers} and {most.parameters:,}), got {shape.layers} and {shape.parameters:,}"
            )
    return tuple(derived.values())


def _is_left_behind(shape: ModelInfo, known: Mapping[str, ModelInfo], found: Mapping[str, ModelInfo]) -> bool:
    """Whether a recorded submodel has no shape yet, and its model another than was recorded."""
    model = shape.submodel_of
    return model is not None and model in found and shape.name not in found and found[model] != known.get(model)


def _submodel(own: ModelInfo, was: ModelInfo | None, whole: ModelInfo, decoder: DecoderShape | None) -> DecoderShape:
    """The submodel of `whole` for one that was `own` of `was`."""
    like = preset_like(whole)
    decoder = decoder or (None if like is None else presets()[like])
    why = ""
    if was is None or own.layers > was.layers:
        why = f"what share of the layers of {whole.name} it keeps is not recorded"
    elif decoder is None:
        why = f"what one layer of {whole.name} weighs does not follow from its shape"
    elif decoder.mixture is not None and decoder.mixture.dense_layers:
        why = f"some layers of {whole.name} have experts and others none"
    elif decoder.quantised is not None and not decoder.quantised.is_even:
        why = f"some layers of {whole.name} are quantised and others less"
    if why or was is None or decoder is None:
        raise ArgumentError(
            f"`models` must give {own.name} a shape too, a submodel of {whole.name}, which gets another: {why}"
        )
    layers = max(1, (2 * own.layers * whole.layers + was.layers) // (2 * was.layers))
    windowed = decoder.windowed
    if windowed is not None:
        kept = (2 * windowed.layers * layers + decoder.layers) // (2 * decoder.layers)
        windowed = Windowed(layers=kept, tokens=windowed.tokens) if kept else None
    return replace(decoder, layers=layers, windowed=windowed)
