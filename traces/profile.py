"""A profile: seconds measured on one machine, in memory and as one Parquet file, and estimates for other forwards.

The file has a row per measured shape; its header has the machine, the members, the seconds of an operation outside its
forwards, and models for other forwards. Between measured shapes seconds are linear; beyond them a smooth model is used.
In decoding, rows of unequal length and weights that were not read just before cost extra. Letter: S measured shapes.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import AwareDatetime, Field, ValidationError, field_validator, model_validator

from ..base.files import kept_folder, whole_file
from .errors import TraceFormatError
from .meta import MOST_SECONDS, ProfileVersion, Record


class BatchShape(NamedTuple):
    """The rows of one forward."""

    num_rows: int  # requests, >= 1
    new_tokens: int  # fed, over all rows
    longest: int  # most tokens fed in a row; the others are padded to it where rows share attention
    num_slots: int  # of the row that holds most after the forward; all rows attend to as many
    apart: bool = False  # whether the rows are not adjacent in the cache, so that keys and values are gathered

    @property
    def padding(self) -> int:
        """Tokens that pad rows to the longest."""
        return self.num_rows * self.longest - self.new_tokens


Seconds = Field(default=0.0, ge=0, le=MOST_SECONDS)


class SmoothForward(Record):
    """Seconds of one model's forward for shapes that were not measured, in the form of a roofline.

    intercept_s + per_row_s x rows + per_new_token_s x new tokens + per_context_token_s x tokens held
    + per_pair_s x new tokens x tokens held per row.
    """

    # None of these is negative:
    intercept_s: float = Seconds
    per_row_s: float = Seconds
    per_new_token_s: float = Seconds
    per_context_token_s: float = Seconds
    per_pair_s: float = Seconds
    # median relative error on held-out measured shapes; None if there were too few to hold any out
    held_out_error: float | None = Field(ge=0)

    def seconds(self, num_rows: int, new_tokens: int, context_tokens: float) -> float:
        """Of one forward; tokens over all rows."""
        return (
            self.intercept_s
            + self.per_row_s * num_rows
            + self.per_new_token_s * new_tokens
            + self.per_context_token_s * context_tokens
            + self.per_pair_s * new_tokens * context_tokens / num_rows
        )


class UnevenRows(Record):
    """Seconds of a forward beyond those of one with as many tokens in adjacent rows of equal length.

    per_padding_s x padding + per_padding_pair_s x padding x slots, and, if the rows are apart,
    apart_s + per_gathered_slot_s x rows x slots.
    """

    # None of these is negative:
    per_padding_s: float = Seconds
    per_padding_pair_s: float = Seconds
    apart_s: float = Seconds
    per_gathered_slot_s: float = Seconds

    def seconds(self, shape: BatchShape) -> float:
        """Of one forward."""
        num_slots = shape.num_slots
        seconds = shape.padding * (self.per_padding_s + self.per_padding_pair_s * num_slots)
        if shape.apart:
            seconds += self.apart_s + self.per_gathered_slot_s * shape.num_rows * num_slots
        return seconds


class AfterAway(Record):
    """A forward of one row, repeated with a pause of equal length before each."""

    new_tokens: int = Field(ge=1)
    # Seconds since its weights were read, >= 0; 0 for a forward right after another.
    away_s: float = Field(ge=0, le=MOST_SECONDS)
    seconds: float = Field(gt=0, le=MOST_SECONDS)  # median of its repeats, > 0
    # Half of the range between the quartiles, as a share of the median, >= 0.
    spread: float = Field(ge=0, le=MOST_SECONDS)


class Reload(Record):
    """Extra seconds of a forward whose weights were read some time before, not just before.

    What runs meanwhile, also on the machine's other processors, evicts weights from the caches. Letters: T numbers of
    new tokens, A times away.
    """

    new_tokens: tuple[int, ...] = Field(min_length=1)  # `[T]` over all rows, strictly increasing, >= 1
    # `[A]` seconds since the weights were read, strictly increasing, > 0.
    away_s: tuple[float, ...] = Field(min_length=1)
    longer_s: tuple[tuple[float, ...], ...]  # `[T, A]` seconds beyond those of a forward right after another, >= 0

    @model_validator(mode="after")
    def _aligned(self) -> "Reload":
        shape = {len(line) for line in self.longer_s}
        if len(self.longer_s) != len(self.new_tokens) or shape != {len(self.away_s)}:
            raise ValueError("longer_s must have a line for each of new_tokens, each as long as away_s")
        for name, axis in (("new_tokens", self.new_tokens), ("away_s", self.away_s)):
            if any(a >= b for a, b in pairwise((0, *axis))):
                raise ValueError(f"{name} must be strictly increasing from above 0")
        if not all(0 <= seconds < inf for line in self.longer_s for seconds in line):
            raise ValueError("longer_s must be >= 0 and finite")
        return self


# Most new tokens of a row in a verification; a longer forward reads a prompt.
MOST_JUDGED = 20


class Longer(Record):
    """Seconds of forwards beyond the prediction, by their new tokens; may be negative.

    Linear between the numbers seen and constant beyond; 0 for forwards that read a prompt.
    """

    new_tokens: tuple[int, ...] = ()  # over all rows, strictly increasing, >= 1; none if nothing was seen
    longer_s: tuple[float, ...] = ()  # for each

    @model_validator(mode="after")
    def _aligned(self) -> "Longer":
        if len(self.new_tokens) != len(self.longer_s) or any(a >= b for a, b in pairwise((0, *self.new_tokens))):
            raise ValueError("new_tokens must be strictly increasing from >= 1, with longer_s for each")
        if not all(isfinite(seconds) for seconds in self.longer_s):
            raise ValueError("longer_s must be finite")
        return self

    def seconds(self, shape: BatchShape) -> float:
        """Of one forward."""
        if not self.new_tokens or shape.longest > MOST_JUDGED:
            return 0.0
        right = min(bisect_left(self.new_tokens, shape.new_tokens), len(self.new_tokens) - 1)
        left = max(right - 1, 0)
        low, high = self.new_tokens[left], self.new_tokens[right]
        share = 1.0 if left == right else min(1.0, (shape.new_tokens - low) / (high - low))
        return self.longer_s[left] + share * (self.longer_s[right] - self.longer_s[left])


class InDecoding(Record):
    """Extra seconds of forwards in decoding, beyond those measured of single forwards.

    For example, code that runs in between evicts the forward's code from the nearest caches.
    """

    first: Longer = Longer()  # first forwards of operations
    later: Longer = Longer()  # later ones of a draft, right after another


CPU = "cpu"  # the device of models without an accelerator

Share = Annotated[float, Field(gt=0, le=1)]


class BesideForwards(Record):
    """Seconds of one operation outside its forwards.

    per_op_s + per_forward_s x forwards + per_row_s x rows + per_token_s x tokens. Choosing tokens, placing them in
    caches, rolling back, bookkeeping, and the loop until the next operation.
    """

    per_op_s: float = Seconds  # once, 0 to 1e9
    per_forward_s: float = Seconds  # for each forward of the operation, 0 to 1e9
    per_row_s: float = Seconds  # for each request of the operation, 0 to 1e9
    per_token_s: float = Seconds  # for each token drafted, or judged and written, over all rows, 0 to 1e9

    def seconds(self, num_forwards: int, num_rows: int, num_tokens: int) -> float:
        """Of one operation."""
        once_s = self.per_op_s + self.per_forward_s * num_forwards
        return once_s + self.per_row_s * num_rows + self.per_token_s * num_tokens


class ProfiledMember(Record):
    """One member as it was measured."""

    name: str  # in the pool
    parameters: int = Field(ge=1)  # of its model
    dtype: str  # of its weights
    forward: str  # how it runs, `fused` or `modules`
    smooth: SmoothForward  # for shapes beyond the grid
    uneven: UnevenRows  # extra seconds of unequal rows
    after_away: tuple[AfterAway, ...]  # measured forwards after pauses
    reload: Reload  # extra seconds for weights not read just before, fitted to these
    in_decoding: InDecoding = InDecoding()  # further seconds of its forwards in decoding
    # Seconds of its operations outside their forwards.
    drafting: BesideForwards
    verifying: BesideForwards
    # The same of drafts with a stop, which needs the signal of each token. None: as other drafts.
    stopping: BesideForwards | None = None
    # By other member, the share of this one's weights that it shares, above 0 to 1.
    shares: dict[str, Share] = Field(default_factory=dict)

    @field_validator("after_away")
    @classmethod
    def _whole(cls, cells: tuple[AfterAway, ...]) -> tuple[AfterAway, ...]:
        known = {(cell.new_tokens, cell.away_s) for cell in cells}
        counts, times = {count for count, _ in known}, {away_s for _, away_s in known}
        if len(cells) != len(counts) * len(times) or len(known) != len(cells) or 0.0 not in times or len(times) < 2:
            raise ValueError("must hold each number of new tokens once, right after another and after each time away")
        return cells

    def beside(self, kind: Literal["draft", "stop", "verify"]) -> BesideForwards:
        """Seconds of its operations of one kind outside forwards; `stop` are drafts in which some row has a stop."""
        if kind == "stop" and self.stopping is not None:
            return self.stopping
        return self.verifying if kind == "verify" else self.drafting


class DecideSeconds(Record):
    """Seconds that a policy takes for steps, to decide and to learn, by the number of running requests.

    A policy decides for one request after the other. What it computes once for all, and what is in the processor's
    caches from the second one on, makes a step of many cheaper than as many steps of one.
    """

    # `[N]` running requests: 1, then ascending
    batches: tuple[Annotated[int, Field(strict=True, ge=1)], ...] = Field(min_length=1)
    # `[N]` seconds of a step of each of these requests, in total
    seconds: tuple[Annotated[float, Field(ge=0, le=MOST_SECONDS)], ...]

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.batches[0] != 1 or any(after <= before for before, after in pairwise(self.batches)):
            raise ValueError(f"batches must begin with 1 and ascend, got {', '.join(map(str, self.batches))}")
        if len(self.seconds) != len(self.batches):
            raise ValueError(f"must have seconds for each of {len(self.batches)} batches, got {len(self.seconds)}")
        return self

    @classmethod
    def of_step(cls, seconds: float) -> Self:
        """The same for every step, at any number of requests; seconds from 0 to 1e9."""
        return cls(batches=(1,), seconds=(seconds,))

    @property
    def is_constant(self) -> bool:
        """Whether a step takes the same at any number of requests."""
        return len(self.batches) == 1

    @property
    def is_free(self) -> bool:
        """Whether no step takes any time."""
        return not any(self.seconds)

    def each_s(self, num_running: int) -> float:
        """Seconds of a step of one request while `num_running` run.

        Between measured batches totals are linear; beyond the largest they grow in proportion.
        """
        batches, seconds = self.batches, self.seconds
        right = bisect_left(batches, num_running)
        if right == len(batches):
            return seconds[-1] / batches[-1]
        if not right or batches[right] == num_running:
            return seconds[right] / batches[right]
        below, above = batches[right - 1], batches[right]
        share = (num_running - below) / (above - below)
        return (seconds[right - 1] + share * (seconds[right] - seconds[right - 1])) / num_running


def mean_to_decide(known: Iterable[DecideSeconds]) -> DecideSeconds:
    """The mean of at least one, at every batch size that one of them has."""
    tables = list(known)
    batches = sorted({batch for table in tables for batch in table.batches})
    seconds = [batch * sum(table.each_s(batch) for table in tables) / len(tables) for batch in batches]
    return DecideSeconds(batches=tuple(batches), seconds=tuple(seconds))


class ProfileMeta(Record):
    """The header of a profile."""

    # Of the file.
    format: Literal["paceline-profile"] = "paceline-profile"
    version: ProfileVersion = 2
    pool: str  # name of the pool
    forced: bool = False  # whether its models have random weights, with acceptance by a recording
    members: tuple[ProfiledMember, ...] = Field(min_length=1)  # that have a model, in level order
    processor: str  # of the machine
    device: str  # of the models: `cpu` or the accelerator's name, and those of members elsewhere than the target
    threads: int = Field(ge=1)  # torch used
    # Versions.
    torch: str
    transformers: str
    paceline: str
    cache: str  # kind of cache
    sampling: str  # mode that the operations were measured with
    # Which product is used for which weight at how many tokens, a line for each weight shape.
    products: tuple[str, ...] = ()
    measured_at: AwareDatetime  # when it was finished
    drift: float = Field(ge=0)  # relative change of a shape's seconds from the beginning to the end, median over shapes
    left_out: tuple[str, ...] = ()  # requested shapes that were not measured, in words
    lookup: BesideForwards  # drafts by prompt lookup, the lookup included
    decide_s: dict[str, DecideSeconds] = Field(min_length=1)  # of policies, by the name of their class

    @model_validator(mode="before")
    @classmethod
    def _of_today(cls, given: object) -> object:
        """Version 1 had a number for a policy: seconds of a step while one request ran."""
        if not isinstance(given, dict) or type(given.get("version")) is not int or given["version"] != 1:
            return given
        known = given.get("decide_s")
        if isinstance(known, dict):
            known = {name: {"batches": [1], "seconds": [seconds]} for name, seconds in known.items()}
        return {**given, "version": 2, "decide_s": known}

    @property
    def hardware(self) -> str:
        """The machine in a few words."""
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        where = self.processor if self.device == CPU else f"{self.device} with {self.processor}"
        return f"{where}, {threads}"


ENDING = ".profile"
# Spread of a member's forwards, the median over shapes, above which other work keeps the machine busy all the time.
MOST_SPREAD = 0.25
_KEY = b"paceline"


class MeasuredForward(NamedTuple):
    """A measured forward."""

    member: str  # whose
    rows: int  # requests in it, >= 1
    new_tokens: int  # fed for each row, >= 1
    context_tokens: int  # held by each row before, >= 0
    seconds: float  # median of its repeats
    spread: float  # half of the range between the quartiles, as a share of the median

    @property
    def key(self) -> tuple[str, int, int, int]:
        """The shape, without its seconds."""
        return self[:4]


SCHEMA = pa.schema(
    [
        pa.field("member", pa.string(), nullable=False),
        pa.field("rows", pa.int32(), nullable=False),
        pa.field("new_tokens", pa.int32(), nullable=False),
        pa.field("context_tokens", pa.int32(), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("spread", pa.float64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Seconds measured on one machine."""

    meta: ProfileMeta  # machine and members
    shapes: tuple[MeasuredForward, ...]  # `[S]` every member's forwards
    # The file it was read from; None of one that was just measured. Not compared by ==.
    file: Path | None = field(default=None, compare=False)

    def of(self, member: str) -> tuple[MeasuredForward, ...]:
        """The shapes of one member."""
        return tuple(shape for shape in self.shapes if shape.member == member)

    def spread(self, member: str) -> float:
        """The spread of one member's forwards, the median over shapes."""
        spreads = sorted(shape.spread for shape in self.of(member))
        return spreads[len(spreads) // 2]

    def unsteady(self) -> dict[str, float]:
        """The spread of each member whose seconds cannot be trusted: above `MOST_SPREAD`."""
        spreads = {member.name: self.spread(member.name) for member in self.meta.members}
        return {name: spread for name, spread in spreads.items() if spread > MOST_SPREAD}


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile, whole or not at all; raises OSError naming `path`."""
    columns = [
        pa.array(values, field.type) for values, field in zip(zip(*profile.shapes, strict=True), SCHEMA, strict=True)
    ]
    table = pa.Table.from_arrays(columns, schema=SCHEMA.with_metadata({_KEY: profile.meta.model_dump_json()}))
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part:
        pq.write_table(table, part)


def read_profile(path: Path) -> Profile:
    """A profile from its file.

    Raises:
        TraceFormatError: no such file, or one that breaks the format; one line.
    """
    if not path.is_file():
        raise TraceFormatError(path, "profile", "must be a file", "a directory" if path.is_dir() else str(path))
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise TraceFormatError(path, "profile", "must be a Parquet file", str(error)) from None
    meta = _meta_of(path, table.schema)
    if not table.schema.equals(SCHEMA) or any(column.null_count for column in table.columns):
        raise TraceFormatError(path, "columns", f"must be {', '.join(SCHEMA.names)}, without nulls", table.schema.names)
    shapes = tuple(MeasuredForward(**row) for row in table.to_pylist())
    _check(path, meta, shapes)
    return Profile(meta=meta, shapes=shapes, file=path)


def profiles_folder() -> Path:
    """The folder of this machine's profiles."""
    return kept_folder() / "profiles"


def profiles_here(processor: str) -> Iterator[tuple[Path, ProfileMeta | TraceFormatError]]:
    """Files of profiles kept on this machine with their headers, or the error of reading one; newest first.

    One with an error is ordered by when the file was written.
    """
    found: list[tuple[datetime, Path, ProfileMeta | TraceFormatError]] = []
    for path in profiles_folder().glob(f"*{ENDING}"):
        try:
            meta = _meta_of(path, pq.read_schema(path))
        except TraceFormatError as error:
            found.append((_written_at(path), path, error))
        except (OSError, pa.ArrowException) as error:
            refused = TraceFormatError(path, "profile", "must be a Parquet file", str(error))
            found.append((_written_at(path), path, refused))
        else:
            if meta.processor == processor:
                found.append((meta.measured_at, path, meta))
    yield from ((path, said) for _, path, said in sorted(found, key=lambda one: one[:2], reverse=True))


def _written_at(path: Path) -> datetime:
    return datetime.fromtimestamp(path.lstat().st_mtime, UTC)


def _meta_of(path: Path, schema: pa.Schema) -> ProfileMeta:
    header = (schema.metadata or {}).get(_KEY)
    if header is None:
        raise TraceFormatError(path, "profile", "must have the header of a profile", "none")
    try:
        return ProfileMeta.model_validate_json(header)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"])) or "header"
        raise TraceFormatError(path, field, first["msg"], first["input"]) from None


def _check(path: Path, meta: ProfileMeta, shapes: tuple[MeasuredForward, ...]) -> None:
    members = {member.name for member in meta.members}
    seen = set()
    for shape in shapes:
        if shape.member not in members:
            raise TraceFormatError(path, "member", f"must be one of {', '.join(sorted(members))}", shape.member)
        if shape.rows < 1 or shape.new_tokens < 1 or shape.context_tokens < 0 or not 0 < shape.seconds < float("inf"):
            raise TraceFormatError(path, "shape", "must have rows, tokens and seconds that can be", tuple(shape))
        if shape[:4] in seen:
            raise TraceFormatError(path, "shape", "must be there once", shape[:4])
        seen.add(shape[:4])
    missing = members - {shape.member for shape in shapes}
    if missing:
        raise TraceFormatError(path, "member", "must have measured shapes", sorted(missing)[0])


class ProfiledForwards:
    """Seconds of one member's forwards.

    Between measured shapes they are linear in the new tokens and the tokens held of a row, then linear in rows. Beyond,
    the smooth model is used.

    Attributes:
        smooth: for all shapes that were not measured; None where there is none yet.
        beyond: whether the smooth model was used.
    """

    def __init__(self, shapes: Sequence[MeasuredForward], smooth: SmoothForward | None) -> None:
        self.smooth = smooth
        self.beyond = False
        grid: dict[float, dict[float, dict[float, float]]] = {}
        for shape in shapes:
            by_context = grid.setdefault(shape.rows, {}).setdefault(shape.new_tokens, {})
            by_context[shape.context_tokens] = shape.seconds
        self._grid = _Line(
            {
                rows: _Line({new_tokens: _Line(by_context) for new_tokens, by_context in by_new.items()})
                for rows, by_new in grid.items()
            }
        )

    def seconds(self, num_rows: int, new_tokens: int, context_tokens: float) -> float:
        """Of a forward with rows of equal length, right after another; tokens over all rows.

        Raises:
            ValueError: a shape beyond those measured without a smooth model.
        """
        measured = self.measured(num_rows, new_tokens, context_tokens)
        if measured is not None:
            return measured
        if self.smooth is None:
            raise ValueError(
                f"no shape near {num_rows} rows of {new_tokens} tokens after {context_tokens} was measured"
            )
        self.beyond = True
        return self.smooth.seconds(num_rows, new_tokens, context_tokens)

    def even_seconds(self, shape: BatchShape) -> float:
        """Of a forward with as many tokens in adjacent rows of equal length that attend to as many slots."""
        return self.seconds(shape.num_rows, shape.new_tokens, shape.num_rows * shape.num_slots - shape.new_tokens)

    def measured(self, num_rows: int, new_tokens: int, context_tokens: float) -> float | None:
        """As `seconds`, between measured shapes; None beyond them."""
        return self._grid.at((num_rows, new_tokens / num_rows, context_tokens / num_rows))


class ForwardsInDecoding:
    """Seconds of one member's forwards among those of others, with rows of unequal length."""

    def __init__(self, forwards: ProfiledForwards, uneven: UnevenRows, reload: Reload, in_decoding: InDecoding) -> None:
        self.forwards = forwards
        self._uneven = uneven
        self._in_decoding = in_decoding
        self._tokens = reload.new_tokens
        self._away_s = (0.0, *reload.away_s)
        self._longer_s = tuple((0.0, *line) for line in reload.longer_s)

    def seconds(self, shape: BatchShape, *, first: bool) -> float:
        """Of a forward, the first of its operation or a later one; without the reload."""
        known = self._in_decoding.first if first else self._in_decoding.later
        alone_s = self.forwards.even_seconds(shape) + self._uneven.seconds(shape)
        # Corrections from other shapes must not make a short forward take no time.
        return max(alone_s + known.seconds(shape), alone_s / 2)

    def reloads_s(self, new_tokens: int, away: Iterable[tuple[float, float]]) -> float:
        """Extra seconds, by shares of the weights and how long ago these were read (`WeightsRead.away`)."""
        return sum(share * self.reload_s(new_tokens, away_s) for share, away_s in away)

    def reload_s(self, new_tokens: int, away_s: float) -> float:
        """Extra seconds if the weights were read `away_s` before; linear between measured points, else constant."""
        away = self._away_s
        right = min(bisect_left(away, away_s), len(away) - 1)
        left = max(right - 1, 0)
        share = min(1.0, (away_s - away[left]) / (away[right] - away[left])) if right else 0.0
        tokens = self._tokens
        upper = min(bisect_left(tokens, new_tokens), len(tokens) - 1)
        lower = max(upper - 1, 0)
        above, below = ((line[left] + share * (line[right] - line[left])) for line in
                        (self._longer_s[upper], self._longer_s[lower]))  # fmt: skip
        if upper == lower or new_tokens >= tokens[upper]:
            return above
        return below + (new_tokens - tokens[lower]) / (tokens[upper] - tokens[lower]) * (above - below)


def forwards_of(profile: Profile, member: ProfiledMember) -> ForwardsInDecoding:
    """Seconds of one member of a profile."""
    on_its_own = ProfiledForwards(profile.of(member.name), member.smooth)
    return ForwardsInDecoding(on_its_own, member.uneven, member.reload, member.in_decoding)


class _Line:
    """Values at points: numbers, or lines of a further coordinate. Linear between them, None beyond."""

    def __init__(self, values: "Mapping[float, float | _Line]") -> None:
        self._points = sorted(values)
        self._values: list[Any] = [values[point] for point in self._points]
        self._of_lines = isinstance(self._values[0], _Line) if self._values else False

    def at(self, places: tuple[float, ...], depth: int = 0) -> float | None:
        points, values, place = self._points, self._values, places[depth]
        right = bisect_left(points, place)
        if right == len(points) or place < points[0]:
            return None
        upper: float | None = values[right].at(places, depth + 1) if self._of_lines else values[right]
        if upper is None or points[right] == place:
            return upper
        before = points[right - 1]
        lower: float | None = values[right - 1].at(places, depth + 1) if self._of_lines else values[right - 1]
        return None if lower is None else lower + (place - before) / (points[right] - before) * (upper - lower)


class WeightsRead:
    """When weights were read; mutated by `note`.

    `shares` has by member the share of its weights that each other member reads as well.
    """

    def __init__(self, shares: Mapping[str, Mapping[str, float]]) -> None:
        self._shares = shares
        self._read_at_s: dict[str, float] = {}

    def note(self, member: str, now_s: float) -> None:
        """Note that a forward of the member has ended."""
        self._read_at_s[member] = now_s

    def away(self, member: str, now_s: float) -> list[tuple[float, float]]:
        """Shares of a member's weights, 1 in total, and how many seconds ago each was read; infinite for never.

        If two others read parts of them, the smaller part is taken to be within the larger.
        """
        own_s = self._since(member, now_s)
        shares = self._shares.get(member, {})
        others = sorted((self._since(other, now_s), share) for other, share in shares.items())
        parts, covered = [], 0.0
        for away_s, share in others:
            if away_s < own_s and share > covered:
                parts.append((share - covered, away_s))
                covered = share
        return [*parts, (1.0 - covered, own_s)]

    def _since(self, member: str, now_s: float) -> float:
        return now_s - self._read_at_s.get(member, -inf)
