"""Settings of experiments, findings (tables, panels and an answer), and the page of all: docs/experiments.md.

Letters: R rows, C columns.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from paceline.base.files import shipped
from paceline.reports.panels import Panel
from paceline.reports.tables import Column, Grid
from paceline.traces.contexts.meta import TrieMeta

Value = str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head of a column: name and format of its values."""

    name: str
    unit: str = ""  # shown after the name; empty for none
    digits: int | None = None  # after the point; None: text or whole numbers

    @property
    def words(self) -> str:
        """Name and unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def text(self, value: Value) -> str:
        """A value as shown in tables."""
        if value is None or isinstance(value, str):
            return value or ""
        return f"{value:,}" if self.digits is None else f"{value:,.{self.digits}f}"


class Cell(NamedTuple):
    """One value under the head of its column."""

    head: Head
    value: Value


def table_cell(name: str, value: Value, unit: str = "", digits: int | None = None) -> Cell:
    """A value and its head, in one line of a row; the arguments are those of `Head`."""
    return Cell(Head(name=name, unit=unit, digits=digits), value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A table; raises ValueError for rows of other lengths, other types, and floats in columns without digits."""

    title: str  # one line
    columns: tuple[Head, ...]  # `[C]`
    rows: tuple[tuple[Value, ...], ...]  # `[R][C]`; None is an empty cell

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r}: a row must have {len(self.columns)} cells, got {row}")
            for head, value in zip(self.columns, row, strict=True):
                where = f"table {self.title!r}: column {head.name!r}"
                if not isinstance(value, Value):
                    raise ValueError(f"{where} must hold text and numbers, got {value!r}")
                if isinstance(value, float) and head.digits is None:
                    raise ValueError(f"{where} must have digits, got {value}")

    def numbers(self, name: str) -> tuple[float, ...]:
        """The values `[R]` of the column of this name; raises ValueError unless one column has it and holds numbers."""
        places = [place for place, head in enumerate(self.columns) if head.name == name]
        values = [row[places[0]] for row in self.rows] if len(places) == 1 else [None]
        numbers = tuple(float(value) for value in values if isinstance(value, int | float))
        if len(numbers) < len(values):
            raise ValueError(f"table {self.title!r}: one column {name!r} must hold numbers, got {values}")
        return numbers

    def grid(self, *remarks: str, lines: Iterable[int] = ()) -> Grid:
        """The table as shown, numbers right-aligned, text left-aligned; remarks below, `lines` after these rows.

        A column after the first that is empty in all rows is left out.
        """
        values = {place: [row[place] for row in self.rows] for place in range(len(self.columns))}
        filled = [
            place for place, column in values.items() if not place or any(value not in (None, "") for value in column)
        ]
        numbers = [not any(isinstance(value, str) for value in values[place]) for place in filled]
        return Grid(
            title=self.title,
            columns=tuple(
                Column(heading=self.columns[place].words, number=number, whole=not place)
                for place, number in zip(filled, numbers, strict=True)
            ),
            rows=tuple(tuple(self.columns[place].text(row[place]) for place in filled) for row in self.rows),
            remarks=remarks,
            lines=frozenset(lines),
        )


def table(title: str, rows: Iterable[Sequence[Cell]]) -> Rows:
    """The table of rows whose cells name their columns; raises ValueError without rows, or for different columns."""
    each = [tuple(row) for row in rows]
    if not each:
        raise ValueError(f"table {title!r}: rows must be one or more, got none")
    heads = tuple(one.head for one in each[0])
    for row in each:
        if (got := tuple(one.head for one in row)) != heads:
            wanted, found = ([head.words for head in side] for side in (heads, got))
            raise ValueError(f"table {title!r}: columns must be the same in all rows, {wanted}, got {found}")
    return Rows(title=title, columns=heads, rows=tuple(tuple(one.value for one in row) for row in each))


def markdown_table(shown: Grid) -> str:
    """Title, if there is one, head and rows as lines of Markdown."""
    heads = [column.heading for column in shown.columns]
    rules = ["---:" if column.number else "---" for column in shown.columns]
    head, *body = ([_escaped(text) for text in texts] for texts in (heads, *shown.rows))
    lines = [f"| {' | '.join(cells)} |" for cells in (head, rules, *body)]
    return "\n".join([*([f"**{_escaped(shown.title)}**", ""] if shown.title else []), *lines])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")


MOST_PANELS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSetting:
    """The setting of an experiment; raises ValueError for threads or a limit below 1."""

    # folder of the pool, by default the shipped one; experiments with real models read its `prompts.jsonl`
    pool: Path = field(default_factory=lambda: shipped("pools", "pico"))
    # folder of the recording, by default the shipped one
    trace: Path = field(default_factory=lambda: shipped("recordings", "pico.trace"))
    seed: int = 0  # of all random draws
    threads: int = 1  # CPU threads of torch, >= 1
    limit: int | None = None  # prompts and recorded requests at most, >= 1; None: the experiment's default

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(f"threads must be >= 1, got {self.threads}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be >= 1, got {self.limit}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What an experiment returns; raises ValueError for no table, or for no or too many panels."""

    question: str  # one sentence
    tables: tuple[Rows, ...]  # at least one
    panels: tuple[Panel, ...]  # of one figure, 1 to 4
    answer: str  # one to four sentences, made from the measurements

    def __post_init__(self) -> None:
        if not self.tables:
            raise ValueError("tables must hold at least one table, got ()")
        if not 1 <= len(self.panels) <= MOST_PANELS:
            raise ValueError(f"panels must be 1 to {MOST_PANELS}, got {len(self.panels)}")

    def to_json(self) -> dict[str, Any]:
        """Every field; rows as lists of values, not of texts."""
        return asdict(self)


INTRO = """\
# Experiments

Questions about chains of models, each answered by `paceline experiment NAME` on the shipped pool and recording;
`make experiments` writes this page. Replay takes the seconds that were measured with the recording. What ran on the
models did so on another day on a shared machine, so the two may differ by a third; of one machine at one time see
[validation](validation.md).
"""


def experiments_page(findings: Mapping[str, Finding | Exception], meta: TrieMeta, figures: str) -> str:
    """The whole page; an experiment that failed has its error, and `figures` is the folder relative to the page."""
    parts = [INTRO, _machine(meta)]
    parts += [
        f"## {name}\n\nFailed when this page was made: {type(found).__name__}: {' '.join(str(found).split())}\n"
        if isinstance(found, Exception)
        else _section(name, found, figures)
        for name, found in findings.items()
    ]
    return "\n".join(parts)


def link_between(page_path: Path, folder: Path) -> str:
    """`folder` as a link on the page."""
    return Path(os.path.relpath(folder.absolute(), page_path.absolute().parent)).as_posix()


def _machine(meta: TrieMeta) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(meta.software.items()))
    machine = meta.hardware or "an unnamed machine"
    return f"Recording `{meta.name}` ({meta.kind}, {meta.sampling.words}) of {machine}; {versions}.\n"


def _section(name: str, finding: Finding, figures: str) -> str:
    tables = [f"{markdown_table(rows.grid())}\n" for rows in finding.tables]
    parts = [
        f"## {name}\n",
        f"{finding.question}\n",
        f"```sh\n.venv/bin/paceline experiment {name}\n```\n",
        f"{finding.answer}\n",
        f"![{name}]({figures}/{name}.svg)\n",
        *tables,
    ]
    return "\n".join(parts)
