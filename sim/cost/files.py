"""Seconds by figures per model, and their JSON file.

Figures are a table by new tokens, a grid by new tokens and tokens held (both interpolated), a line, any of these for
each of several numbers of rows, or a drafter's seconds by the round.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf, nextafter
from pathlib import Path
from typing import ClassVar, Final, Literal, NamedTuple, TypeVar

from pydantic import Field, ValidationError, model_validator

from ...base.errors import counted
from ...base.files import checked_json, kind_of_json
from ...traces.errors import TraceFormatError
from ...traces.meta import LEAST_SECONDS, MOST_SECONDS, CostTable, Record
from .base import LOADED_ADVICE, LOOKUP_S, ContextLine, CostModel, CostRangeError, DraftTerms, flat_line, upper_line


class TableProfile:
    """Seconds of one model's forwards by new tokens, measured; interpolated linearly.

    Beyond the measured range it raises, or with `extrapolate` continues its last segment upwards, never below the last
    measured value, and holds the first measured value downwards. Points are new tokens, strictly increasing, with
    seconds for each. With `steps`, between two points the seconds are those of the upper one.

    Attributes:
        least: fewest measured new tokens.
        extrapolated: whether it had to.
    """

    def __init__(
        self, points: Sequence[int], seconds: Sequence[float], *, whose: str, extrapolate: bool, steps: bool = False
    ) -> None:
        self._points = points
        self._seconds = seconds
        self._whose = whose
        self._extrapolate = extrapolate
        self._steps = steps
        self.least = points[0]
        self.extrapolated = False

    def seconds(self, new_tokens: float) -> float:
        """Seconds of a forward. Raises CostRangeError beyond the measured range, unless it extrapolates."""
        points = self._points
        if not points[0] <= new_tokens <= points[-1]:
            if not self._extrapolate:
                measured = f"{points[0]} to {points[-1]}" if len(points) > 1 else f"{points[0]}"
                raise CostRangeError(
                    f"{self._whose} was measured for {measured} new tokens a forward, asked for {new_tokens}",
                    "use a smaller batch or window, another cost, or `extrapolate`",
                    LOADED_ADVICE,
                )
            self.extrapolated = True
        elif self._steps:
            return self._seconds[bisect_left(points, new_tokens)]
        return interpolated(points, self._seconds.__getitem__, new_tokens)


def interpolated(points: Sequence[int], value_at: Callable[[int], float], where: float) -> float:
    """Linear between points; before the first its value holds, after the last the last segment continues if it rises.

    `points` increase strictly; `value_at` gives the value at a point by its index.
    """
    if where < points[0]:
        return value_at(0)
    if where > points[-1]:
        last = value_at(-1)
        if len(points) == 1:
            return last
        slope = (last - value_at(-2)) / (points[-1] - points[-2])
        return last + max(0.0, slope) * (where - points[-1])
    right = bisect_left(points, where)
    upper = value_at(right)
    if points[right] == where:
        return upper
    lower = value_at(right - 1)
    return lower + (where - points[right - 1]) / (points[right] - points[right - 1]) * (upper - lower)


def extrapolation_notes(models: Sequence[str]) -> tuple[str, ...]:
    """Notes on models used beyond their measured range."""
    return (f"seconds beyond what was measured: {', '.join(models)}",) if models else ()


# Between two counts of new tokens: on a line, or in steps, each as expensive as the next measured count, as where an
# engine pads to the sizes that it captured.
Between = Literal["line", "step"]
# How tokens held count: the sum over rows, or as if each row held as many as the longest.
Context = Literal["sum", "longest"]


class StepTable(CostTable):
    """A table of a cost file."""

    between: Between = "line"


class CostGrid(Record):
    """Measured seconds of one forward of one model, by new tokens and by tokens already in its cache, over all rows.

    Letters: N counts of new tokens, C of tokens held.
    """

    new_tokens: tuple[int, ...] = Field(min_length=1)  # `[N]`, strictly increasing, >= 1
    context_tokens: tuple[int, ...] = Field(min_length=1)  # `[C]`, strictly increasing, >= 0
    seconds: tuple[tuple[float, ...], ...] = Field(min_length=1)  # `[N, C]`, 1e-12 to 1e9
    between: Between = "line"
    context: Context = "sum"

    @model_validator(mode="after")
    def _aligned(self) -> "CostGrid":
        if not _increasing(self.new_tokens, least=1):
            raise ValueError("new_tokens must be strictly increasing from >= 1")
        if not _increasing(self.context_tokens, least=0):
            raise ValueError("context_tokens must be strictly increasing from >= 0")
        if len(self.seconds) != len(self.new_tokens):
            raise ValueError("seconds must have one row for each entry of new_tokens")
        if any(len(row) != len(self.context_tokens) for row in self.seconds):
            raise ValueError("each row of seconds must have one entry for each of context_tokens")
        if not all(LEAST_SECONDS <= second <= MOST_SECONDS for row in self.seconds for second in row):
            raise ValueError(f"seconds must be in [{LEAST_SECONDS:g}, {MOST_SECONDS:g}]")
        return self


class GridProfile:
    """Seconds from a `CostGrid`, bilinear between its points.

    Beyond the measured range it raises or extrapolates as `TableProfile` does, along each axis separately.
    """

    def __init__(self, grid: CostGrid, *, whose: str, extrapolate: bool) -> None:
        self._contexts = grid.context_tokens
        self._whose = whose
        self._extrapolate = extrapolate
        self._columns = [
            TableProfile(grid.new_tokens, column, whose=whose, extrapolate=extrapolate, steps=grid.between == "step")
            for column in zip(*grid.seconds, strict=True)
        ]
        self._beyond_context = False

    @property
    def extrapolated(self) -> bool:
        """Whether it was used beyond its measured range."""
        return self._beyond_context or any(column.extrapolated for column in self._columns)

    def seconds(self, num_rows: int, new_tokens: float, context_tokens: float) -> float:
        """Seconds of one forward. Raises CostRangeError beyond the measured range, unless it extrapolates."""
        self._check(context_tokens)
        return interpolated(self._contexts, lambda column: self._columns[column].seconds(new_tokens), context_tokens)

    def context_line(self, num_rows: int, new_tokens: float, context_tokens: float) -> ContextLine:
        """The line that `context_tokens` lies on: between two measured points, or beyond them. Raises as `seconds`."""
        self._check(context_tokens)
        contexts = self._contexts
        if context_tokens < contexts[0]:
            return ContextLine(0, contexts[0], self._columns[0].seconds(new_tokens), 0.0)
        if len(contexts) == 1:
            slope_s, left = 0.0, 0
        else:
            left = min(bisect_right(contexts, context_tokens), len(contexts) - 1) - 1
            rise_s = self._columns[left + 1].seconds(new_tokens) - self._columns[left].seconds(new_tokens)
            slope_s = rise_s / (contexts[left + 1] - contexts[left])
        if context_tokens > contexts[-1]:
            slope_s = max(0.0, slope_s)
            return ContextLine(contexts[-1] + 1, inf, self._columns[-1].seconds(new_tokens) + slope_s, slope_s)
        # The last measured point belongs to the line before it, so that use beyond it is noticed.
        end = contexts[left + 1] if left + 2 < len(contexts) else nextafter(contexts[-1], inf)
        return ContextLine(contexts[left], end, self._columns[left].seconds(new_tokens), slope_s)

    def _check(self, context_tokens: float) -> None:
        contexts = self._contexts
        if not contexts[0] <= context_tokens <= contexts[-1]:
            if not self._extrapolate:
                raise CostRangeError(
                    f"{self._whose} was measured with {contexts[0]} to {contexts[-1]} tokens held, asked for "
                    f"{context_tokens}",
                    "use another cost or `extrapolate`",
                    LOADED_ADVICE,
                )
            self._beyond_context = True


def _increasing(values: tuple[int, ...], *, least: int) -> bool:
    return values[0] >= least and all(a < b for a, b in pairwise(values))


class CostLine(Record):
    """One model's seconds: intercept_s + per_row_s x rows + per_new_token_s x new tokens + per_kv_token_s x held."""

    intercept_s: float = Field(ge=0, le=MOST_SECONDS)  # of a forward, 0 to 1e9
    per_row_s: float = Field(default=0.0, ge=0, le=MOST_SECONDS)  # for each row of the batch, 0 to 1e9
    # for each token fed, over all rows, 0 to 1e9; with the intercept at least 1e-12
    per_new_token_s: float = Field(default=0.0, ge=0, le=MOST_SECONDS)
    # for each token already in the cache, over all rows, 0 to 1e9
    per_kv_token_s: float = Field(default=0.0, ge=0, le=MOST_SECONDS)
    context: Context = "sum"
    extrapolated: ClassVar[bool] = False  # a line has no end

    @model_validator(mode="after")
    def _costs_something(self) -> "CostLine":
        if self.intercept_s + self.per_row_s + self.per_new_token_s < LEAST_SECONDS:
            raise ValueError(f"intercept_s, per_row_s or per_new_token_s must be at least {LEAST_SECONDS:g}")
        return self

    def seconds(self, num_rows: int, new_tokens: float, context_tokens: float) -> float:
        """Seconds of one forward."""
        fed_s = self.intercept_s + self.per_row_s * num_rows + self.per_new_token_s * new_tokens
        return fed_s + self.per_kv_token_s * context_tokens

    def context_line(self, num_rows: int, new_tokens: float, context_tokens: float) -> ContextLine:
        """The line that `context_tokens` lies on."""
        return ContextLine(0, inf, self.seconds(num_rows, new_tokens, 0), self.per_kv_token_s)


class FlatProfile:
    """Seconds from a table, for any tokens held."""

    def __init__(self, table: CostTable, *, whose: str, extrapolate: bool) -> None:
        steps = isinstance(table, StepTable) and table.between == "step"
        self._table = TableProfile(table.new_tokens, table.seconds, whose=whose, extrapolate=extrapolate, steps=steps)
        self._known: dict[float, float] = {}  # computed so far: few, used again and again

    @property
    def extrapolated(self) -> bool:
        """Whether it was used beyond its measured range."""
        return self._table.extrapolated

    def seconds(self, num_rows: int, new_tokens: float, context_tokens: float) -> float:
        """Seconds of one forward. Raises CostRangeError beyond the measured range, unless it extrapolates."""
        seconds = self._known.get(new_tokens)
        if seconds is None:
            seconds = self._known[new_tokens] = self._table.seconds(new_tokens)
        return seconds

    def context_line(self, num_rows: int, new_tokens: float, context_tokens: float) -> ContextLine:
        """The line that `context_tokens` lies on."""
        return flat_line(self.seconds(num_rows, new_tokens, context_tokens))


class RowsProfile:
    """Seconds of forms, each for one number of rows.

    Between two of them linear in the rows, at the same tokens a row: a batch of 6 rows of 4 tokens lies between 4 rows
    of 4 and 8 rows of 4. Beyond, as `TableProfile`.
    """

    def __init__(self, rows: Sequence[int], forms: "Sequence[Formula]", *, whose: str, extrapolate: bool) -> None:
        self._rows, self._forms = rows, forms
        self._whose, self._extrapolate = whose, extrapolate
        self._beyond_rows = False

    @property
    def extrapolated(self) -> bool:
        """Whether it was used beyond its measured range."""
        return self._beyond_rows or any(form.extrapolated for form in self._forms)

    def seconds(self, num_rows: int, new_tokens: float, context_tokens: float) -> float:
        """Seconds of one forward. Raises CostRangeError beyond the measured range, unless it extrapolates."""
        self._check(num_rows)

        def at(place: int) -> float:
            rows = self._rows[place]
            return self._forms[place].seconds(rows, new_tokens * rows / num_rows, context_tokens * rows / num_rows)

        return interpolated(self._rows, at, num_rows)

    def context_line(self, num_rows: int, new_tokens: float, context_tokens: float) -> ContextLine:
        """The line that `context_tokens` lies on, which ends where that of either number of rows does."""
        self._check(num_rows)
        right = min(bisect_left(self._rows, num_rows), len(self._rows) - 1)
        places = [right] if self._rows[right] == num_rows else sorted({max(0, right - 1), right})
        first, end = 0, inf
        lines: list[tuple[float, float]] = []  # seconds with nothing held, and for each token held
        for place in places:
            rows = self._rows[place]
            line = self._forms[place].context_line(rows, new_tokens * rows / num_rows, context_tokens * rows / num_rows)
            first, end = max(first, ceil(line.start * num_rows / rows)), min(end, line.end * num_rows / rows)
            lines.append((line.start_s - line.slope_s * line.start, line.slope_s * rows / num_rows))
        if num_rows > self._rows[-1] and len(lines) > 1:  # continues if it rises, perhaps only from some context on
            (low_s, low_slope_s), (high_s, high_slope_s) = lines
            rise = upper_line((0.0, 0.0), (high_s - low_s, high_slope_s - low_slope_s), int(context_tokens))
            first, end = max(first, rise.start), min(end, rise.end)
        start, last = min(first, int(context_tokens)), max(first, int(context_tokens)) + 1
        start_s = self.seconds(num_rows, new_tokens, start)
        slope_s = self.seconds(num_rows, new_tokens, start + 1) - start_s if start + 1 < end else 0.0
        return ContextLine(start, inf if end == inf else max(last, ceil(end)), start_s, slope_s)

    def _check(self, num_rows: int) -> None:
        rows = self._rows
        if not rows[0] <= num_rows <= rows[-1]:
            if not self._extrapolate:
                raise CostRangeError(
                    f"{self._whose} was measured for {rows[0]} to {rows[-1]} rows, asked for {num_rows}",
                    "use another batch or cost, or `extrapolate`",
                    LOADED_ADVICE,
                )
            self._beyond_rows = True


# Seconds of one model's forwards by (rows, new tokens, tokens held), the last two over all rows.
Formula = CostLine | GridProfile | FlatProfile | RowsProfile


class RoundFigures(Record):
    """The keys of a cost file for rounds."""

    per_round_s: float = Field(default=0.0, ge=0, le=MOST_SECONDS)  # of a Draft, 0 to 1e9
    # of a drafted token, 0 to 1e9; together at least 1e-12
    per_token_s: float = Field(default=0.0, ge=0, le=MOST_SECONDS)
    per_round_row_s: float = Field(default=0.0, ge=0, le=MOST_SECONDS)  # of a Draft, for each of its rows, 0 to 1e9
    stop_s: float = Field(default=0.0, ge=0, le=MOST_SECONDS)  # per read of a draft's probabilities by a stop
    # tokens of drafts in the data of the fit, strictly increasing from >= 1; () if unknown
    draft_lengths: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _costs_something(self) -> "RoundFigures":
        if self.model_fields_set - {"stop_s"} == {"draft_lengths"}:
            raise ValueError(
                "draft_lengths must stand beside per_round_s or per_round_row_s, or per_token_s of a member without "
                "seconds of forwards"
            )
        drafting_s = self.per_round_s + self.per_token_s + self.per_round_row_s
        if drafting_s < LEAST_SECONDS and self.model_fields_set != {"stop_s"}:
            raise ValueError(f"per_round_s, per_token_s or per_round_row_s must be at least {LEAST_SECONDS:g}")
        if self.draft_lengths and not _increasing(self.draft_lengths, least=1):
            raise ValueError("draft_lengths must be strictly increasing from >= 1")
        return self


class FitVerdict(Record):
    """The entry `fit` of a cost file: of what its seconds are a fit, and whether that predicted another run."""

    runs: tuple[str, ...] = Field(min_length=1)  # fitted to
    observed: str  # that was predicted
    within: bool  # whether every figure was within its bound
    verdict: str  # how many were, and which were not

    def remarks(self, path: Path) -> tuple[str, ...]:
        """What readers of the seconds must know."""
        missed = f"{path} was fitted to {', '.join(self.runs)} and missed {self.observed}: {self.verdict}"
        return () if self.within else (missed,)


@dataclass(frozen=True, slots=True, kw_only=True)
class FiguresByRows:
    """Figures of forwards for each of several numbers of rows."""

    rows: tuple[int, ...]  # `[R]` strictly increasing, >= 1
    forms: "tuple[CostTable | CostGrid | CostLine, ...]"  # `[R]`


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFigures:
    """Figures of a member with seconds by the round."""

    terms: DraftTerms  # of its drafts
    draft_lengths: tuple[int, ...] = ()  # as of `RoundFigures`
    # of each forward in addition; None where there are only the terms, and the member cannot judge
    forwards: "Forwards | None"


Forwards = CostTable | CostGrid | CostLine | FiguresByRows
Figures = Forwards | DrafterFigures
FIT: Final = "fit"  # key of a `FitVerdict`, beside those of models
_Checked = TypeVar("_Checked", bound=Record)


class FileCost(CostModel):
    """Seconds of forwards from figures per model.

    Lines have no end, so `extrapolate` matters for other figures. `lookup_s` is seconds of one prompt lookup, >= 0, and
    `remarks` come first in its notes.

    Raises:
        CostRangeError: by `forward_s`, beyond the measured range or for a model without figures.
    """

    def __init__(
        self,
        name: str,
        figures: Mapping[str, Figures],
        *,
        extrapolate: bool = False,
        lookup_s: float = LOOKUP_S,
        remarks: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.lookup_s = lookup_s
        self._remarks = remarks
        self._models = tuple(figures)
        self._terms: dict[str, DraftTerms] = {}
        self._lengths: dict[str, tuple[int, ...]] = {}
        self._formulas: dict[str, Formula] = {}
        self._flat: list[str] = []
        longest = []
        for model, known in figures.items():
            forwards = known.forwards if isinstance(known, DrafterFigures) else known
            if isinstance(known, DrafterFigures):
                self._terms[model], self._lengths[model] = known.terms, known.draft_lengths
            if forwards is not None:
                self._formulas[model] = _formula_of(forwards, whose=f"cost {name}: {model}", extrapolate=extrapolate)
                # How tokens held count: with several numbers of rows the same in all forms.
                forms = forwards.forms if isinstance(forwards, FiguresByRows) else (forwards,)
                contexts = [form.context for form in forms if not isinstance(form, CostTable)]
                longest += [model] if "longest" in contexts else []
                if all(isinstance(form, CostTable) for form in forms):
                    self._flat.append(model)
        self.longest = frozenset(longest)
        self.knows_reads = not longest

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        formula = self._formulas.get(model)
        if formula is None:
            raise self._unknown(model)
        return formula.seconds(num_rows, new_tokens, context_tokens)

    def shared_forward_s(
        self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int, read_tokens: int
    ) -> float:
        """See `CostModel`: seconds of a token held are taken to be those of reading it."""
        return self.forward_s(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=read_tokens)

    def context_line(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> ContextLine:
        formula = self._formulas.get(model)
        if formula is None:
            raise self._unknown(model)
        return formula.context_line(num_rows, new_tokens, context_tokens)

    def unlined(self) -> str:
        return ""

    def draft_terms(self, model: str) -> DraftTerms | None:
        return self._terms.get(model)

    def notes(self) -> tuple[str, ...]:
        notes = self._remarks + self._beyond_notes()
        if self._flat:
            notes += (f"measured by new tokens only, a longer context costs no more: {', '.join(self._flat)}",)
        if self.longest:
            notes += (f"each row counts as long as the longest of its batch: {', '.join(sorted(self.longest))}",)
        whole = [
            model for model, terms in self._terms.items() if terms.per_token_s is not None and not terms.per_round_row_s
        ]
        if whole:
            notes += (f"drafts cost by the round, whatever they read and for how many rows: {', '.join(whole)}",)
        notes += tuple(
            f"{model} was fitted to drafts of {counted(lengths[0], 'token')} alone: seconds of other lengths are a "
            "guess; calibrate by a run with another length, too"
            for model, lengths in self._lengths.items()
            if len(lengths) == 1
        )
        return notes

    def _beyond_notes(self) -> tuple[str, ...]:
        return extrapolation_notes([model for model, formula in self._formulas.items() if formula.extrapolated])

    def _unknown(self, model: str) -> CostRangeError:
        """The error of a member without seconds of forwards."""
        if model in self._terms:
            return CostRangeError(
                f"cost {self.name}: {model} has per_round_s and per_token_s only, which are of drafting, and was "
                "asked to judge; give it new_tokens and seconds, or intercept_s"
            )
        return CostRangeError(f"cost {self.name}: no table for model {model!r}; it has {', '.join(self._models)}")


def _formula_of(known: Forwards, *, whose: str, extrapolate: bool) -> Formula:
    if isinstance(known, CostLine):
        return known
    if isinstance(known, CostGrid):
        return GridProfile(known, whose=whose, extrapolate=extrapolate)
    if isinstance(known, FiguresByRows):
        forms = [
            _formula_of(form, whose=f"{whose} with {rows} rows", extrapolate=extrapolate)
            for rows, form in zip(known.rows, known.forms, strict=True)
        ]
        return RowsProfile(known.rows, forms, whose=whose, extrapolate=extrapolate)
    return FlatProfile(known, whose=whose, extrapolate=extrapolate)


class TableCost(FileCost):
    """Seconds by new tokens per forward, measured; interpolated linearly. Arguments and errors as of `FileCost`.

    The table holds seconds by the *sum* of new tokens over the batch, measured at contexts of about 128 tokens: it does
    not contain the extra seconds of longer ones.
    """

    def notes(self) -> tuple[str, ...]:
        return (*self._remarks, *self._beyond_notes(), "measured by new tokens only: a longer context costs no more")


class CostFile(NamedTuple):
    """The content of a file of figures."""

    figures: dict[str, Figures]  # by model
    remarks: tuple[str, ...] = ()  # what readers of its seconds must know


def read_cost_file(path: Path, models: tuple[str, ...]) -> CostFile:
    """The figures of a file `{"MODEL": {...}, ...}` with figures for each of `models`; docs/costs.md has the forms.

    Where file and pool have one drafter each, under two names, and the file has seconds of its rounds, they are taken
    to be the same, and a remark says so: a fit to a server does not have the recording's name for its drafter.

    Raises:
        ValueError: a file that cannot be read or breaks the format, or a model without figures; one line.
    """
    content = checked_json(path, TraceFormatError)
    if not isinstance(content, dict):
        raise TraceFormatError(path, "content", "must be an object of models", kind_of_json(content))
    missed: tuple[str, ...] = ()
    if FIT in content and FIT not in models:
        missed = _checked(path, FIT, FitVerdict, content.pop(FIT)).remarks(path)
    figures = {model: _figures(path, model, known) for model, known in content.items()}
    figures, remarks = _of_one_drafter(path, figures, models)
    missing = [name for name in models if name not in figures]
    if missing:
        raise ValueError(f"{path}: no table for model {missing[0]!r} of the recording; it has {', '.join(figures)}")
    if isinstance(figures[models[-1]], DrafterFigures):
        rule = f"must be without {', '.join(RoundFigures.model_fields)}, which are of drafters"
        raise TraceFormatError(path, models[-1], rule, f"keys {', '.join(content[models[-1]])}")
    return CostFile(figures, missed + remarks)


def _of_one_drafter(
    path: Path, figures: dict[str, Figures], models: tuple[str, ...]
) -> tuple[dict[str, Figures], tuple[str, ...]]:
    """The figures by the models' names, and remarks on another name in the file."""
    others = [name for name in figures if name not in models]
    if len(figures) != 2 or len(models) != 2 or len(others) != 1 or models[1] not in figures:
        return figures, ()
    (named,) = others
    if not isinstance(figures[named], DrafterFigures):  # figures of forwards are of a model
        return figures, ()
    remark = f"{path} has one drafter, {named}: taken for {models[0]}, the one of the recording"
    return {models[0]: figures[named], models[1]: figures[models[1]]}, (remark,)


def _figures(path: Path, model: str, content: object) -> Figures:
    if not isinstance(content, dict) or not content.keys() & RoundFigures.model_fields.keys():
        return _forwards(path, model, content)
    by_round = {key: value for key, value in content.items() if key in RoundFigures.model_fields}
    rest = {key: value for key, value in content.items() if key not in BESIDE_FORWARDS}
    whole = "per_token_s" in rest or not (rest or by_round.keys() == {"stop_s"})
    found = _checked(path, model, RoundFigures, content if whole else by_round)
    each_s = found.per_token_s if whole else None
    terms = DraftTerms(found.per_round_s, each_s, None, found.per_round_row_s, found.stop_s)
    forwards = None if whole else _forwards(path, model, rest)
    return DrafterFigures(terms=terms, draft_lengths=found.draft_lengths, forwards=forwards)


# Keys allowed with those of forwards.
BESIDE_FORWARDS = frozenset({"per_round_s", "per_round_row_s", "stop_s", "draft_lengths"})
_ROWS, _BY_ROWS = "rows", "by_rows"


def _forwards(path: Path, model: str, content: object) -> Forwards:
    if isinstance(content, dict) and content.keys() & {_ROWS, _BY_ROWS}:
        return _by_rows(path, model, content)
    kind = _form(content)
    if kind is None:
        rule = (
            "must be an object with new_tokens and seconds, with intercept_s, with rows and by_rows, or with "
            "per_round_s and per_token_s"
        )
        shown = f"keys {', '.join(content)}" if isinstance(content, dict) and content else kind_of_json(content)
        raise TraceFormatError(path, model or "content", rule, shown)
    return _checked(path, model, kind, content)


class _Rows(Record):
    """The numbers of rows of a cost file."""

    rows: tuple[int, ...] = Field(min_length=1)
    by_rows: tuple[dict[str, object], ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _aligned(self) -> "_Rows":
        if not _increasing(self.rows, least=1):
            raise ValueError("rows must be strictly increasing from >= 1")
        if len(self.by_rows) != len(self.rows):
            raise ValueError("by_rows must have one object for each entry of rows")
        return self


def _by_rows(path: Path, model: str, content: dict[str, object]) -> FiguresByRows:
    found = _checked(path, model, _Rows, content)
    forms = []
    for place, one in enumerate(found.by_rows):
        form = _forwards(path, f"{model}.{_BY_ROWS}.{place}", one)
        if isinstance(form, FiguresByRows):
            raise TraceFormatError(path, f"{model}.{_BY_ROWS}.{place}", "must be a table, a grid or a line", _ROWS)
        forms.append(form)
    contexts = {form.context for form in forms if not isinstance(form, CostTable)}
    if len(contexts) > 1:
        raise TraceFormatError(path, f"{model}.{_BY_ROWS}", "must have one context in all objects", sorted(contexts))
    return FiguresByRows(rows=found.rows, forms=tuple(forms))


def _checked(path: Path, model: str, kind: type[_Checked], content: object) -> _Checked:
    """The record of an object of the file; raises TraceFormatError."""
    try:
        # Through text again: strict JSON accepts lists for tuples, but neither texts nor true for numbers.
        return kind.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join([model, *(str(part) for part in first["loc"])]).strip(".") or "content"
    rule = first["msg"].removeprefix("Value error, ")
    raise TraceFormatError(path, field, rule[:1].lower() + rule[1:], first["input"])


def _form(content: object) -> type[StepTable | CostGrid | CostLine] | None:
    """The form of these figures, by their keys; None if none of the three."""
    if not isinstance(content, dict):
        return None
    if "context_tokens" in content:
        return CostGrid
    if content.keys() & (CostLine.model_fields.keys() - {"context"}):
        return CostLine
    return StepTable if content.keys() & CostTable.model_fields.keys() else None
