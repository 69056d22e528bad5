"""One run as a table for the terminal."""

from rich.table import Table

from .summary import Summary


def run_table(summary: Summary) -> Table:
    """One row per member; totals in the title."""
    title = (
        f"{summary.policy}: {summary.requests} requests, {summary.output_tokens:,} tokens, "
        f"{summary.output_tokens_per_s:,.1f} tokens/s, acceptance length {summary.acceptance_length:.2f}, "
        f"TTFT {summary.ttft_s.mean * 1e3:.1f} ms, TPOT {summary.tpot_s.mean * 1e3:.2f} ms"
    )
    table = Table(title=title, title_justify="left", header_style="bold")
    for heading in ("member", "seconds", "share", "forwards", "drafted", "judged", "accepted", "refused"):
        table.add_column(heading, justify="left" if heading == "member" else "right")
    for level in summary.levels:
        counts = (level.forwards, level.drafted, level.judged, level.accepted, level.refused)
        shares = (f"{level.duration_s:.3f}", f"{level.share_of_seconds:.1%}")
        table.add_row(level.name, *shares, *(f"{count:,}" for count in counts))
    return table
