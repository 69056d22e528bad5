"""A comparison as a table for the terminal."""

from math import floor

from rich.table import Table
from rich.text import Text

from .comparison import Comparison
from .summary import LevelSummary, Summary


def comparison_table(comparison: Comparison) -> Table:
    """One row per policy; the best speed-up is bold. Columns are defined in docs/glossary.md."""
    table = Table(title=_title(comparison), title_justify="left", pad_edge=False, header_style="bold")
    table.add_column("policy", overflow="fold")
    headings = ("speed-up", "tokens/s", "accept. length", "target calls /token", "wasted tokens", "exact share")
    for heading in headings:
        table.add_column(heading, justify="right")
    table.add_column("member: share of seconds, drafted, accepted/judged (refused)", overflow="fold")
    best = max(comparison.speed_up(row) for row in comparison.rows)
    for row in comparison.rows:
        speed_up = comparison.speed_up(row)
        table.add_row(
            row.policy,
            Text(f"{speed_up:.2f}x", style="bold" if speed_up == best else ""),
            f"{row.output_tokens_per_s:,.1f}",
            f"{row.acceptance_length:.2f}",
            f"{row.target_calls_per_token:.3f}",
            f"{row.wasted_tokens:,}",
            _share(row.exact_share),
            _levels(row),
        )
    return table


def _title(comparison: Comparison) -> str:
    meta = comparison.meta
    synthetic = "SYNTHETIC trace" if meta["kind"] == "synthetic" else "trace"
    deciding = f", {meta['decide_s']:g} s a decision" if meta["decide_s"] else ""
    return (
        f"{synthetic} {meta['trace']} ({meta['sampling']}), {comparison.baseline.requests} requests, "
        f"{comparison.baseline.output_tokens:,} tokens; cost {meta['cost']}, batch {meta['batch']}, "
        f"seed {meta['seed']}{deciding}"
    )


def _share(share: float) -> str:
    """Rounded down: 1 is shown only where every decision was replayed."""
    return f"{floor(share * 1e4) / 1e4:.4f}" if share < 1 else "1"


def _levels(row: Summary) -> str:
    return "\n".join(_level(level) for level in row.levels if level.forwards or level.drafted or level.judged)


def _level(level: LevelSummary) -> str:
    parts = [f"{level.share_of_seconds:.0%}"]
    if level.drafted:
        parts.append(f"{level.drafted:,} drafted")
    if level.judged:
        parts.append(f"{level.accepted:,}/{level.judged:,} ({level.refused:,})")
    return f"{level.name}: {', '.join(parts)}"
