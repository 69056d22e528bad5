"""Panels as one figure, SVG or PNG; the one door to matplotlib. The same panels give the same bytes."""

from pathlib import Path
from textwrap import fill
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..cli.output import check_file_path
from ..installing import install_hint
from ..whole_files import whole_file
from .finding import Panel, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
STYLE = {
    "svg.hashsalt": "paceline",
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.0,
    "hatch.linewidth": 0.6,
}


def check_figure_path(path: Path | None) -> None:
    """Refuse, before a long run, what `write_figure` would refuse behind it.

    Raises:
        ValueError: neither .svg nor .png, no folder to stand in, or a folder itself.
        ModuleNotFoundError: the extra is not installed; the message says how.
    """
    if path is None:
        return
    if path.suffix not in METADATA:
        raise ValueError(f"--figure must end in {' or '.join(METADATA)}, got {str(path)!r}")
    check_file_path("--figure", path)
    _matplotlib()


def write_figure(panels: tuple[Panel, ...], path: Path) -> None:
    """Draw panels side by side, two in a row, with one legend; the file appears whole or not at all.

    Args:
        panels: 1 to 4.
        path: ends in .svg or .png.

    Raises:
        ValueError: as `check_figure_path`.
        ModuleNotFoundError: the extra is not installed.
    """
    check_figure_path(path)
    matplotlib = _matplotlib()
    with matplotlib.rc_context(STYLE):
        figure = _drawn(panels)
        with whole_file(path) as part:
            figure.savefig(part, format=path.suffix[1:], dpi=PNG_DPI, metadata=METADATA[path.suffix])


def _matplotlib() -> ModuleType:
    try:
        import matplotlib.figure  # noqa: PLC0415 - an optional dependency, at its one door
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"figures need {error.name}: {install_hint('figures')}") from error
    return matplotlib


def _drawn(panels: tuple[Panel, ...]) -> "Figure":
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    names = list(dict.fromkeys(series.name for panel in panels for series in panel.series))
    legend_columns = 4 if max(map(len, names)) <= SHORT_NAME else 2
    legend_in = LEGEND_ROW_IN * -(-len(names) // legend_columns) if len(names) > 1 else 0.0
    figure: Figure = _matplotlib().figure.Figure(
        figsize=(WIDTH_IN, rows * PANEL_HEIGHT_IN + legend_in), layout="constrained"
    )
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


def _draw(axes: "Axes", panel: Panel, names: list[str]) -> dict[str, Any]:
    """Draw one panel; returns the mark of each series for the legend."""
    axes.set_title(fill(panel.title, TITLE_LETTERS))
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
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
                marker=look["marker"] if len(series.x) <= 40 else "",
                linestyle=stroke,
                capsize=2.0,
            )
    return marks


def _name_categories(axes: "Axes", names: tuple[str, ...], *, wide: bool) -> None:
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


def _bars(axes: "Axes", panel: Panel, series: Series, place: int, look: dict[str, str]) -> object:
    """The bars of one series, beside those of the others."""
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
