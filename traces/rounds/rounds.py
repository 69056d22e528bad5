"""Records of an imported recording: rounds of drafters in requests, from an engine's log, and how far to trust them.

A round starts at an output position, drafts some tokens, and the target keeps the first few of them. A round whose
draft was kept whole is *censored*: at least as many tokens would have been kept. A round that drafted nothing is a
plain step: there the drafter had no draft. What no round shows is unknown, and is drawn from `hazard`, never filled in
silently. Letters: R rounds of one drafter in one request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ..meta import MOST, NAME_PATTERN, TITLE_PATTERN, ModelInfo, NgramInfo, Record, Version

# What a log holds, from most to least.
Form = Literal["rounds", "histograms", "request means", "rates", "mean"]
# By form, what is known and what is drawn, for the first line about the recording.
TRUST: dict[Form, str] = {
    "rounds": "rounds known in order",
    "histograms": "histograms of requests known, their order drawn",
    "request means": "means of requests known, their rounds drawn",
    "rates": "rates per position known, all rounds drawn",
    "mean": "one mean known, all rounds drawn at one rate",
}
LOSSY = "lossy"  # begins a note on drafts that were not verified exactly
# Notes on a drafter, whose log says that it drafted trees, or whose method does in the code that writes such files.
TREES = "{} drafted trees, whose deepest paths count as chains here: real chains keep less, so gains are too high"
OF_TREES = (
    "{} drafts trees in its own code: a round is the deepest path of one, of which a chain keeps less, and modelled "
    "seconds leave out the rest of the tree"
)
LOOKUP = NgramInfo(name="ngram", max_match=3)  # the default, as in the shipped pool


class StatedAcceptance(Record):
    """Acceptance that a log states of a drafter instead of rounds."""

    # `[D]` probability that a drafted token is kept, by depth, among rounds that reached it; the last one holds for all
    # deeper ones.
    hazards: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(min_length=1)
    drafting: float = Field(default=1.0, gt=0, le=1)  # share of the steps that draft at all, above 0


class DrafterInfo(Record):
    """One drafter of an imported recording."""

    name: str = Field(pattern=NAME_PATTERN)  # in chains
    # True if acceptance depends on where the round started, as with drafters that read the target's features or with
    # draft trees: a round shows nothing about other starts. False for a model that reads tokens only: whether it writes
    # the target's token at a position does not depend on the round, so rounds of any window hold for all.
    by_start: bool
    window: int | None = Field(default=None, ge=1, le=MOST)  # most tokens it drafts in a round, None if unknown
    # Whether the target's prefill had emitted a token before the first round, so that rounds start at output position 1
    # or later; False if the first verification doubled as prefill.
    prefilled: bool = False  # older recordings without it start their rounds at 0
    # Acceptance, where the log states it instead of rounds; None where rounds show it.
    stated: StatedAcceptance | None = None


class RoundsMeta(Record):
    """`meta.json` of an imported recording."""

    format: Literal["paceline-trace"] = "paceline-trace"
    version: Version = 1
    name: str = Field(min_length=1, pattern=TITLE_PATTERN)
    kind: Literal["imported"] = "imported"
    source: str  # the imported format
    form: Form = "rounds"  # what the log held
    target: str = Field(default="target", pattern=NAME_PATTERN)  # name of the model that verifies
    drafters: tuple[DrafterInfo, ...]  # in level order, smallest first
    models: tuple[ModelInfo, ...] = ()  # shapes for cost models, by name; may leave members out
    served_model: str = ""  # preset of the target by the log (`traces.shapes.presets`), "" if none
    # What drafted by the log, as `paceline settings --drafter` takes it; "" if unknown.
    drafts_by: str = Field(default="", pattern=r"^(?:|mtp|suffix|(?:eagle|eagle3|model|mtp)=\S.*)$")
    # The rule of prompt lookup, where the ids of all texts are known and no drafter has its name.
    ngram: NgramInfo = LOOKUP
    notes: tuple[str, ...] = ()  # what is exact and what is unknown, in words
    software: dict[str, str] = Field(default_factory=dict)  # name to version
    hardware: str = ""  # the machine that ran it, in words

    @model_validator(mode="after")
    def _names(self) -> "RoundsMeta":
        names = list(self.model_names)
        if len(set(names)) != len(names):
            raise ValueError(f"names of drafters and target must be unique, got {names}")
        shapes = [model.name for model in self.models]
        unknown = [name for name in shapes if name not in names]
        if unknown or len(set(shapes)) != len(shapes):
            raise ValueError(f"models must name {', '.join(names)} once each at most, got {', '.join(shapes)}")
        return self

    @property
    def drafter_names(self) -> tuple[str, ...]:
        """Names in level order."""
        return tuple(drafter.name for drafter in self.drafters)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of the drafters in level order, then the target's."""
        return (*self.drafter_names, self.target)


UNKNOWN_DRAFTED = -1
OPEN_DRAFTED = -2
TARGET_ALONE = ""  # the method that drafts nothing

# The fields of `Rounds` by their types, and the values for unknown in fields that may be.
KINDS = {
    "start": np.int32,
    "accepted": np.int32,
    "drafted": np.int32,
    "draft_s": np.float64,
    "verify_s": np.float64,
    "placed": np.bool_,
}
UNKNOWN = {"draft_s": nan, "verify_s": nan, "placed": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """One drafter's recorded rounds of one request, by ascending start."""

    # `[R]` output position of the first drafted token: tokens emitted before the round; strictly ascending
    start: NDArray[np.int32]
    # `[R]` accepted tokens, the target's own token (correction or bonus) excluded, >= 0
    accepted: NDArray[np.int32]
    # `[R]` tokens drafted, >= accepted, 0 in a plain step; -1 where the log does not say, and -2 where it was more than
    # `accepted` and nothing is known of the rest
    drafted: NDArray[np.int32]
    draft_s: NDArray[np.float64] | None = None  # `[R]` seconds of drafting, NaN if unknown; None if none is known
    # `[R]` seconds of the target's forward, NaN if unknown; None if none is known
    verify_s: NDArray[np.float64] | None = None
    # `[R]` whether the log does not say where the round was, so that its place was drawn: its tokens count as modelled;
    # None if none was
    placed: NDArray[np.bool_] | None = None

    def censored(self, window: int | None) -> NDArray[np.bool_]:
        """`[R]` whether the draft was kept whole, so that more might have been.

        `window`, most tokens the drafter drafts, is for rounds with an unknown number of drafted tokens.
        """
        most = np.iinfo(np.int32).max if window is None else window
        return self.accepted >= np.where(self.drafted == UNKNOWN_DRAFTED, most, self.drafted)

    def short(self, window: int | None, length: int) -> NDArray[np.bool_]:
        """`[R]` whether the drafter itself stopped: with less than its window, and before the text's `length` ended.

        `window` is None if unknown, so that only an empty draft is known to be short.
        """
        stopped = (self.drafted >= 0) & (self.drafted < (1 if window is None else window))
        return stopped & (self.start + self.drafted < length)

    @property
    def where_placed(self) -> NDArray[np.bool_]:
        """`[R]` `placed`, also where it is None."""
        return self.filled("placed")

    def filled(self, name: str) -> NDArray[Any]:
        """`[R]` a field, also where it is None."""
        values = getattr(self, name)
        return np.full(len(self.start), UNKNOWN[name], KINDS[name]) if values is None else values

    def at(self, rows: slice | NDArray[np.intp]) -> "Rounds":
        """Some of the rounds."""
        fields = {name: values for name in KINDS if (values := getattr(self, name)) is not None}
        return Rounds(**{name: values[rows] for name, values in fields.items()})


def joined(parts: Sequence[Rounds]) -> Rounds:
    """The rounds of all parts, concatenated; a field is None if none of them has it."""
    names = [name for name in KINDS if name not in UNKNOWN or any(getattr(one, name) is not None for one in parts)]
    return Rounds(
        **{name: np.concatenate([np.empty(0, KINDS[name]), *(one.filled(name) for one in parts)]) for name in names}
    )


def is_known(values: NDArray[Any]) -> NDArray[np.bool_]:
    """`[R]` whether a field of `UNKNOWN` is known: not NaN, or of `placed`, True."""
    return values if values.dtype == np.bool_ else ~np.isnan(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsRequest:
    """One request of an imported recording."""

    request_id: str  # unique in the recording
    tag: str = ""  # task or domain; "" if unknown
    prompt_tokens: int = 0  # length of the prompt, 0 if unknown (its prefill is then charged as one token)
    # Output tokens by method: "" is the target alone, others are drafters. Methods that should write the same text may
    # differ a little (half-precision ties), so each keeps its own length; at least one, all >= 1.
    num_tokens: Mapping[str, int]
    rounds: Mapping[str, Rounds]  # by drafter; a drafter that never ran on this request is absent
    # Measured seconds of the whole answer by method, as `num_tokens`; methods without are absent.
    wall_s: Mapping[str, float] = field(default_factory=dict)
    # Of those, seconds before the first round, by method; methods without are absent.
    prefill_s: Mapping[str, float] = field(default_factory=dict)
    prompt: tuple[int, ...] = ()  # token ids, empty if unknown
    output: tuple[int, ...] = ()  # token ids of the target's text, empty if unknown
    session: str = ""  # of which it is a turn; "" if none or unknown

    def length(self, method: str) -> int:
        """Output tokens under `method`; for one that never ran here those of the target alone, or of the first one."""
        lengths = self.num_tokens
        return lengths[method] if method in lengths else lengths.get(TARGET_ALONE, next(iter(lengths.values())))

    def seconds(self, method: str) -> float:
        """Measured seconds of the answer under `method`, NaN if unknown."""
        return self.wall_s.get(method, nan)
