"""Seconds by figures per model, and the JSON file that holds them: tables, grids, lines or terms by the round."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import ValidationError

from ...strict_json import checked_json, kind_of_json
from ...traces.errors import TraceFormatError
from ...traces.meta import CostTable, Record
from .base import LOOKUP_S, CostRangeError, DraftTerms
from .context_line import ContextLine, flat_line
from .figures import CostLine, DrafterFigures, RoundFigures
from .grid import CostGrid, GridProfile
from .profile import Profile, extrapolation_notes

Forwards = CostTable | CostGrid | CostLine
Figures = Forwards | DrafterFigures
_Checked = TypeVar("_Checked", bound=Record)


class _Formula(Protocol):
    """Seconds of one model's forwards by (new tokens, tokens held), both over all rows."""

    def seconds(self, new_tokens: int, context_tokens: int) -> float: ...

    def context_line(self, new_tokens: int, context_tokens: int) -> ContextLine: ...


class FileCost:
    """Seconds of forwards from figures per model.

    Args:
        name: of the file.
        figures: by model.
        extrapolate: answer beyond what was measured; lines have no end, so they need it never.
        lookup_s: seconds of one prompt lookup, >= 0.

    Raises:
        CostRangeError: by `forward_s`, beyond the measured range or for a model without figures.
    """

    def __init__(
        self, name: str, figures: Mapping[str, Figures], *, extrapolate: bool = False, lookup_s: float = LOOKUP_S
    ) -> None:
        self.name = name
        self.lookup_s = lookup_s
        self._extrapolate = extrapolate
        self._models = tuple(figures)
        self._terms: dict[str, DraftTerms] = {}
        self._tables: dict[str, dict[int, float]] = {}  # asked so far: few, over and over
        self._flat: dict[str, Profile] = {}
        self._formulas: dict[str, _Formula] = {}
        self._profiles: dict[str, Profile | GridProfile] = {}
        for model, known in figures.items():
            if isinstance(known, DrafterFigures):
                self._terms[model] = known.terms
                if known.forwards is not None:
                    self._add(model, known.forwards)
            else:
                self._add(model, known)

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward; see `CostModel`."""
        table = self._tables.get(model)
        if table is not None:
            try:
                return table[new_tokens]
            except KeyError:
                seconds = table[new_tokens] = self._flat[model].seconds(new_tokens)
                return seconds
        formula = self._formulas.get(model)
        if formula is not None:
            return formula.seconds(new_tokens, context_tokens)
        if model in self._terms:
            raise CostRangeError(
                f"cost {self.name}: {model} has per_round_s and per_token_s only, which are of drafting, and was "
                "asked to judge; give it new_tokens and seconds, or intercept_s"
            )
        raise CostRangeError(f"cost {self.name}: no table for model {model!r}; it has {', '.join(self._models)}")

    def shared_forward_s(
        self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int, read_tokens: int
    ) -> float:
        """See `SharingCost`: what a token held costs is taken for what reading it costs."""
        return self.forward_s(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=read_tokens)

    def context_line(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> ContextLine:
        """See `LinedCost`."""
        formula = self._formulas.get(model)
        if formula is not None:
            return formula.context_line(new_tokens, context_tokens)
        asked = {"num_rows": num_rows, "new_tokens": new_tokens, "context_tokens": context_tokens}
        return flat_line(self.forward_s(model, **asked))

    def unlined(self) -> str:
        """See `LinedCost`."""
        return ""

    def draft_terms(self, model: str) -> DraftTerms | None:
        """See `CostModel`."""
        return self._terms.get(model)

    def notes(self) -> tuple[str, ...]:
        """See `CostModel`."""
        notes = self._beyond_notes()
        if self._tables:
            notes += (f"measured by new tokens only, a longer context costs no more: {', '.join(self._tables)}",)
        whole = [model for model, terms in self._terms.items() if terms.per_token_s is not None]
        if whole:
            notes += (f"drafts cost by the round, whatever they read and for how many rows: {', '.join(whole)}",)
        return notes

    def _beyond_notes(self) -> tuple[str, ...]:
        return extrapolation_notes([model for model, profile in self._profiles.items() if profile.extrapolated])

    def _add(self, model: str, known: Forwards) -> None:
        if isinstance(known, CostLine):
            self._formulas[model] = known
            return
        whose = f"cost {self.name}: {model}"
        if isinstance(known, CostGrid):
            grid = GridProfile(known, whose=whose, extrapolate=self._extrapolate)
            self._profiles[model] = self._formulas[model] = grid
        else:
            profile = Profile(known.new_tokens, known.seconds, whose=whose, extrapolate=self._extrapolate)
            self._profiles[model] = self._flat[model] = profile
            self._tables[model] = {}


class TableCost(FileCost):
    """Seconds by new tokens per forward, measured; interpolated linearly. Arguments and errors as of `FileCost`.

    The table holds seconds by the *sum* of new tokens over the batch, measured at contexts of about 128 tokens: what a
    longer context adds is not in it.
    """

    def __init__(self, name: str, tables: Mapping[str, CostTable], *, extrapolate: bool = False) -> None:
        super().__init__(name, tables, extrapolate=extrapolate)

    def notes(self) -> tuple[str, ...]:
        """See `CostModel`."""
        return (*self._beyond_notes(), "measured by new tokens only: a longer context costs no more")


def read_cost_file(path: Path, models: tuple[str, ...]) -> dict[str, Figures]:
    """The figures of a file `{"MODEL": {...}, ...}`; docs/costs.md has the forms.

    Args:
        path: of the file.
        models: that it must have figures of.

    Raises:
        ValueError: a file that cannot be read or breaks the format, or a model without figures; one line.
    """
    content = checked_json(path, TraceFormatError)
    if not isinstance(content, dict):
        raise TraceFormatError(path, "content", "must be an object of models", kind_of_json(content))
    figures = {model: _figures(path, model, known) for model, known in content.items()}
    missing = [name for name in models if name not in figures]
    if missing:
        raise ValueError(f"{path}: no table for model {missing[0]!r} of the recording")
    if isinstance(figures[models[-1]], DrafterFigures):
        rule = "must be without per_round_s and per_token_s, which are of drafters"
        raise TraceFormatError(path, models[-1], rule, f"keys {', '.join(content[models[-1]])}")
    return figures


def _figures(path: Path, model: str, content: object) -> Figures:
    if not isinstance(content, dict) or not content.keys() & RoundFigures.model_fields.keys():
        return _forwards(path, model, content)
    rest = {key: value for key, value in content.items() if key != "per_round_s"}
    if not rest or "per_token_s" in rest:
        found = _checked(path, model, RoundFigures, content)
        return DrafterFigures(terms=DraftTerms(found.per_round_s, found.per_token_s), forwards=None)
    once = _checked(path, model, RoundFigures, {"per_round_s": content["per_round_s"]})
    return DrafterFigures(terms=DraftTerms(once.per_round_s, None), forwards=_forwards(path, model, rest))


def _forwards(path: Path, model: str, content: object) -> Forwards:
    kind = _form(content)
    if kind is None:
        rule = "must be an object with new_tokens and seconds, with intercept_s, or with per_round_s and per_token_s"
        shown = f"keys {', '.join(content)}" if isinstance(content, dict) and content else kind_of_json(content)
        raise TraceFormatError(path, model or "content", rule, shown)
    return _checked(path, model, kind, content)


def _checked(path: Path, model: str, kind: type[_Checked], content: object) -> _Checked:
    """The record of an object of the file; raises TraceFormatError."""
    try:
        # From text once more: strict, it takes lists for tuples, but neither texts nor true for numbers.
        return kind.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join([model, *(str(part) for part in first["loc"])]).strip(".") or "content"
    rule = first["msg"].removeprefix("Value error, ")
    raise TraceFormatError(path, field, rule[:1].lower() + rule[1:], first["input"])


def _form(content: object) -> type[CostTable | CostGrid | CostLine] | None:
    """Which of the three forms these figures have, by their keys; None if none of them."""
    if not isinstance(content, dict):
        return None
    if "context_tokens" in content:
        return CostGrid
    if content.keys() & CostLine.model_fields.keys():
        return CostLine
    return CostTable if content.keys() & CostTable.model_fields.keys() else None
