"""What an imported recording says of itself, and how far a replay of it can be trusted."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..meta import MOST, NAME_PATTERN, TITLE_PATTERN, ModelInfo, NgramInfo, Record, Version

# What a log knew, from all to least.
Form = Literal["rounds", "histograms", "request means", "rates", "mean"]
# By it, what was known and what is drawn, for the first line of whatever shows the recording.
TRUST: dict[Form, str] = {
    "rounds": "rounds known in order",
    "histograms": "histograms of requests known, their order drawn",
    "request means": "means of requests known, their rounds drawn",
    "rates": "rates per position known, all rounds drawn",
    "mean": "one mean known, all rounds drawn at one rate",
}
LOOKUP = NgramInfo(name="ngram", max_match=3)  # as in the shipped pool, where nobody says otherwise


class StatedAcceptance(Record):
    """Acceptance that a log states of a drafter instead of rounds.

    Attributes:
        hazards: `[D]` probability that a drafted token is kept, by depth, among rounds that got there; the last one
            holds for all deeper ones.
        drafting: share of the steps that draft at all, above 0.
    """

    hazards: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(min_length=1)
    drafting: float = Field(default=1.0, gt=0, le=1)


class DrafterInfo(Record):
    """One drafter of an imported recording.

    Attributes:
        name: as chains call it.
        by_start: True if acceptance depends on where the round started, as with drafters fed on the target's features
            or with draft trees: a round says nothing of other starts. False for a model that reads tokens only:
            whether it writes the target's token at a position does not depend on the round, so rounds of any window
            answer for all.
        window: most tokens it drafts in a round, None if unknown.
        prefilled: whether the target's prefill had emitted a token before the first round, so that rounds start at
            output position 1 or later; False if the first verification doubled as prefill.
        stated: acceptance, where the log states it instead of rounds; None where rounds tell it.
    """

    name: str = Field(pattern=NAME_PATTERN)
    by_start: bool
    window: int | None = Field(default=None, ge=1, le=MOST)
    prefilled: bool = False  # recordings made before this was kept start their rounds at 0
    stated: StatedAcceptance | None = None


class RoundsMeta(Record):
    """`meta.json` of an imported recording.

    Attributes:
        source: the format it was imported from.
        form: what the log knew.
        target: name of the model that verifies.
        drafters: in level order, smallest first.
        models: shapes for cost models, by name; may leave members out.
        served_model: preset of the target that the log names (`shapes.decoder.presets`), "" if it names none.
        ngram: how prompt lookup finds what to copy, where the ids of all texts are known and no drafter has its name.
        notes: what is exact and what is unknown, in words.
        software: name to version.
        hardware: the machine that ran it, in words.
    """

    format: Literal["paceline-trace"] = "paceline-trace"
    version: Version = 1
    name: str = Field(min_length=1, pattern=TITLE_PATTERN)
    kind: Literal["imported"] = "imported"
    source: str
    form: Form = "rounds"
    target: str = Field(default="target", pattern=NAME_PATTERN)
    drafters: tuple[DrafterInfo, ...]
    models: tuple[ModelInfo, ...] = ()
    served_model: str = ""
    ngram: NgramInfo = LOOKUP
    notes: tuple[str, ...] = ()
    software: dict[str, str] = Field(default_factory=dict)
    hardware: str = ""

    @model_validator(mode="after")
    def _names(self) -> "RoundsMeta":
        names = list(self.model_names)
        if len(set(names)) != len(names):
            raise ValueError(f"names of drafters and target must be unique, got {names}")
        shapes = [model.name for model in self.models]
        unknown = [name for name in shapes if name not in names]
        if unknown or len(set(shapes)) != len(shapes):
            raise ValueError(f"models must name members of the pool once each, got {shapes}")
        return self

    @property
    def drafter_names(self) -> tuple[str, ...]:
        """Names in level order."""
        return tuple(drafter.name for drafter in self.drafters)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of the drafters in level order, then the target's."""
        return (*self.drafter_names, self.target)
