"""What a profile says of itself: whose seconds these are, and what an operation costs beside its forwards."""

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, field_validator

from ..traces.meta import Record, Version
from .forward_terms import AfterAway, InDecoding, Reload, Seconds, SmoothForward, UnevenRows

CPU = "cpu"  # the device of models that run on no accelerator

Share = Annotated[float, Field(gt=0, le=1)]


class BesideForwards(Record):
    """Seconds of one operation that are no forward's.

    per_op_s + per_forward_s x forwards + per_row_s x rows + per_token_s x tokens. Choosing tokens, placing them in
    caches, rolling back, bookkeeping, and the loop until the next operation.

    Attributes:
        per_op_s: once, 0 to 1e9.
        per_forward_s: for each forward of the operation, 0 to 1e9.
        per_row_s: for each request of the operation, 0 to 1e9.
        per_token_s: for each token drafted, or judged and written, over all rows, 0 to 1e9.
    """

    per_op_s: float = Seconds
    per_forward_s: float = Seconds
    per_row_s: float = Seconds
    per_token_s: float = Seconds

    def seconds(self, num_forwards: int, num_rows: int, num_tokens: int) -> float:
        """Of one operation."""
        once_s = self.per_op_s + self.per_forward_s * num_forwards
        return once_s + self.per_row_s * num_rows + self.per_token_s * num_tokens


class ProfiledMember(Record):
    """One member as it was measured.

    Attributes:
        name: in the pool.
        parameters: of its model.
        dtype: of its weights.
        forward: how it ran, `fused` or `modules`.
        smooth: for shapes beyond the grid.
        uneven: what rows of unequal length cost.
        after_away: forwards after times away, as they were measured.
        reload: what it costs that its weights were not read just before, made of these.
        in_decoding: what was seen of its forwards in decoding beyond that.
        drafting, verifying: what its operations cost beside their forwards.
        shares: by other member, the share of this one's weights that are the other's as well, above 0 to 1.
    """

    name: str
    parameters: int = Field(ge=1)
    dtype: str
    forward: str
    smooth: SmoothForward
    uneven: UnevenRows
    after_away: tuple[AfterAway, ...]
    reload: Reload
    in_decoding: InDecoding = InDecoding()
    drafting: BesideForwards
    verifying: BesideForwards
    shares: dict[str, Share] = Field(default_factory=dict)

    @field_validator("after_away")
    @classmethod
    def _whole(cls, cells: tuple[AfterAway, ...]) -> tuple[AfterAway, ...]:
        known = {(cell.new_tokens, cell.away_s) for cell in cells}
        counts, times = {count for count, _ in known}, {away_s for _, away_s in known}
        if len(cells) != len(counts) * len(times) or len(known) != len(cells) or 0.0 not in times or len(times) < 2:
            raise ValueError("must hold each number of new tokens once, right after another and after each time away")
        return cells

    def beside(self, kind: Literal["draft", "verify"]) -> BesideForwards:
        """What its operations of one kind cost beside their forwards."""
        return self.drafting if kind == "draft" else self.verifying


class ProfileMeta(Record):
    """What stands in a profile's header.

    Attributes:
        format, version: of the file.
        pool: name of the pool.
        forced: whether its models have random weights, and a recording decided what they accepted.
        members: that have a model, in level order.
        processor: of the machine.
        device: the models ran on: `cpu` or the accelerator's name, and those that were elsewhere than the target.
        threads: torch used.
        torch, transformers, paceline: versions.
        cache: kind of cache.
        sampling: mode that the operations were measured with.
        products: which product multiplied which weight with how many tokens, a line for each weight shape.
        measured_at: when it was finished.
        drift: relative change of a shape's seconds from the beginning to the end, median over shapes.
        left_out: shapes that were asked for and not measured, in words.
        lookup: what drafts by prompt lookup cost, the lookup among it.
        decide_s: seconds that a policy takes for a step, deciding and learning, by the name of its class.
    """

    format: Literal["paceline-profile"] = "paceline-profile"
    version: Version = 1
    pool: str
    forced: bool = False
    members: tuple[ProfiledMember, ...] = Field(min_length=1)
    processor: str
    device: str
    threads: int = Field(ge=1)
    torch: str
    transformers: str
    paceline: str
    cache: str
    sampling: str
    products: tuple[str, ...] = ()
    measured_at: AwareDatetime
    drift: float = Field(ge=0)
    left_out: tuple[str, ...] = ()
    lookup: BesideForwards
    decide_s: dict[str, float]

    @property
    def hardware(self) -> str:
        """The machine in a few words."""
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        where = self.processor if self.device == CPU else f"{self.device} with {self.processor}"
        return f"{where}, {threads}"
