"""`meta.json` of a recording of contexts."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from ..meta import (
    MOST,
    NAME_PATTERN,
    TITLE_PATTERN,
    Closure,
    CostTable,
    EosTokens,
    ModelInfo,
    NearTies,
    NgramInfo,
    ProfileTaken,
    Record,
    Sampling,
    SparseRecord,
    Version,
)

ROUNDING = "in half precision rounding changes with a forward's width, and a near tie may go the other way"


class FeatureDepths(Record):
    """The model that drafts from the target's last hidden states, and how far its views are recorded."""

    model: str = Field(pattern=NAME_PATTERN)  # its name
    # Most tokens of a context that the target has not judged, >= 1: it is recorded at 1, 2, ... of them.
    depths: int = Field(ge=1, le=MOST)


class TrieMeta(SparseRecord):
    """`meta.json` of a recording."""

    format: Literal["paceline-trace"] = "paceline-trace"
    version: Version = 1
    name: str = Field(min_length=1, pattern=TITLE_PATTERN)
    # "recorded" from models, or "synthetic" (made by a generator; shown with the recording's name)
    kind: Literal["recorded", "synthetic"]
    models: tuple[ModelInfo, ...] = Field(min_length=1)  # smallest first, the target last
    ngram: NgramInfo | None = None  # the pool's prompt-lookup member, or None
    # of the model that reads the target's states, or None, and then not written
    features: FeatureDepths | None = None
    vocab_size: int = Field(ge=1)
    # each ends an answer; may be none. Older recordings have one, `eos_token_id`, or null.
    eos_token_ids: EosTokens = ()
    tokenizer_sha256: str = ""  # of the tokenizer the token ids belong to ("" if synthetic)
    sampling: Sampling
    closure: Closure
    software: dict[str, str] = Field(default_factory=dict)  # name to version
    hardware: str = ""  # the machine that recorded, in words
    # device name to model name to measured seconds; a recorder names its target's kind ("cpu", "cuda")
    costs: dict[str, dict[str, CostTable]] = Field(default_factory=dict)
    # that the costs were taken from; None where they were measured for the recording, or there are none
    profile: ProfileTaken | None = None
    # what is wrong with the costs, in a line; "" for nothing, and then not written
    costs_doubt: str = Field(default="", pattern=TITLE_PATTERN)
    # next-token choices whose two best scores differed by less than 1e-4 (fp32 noise could flip them)
    near_ties: int = Field(default=0, ge=0)
    # of the target along the trunks; None where it is not known (synthetic and older recordings)
    trunk_near_ties: NearTies | None = None
    origin: str = ""  # how it was made, in words: the options of the recorder or the generator

    _unwritten: ClassVar[tuple[str, ...]] = ("features", "costs_doubt")

    @model_validator(mode="after")
    def _goes_together(self) -> "TrieMeta":
        names = [model.name for model in self.models] + ([self.ngram.name] if self.ngram else [])
        if len(set(names)) != len(names):
            raise ValueError(f"model names must be unique, got {names}")
        shared = {model.submodel_of for model in self.models} - {None}
        costed = {name for table in self.costs.values() for name in table}
        unknown = sorted(str(name) for name in (shared | costed) - set(names))
        if unknown:
            raise ValueError(f"costs and submodel_of must name members of the pool, got {unknown}")
        below, reader = self.model_names[:-1], self.features
        if reader is not None and reader.model not in below:
            raise ValueError(f"features.model must be below the target ({', '.join(below)}), got {reader.model!r}")
        if reader is not None and self.closure.trees:
            raise ValueError(f"closure.trees must be empty beside features of {reader.model}")
        others = [tree.model for tree in self.closure.trees if tree.model not in below]
        if others:
            raise ValueError(f"closure.trees must name models below the target ({', '.join(below)}), got {others}")
        if self.sampling.mode == "rejection":
            raise ValueError("a recording is greedy or coupled; rejection sampling draws again for every chain")
        if len(set(self.eos_token_ids)) < len(self.eos_token_ids):
            raise ValueError(f"eos_token_ids must differ, got {list(self.eos_token_ids)}")
        if not all(0 <= token < self.vocab_size for token in self.eos_token_ids):
            raise ValueError(f"eos_token_ids must lie in [0, {self.vocab_size}), got {list(self.eos_token_ids)}")
        return self

    @property
    def dtype(self) -> str:
        """Of the target, on which the effect of rounding depends."""
        return self.models[-1].dtype

    @property
    def exact(self) -> bool:
        """Whether replay claims to equal the models: not in half precision, where widths change texts.

        A synthetic recording was computed by no model; its data type is that of the costs.
        """
        return self.kind == "synthetic" or self.dtype not in ("float16", "bfloat16")

    @property
    def remarks(self) -> tuple[str, ...]:
        """What readers of its figures must know of an exact share where rounding decides choices."""
        if self.exact:
            return ()
        ties = self.trunk_near_ties
        told = "near ties of the trunk not known" if ties is None else ties.words
        return (
            f"recorded in {self.dtype}, {told}: an exact share of 1 says that the recording was replayed, not that a "
            f"run writes the same text; {ROUNDING}",
        )

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of the recorded models, smallest first."""
        return tuple(model.name for model in self.models)

    @property
    def tree_drafters(self) -> tuple[int, ...]:
        """Indices of the models whose branches are recorded, ascending: the rows of `TreeRanks`."""
        return tuple(sorted({self.model_names.index(tree.model) for tree in self.closure.trees}))

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Index pairs (smaller, larger) in the order of the rows of `Trie.tvd`."""
        count = len(self.models)
        return tuple((low, high) for low in range(count) for high in range(low + 1, count))
