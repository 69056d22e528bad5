"""A comparison as a table for the terminal."""

from math import floor
from typing import Any

from rich.table import Table
from rich.text import Text

from .comparison import Comparison
from .interval import Interval
from .quality_table import quality_cells, quality_headings, quality_remarks
from .summary import LevelSummary, Summary

KINDS = {"synthetic": "SYNTHETIC trace", "imported": "IMPORTED trace"}


def comparison_table(comparison: Comparison) -> Table:
    """One row per policy; the best speed-up is bold. Columns are defined in docs/glossary.md."""
    table = Table(title=_title(comparison), title_justify="left", pad_edge=False, header_style="bold")
    table.caption = "\n".join(_remarks(comparison)) or None
    table.caption_justify = "left"
    table.add_column("policy", overflow="fold")
    headings = ("speed-up", "tokens/s", "accept. length", "target calls /token", "wasted tokens", "exact share")
    further = quality_headings(comparison.rows)
    for heading in (*headings, *further):
        # With so many columns, none may be wider than what stands in it.
        table.add_column(heading.replace(" ", "\n") if further else heading, justify="right")
    table.add_column("member: share of seconds, drafted, accepted/judged (refused)", overflow="fold")
    best = max(comparison.output_tokens_per_s(row) for row in comparison.rows)
    for row in comparison.rows:
        tokens_per_s = comparison.output_tokens_per_s(row)
        table.add_row(
            row.policy,
            Text(_speed_up(comparison, row), style="bold" if tokens_per_s == best else ""),
            f"{tokens_per_s:,.1f}{_half_width(comparison.output_tokens_per_s_interval(row), ',.1f')}",
            f"{row.acceptance_length:.2f}",
            f"{row.target_calls_per_token:.3f}",
            f"{row.wasted_tokens:,}",
            _share(row.exact_share),
            *quality_cells(row, comparison.rows),
            _levels(row),
        )
    return table


def _title(comparison: Comparison) -> str:
    meta = comparison.meta
    kind = KINDS.get(meta["kind"], "trace")
    origin = f"from {meta['source']}" if meta["kind"] == "imported" else meta["sampling"]
    first = comparison.rows[0] if comparison.baseline is None else comparison.baseline
    deciding = f", {meta['decide_s']:g} s a decision" if meta["decide_s"] else ""
    return (
        f"{kind} {meta['trace']} ({origin}), {first.requests:,} requests, {first.output_tokens:,} tokens"
        f"{_what_if(meta)}; cost {meta['cost']}, batch {meta['batch']}, seed {meta['seed']}{deciding}"
    )


def _what_if(meta: dict[str, Any]) -> str:
    shifts = meta.get("what_if", {}).get("acceptance", {})
    changes = ", ".join(f"acceptance of {name} {delta:+g}" for name, delta in shifts.items())
    return f"; WHAT IF: {changes}" if changes else ""


def _remarks(comparison: Comparison) -> list[str]:
    """What a reader of the figures has to know, a line each."""
    remarks = [*comparison.meta.get("cost_notes", ()), *comparison.meta.get("left_out", ())]
    counts = {len(comparison.runs(row)) for row in comparison.rows} - {1}
    if counts:
        seed = comparison.meta["seed"]
        remarks.append(
            f"±: 95% interval of the mean over seeds {seed} to {seed + max(counts) - 1}, where chance has a part; "
            "other figures are those of the first seed"
        )
    return remarks + quality_remarks(comparison.rows)


def _speed_up(comparison: Comparison, row: Summary) -> str:
    speed_up = comparison.speed_up(row)
    if speed_up is None:
        return "unknown"
    return f"{speed_up:.2f}x{_half_width(comparison.speed_up_interval(row), '.2f')}"


def _half_width(interval: Interval | None, style: str) -> str:
    return "" if interval is None else f" ± {interval.half_width:{style}}"


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
