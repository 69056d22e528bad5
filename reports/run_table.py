"""One run as a table for the terminal."""

from rich.table import Table

from .quality_table import REJECTION_REMARK, quality_line
from .summary import Summary


def run_table(summary: Summary) -> Table:
    """One row per member; totals in the title."""
    title = (
        f"{summary.policy}: {summary.requests} requests, {summary.output_tokens:,} tokens, "
        f"{summary.output_tokens_per_s:,.1f} tokens/s, acceptance length {summary.acceptance_length:.2f}, "
        f"TTFT {summary.ttft_s.mean * 1e3:.1f} ms, TPOT {summary.tpot_s.mean * 1e3:.2f} ms, "
        f"policy {summary.policy_s:.3f} s ({summary.policy_share:.1%}){_troubles(summary)}"
    )
    table = Table(title=title, title_justify="left", caption=_quality(summary), caption_justify="left")
    table.header_style = "bold"
    headings = ("member", "seconds", "share", "forwards", "drafted", "judged", "accepted", "acceptance", "refused")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "member" else "right")
    for level in summary.levels:
        table.add_row(
            level.name,
            f"{level.duration_s:.3f}",
            f"{level.share_of_seconds:.1%}",
            *(f"{count:,}" for count in (level.forwards, level.drafted, level.judged, level.accepted)),
            f"{level.accepted / level.judged:.1%}" if level.judged else "",
            f"{level.refused:,}",
        )
    return table


def _quality(summary: Summary) -> str | None:
    """What a lossy policy refused, and its texts beside the target's; None for any other."""
    quality = summary.quality
    if quality is None or not quality.lossy:
        return None
    lines = [f"rejection rate {summary.rejection_rate:.1%}", quality_line(quality)]
    return "\n".join(lines if quality.num_divergences is not None else [*lines, REJECTION_REMARK])


def _troubles(summary: Summary) -> str:
    """What went wrong, as a part of the title; empty if nothing did."""
    counts = {"failed": summary.failed, "preempted": summary.preempted, "thrashed": summary.thrashed}
    return "".join(f", {count:,} {what}" for what, count in counts.items() if count)
