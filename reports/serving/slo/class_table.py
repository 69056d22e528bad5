"""Classes of service levels as a table: what came of their requests, and how long it took."""

from collections.abc import Mapping, Sequence

from ...tables.grid import Grid, table
from ..over_seeds import SeedRow
from ..tables import PROMISED, SERVED, Shown, cells_of, milliseconds

COUNTED: Shown = {name: SERVED[name] for name in ("requests", "finished")}
TAKEN: Shown = {
    "TTFT ms": ("ttft_s_mean", milliseconds),
    "TTFT p99": ("ttft_s_p99", milliseconds),
    "TPOT ms": ("tpot_s_mean", milliseconds),
    "TPOT p99": ("tpot_s_p99", milliseconds),
    "E2E ms": ("e2e_s_mean", milliseconds),
    "E2E p99": ("e2e_s_p99", milliseconds),
}


def class_table(rows: Sequence[tuple[Mapping[str, str], SeedRow]], *, promised: bool) -> Grid | None:
    """For each row a line per class; None where no request has a class.

    Args:
        rows: to show, each with what it is called, by heading.
        promised: whether service levels were asked for.
    """
    shown = {**COUNTED, **(PROMISED if promised else {}), **TAKEN}
    cells: list[dict[str, str]] = []
    ends: list[int] = []
    for named, row in rows:
        classes = dict.fromkeys(one.name for run in row.runs for one in run.metrics.classes)
        for number, name in enumerate(classes):
            before = {} if number else dict(named)
            cells.append(before | {"class": name or "none"} | cells_of(row, shown, f"classes_{name}_"))
        ends.append(len(cells) - 1)
    texts = {heading for named, _ in rows for heading in named} | {"class"}
    return table(cells, texts=texts, title="classes of requests", lines=ends) if cells else None
