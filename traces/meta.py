"""Records in `meta.json`: models and their number formats, sampling, closure, seconds, near ties."""

import re
from math import ceil, expm1, floor, log1p
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AliasChoices,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from ..base.errors import ArgumentError, check_least, check_within

# Bytes of a number, by the dtypes in which models compute.
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
# Units that multiply numbers narrower than these.
Arithmetic = Literal["fp8", "fp4", "int8"]

# Names appear in chains (`draft:4/target`) and in column names, so they have no separator of either.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]*$"
TITLE_PATTERN = r"^[^\x00-\x1f\x7f]*$"
# Bounds: counts of a shape fit 64 bits, and sums and quotients of seconds are finite.
MOST_COUNT = 2**63 - 1
MOST = 2**31 - 1  # positions, counts and token ids are 32 bits wide
LEAST_SECONDS, MOST_SECONDS = 1e-12, 1e9


class Record(BaseModel):
    """Base of the records in `meta.json`: frozen, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SparseRecord(Record):
    """A record some of whose keys are not written where empty, as older versions did not have them."""

    _unwritten: ClassVar[tuple[str, ...]]

    @model_serializer(mode="wrap")
    def _without_absent(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        whole: dict[str, Any] = written(self)
        return {key: value for key, value in whole.items() if key not in self._unwritten or getattr(self, key)}


def check_at_most(record: BaseModel, part: str, whole: str) -> None:
    """Raises ValueError for a record whose field `part` is more than its field `whole`."""
    some, most = getattr(record, part), getattr(record, whole)
    if some > most:
        raise ValueError(f"{part} must be at most {whole}, {most}, got {some}")


class Experts(Record):
    """Feed-forward parts of a model, of which each token uses a few: a mixture of experts.

    Letters: E experts of a layer, k of them for each token. Shared experts, which every token uses, are not counted
    here.
    """

    number: int = Field(ge=2, le=MOST)  # E, >= 2
    per_token: int = Field(ge=1, le=MOST)  # k, 1 to E
    layers: int = Field(ge=1, le=MOST)  # that have experts, >= 1
    parameters: int = Field(ge=1, le=MOST_COUNT)  # of one expert in one layer, >= 1

    @model_validator(mode="after")
    def _some_of_all(self) -> "Experts":
        check_at_most(self, "per_token", "number")
        return self

    @property
    def all_parameters(self) -> int:
        """Of all experts in all layers."""
        return self.layers * self.number * self.parameters

    @property
    def active_parameters(self) -> int:
        """Of the experts that one token uses."""
        return self.layers * self.per_token * self.parameters

    def touched(self, num_tokens: float) -> float:
        """Distinct experts of a layer that `num_tokens` tokens use, k to E in the mean: E (1 - (1 - k/E)^n).

        Every token draws k distinct experts, all of them equally likely, and independently of the others (Huang et al.
        2025, MoESD, arXiv:2505.19645). Neighbouring tokens of one text share experts, so theirs are fewer.
        """
        if self.per_token == self.number:
            return float(self.number)
        return -self.number * expm1(num_tokens * log1p(-self.per_token / self.number))


class Quantised(SparseRecord):
    """Weights in a format narrower than the model's dtype, which all its other weights have."""

    format: str = Field(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=40)  # in the field's words, e.g. "fp8"
    # Parameters in this format; the others (norms, routers, mostly embedding and output) are not.
    parameters: int = Field(ge=1, le=MOST_COUNT)
    bytes_per_parameter: float = Field(gt=0, le=4)  # with its share of scales and zero points, above 0, at most 4
    # Arithmetic in which weights and activations, also quantised, are multiplied where the device has units for it;
    # None: weights are dequantised and multiplied in the model's dtype.
    arithmetic: Arithmetic | None = None
    experts: bool = False  # whether the experts of a mixture are in this format, all of them or none
    embedding: bool = False  # whether an embedding that the output does not share is; False is not written

    _unwritten: ClassVar[tuple[str, ...]] = ("embedding",)


def check_title(name: str) -> None:
    """Raises ArgumentError for a bad name of a recording, before any work for it."""
    if not (name and re.fullmatch(TITLE_PATTERN, name)):
        raise ArgumentError(f"the recording's name must be one line that is not empty, got {name!r}")


def _listed(ids: object) -> object:
    """A list from one id or null, as in recordings made before a model could have several."""
    return tuple(ids) if isinstance(ids, list | tuple) else () if ids is None else (ids,)


EosTokens = Annotated[
    tuple[Annotated[int, Field(strict=True)], ...],
    Field(validation_alias=AliasChoices("eos_token_ids", "eos_token_id")),
    BeforeValidator(_listed),
]

LOWEST_TEMPERATURE = 1e-3  # below, logits / temperature exceed the resolution of float32


def _whole(value: object) -> object:
    """Only whole numbers: a literal 1 would also accept `1.0` and `true`, which equal it."""
    if isinstance(value, (bool, float)):
        raise ValueError(f"must be a whole number, got {value}")
    return value


Version = Annotated[Literal[1], BeforeValidator(_whole)]
ProfileVersion = Annotated[Literal[2], BeforeValidator(_whole)]


class DraftBlock(Record):
    """How a drafter writes a whole draft in one forward."""

    tokens: int = Field(ge=1, le=MOST)  # at most, >= 1
    # Positions of a forward. "text": unread tokens, and one for each drafted token after the first (a draft model, as
    # of PARD). "block": the last token, and one for each drafted token; it attends to states of the target, whose
    # projection is not counted (DFlash). "last": the target's last state (Medusa).
    fed: Literal["text", "block", "last"] = "text"

    def forward(self, new_tokens: int, held_tokens: int, length: int) -> tuple[int, int]:
        """(positions fed to a row's forward, tokens that it holds) for a draft of `length`, 1 to `tokens`.

        The member has `held_tokens` of the row's text and has not read `new_tokens`, >= 1.
        """
        if self.fed == "text":
            return new_tokens + length - 1, held_tokens
        return 1 if self.fed == "last" else 1 + length, held_tokens + new_tokens - 1


class Windowed(Record):
    """Layers that attend to the latest tokens alone."""

    layers: int = Field(ge=1, le=MOST_COUNT)  # that do, at most all of the model's
    tokens: int = Field(ge=1, le=MOST_COUNT)  # of the window


class ModelInfo(SparseRecord):
    """One recorded model."""

    name: str = Field(pattern=NAME_PATTERN)  # in chains
    # its weights, all experts included (a submodel counts its own layers). A forward reads all except experts that no
    # token uses, and `embedding_parameters`.
    parameters: int = Field(ge=1, le=MOST_COUNT)
    layers: int = Field(ge=1, le=MOST_COUNT)  # transformer layers run
    hidden_size: int = Field(ge=1, le=MOST_COUNT)  # width of the residual stream
    # bytes of keys and values one token keeps in this model's cache, in the cache's own dtype
    kv_bytes_per_token: int = Field(ge=0, le=MOST_COUNT)
    dtype: str  # of activations, and of weights that are not `quantised`, e.g. "float32"
    submodel_of: str | None = None  # the member whose weights it shares, or None
    experts: Experts | None = None  # of a mixture of experts; None: every token uses all weights
    quantised: Quantised | None = None  # weights in a narrower format; None, and then not written: none are
    # of a drafter that writes a whole draft at once; None, and then not written: it drafts token by token
    draft_block: DraftBlock | None = None
    # outputs of all heads of a layer, heads x size of a head; None, and then not written: as wide as `hidden_size`
    attention_size: int | None = Field(default=None, ge=1, le=MOST_COUNT)
    # heads of keys and values, 1 of compressed ones; devices hold whole heads. None, and then not written: unsaid
    kv_heads: int | None = Field(default=None, ge=1, le=MOST_COUNT)
    # of an embedding that the output does not share: a forward reads a row of it for a token. None, and then not
    # written: the output shares it, or it is unsaid
    embedding_parameters: int | None = Field(default=None, ge=1, le=MOST_COUNT)
    # None, and then not written: every layer attends to all tokens, or it is unsaid
    windowed: Windowed | None = None

    # Of these None may also mean unsaid, as in recordings made before they were known.
    _unsaid: ClassVar[tuple[str, ...]] = ("attention_size", "kv_heads", "embedding_parameters", "windowed")
    _unwritten: ClassVar[tuple[str, ...]] = ("quantised", "draft_block", *_unsaid)

    @model_validator(mode="after")
    def _parts_fit(self) -> "ModelInfo":
        experts, quantised = self.experts, self.quantised
        every = 0 if experts is None else experts.all_parameters
        looked_up = self.embedding_parameters or 0
        if quantised is not None:
            if quantised.experts and experts is None:
                raise ValueError("quantised.experts must be false of a model without experts, got true")
            if quantised.embedding and not looked_up:
                raise ValueError("quantised.embedding must be false without embedding_parameters, got true")
            least = max(1, every * quantised.experts + looked_up * quantised.embedding)
            most = self.parameters - every * (not quantised.experts) - looked_up * (not quantised.embedding)
            if not least <= quantised.parameters <= most:
                raise ValueError(f"quantised.parameters must be in [{least}, {most}], got {quantised.parameters}")
        if experts is not None and experts.layers > self.layers:
            raise ValueError(f"experts.layers must be at most layers, {self.layers}, got {experts.layers}")
        if self.windowed is not None and self.windowed.layers > self.layers:
            raise ValueError(f"windowed.layers must be at most layers, {self.layers}, got {self.windowed.layers}")
        if experts is not None and every >= self.parameters:
            raise ValueError(f"parameters must be more than those of all experts, {every}, got {self.parameters}")
        if looked_up >= self.parameters - every:
            rule = f"must be less than the parameters without experts, {self.parameters - every}"
            raise ValueError(f"embedding_parameters {rule}, got {looked_up}")
        return self

    @property
    def active_parameters(self) -> int:
        """Weights that one token uses, of an embedding all."""
        if self.experts is None:
            return self.parameters
        return self.parameters - self.experts.all_parameters + self.experts.active_parameters

    def kv_bytes_on(self, num_devices: int) -> int:
        """Bytes that keys and values of a token take on `num_devices` >= 1 together, each of which holds whole heads.

        Of fewer heads than devices, several hold the same one. Unsaid heads are split evenly.
        """
        if self.kv_heads is None:
            return self.kv_bytes_per_token
        of_a_device = -(-self.kv_heads // num_devices)
        return self.kv_bytes_per_token * num_devices * of_a_device // self.kv_heads

    def as_said_by(self, other: "ModelInfo") -> "ModelInfo":
        """The shape without what `other` leaves unsaid, as older recordings do."""
        return self.model_copy(update={name: None for name in self._unsaid if getattr(other, name) is None})

    @property
    def weights_bytes(self) -> int | None:
        """Of all weights, scales included; None where the bytes of `dtype` are unknown."""
        if self.dtype not in WIDTHS:
            return None
        if self.quantised is None:
            return self.parameters * WIDTHS[self.dtype]
        plain = (self.parameters - self.quantised.parameters) * WIDTHS[self.dtype]
        return plain + ceil(self.quantised.parameters * self.quantised.bytes_per_parameter)

    @property
    def read_bytes(self) -> int | None:
        """Of the weights that a forward reads if its tokens use all experts; None as of `weights_bytes`."""
        if self.weights_bytes is None or self.embedding_parameters is None:
            return self.weights_bytes
        quantised = self.quantised
        is_narrow = quantised is not None and quantised.embedding
        each = quantised.bytes_per_parameter if quantised is not None and is_narrow else WIDTHS[self.dtype]
        return self.weights_bytes - floor(self.embedding_parameters * each)


class NgramInfo(Record):
    """A prompt-lookup member of the pool; it needs no views, replay computes it from the tokens."""

    name: str = Field(pattern=NAME_PATTERN)  # in chains
    max_match: int = Field(ge=1)  # longest run of newest tokens that is looked up, >= 1
    min_match: int = Field(default=1, ge=1)  # shortest one, 1 to `max_match`
    occurrence: Literal["first", "last", "longest"] = "last"  # which earlier occurrence is copied from

    @model_validator(mode="after")
    def _matches(self) -> "NgramInfo":
        check_at_most(self, "min_match", "max_match")
        return self


class Sampling(Record):
    """How tokens were chosen. Greedy distributions are at temperature 1, others at `temperature`, truncated."""

    # "greedy" (argmax), "coupled" (noise shared by all models) or "rejection" (drawn separately for every chain)
    mode: Literal["greedy", "coupled", "rejection"]
    temperature: float | None = None  # of coupled and rejection sampling; None if greedy, as are the next fields
    seed: int | None = None  # of coupled and rejection sampling
    top_p: float | None = None  # least probability mass kept, in (0, 1]; None: all of it
    top_k: int | None = None  # number of tokens kept, >= 1, before `top_p`; None: all

    @field_validator("temperature", "top_p", "top_k")
    @classmethod
    def _in_range(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.field_name == "top_k":
            check_least("`top_k`", value, 1)
        elif value is not None:
            interval = "(0, 1]" if info.field_name == "top_p" else f"[{LOWEST_TEMPERATURE:g}, inf)"
            check_within(f"`{info.field_name}`", value, interval)
        return value

    @model_validator(mode="after")
    def _sampled_needs_both(self) -> "Sampling":
        given = (self.temperature is not None, self.seed is not None)
        if self.mode == "greedy":
            if any(given):
                raise ValueError("coupled sampling has a temperature and a seed, greedy has neither")
            if self.top_p is not None or self.top_k is not None:
                raise ValueError("top_p and top_k belong to coupled and rejection sampling, greedy has neither")
        elif not all(given):
            raise ValueError(f"{self.mode} sampling has a temperature and a seed, greedy has neither")
        return self

    @property
    def words(self) -> str:
        """The mode and the options of its distributions, for tables; not the seed."""
        options = {"temperature": self.temperature, "top-k": self.top_k, "top-p": self.top_p}
        return ", ".join([self.mode, *(f"{name} {value:g}" for name, value in options.items() if value is not None)])

    @property
    def words_with_seed(self) -> str:
        """All of it in words."""
        return self.words if self.seed is None else f"{self.words}, seed {self.seed}"


GREEDY = Sampling(mode="greedy")


class TreeClosure(Record):
    """Token trees whose contexts a recording holds."""

    model: str = Field(pattern=NAME_PATTERN)  # that drafts them, below the target
    # `4x2x1`, `0+0.0+1` or `beam=4,depth=5`, see `decoding.trees.shapes`.
    shape: str = Field(pattern=r"^[0-9a-z=,.+]+$")


class Closure(SparseRecord):
    """Which off-trunk contexts are in the trie (docs/trace-format.md)."""

    # "monotone" (all that Exact chains reach) or "full" (any order of members, for lossy rules)
    kind: Literal["monotone", "full"]
    reach: int = Field(ge=0, le=MOST)  # most tokens off the trunk
    run: int = Field(ge=0, le=MOST)  # most consecutive tokens of one member after another member's
    # token trees whose contexts are recorded too, from every context of the trunk; not written if there are none
    trees: tuple[TreeClosure, ...] = ()

    _unwritten: ClassVar[tuple[str, ...]] = ("trees",)

    @property
    def words(self) -> str:
        """The trees in words, "" for none."""
        return " ".join(f"{tree.model}:{tree.shape}" for tree in self.trees)


class CostTable(Record):
    """Measured seconds of one forward of one model, by new tokens in it (all rows together)."""

    new_tokens: tuple[int, ...] = Field(min_length=1)  # strictly increasing, >= 1
    seconds: tuple[float, ...] = Field(min_length=1)  # of one forward, 1e-12 to 1e9, one per entry of `new_tokens`

    @model_validator(mode="after")
    def _aligned(self) -> "CostTable":
        increasing = all(a < b for a, b in zip(self.new_tokens, self.new_tokens[1:], strict=False))
        if len(self.new_tokens) != len(self.seconds) or not increasing or self.new_tokens[0] < 1:
            raise ValueError("new_tokens must be strictly increasing from >= 1, with one entry of seconds each")
        if not all(LEAST_SECONDS <= second <= MOST_SECONDS for second in self.seconds):
            raise ValueError(f"seconds must be in [{LEAST_SECONDS:g}, {MOST_SECONDS:g}]")
        return self


class ProfileTaken(Record):
    """The profile that a recording's seconds are of."""

    file: str  # its name
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")  # of the file
    hardware: str  # the machine that it was measured on, in words
    measured_at: AwareDatetime  # the time

    @property
    def words(self) -> str:
        """All of it in a line."""
        return f"{self.file} ({self.sha256[:12]}), {self.measured_at:%Y-%m-%d %H:%M} UTC on {self.hardware}"


class NearTies(Record):
    """Trunk tokens whose choice rounding may change, so that another width of forward writes another text."""

    count: int = Field(ge=0, le=MOST_COUNT)  # of them, 0 to `tokens`
    tokens: int = Field(ge=1, le=MOST_COUNT)  # of all trunks
    # Two best scores are a near tie where they differ by less than this share of the largest logit; it depends on the
    # target's dtype.
    bound: float = Field(gt=0, lt=1)

    @model_validator(mode="after")
    def _some_of_all(self) -> "NearTies":
        check_at_most(self, "count", "tokens")
        return self

    @property
    def words(self) -> str:
        """Count and share, for a line of text."""
        return f"{self.count:,} of {self.tokens:,} trunk tokens ({self.count / self.tokens:.1%}) at a near tie"
