"""What a workload holds, as tables for the terminal."""

from collections.abc import Iterator

from ...counted import counted
from ...traces.workloads.summary import Distribution, WorkloadSummary
from ..tables.grid import Grid, facts, table


def workload_tables(summary: WorkloadSummary) -> tuple[Grid, Grid]:
    """The workload at a glance, and the lengths of its requests."""
    about = summary.about
    return facts(f"{about.name} ({about.format})", dict(_facts(summary))), _lengths(summary)


def _facts(summary: WorkloadSummary) -> Iterator[tuple[str, str]]:
    yield "requests", f"{summary.num_requests:,}"
    if summary.session_requests is not None:
        sessions = f"{summary.num_sessions:,} of sessions, {summary.session_requests:.1f} requests each on average"
        yield "arrivals", f"{summary.num_arrivals:,}; {sessions}"
    if summary.rate is None or summary.gap_cv is None:
        yield "span", "all arrive at one time"
    else:
        yield "span", f"{summary.span_s:,.3f} s"
        yield "mean rate", f"{summary.rate:.6g} arrivals/s"
        yield "burstiness", f"{summary.gap_cv:.3f} (variation of the gaps; Poisson: 1)"
    yield "tokens", f"{summary.total_prompt_tokens:,} prompt, {summary.total_output_tokens:,} output"
    share = summary.shared_share
    if share is not None:
        blocks = f"{summary.shared_blocks:,} of {counted(summary.asked_blocks, 'block')}"
        unit = counted(summary.about.unit_tokens, "token")
        yield "shared prefixes", f"{share:.1%} of prompt tokens; {blocks} of {unit}"


def _lengths(summary: WorkloadSummary) -> Grid:
    rows = {
        "prompt tokens": (summary.prompt_tokens, 0),
        "output tokens": (summary.output_tokens, 0),
        "waits within sessions, s": (summary.wait_s, 2),
    }
    shown = [_row(name, found, digits) for name, (found, digits) in rows.items() if found is not None]
    return table(shown, title="by request", remarks=summary.about.notes)


def _row(name: str, found: Distribution, digits: int) -> dict[str, str]:
    figures = {"p50": found.p50, "p90": found.p90, "p99": found.p99, "max": found.max}
    row = {"": name, "mean": f"{found.mean:,.{max(1, digits)}f}"}
    return row | {heading: f"{figure:,.{digits}f}" for heading, figure in figures.items()}
