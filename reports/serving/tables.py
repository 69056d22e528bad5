"""Serving runs as tables for the terminal: what was served, how long it took, what each member did."""

from collections.abc import Callable, Iterable, Sequence

from ..tables.grid import Grid, table
from .over_seeds import SeedRow

LATENCIES = {"TTFT": "ttft_s", "TPOT": "tpot_s", "ITL": "itl_s", "E2E": "e2e_s", "queue": "queue_s"}
PARTS = ("mean", "p50", "p90", "p95", "p99")

# Heading: figure, and how it is shown.
Shown = dict[str, tuple[str, Callable[[float], str]]]


def whole(number: float) -> str:
    """A count; of a mean over seeds one place more."""
    return f"{number:,.0f}" if number == int(number) else f"{number:,.1f}"


def styled(style: str) -> Callable[[float], str]:
    """A number in a style of format()."""
    return lambda number: f"{number:{style}}"


def milliseconds(seconds: float) -> str:
    """Of seconds, without their unit."""
    return f"{1e3 * seconds:,.2f}"


SERVED: Shown = {
    "requests": ("requests", whole),
    "finished": ("finished", whole),
    "rejected": ("rejected", whole),
    "unfinished": ("unfinished", whole),
    "requests/s": ("requests_per_s", styled(",.3f")),
    "tokens/s": ("output_tokens_per_s", styled(",.1f")),
}
PROMISED: Shown = {"goodput /s": ("goodput_per_s", styled(",.3f")), "SLO met": ("slo_share", styled(".1%"))}
LOAD: Shown = {
    "running": ("running_mean", styled(",.2f")),
    "waiting": ("waiting_mean", styled(",.2f")),
    "preempted": ("preemptions", whole),
    "busy": ("busy_share", styled(".1%")),
}
OF_MEMBER: Shown = {
    "busy s": ("busy_s", styled(",.3f")),
    "KV used": ("kv_use_mean", styled(".1%")),
    "KV most": ("kv_use_max", styled(".1%")),
    "hits by block": ("hit_share_blocks", styled(".1%")),
    "by token": ("hit_share_tokens", styled(".1%")),
    "accept. length": ("acceptance_length", styled(".2f")),
    "without own": ("accepted_per_verification", styled(".2f")),
    "acceptance": ("acceptance_rate", styled(".1%")),
}


def served_table(rows: Sequence[SeedRow], *, promised: bool, title: str, remarks: Iterable[str]) -> Grid:
    """One line per row: what came of its requests, and rates.

    Args:
        rows: to show.
        promised: whether service levels were asked for.
        title: above it.
        remarks: below it, a line each.
    """
    shown = {**SERVED, **(PROMISED if promised else {})}
    cells = [names_of(rows, row) | cells_of(row, shown, "") for row in rows]
    return table(cells, texts=_names(rows), title=title, remarks=remarks)


def load_table(rows: Sequence[SeedRow]) -> Grid:
    """One line per row: batch and queue over time, preemptions, busy share."""
    return table([names_of(rows, row) | cells_of(row, LOAD, "") for row in rows], texts=_names(rows), title="load")


def latency_table(rows: Sequence[SeedRow]) -> Grid:
    """For each row a line per latency, in milliseconds."""
    cells = [
        (names_of(rows, row) if not number else {})
        | {"latency": name}
        | cells_of(row, {part: (f"{figure}_{part}", milliseconds) for part in PARTS}, "")
        for row in rows
        for number, (name, figure) in enumerate(LATENCIES.items())
    ]
    ends = [(number + 1) * len(LATENCIES) - 1 for number in range(len(rows))]
    return table(cells, texts={*_names(rows), "latency"}, title="latencies, ms", lines=ends)


def member_table(rows: Sequence[SeedRow]) -> Grid:
    """For each row a line per member."""
    cells = []
    ends = []
    for row in rows:
        for number, member in enumerate(row.runs[0].meta.members):
            named = names_of(rows, row) if not number else {}
            cells.append(named | {"member": member} | cells_of(row, OF_MEMBER, f"members_{member}_"))
        ends.append(len(cells) - 1)
    return table(cells, texts={*_names(rows), "member"}, title="members", lines=ends)


def _names(rows: Sequence[SeedRow]) -> set[str]:
    return {name for row in rows for name in names_of(rows, row)}


def names_of(rows: Sequence[SeedRow], row: SeedRow) -> dict[str, str]:
    """What a row is called: its policy, and whatever else rows differ in; its folders where that is not enough."""
    named = {"policy": row.about.policy}
    for name in ("workload", "cluster"):
        if len({getattr(other.about, name) for other in rows}) > 1:
            named[name] = getattr(row.about, name)
    alike = [other for other in rows if all(getattr(other.about, name) == text for name, text in named.items())]
    return named if len(alike) == 1 else {**named, "run": ", ".join(run.folder for run in row.runs)}


def cells_of(row: SeedRow, shown: Shown, before: str) -> dict[str, str]:
    """Figures of a row by heading, with their intervals; `before` begins the flat names of all."""
    return {heading: _cell(row, before + figure, style) for heading, (figure, style) in shown.items()}


def _cell(row: SeedRow, figure: str, style: Callable[[float], str]) -> str:
    mean, interval = row.mean(figure), row.interval(figure)
    if mean is None:
        return "-"
    if interval is None or not interval.half_width:
        return style(mean)
    return f"{style(mean)} ± {style(interval.half_width)}"
