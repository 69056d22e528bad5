"""Simulated latencies under load beside measured ones, as tables."""

from collections.abc import Sequence

from ..tables.grid import Grid, shown, table
from .validation import PARTS, THROUGHPUT, LoadCell

HEADINGS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
ERROR = "+.1%"


def load_cells_table(cells: Sequence[LoadCell], *, title: str) -> Grid:
    """Throughput, and whether both worlds did the same: a row for each rate and policy."""
    return table([_cell_row(cell) for cell in cells], texts=("policy", "work"), title=title)


def latency_table(cells: Sequence[LoadCell], latency: str) -> Grid:
    """One latency in milliseconds, and the errors of its mean and percentiles: a row for each rate and policy."""
    heading = HEADINGS[latency]
    rows = [
        _key(cell)
        | {
            f"simulated {heading} ms": _ms(cell.simulated.get(f"{latency}_mean")),
            f"measured {heading} ms": _ms(cell.measured.get(f"{latency}_mean")),
            **{f"error of {part}": shown(cell.error(f"{latency}_{part}"), ERROR) for part in PARTS},
        }
        for cell in cells
    ]
    return table(rows, texts=("policy",))


def _cell_row(cell: LoadCell) -> dict[str, str]:
    return _key(cell) | {
        "finished": f"{cell.finished[0]:,}, {cell.finished[1]:,}",
        "preempted": f"{cell.preemptions[0]:,}, {cell.preemptions[1]:,}",
        "simulated tokens/s": shown(cell.simulated.get(THROUGHPUT), ",.1f"),
        "measured tokens/s": shown(cell.measured.get(THROUGHPUT), ",.1f"),
        "error": shown(cell.error(THROUGHPUT), ERROR),
        "spread": f"{cell.spread:.1%}",
        "work": "equal" if cell.equal else "differs",
        "other answers": f"{cell.other_answers:,}",
    }


def _key(cell: LoadCell) -> dict[str, str]:
    return {"rate": "own" if cell.rate is None else f"{cell.rate:g}", "policy": cell.policy}


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:,.2f}"
