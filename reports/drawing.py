"""Panels drawn with matplotlib."""

from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .panels import Panel, Series

# By suffix: neither a date nor the version that drew it.
METADATA = {".svg": {"Date": None, "Creator": None}, ".png": {"Software": None}}
PNG_DPI = 192
# Okabe and Ito's palette, which colour-blind readers tell apart; shapes and strokes differ as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STROKES = ("-", "--", "-.", ":")
HATCHES = ("", "//", "..", "xx")
WIDTH_IN, PANEL_HEIGHT_IN, LEGEND_ROW_IN = 7.3, 2.9, 0.24  # 700 pixels of 1/96 inch
BARS_SHARE = 0.8  # of a category's width
SHORT_NAME = 20  # letters of a name in a legend of four columns
TITLE_LETTERS = 44  # of a line of a panel's title
MOST_UPRIGHT = 48  # letters that category names may take side by side in half the width
STYLE = Path(__file__).with_name("figures.mplstyle")


def save_figure(panels: tuple[Panel, ...], path: Path, suffix: str) -> None:
    """Write panels side by side, two in a row, with one legend; `suffix` says the format, .svg or .png."""
    with style.context(STYLE):
        _drawn(panels).savefig(path, format=suffix[1:], dpi=PNG_DPI, metadata=METADATA[suffix])


def _drawn(panels: tuple[Panel, ...]) -> Figure:
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    names = list(dict.fromkeys(series.name for panel in panels for series in panel.series))
    legend_columns = 4 if max(map(len, names)) <= SHORT_NAME else 2
    legend_in = LEGEND_ROW_IN * -(-len(names) // legend_columns) if len(names) > 1 else 0.0
    figure = Figure(figsize=(WIDTH_IN, rows * PANEL_HEIGHT_IN + legend_in), layout="constrained")
    grid = figure.add_gridspec(rows, columns)
    marks: dict[str, Any] = {}
    for index, panel in enumerate(panels):
        row, column = divmod(index, columns)
        # The last of an odd number takes the whole width.
        place = grid[row, :] if index == len(panels) - 1 and column == 0 else grid[row, column]
        axes = figure.add_subplot(place)
        marks |= _draw(axes, panel, names)
        if panel.categories:
            _name_categories(axes, panel.categories, wide=columns == 1 or place.colspan.stop - place.colspan.start > 1)
    if len(names) > 1:
        handles = [marks[name] for name in names]
        figure.legend(handles, names, loc="outside lower center", ncols=legend_columns, frameon=False)
    return figure


def _draw(axes: Axes, panel: Panel, names: list[str]) -> dict[str, Any]:
    """Returns the mark of each series for the legend."""
    axes.set_title(fill(panel.title, TITLE_LETTERS))
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    if panel.log_x:
        axes.set_xscale("log")
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
            stroke = look["linestyle"] if panel.kind == "line" else "none"
            marks[series.name] = axes.errorbar(
                series.x,
                series.y,
                yerr=series.error,
                color=look["color"],
                marker=look["marker"] if panel.kind == "scatter" or len(series.x) <= 40 else "",
                linestyle=stroke,
                capsize=2.0,
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


def _bars(axes: Axes, panel: Panel, series: Series, place: int, look: dict[str, str]) -> object:
    width = BARS_SHARE / len(panel.series)
    shift = (place - (len(panel.series) - 1) / 2) * width
    return axes.bar(
        [x + shift for x in series.x],
        series.y,
        width,
        yerr=series.error,
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
        "linestyle": STROKES[lap % len(STROKES)],
        "hatch": HATCHES[lap % len(HATCHES)],
    }
