"""Panels drawn with matplotlib: a figure of several, or one by itself for a page."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path as Outline
from numpy.typing import NDArray

from .panels import AnyPanel, HeatMap, Panel, Ranking, Series, Spans

# By suffix: without date and version.
METADATA = {
    ".svg": {"Date": None, "Creator": None},
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
PNG_DPI = 192
# Okabe and Ito's palette, which colour-blind readers can distinguish; shapes and strokes differ as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STROKES = ("-", "--", "-.", ":")
HATCHES = ("", "//", "..", "xx")
WIDTH_IN, PANEL_HEIGHT_IN, LEGEND_ROW_IN = 7.3, 2.9, 0.24  # 700 pixels of 1/96 inch
TITLE_ROW_IN, HEADLINE_LETTERS = 0.17, 112
NAME_ROW_IN, CELL_ROW_IN, AROUND_IN = 0.21, 0.3, 1.0  # of a ranking, a heat map, and the space around their rows
MOST_HALF_LETTERS = 20  # of all columns of a heat map in half the width, each taking two more
LINES = ("line", "steps")  # kinds of panels whose points are joined
MOST_MARKS = 40  # of a line, more would hide it
MOST_TICKS = 7  # of a logarithmic axis at its own values; with more, powers of ten
LANE_HATCHES = ("", "/", "\\", "-", "|")  # an SVG holds every line of them
BAR_HALF = 0.36  # of a row, half of what a bar takes
SHADES = "cividis"  # from dark to light, the same to all eyes
BARS_SHARE = 0.8  # of a category's width
SHORT_NAME = 20  # letters of a name in a legend of four columns
TITLE_LETTERS = 44  # of a line of a panel's title
MOST_UPRIGHT = 48  # letters that category names may take side by side in half the width
STYLE = Path(__file__).with_name("figures.mplstyle")
PAGE_WIDTH_IN, PAGE_WIDE_IN = 4.5, 6.6  # of a panel by itself, and of one that needs room
MOST_NAME = 24  # letters of a line of a name beside a panel of a page
# Colours that a page replaces by its light or dark theme: of text, and of faint lines.
INK, FAINT = "#010203", "#d0d1d2"
PAGE_STYLE = {
    "svg.fonttype": "none",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
    "axes.facecolor": "none",
}
POINTS_PER_IN = 72


def save_figure(figure: Figure, path: Path, suffix: str) -> None:
    """Write a figure; `suffix` is the format, .svg, .png or .pdf."""
    with style.context(STYLE):
        figure.savefig(path, format=suffix[1:], dpi=PNG_DPI, metadata=METADATA[suffix])


def drawn(panels: tuple[AnyPanel, ...], title: str) -> Figure:
    """Panels side by side, two in a row where they are narrow, with one legend."""
    with style.context(STYLE):
        return _drawn(panels, title)


def _drawn(panels: tuple[AnyPanel, ...], title: str) -> Figure:
    rows = _in_rows(panels)
    columns = max(map(len, rows))
    names = list(dict.fromkeys(series.name for panel in panels if isinstance(panel, Panel) for series in panel.series))
    legend_columns = 4 if max(map(len, names), default=0) <= SHORT_NAME else 2
    # One common legend only if it applies to all panels.
    own_legends = not all(isinstance(panel, Panel) for panel in panels)
    legend_in = LEGEND_ROW_IN * -(-len(names) // legend_columns) if len(names) > 1 and not own_legends else 0.0
    headline = fill(title, HEADLINE_LETTERS)
    title_in = TITLE_ROW_IN * (headline.count("\n") + 1) if title else 0.0
    heights = [max(map(_height_in, row)) for row in rows]
    figure = Figure(figsize=(WIDTH_IN, sum(heights) + legend_in + title_in), layout="constrained")
    if title:
        figure.suptitle(headline, x=0.01, ha="left", fontsize=8.0, color="0.3")
    limits = _limits(panels)
    grid = figure.add_gridspec(len(rows), columns, height_ratios=heights)
    marks: dict[str, Any] = {}
    for row, together in enumerate(rows):
        for column, panel in enumerate(together):
            # A panel alone in its row takes the whole width.
            axes = figure.add_subplot(grid[row, :] if len(together) < columns else grid[row, column])
            own_marks = _fill(axes, panel, names, limits, wide=len(together) == 1)
            if isinstance(panel, Spans):
                axes.legend(handles=[*own_marks.values()], loc="lower right", frameon=False)
            elif isinstance(panel, Panel):
                marks |= own_marks
                if own_legends and len(panel.series) > 1:
                    axes.legend(frameon=False, ncols=2 if len(together) == 1 else 1)
    if len(names) > 1 and not own_legends:
        handles = [marks[name] for name in names]
        figure.legend(handles, names, loc="outside lower center", ncols=legend_columns, frameon=False)
    return figure


def _fill(
    axes: Axes, panel: AnyPanel, names: list[str], limits: Mapping[str, tuple[float, float]], *, wide: bool
) -> dict[str, Any]:
    """Draw a panel; returns the marks of its series or kinds by name, for a legend."""
    if isinstance(panel, Spans):
        return _span(axes, panel)
    if isinstance(panel, Panel):
        marks = _draw(axes, panel, names)
        if panel.categories:
            _name_categories(axes, panel.categories, wide=wide)
        return marks
    if isinstance(panel, Ranking):
        _rank(axes, panel)
    else:
        _shade(axes, panel, limits[panel.value_label])
    return {}


def _limits(panels: Sequence[AnyPanel]) -> dict[str, tuple[float, float]]:
    """The least and the largest figure of all heat maps of the same figures, which share one scale.

    A tenth of the largest apart at least: figures that are nearly equal have nearly the same shade.
    """
    known: dict[str, list[float]] = {}
    for panel in panels:
        if isinstance(panel, HeatMap):
            values = [value for row in panel.values for value in row if value is not None]
            known.setdefault(panel.value_label, []).extend(values)
    found = {}
    for label, values in known.items():
        low, high = min(values), max(values)
        lack = max(0.0, 0.1 * max(abs(low), abs(high)) - (high - low)) / 2
        found[label] = low - lack, high + lack
    return found


def _in_rows(panels: Sequence[AnyPanel]) -> list[list[AnyPanel]]:
    """Rows of panels: two in a row, wide ones alone."""
    rows: list[list[AnyPanel]] = []
    has_room = False
    for panel in panels:
        letters = sum(len(name) + 2 for name in panel.columns) if isinstance(panel, HeatMap) else 0
        wide = isinstance(panel, Ranking | Spans) or letters > MOST_HALF_LETTERS
        if has_room and not wide:
            rows[-1].append(panel)
            has_room = False
        else:
            rows.append([panel])
            has_room = not wide
    return rows


def _height_in(panel: AnyPanel) -> float:
    if isinstance(panel, Ranking):
        return AROUND_IN + NAME_ROW_IN * len(panel.names)
    if isinstance(panel, HeatMap):
        return max(PANEL_HEIGHT_IN * 0.75, AROUND_IN + CELL_ROW_IN * len(panel.rows))
    if isinstance(panel, Spans):
        return AROUND_IN + NAME_ROW_IN * len(panel.rows)
    return PANEL_HEIGHT_IN


Point = tuple[float, float, str]  # (points from the left, from the top, its text)


def drawn_alone(panel: AnyPanel) -> tuple[str, tuple[float, float], list[Point]]:
    """One panel for a page: its SVG, (width, height) in points, and the points of its series.

    The SVG has no title and no address outside itself; its ids are unique only within it.
    """
    with style.context([STYLE, PAGE_STYLE]):
        wide = isinstance(panel, Spans) or (isinstance(panel, HeatMap) and _in_rows([panel, panel])[0] == [panel])
        columns = len({span.kind for span in panel.spans}) if isinstance(panel, Spans) else 0
        legend_rows = int(columns > 1)
        if isinstance(panel, Panel) and len(panel.series) > 1:
            columns = 2 if max(len(series.name) for series in panel.series) <= SHORT_NAME else 1
            legend_rows = -(-len(panel.series) // columns)
        size = PAGE_WIDE_IN if wide else PAGE_WIDTH_IN, _height_in(panel) + LEGEND_ROW_IN * legend_rows
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        names = [*dict.fromkeys(series.name for series in panel.series)] if isinstance(panel, Panel) else []
        marks = _fill(axes, panel, names, _limits([panel]), wide=False)
        if isinstance(panel, Ranking):
            axes.set_yticks(range(len(panel.names)), [fill(name, MOST_NAME) for name in panel.names])
        if legend_rows:
            figure.legend([*marks.values()], [*marks], loc="outside lower center", ncols=columns, frameon=False)
        axes.set_title("")
        axes.set_xlabel(fill(axes.get_xlabel(), TITLE_LETTERS + 16))
        text = StringIO()
        figure.savefig(text, format="svg", metadata=METADATA[".svg"], transparent=True)
        height = size[1] * POINTS_PER_IN
        scale = POINTS_PER_IN / figure.dpi
        points = []
        for x, y, words in _points(panel):
            right, up = axes.transData.transform((x, y)) * scale
            points.append((float(right), height - float(up), words))
    return _for_page(text.getvalue(), shaded=isinstance(panel, HeatMap)), (size[0] * POINTS_PER_IN, height), points


_PLACES = re.compile(r' (?:d|x|y|transform)="[^"]*"')
_LONG = re.compile(r"(\.\d\d)\d+")


def _for_page(svg: str, *, shaded: bool) -> str:
    """The content of the SVG, in colours of the page, except those of a map; coordinates to a hundredth of a point."""
    inner = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    inner = re.sub(r"<metadata>.*?</metadata>", "", inner, flags=re.DOTALL)
    inner = re.sub(r"\s*\n\s*", "\n", _PLACES.sub(lambda place: _LONG.sub(r"\1", place[0]), inner))
    if not shaded:
        for place, colour in enumerate(COLOURS):
            inner = inner.replace(colour.lower(), "currentColor" if colour == "#000000" else f"var(--series-{place})")
        inner = inner.replace("#ffffff", "var(--paper)")
    return inner.replace(INK, "currentColor").replace(FAINT, "var(--faint)").replace("xlink:href", "href")


def _points(panel: AnyPanel) -> Iterator[tuple[float, float, str]]:
    """Points with a text for readers; lines of many points have a table instead."""
    if isinstance(panel, Ranking):
        for place, (name, value, bounds) in enumerate(zip(panel.names, panel.values, panel.bounds, strict=True)):
            sure = "" if bounds is None else f" ({bounds[0]:{panel.style}} to {bounds[1]:{panel.style}})"
            yield value, place, f"{name}: {value:{panel.style}}{panel.unit}{sure}"
    elif isinstance(panel, Panel):
        for place, series in enumerate(panel.series):
            shift = BARS_SHARE * ((place + 0.5) / len(panel.series) - 0.5) if panel.kind == "bar" else 0.0
            thinned = range(0, len(series.x), max(1, len(series.x) * len(panel.series) // MOST_MARKS))
            for at in thinned:
                x, y = series.x[at], series.y[at]
                where = panel.categories[int(x)] if panel.categories else f"{x:.4g} {panel.x_label}"
                sure = "" if series.ends is None else " ({:.4g} to {:.4g})".format(*series.ends[at])
                yield x + shift, y, f"{series.name}: {y:.4g}{sure} {panel.y_label} at {where}"


def _span(axes: Axes, panel: Spans) -> dict[str, Any]:
    """Rows from top to bottom; kinds differ by colour and hatch. Returns their marks for a legend."""
    axes.set_title(fill(panel.title, TITLE_LETTERS * 2))
    axes.set_xlabel(panel.x_label)
    axes.set_yticks(range(len(panel.rows)), panel.rows)
    axes.set_ylim(len(panel.rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    marks = {}
    for place, kind in enumerate(panel.kinds):
        own = [span for span in panel.spans if span.kind == kind]
        if not own:
            continue
        corners = [
            corner
            for span in own
            for corner in (
                (span.start, span.row - BAR_HALF),
                (span.start, span.row + BAR_HALF),
                (span.end, span.row + BAR_HALF),
                (span.end, span.row - BAR_HALF),
                (span.start, span.row - BAR_HALF),
            )
        ]
        # One path for all of a kind: separate patches take ten times the bytes.
        codes = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY] * len(own)
        bars = PathPatch(Outline(corners, codes), edgecolor="white", linewidth=0.3, label=kind)
        bars.set(facecolor=COLOURS[place % len(COLOURS)], hatch=LANE_HATCHES[place % len(LANE_HATCHES)])
        axes.add_patch(bars)
        marks[kind] = bars
    axes.autoscale_view(scaley=False)
    if panel.style:
        for span in panel.spans:
            text, at = f"{span.end - span.start:{panel.style}}", (span.end, span.row)
            axes.annotate(text, at, xytext=(3, 0), textcoords="offset points", va="center", fontsize=7.5)
        axes.margins(x=0.1)
    return marks


def _rank(axes: Axes, panel: Ranking) -> None:
    """Names from top to bottom, with the figure of each at the right."""
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    places = range(len(panel.names))
    axes.set_yticks(places, panel.names)
    axes.set_ylim(len(panel.names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    if panel.reference is not None:
        axes.axvline(panel.reference, color="0.35", linewidth=1.0, linestyle="--", zorder=1)
    for place, value, bounds in zip(places, panel.values, panel.bounds, strict=True):
        if bounds is not None:
            axes.plot(bounds, (place, place), color=COLOURS[0], linewidth=2.0, solid_capstyle="butt", zorder=2)
        inside = COLOURS[0] if place in panel.filled else "white"
        axes.plot([value], [place], marker="o", color=COLOURS[0], markerfacecolor=inside, markersize=5.5, zorder=3)
        text = f"{value:{panel.style}}{panel.unit}"
        axes.annotate(text, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=8.0)


def _shade(axes: Axes, panel: HeatMap, limits: tuple[float, float]) -> None:
    """Cells in shades, with their figures in them."""
    axes.set_title(fill(panel.title, TITLE_LETTERS))
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    values = np.array([[np.nan if value is None else value for value in row] for row in panel.values], dtype=float)
    image = axes.imshow(values, cmap=SHADES, aspect="auto", vmin=limits[0], vmax=limits[1])
    axes.set_xticks(range(len(panel.columns)), panel.columns)
    axes.set_yticks(range(len(panel.rows)), panel.rows)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.figure.colorbar(image, ax=axes, label=panel.value_label, pad=0.02)
    middle = sum(limits) / 2
    cell = partial(Rectangle, width=1, height=1, fill=False)
    for (row, column), value in np.ndenumerate(values):
        if np.isnan(value):
            axes.text(column, row, "-", ha="center", va="center", color="0.4")
            continue
        ink = "black" if value > middle else "white"
        if panel.least is not None and value < panel.least:
            axes.add_patch(cell((column - 0.5, row - 0.5), hatch="///", edgecolor=ink, alpha=0.35, linewidth=0))
        framed = (row, column) in panel.marked
        if framed:
            axes.add_patch(Rectangle((column - 0.46, row - 0.44), 0.92, 0.88, fill=False, edgecolor=ink, linewidth=1.6))
        weight = "bold" if framed else "normal"
        text = f"{value:{panel.style}}"
        axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=7.5, fontweight=weight)


def _draw(axes: Axes, panel: Panel, names: list[str]) -> dict[str, Any]:
    """Returns the mark of each series for the legend."""
    axes.set_title(fill(panel.title, TITLE_LETTERS))
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    if panel.log_x:
        axes.set_xscale("log")
        places = sorted({x for series in panel.series for x in series.x})
        if len(places) <= MOST_TICKS:
            axes.set_xticks(places, [f"{x:g}" for x in places])
            axes.minorticks_off()
    elif panel.kind in LINES:
        axes.locator_params(axis="x", nbins=MOST_TICKS)
    if panel.log_y:
        axes.set_yscale("log")
    if panel.diagonal:
        ends = [pick(value for series in panel.series for value in (*series.x, *series.y)) for pick in (min, max)]
        axes.plot(ends, ends, color="0.6", linewidth=0.8, zorder=0)
    marks = {}
    for place, series in enumerate(panel.series):
        look = _look(names.index(series.name))
        if panel.kind == "bar":
            marks[series.name] = _bars(axes, panel, series, place, look)
        else:
            bare = panel.kind in LINES and len(series.x) > MOST_MARKS
            stroke = look["linestyle"] if panel.kind in LINES else "none"
            marks[series.name] = axes.errorbar(
                series.x,
                series.y,
                yerr=_bar_lengths(series),
                color=look["color"],
                marker="" if bare else look["marker"],
                linestyle=stroke,
                drawstyle="steps-post" if panel.kind == "steps" else "default",
                capsize=2.0,
                label=series.name,
            )
    return marks


def _name_categories(axes: Axes, names: tuple[str, ...], *, wide: bool) -> None:
    """Upright where they have room, else slanted."""
    room = 2 * MOST_UPRIGHT if wide else MOST_UPRIGHT
    crowded = len(names) * max(map(len, names)) > room
    axes.set_xticks(range(len(names)), names)
    axes.grid(visible=False, axis="x")
    if crowded:
        axes.tick_params(axis="x", labelrotation=35.0)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")
            label.set_rotation_mode("anchor")


def _bar_lengths(series: Series) -> NDArray[np.float64] | None:
    """`[2, P]` lengths of error bars below and above the points."""
    return None if series.ends is None else np.abs(np.array(series.ends).T - series.y)


def _bars(axes: Axes, panel: Panel, series: Series, place: int, look: dict[str, str]) -> object:
    width = BARS_SHARE / len(panel.series)
    shift = (place - (len(panel.series) - 1) / 2) * width
    return axes.bar(
        [x + shift for x in series.x],
        series.y,
        width,
        yerr=_bar_lengths(series),
        color=look["color"],
        hatch=look["hatch"],
        edgecolor="white",
        linewidth=0.4,
        capsize=2.0,
    )


def _look(index: int) -> dict[str, str]:
    """Colour, marker, stroke and hatch of the series at `index` of a figure; no two of 28 are alike."""
    lap = index // len(COLOURS)
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[(index + lap) % len(MARKERS)],
        "linestyle": STROKES[index % len(STROKES)],
        "hatch": HATCHES[lap % len(HATCHES)],
    }
