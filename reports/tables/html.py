"""A table as HTML, for notebooks."""

from html import escape

from .grid import Grid


def html_table(grid: Grid) -> str:
    """A table with its title and its remarks; needs no style sheet."""
    head = "".join(f"<th>{escape(column.heading)}</th>" for column in grid.columns)
    lines = ["<table>", f"<caption>{escape(grid.title)}</caption>", f"<thead><tr>{head}</tr></thead>", "<tbody>"]
    for index, row in enumerate(grid.rows):
        cells = "".join(_cell(grid, index, place, text) for place, text in enumerate(row))
        lines.append(f"<tr>{cells}</tr>")
    return "\n".join([*lines, "</tbody>", "</table>", *(f"<p>{escape(remark)}</p>" for remark in grid.remarks)])


def _cell(grid: Grid, index: int, place: int, text: str) -> str:
    shown = escape(text).replace("\n", "<br>")
    if {(index, None), (index, place)} & grid.bold:
        shown = f"<b>{shown}</b>"
    side = "right" if grid.columns[place].number else "left"
    return f'<td style="text-align: {side}">{shown}</td>'
