"""Runs, comparisons and sweeps as one HTML page: `paceline report`."""

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ArgumentError, counted
from ..base.files import write_whole
from ..reports.page import ReportPage, flat_settings, html_page, page_from, page_of
from ..reports.panels import (
    AnyPanel,
    HeatMap,
    Panel,
    Section,
    Series,
    acceptance_by_level,
    distributions,
    kept_by_position,
    ranking,
    seconds_by_member,
)
from ..reports.quality import is_lossy
from ..reports.run_table import run_table
from ..reports.serving import Promises, latency_seconds
from ..reports.serving_tables import ServingReport, milliseconds, seed_rows
from ..reports.summary import Summary, summarise_run
from ..reports.sweeps import NOTES, SEED
from ..reports.tables import Grid, shown, table
from ..reports.timeline import TimelineRun, counter_panels, swim_lanes
from ..runs.log import RunLog
from ..runs.observed import ObservedRun
from ..runs.serving import UNKNOWN, ServingLog
from ..traces.errors import TraceFormatError
from ..traces.folder import check_outside
from .grids import SweepCell
from .observe import shown_run
from .serving import measured_run
from .sweeps import GRID, best_cells, cells_of
from .timeline import events_of, names_of, read_run

LATENCIES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "Whole request", "queue": "Queue"}
MOST_CELLS = 2_000  # rows of a table that a browser sorts at once
MOST_IN_MAP, MOST_TOLD = 16, 8  # rows and columns of a heat map; settings named in the answer
POLICY, SPEED_UP = "policy", "speed_up"  # a keyword of cells, and their first figure
# Figures of a cell that a page shows: the first existing one decides which cell is best.
CELL_FIGURES = (
    *(SPEED_UP, "goodput_per_s", "output_tokens_per_s", "acceptance_length", "exact_share"),
    *("ttft_s_p50", "ttft_s_p99", "tpot_s_p50", "tpot_s_p99", "e2e_s_p50", "e2e_s_p99", "slo_share"),
)
HIT_SPANS = 40  # spans of a run for which prefix hits are counted
PS_PER_S = 10**12


def report(inputs: str | Path | Sequence[str | Path], out: str | Path) -> Path:
    """Write one HTML page of runs, comparisons and sweeps; it loads nothing from elsewhere.

    Args:
        inputs: folders that `simulate --out`, `run --out`, `compare --log`, `observe --out` or `sweep` wrote, and files
            that `compare`, `simulate` or `run` wrote with `--json`. Served runs are shown side by side, and so are runs
            of one policy each.
        out: the file, which ends in .html; an existing one is replaced.

    Returns:
        `out`.

    Raises:
        ArgumentError: no input, a repeated one, or a file of another kind.
        TraceFormatError: a folder that is no valid run.
        ValueError: a file that holds no page, one of another version, or an incomplete input; one line.
        ModuleNotFoundError: matplotlib is not installed.
    """
    path = Path(out)
    if path.suffix != ".html":
        raise ArgumentError(f"`out` must end in .html, got {str(path)!r}")
    check_outside(path)
    places = [Path(inputs)] if isinstance(inputs, str | Path) else [Path(one) for one in inputs]
    if not places:
        raise ArgumentError("`inputs` must name at least one, got none")
    names = dict(zip(places, names_of(places, "inputs"), strict=True))
    pages: list[ReportPage] = []
    served: dict[str, ServingLog] = {}
    replayed: dict[str, RunLog] = {}
    for place, name in names.items():
        if place.is_file():
            pages.append(page_from(_json_of(place), str(place)))
        elif (place / GRID).is_file():
            pages.append(_page_of_sweep(place))
        else:
            run = read_run(place)
            if isinstance(run, ObservedRun):
                pages.append(_page_of_observed(name, run))
            elif isinstance(run, ServingLog):
                served[name] = run
            else:
                replayed[name] = run
    pages += [_page_of_served(served)] if served else []
    pages += [_page_of_replayed(replayed)] if replayed else []
    write_whole(path, html_page(pages))
    return path


def _json_of(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise TraceFormatError(path, "content", "must be JSON, or a folder be named", str(error)) from None
    if not isinstance(found, dict):
        raise TraceFormatError(path, "content", "must be an object, as --json writes it", type(found).__name__)
    return found


def _page_of_served(logs: Mapping[str, ServingLog]) -> ReportPage:
    """Served runs side by side: figures, distributions of latencies, states over time, the slowest requests."""
    for name, log in logs.items():
        if log.meta.stopped:
            raise ValueError(f"{name}: must be a whole run, got a partial one ({log.meta.stopped})")
    measured = [measured_run(log, name, Promises(), alone=True) for name, log in logs.items()]
    found = ServingReport(rows=seed_rows(measured), promised=Promises())
    page = page_of(found, "paceline metrics " + shlex.join(logs))
    policies = [log.meta.about.policy for log in logs.values()]
    if len(set(policies)) == len(policies):  # tables use policies as names; folders distinguish equal policies
        logs = dict(zip(policies, logs.values(), strict=True))
    seconds = {
        title: {name: latency_seconds(log, key, np.ones_like(log.finished)) for name, log in logs.items()}
        for key, title in LATENCIES.items()
    }
    return _with_events(page, {name: events_of(log) for name, log in logs.items()}, seconds, _hits(logs))


def _hits(logs: Mapping[str, ServingLog]) -> list[AnyPanel]:
    """The share of prompt tokens that the target's prefix cache held, by time; empty without hits."""
    series = []
    for name, log in logs.items():
        requests = log.requests
        begun = requests["scheduled_at_ps"] != UNKNOWN
        cached, asked = requests["cached_tokens"][begun, -1], requests["prompt_tokens"][begun]
        if not cached.any():
            continue
        at_s: NDArray[np.float64] = requests["scheduled_at_ps"][begun] / PS_PER_S
        edges = np.linspace(0.0, float(at_s.max()), HIT_SPANS + 1)
        of_span = np.clip(np.searchsorted(edges, at_s, side="left") - 1, 0, HIT_SPANS - 1)
        sums = [np.bincount(of_span, weights=own, minlength=HIT_SPANS) for own in (cached, asked)]
        known = np.flatnonzero(sums[1])
        middles = (edges[known] + edges[known + 1]) / 2
        shares = 100 * sums[0][known] / sums[1][known]
        series.append(Series(name=name, x=tuple(middles.tolist()), y=tuple(shares.tolist())))
    title = "Prompt tokens that the target's prefix cache held"
    return [Panel(title=title, x_label="s, when scheduled", y_label="%", series=tuple(series))] if series else []


def _page_of_replayed(logs: Mapping[str, RunLog]) -> ReportPage:
    """Runs of one policy each, of a replay or of real models."""
    for name, log in logs.items():
        if log.meta.get("interrupted"):
            raise ValueError(f"{name}: must be a whole run, got a partial one (interrupted)")
        if "" not in log.requests["failed"].tolist():
            raise ValueError(f"{name}: must hold an answered request, got none")
    rows = {name: _labelled(log) for name, log in logs.items()}
    summaries = list(rows.values())
    speeds = {f"{name}: {row.policy}": (row.output_tokens_per_s, None) for name, row in rows.items()}
    if len({row.policy for row in summaries}) < len(rows):  # pictures and tables use policies as names
        summaries = [replace(row, policy=name) for name, row in zip(speeds, summaries, strict=True)]
    tables = tuple(map(run_table, summaries))
    fastest = sorted(summaries, key=lambda row: -row.output_tokens_per_s)
    page = ReportPage(
        title="; ".join(f"{name}: {_of_what(log)}" for name, log in logs.items()),
        answer=tuple(_in_words(name, row) for name, row in rows.items()),
        sections=(
            Section(
                topic="policies",
                tables=(_side_by_side(rows),),
                panels=(ranking("Output tokens/s", speeds, style=",.1f"),) if len(rows) > 1 else (),
            ),
            Section(
                topic="acceptance",
                tables=tables,
                panels=(*kept_by_position(fastest), *acceptance_by_level(fastest), seconds_by_member(fastest)),
            ),
        ),
        configuration=dict(
            sorted(setting for name, log in logs.items() for setting in flat_settings(log.meta, f"{name}: "))
        ),
    )
    seconds = {
        LATENCIES[key]: {name: _seconds_of(log, until) for name, log in logs.items()}
        for key, until in (("ttft", "first_token_at_s"), ("e2e", "finished_at_s"))
    }
    return _with_events(page, {name: events_of(log) for name, log in logs.items()}, seconds)


def _labelled(log: RunLog) -> Summary:
    """The figures of a run; a lossy policy is named so, as its speed stands beside those of others."""
    row = summarise_run(log)
    return replace(row, policy=f"{row.policy} (lossy)") if is_lossy(log) else row


def _seconds_of(log: RunLog, until: str) -> NDArray[np.float64]:
    seconds: NDArray[np.float64] = (log.requests[until] - log.requests["arrived_at_s"])[log.requests["failed"] == ""]
    return seconds[np.isfinite(seconds)]


def _of_what(log: RunLog) -> str:
    meta = log.meta
    measured = meta.get("world") == "runtime"
    source = f"pool {meta['pool']}, measured" if measured else f"recording {meta.get('trace')}, replayed"
    return f"{source}, {meta['policy']}, {counted(len(log.requests['request_id']), 'request')}, batch {meta['batch']}"


def _in_words(name: str, row: Summary) -> str:
    return (
        f"{name}: {row.policy} wrote {row.output_tokens_per_s:,.1f} tokens/s; acceptance length "
        f"{row.acceptance_length:.2f}; TTFT {1e3 * row.ttft_s.p50:,.1f} ms, p99 {1e3 * row.ttft_s.p99:,.1f}; "
        f"TPOT {1e3 * row.tpot_s.p50:,.2f} ms, p99 {1e3 * row.tpot_s.p99:,.2f}"
    )


def _side_by_side(rows: Mapping[str, Summary]) -> Grid:
    return table(
        [
            {
                "run": name,
                "policy": row.policy,
                "tokens/s": f"{row.output_tokens_per_s:,.1f}",
                "accept. length": f"{row.acceptance_length:.2f}",
                "accepted share": shown(row.draft_acceptance_rate, ".1%", unknown="-"),
                "target calls /token": f"{row.target_calls_per_token:.3f}",
                "TTFT ms": milliseconds(row.ttft_s.p50),
                "TTFT p99": milliseconds(row.ttft_s.p99),
                "TPOT ms": milliseconds(row.tpot_s.p50),
                "TPOT p99": milliseconds(row.tpot_s.p99),
                "requests": f"{row.requests:,}",
                "failed": f"{row.failed:,}",
            }
            for name, row in rows.items()
        ],
        texts=["policy"],
        remarks=["TTFT and TPOT: p50"],
    )


def _page_of_observed(name: str, run: ObservedRun) -> ReportPage:
    """A server as its client saw it."""
    if run.meta.stopped:
        raise ValueError(f"{name}: must be a whole run, got a partial one ({run.meta.stopped})")
    events = events_of(run)
    requests = events.requests
    seconds = {}
    for key, until in (("ttft", "first"), ("e2e", "ended")):
        known = (requests[until] != UNKNOWN) & (requests["outcome"] == "")
        # From sending on, as in its figures: a client that was late adds nothing.
        seconds[LATENCIES[key]] = {name: (requests[until] - requests["scheduled"])[known] / 1e9}
    return _with_events(page_of(shown_run(run)), {name: events}, seconds)


def _page_of_sweep(folder: Path) -> ReportPage:
    """The best policy in each setting of the rest, and every cell: what was varied and its figures."""
    cells = list(cells_of(folder))
    missing = sum(found is None for _, found in cells)
    if missing:
        raise ValueError(
            f"{folder}: must be a whole sweep, got {missing:,} of {counted(len(cells), 'cell')} not played"
        )
    if len(cells) > MOST_CELLS:
        raise ValueError(f"{folder}: must have at most {MOST_CELLS:,} cells, got {len(cells):,}; see `paceline best`")
    asked = dict.fromkeys(name for cell, _ in cells for name in cell.keywords)
    varied = [name for name in asked if len({str(cell.keywords.get(name)) for cell, _ in cells}) > 1]
    every = [found.figures for _, found in cells if found is not None and found.figures is not None]
    figures = [name for name in CELL_FIGURES if any(one.get(name) is not None for one in every)]
    failed = sum(found is not None and found.failed != "" for _, found in cells)
    shown_columns = [*varied, *figures, *(["error"] if failed else [])]
    rows = [
        {**cell.keywords, **(found.figures or {}), "error": found.failed} for cell, found in cells if found is not None
    ]
    texts = [name for name in shown_columns if not all(isinstance(row.get(name), int | float | None) for row in rows)]
    by = [name for name in varied if name not in (POLICY, SEED)]
    best = _bests(folder, figures, [cell for cell, _ in cells], by) if figures else _Bests()
    noted = dict.fromkeys(note for row in rows for note in str(row.get(NOTES) or "").splitlines())
    listed = [{name: _cell(row.get(name)) for name in shown_columns} for row in rows]
    return ReportPage(
        title=f"sweep {folder}, {counted(len(rows), 'cell')}, {failed:,} failed",
        answer=(*(best.lines or [f"{failed:,} of {counted(len(rows), 'cell')} failed"]),),
        sections=(
            Section(
                topic="policies",
                panels=best.panels,
                tables=(table(listed, texts=texts, remarks=[*noted, *best.remarks]),),
            ),
        ),
        command=f"paceline best {shlex.quote(str(folder))} --objective {figures[0]}" if figures else "",
        configuration=dict(flat_settings({name: rows[0].get(name) for name in asked if name not in varied})),
    )


class _Bests(NamedTuple):
    lines: tuple[str, ...] = ()
    panels: tuple[AnyPanel, ...] = ()
    remarks: tuple[str, ...] = ()  # as of `paceline best`


def _bests(folder: Path, figures: Sequence[str], cells: Sequence[SweepCell], by: Sequence[str]) -> _Bests:
    """The best policy by the first figure in each setting of `by`, in words and as a heat map; empty without one."""
    figure = figures[0]
    found = best_cells(folder, objective=[figure], by=by)
    if not found.found:
        return _Bests()

    def place(setting: Mapping[str, Any]) -> str:
        return ", ".join(f"{name} {setting.get(name)}" for name in by)

    def policy_of(setting: Mapping[str, Any]) -> str:
        return str(setting.get(POLICY, "the replicas' own"))  # served cells need none

    values = {
        (policy_of(one.setting), place(one.setting)): one.mean(figure) or 0.0 for one in (*found.found, *found.others)
    }
    best = {place(one.setting): policy_of(one.setting) for one in reversed(found.found)}
    policies = list(dict.fromkeys(policy_of(cell.keywords) for cell in cells))
    places = [where for where in dict.fromkeys(place(cell.keywords) for cell in cells) if where in best]
    least = 1.0 if figure == SPEED_UP else None
    told = {where: _told(best[where], values[best[where], where], least) for where in places}
    lines = tuple(f"{where}: {words}" for where, words in told.items())
    times = Counter(_named(best[where], values[best[where], where], least) for where in places).most_common()
    head = ", ".join(f"{words} in {count}" for words, count in times) + f" of {counted(len(places), 'setting')}"
    heat = HeatMap(
        title=f"{figure} by policy; framed: the best of a column",
        x_label="",
        y_label="policy",
        columns=tuple(where.replace(", ", "\n") for where in places),
        rows=tuple(policies),
        values=tuple(tuple(values.get((policy, where)) for where in places) for policy in policies),
        value_label=figure,
        style=".3g",
        marked=frozenset((policies.index(best[where]), column) for column, where in enumerate(places)),
        least=least,
    )
    drawn = len(values) > 1 and max(len(policies), len(places)) <= MOST_IN_MAP
    answer = (f"best by {figure}: {head}", *lines[:MOST_TOLD]) if by else (f"best by {figure}: {told['']}",)
    return _Bests(lines=answer, panels=(heat,) if drawn else (), remarks=found.remarks)


def _named(policy: str, value: float, least: float | None) -> str:
    """The best of a setting: the target alone if all policies are below `least`."""
    return policy if least is None or value >= least else "the target alone"


def _told(policy: str, value: float, least: float | None) -> str:
    """The best of a setting, and the figure of the best policy."""
    named = _named(policy, value, least)
    if least is None:
        return f"{named}, {_cell(value)}"
    if named == policy:
        return f"{named}, {value:.2f}x"
    return f"{named}, as {policy} has {min(value, 0.999):.3f}x"  # a loss is never 1.000x


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if type(value) is int else str(value)


def _with_events(
    page: ReportPage,
    events: Mapping[str, TimelineRun],
    seconds: Mapping[str, Mapping[str, NDArray[np.float64]]],
    hits: Sequence[AnyPanel] = (),
) -> ReportPage:
    """The page with the distribution of each latency, by title and run, and with what happened in each run."""
    panels: dict[str, list[AnyPanel]] = {
        "latency": [panel for title, own in seconds.items() for panel in distributions(title, own)],
        "over_time": [*counter_panels(events), *hits],
        "timeline": [panel for name, run in events.items() for panel in swim_lanes(name, run)],
    }
    more = tuple(Section(topic=topic, panels=tuple(found)) for topic, found in panels.items() if found)
    return replace(page, sections=(*page.sections, *more))
