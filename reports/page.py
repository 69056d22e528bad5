"""Results as figures and as one HTML page that loads nothing from elsewhere.

`Pictured` is a result with figures: its sections are the tables and panels of both. A `ReportPage` is the content of a
page as data, so that `--json` can keep it; `html_page` writes it. page.html holds style and script.
"""

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from importlib.metadata import version as version_of
from itertools import count
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ..base.errors import as_options, said
from ..base.toml import first_fault
from .figure import check_figure, drawing, figure_of, write_drawn
from .panels import AnyPanel, HeatMap, Panel, Ranking, Section
from .tables import Grid, Printed, html_lines, html_table, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# By section of a page, in order: the heading, and what produces one that is missing.
TOPICS: Mapping[str, tuple[str, str]] = {
    "figures": ("Figures", ""),
    "policies": ("Policies", "compare"),
    "load": ("Under load", "compare --workload --rate"),
    "acceptance": ("Acceptance by member and position", "compare, run --out"),
    "waterfall": ("Where the gain goes", "compare --why"),
    "latency": ("Latency", "simulate --out, run --out"),
    "over_time": ("Requests, memory and hits over time", "simulate --out"),
    "quality": ("Quality against speed", "compare with a lossy policy"),
    "tags": ("By tag", "compare --by-tag"),
    "regret": ("Regret", "compare --regret"),
    "device": ("On another device", "compare --on"),
    "timeline": ("Timeline", "simulate --out, run --out"),
}
PAGE = "page"  # its key in JSON
FORMAT = 1  # version of a page's JSON
TEMPLATE = Path(__file__).with_name("page.html")
MOST_ROWS = 60  # of a panel's table
RADIUS = 6.0  # points around a mark in which it is selected


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPage:
    """The content of a page for one result."""

    title: str  # what it is of
    answer: tuple[str, ...]  # in words, a paragraph each
    sections: tuple[Section, ...]
    configuration: dict[str, str] = field(default_factory=dict)  # options by name
    command: str = ""  # that reproduces it; empty for a call from Python
    paste: str = ""  # a setting to paste, shown below the answer; empty without one
    partial: str = ""  # why the result is incomplete; empty if it is complete
    paceline: str = field(default_factory=lambda: version_of("paceline"))
    version: Literal[1] = 1

    __pydantic_config__ = ConfigDict(extra="forbid")

    def to_json(self) -> dict[str, Any]:
        """All of it; `page_from` reads it."""
        found: dict[str, Any] = TypeAdapter(ReportPage).dump_python(self, mode="json")
        return found


def page_from(data: Mapping[str, Any], name: str) -> ReportPage:
    """The page in the JSON of a command, of the file `name`.

    Raises ValueError, one line: no page in it, one of another version, or of an incomplete run.
    """
    held = data.get(PAGE)
    if not isinstance(held, Mapping):
        raise ValueError(
            f"{name}: `{PAGE}` must be there, as compare, simulate, recommend and others write it with --json"
        )
    if held.get("version") != FORMAT:
        raise ValueError(f"{name}: `{PAGE}.version` must be {FORMAT}, got {held.get('version')!r}")
    try:
        page = TypeAdapter(ReportPage).validate_python(dict(held))
    except ValidationError as error:
        field, rule, value = first_fault(error)
        got = "nothing" if value is None else said(value, repr)
        raise ValueError(f"{name}: `{PAGE}.{field}` {rule}, got {got}") from None
    for place, section in enumerate(page.sections):
        if section.topic not in TOPICS:
            known = ", ".join(TOPICS)
            raise ValueError(f"{name}: `{PAGE}.sections[{place}].topic` must be one of {known}, got {section.topic!r}")
    if page.partial:
        raise ValueError(f"{name}: must be of a whole run, got a partial one ({page.partial})")
    return page


class Pictured(Printed):
    """A result that also has a figure and a page."""

    __slots__ = ()

    @abstractmethod
    def sections(self) -> Sequence[Section]:
        """Its tables and panels by topic."""

    @abstractmethod
    def headline(self) -> str:
        """The title line."""

    def panels(self) -> Sequence[AnyPanel]:
        """The panels of the figure."""
        return [panel for section in self.sections() for panel in section.panels]

    def answer(self) -> Sequence[str]:
        """The first paragraphs of a page."""
        return self.lines()

    def configuration(self) -> Mapping[str, Any]:
        """The options by name."""
        return {}

    def paste(self) -> str:
        """A setting to paste; empty without one."""
        return ""

    def partial(self) -> str:
        """Why the result is incomplete; empty if it is complete."""
        return ""

    def plot(self, figure: str | Path | None = None) -> "Figure":
        """The figure of matplotlib, which notebooks show; with `figure` it is written as well (.svg, .png, .pdf).

        Raises:
            ArgumentError, ModuleNotFoundError, OSError: as `write_figure`.
        """
        path = None if figure is None else Path(figure)
        check_figure(path)
        found = figure_of(self.panels(), self.headline())
        if path is not None:
            write_drawn(found, path)
        return found

    def to_html(self) -> str:
        """One page that needs nothing else: the answer, tables and pictures; raises ModuleNotFoundError as `plot`."""
        return html_page([page_of(self)])


def page_of(found: Printed, command: str = "") -> ReportPage:
    """The page of a result; with `command`, which reproduces it, its remarks name options."""
    if isinstance(found, Pictured):
        sections, title, partial = tuple(found.sections()), found.headline(), found.partial()
        answer, asked, paste = tuple(found.answer()), found.configuration(), found.paste()
    else:
        tables = tuple(found.tables())
        sections, title = (Section(topic="figures", tables=tables),), tables[0].title if tables else ""
        answer, asked, partial, paste = tuple(found.lines()), {}, "", ""
    if command:
        sections = tuple(
            replace(
                one, tables=tuple(replace(grid, remarks=tuple(map(as_options, grid.remarks))) for grid in one.tables)
            )
            for one in sections
        )
    return ReportPage(
        title=title,
        answer=answer,
        sections=tuple(one for one in sections if one.tables or one.panels),
        configuration=dict(sorted(flat_settings(asked))),
        command=command,
        paste=paste,
        partial=partial,
    )


def flat_settings(asked: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Settings by name, those of parts as `part.name`, without empty ones."""
    for name, value in asked.items():
        if isinstance(value, Mapping):
            yield from flat_settings(value, f"{before}{name}.")
        elif value not in (None, "", [], ()):
            yield before + name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def html_page(pages: Sequence[ReportPage]) -> str:
    """One HTML document of one page or more, one after the other.

    Raises ModuleNotFoundError, which says what to install, if there are panels and they cannot be drawn.
    """
    several = len(pages) > 1
    template = Template(TEMPLATE.read_text(encoding="utf-8"))
    numbers = count(1)
    bodies = [_article(page, place, numbers, several=several) for place, page in enumerate(pages)]
    there = {section.topic for page in pages for section in page.sections}
    missing = [
        f"{heading.lower()} ({source})" for topic, (heading, source) in TOPICS.items() if topic not in there and source
    ]
    left_out = f"Not on this page, for want of data: {'; '.join(missing)}." if missing else ""
    return template.substitute(
        title=escape(pages[0].title if not several else f"{len(pages)} results"),
        bodies="\n".join(bodies),
        left_out=escape(left_out),
        made=escape(f"paceline {pages[0].paceline}"),
    )


def _article(page: ReportPage, place: int, numbers: Iterator[int], *, several: bool) -> str:
    # Readers look for the answer first.
    first, *others = [*page.answer] if len(page.answer) > 1 else "".join(page.answer).split("; ")
    answer = f"<p><b>{html_lines(first or 'The figures are in the tables below.')}</b></p>"
    answer += "".join(f"<p>{html_lines(line)}</p>" for line in others)
    by_topic = {topic: [one for one in page.sections if one.topic == topic] for topic in TOPICS}
    shown = [(topic, found) for topic, found in by_topic.items() if found]
    links = "".join(f'<li><a href="#{topic}-{place}">{escape(TOPICS[topic][0])}</a></li>' for topic, _ in shown)
    paste = f"<h3>To paste</h3><pre tabindex='0'>{escape(page.paste)}</pre>" if page.paste else ""
    parts = [
        f'<article aria-labelledby="answer-{place}">',
        f'<h2 id="answer-{place}">Answer</h2><div class="answer">{answer}</div>{paste}',
        f'<p class="basis"><b>Of what:</b> {html_lines(page.title)}</p>',
        f'<nav aria-label="Sections"><ul>{links}<li><a href="#again-{place}">To repeat it</a></li></ul></nav>',
    ]
    for topic, found in shown:
        parts.append(f'<section id="{topic}-{place}"><h2>{escape(TOPICS[topic][0])}</h2>')
        panels = [panel for one in found for panel in one.panels]
        if panels:
            parts.append(f'<div class="pictures">{"".join(_picture(panel, next(numbers)) for panel in panels)}</div>')
        parts += [_table(grid, page.title) for one in found for grid in one.tables]
        parts.append("</section>")
    return "\n".join([*parts, _again(page, place), "</article>"])


def _again(page: ReportPage, place: int) -> str:
    command = f"<pre tabindex='0'>{escape(page.command)}</pre>" if page.command else ""
    rows = [{"name": name, "value": value} for name, value in page.configuration.items()]
    asked = _table(table(rows, texts=["value"], title="Configuration"), "") if rows else ""
    return f'<section id="again-{place}"><h2>To repeat it</h2>{command}{asked}</section>'


def _table(grid: Grid, page_title: str) -> str:
    """A table, without its title if that is the page's."""
    return html_table(grid, on_page=True, captioned=not page_title.startswith(grid.title))


def _picture(panel: AnyPanel, number: int) -> str:
    """A panel with selectable points, and its figures as a table."""
    inner, (width, height), points = drawing().drawn_alone(panel)
    # Ids of several SVGs are in one document.
    inner = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>f{number}-", inner)
    marks = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" tabindex="{-1 if place else 0}" role="img" '
        f'aria-label="{escape(words)}"/>'
        for place, (x, y, words) in enumerate(points)
    )
    grid = figures_of(panel)
    wide = " wide" if width > 400 else ""
    return (
        f'<figure class="picture{wide}"><figcaption>{escape(panel.title)}</figcaption>'
        f'<div class="drawing" {"tabindex=0 " if wide else ""}role="group" aria-label="{escape(panel.title)}">'
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width * 4 / 3:.0f}" aria-hidden="false">{inner}'
        f'<g class="points">{marks}</g></svg></div>'
        f"<details><summary>As a table</summary>{_table(grid, '')}</details></figure>"
    )


def figures_of(panel: AnyPanel) -> Grid:
    """A panel's figures as a table; of long lines only some points, as a remark says."""
    remarks: list[str] = []
    if isinstance(panel, HeatMap):
        rows = [
            {panel.y_label or "row": name}
            | {
                column: "-" if value is None else f"{value:{panel.style}}"
                for column, value in zip(panel.columns, values, strict=True)
            }
            for name, values in zip(panel.rows, panel.values, strict=True)
        ]
        remarks = [f"columns: {panel.x_label}; cells: {panel.value_label}"]
    elif isinstance(panel, Ranking):
        rows = [
            {
                "name": name,
                "value": f"{value:{panel.style}}{panel.unit}",
                "from": "" if bounds is None else f"{bounds[0]:{panel.style}}",
                "to": "" if bounds is None else f"{bounds[1]:{panel.style}}",
            }
            for name, value, bounds in zip(panel.names, panel.values, panel.bounds, strict=True)
        ]
        remarks = [panel.x_label] if panel.x_label else []
    elif isinstance(panel, Panel):
        every = max(1, sum(len(series.x) for series in panel.series) // MOST_ROWS)
        x_label, y_label = panel.x_label or "at", panel.y_label or "value"
        rows = [
            {
                "series": series.name,
                x_label: panel.categories[int(series.x[at])] if panel.categories else f"{series.x[at]:.5g}",
                y_label: f"{series.y[at]:.5g}"
                + (" ({:.5g} to {:.5g})".format(*series.ends[at]) if series.ends else ""),
            }
            for series in panel.series
            for at in range(0, len(series.x), every)
        ]
        remarks = [f"one point in {every}"] if every > 1 else []
    else:
        every = max(1, len(panel.spans) // MOST_ROWS)
        rows = [
            {"row": panel.rows[span.row], "what": span.kind, "from": f"{span.start:.5g}", "to": f"{span.end:.5g}"}
            for span in panel.spans[::every]
        ]
        remarks = [panel.x_label, *([f"one bar in {every}"] if every > 1 else [])]
    return table(rows, texts=["what"], remarks=remarks)
