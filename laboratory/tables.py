"""The tables of a finding: for the terminal, as Markdown, as JSON."""

from dataclasses import asdict
from typing import Any

from ..reports.tables.grid import Column, Grid
from .finding import Cell, Finding, Rows
from .finding import Column as RowsColumn


def terminal_table(rows: Rows) -> Grid:
    """Numbers to the right, text to the left."""
    return Grid(
        title=rows.title,
        columns=tuple(
            Column(heading=_head(column), number=_is_number(rows, index)) for index, column in enumerate(rows.columns)
        ),
        rows=tuple(tuple(_texts(rows, row)) for row in rows.rows),
    )


def markdown_table(rows: Rows) -> str:
    """Title, head and rows as lines of Markdown."""
    heads = [_escaped(_head(column)) for column in rows.columns]
    rules = ["---:" if _is_number(rows, index) else "---" for index in range(len(heads))]
    body = [[_escaped(text) for text in _texts(rows, row)] for row in rows.rows]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, rules, *body)]
    return "\n".join([f"**{_escaped(rows.title)}**", "", *lines])


def finding_to_json(finding: Finding) -> dict[str, Any]:
    """Every field; rows as lists of values, not of texts."""
    return asdict(finding)


def _head(column: RowsColumn) -> str:
    return f"{column.name} ({column.unit})" if column.unit else column.name


def _is_number(rows: Rows, index: int) -> bool:
    return not any(isinstance(row[index], str) for row in rows.rows)


def _texts(rows: Rows, row: tuple[Cell, ...]) -> list[str]:
    return [_text(column, cell) for column, cell in zip(rows.columns, row, strict=True)]


def _text(column: RowsColumn, cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    return f"{cell:,}" if column.digits is None else f"{cell:,.{column.digits}f}"


def _escaped(text: str) -> str:
    """Without what would end a cell or start markup."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")
