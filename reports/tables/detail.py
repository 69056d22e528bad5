"""`compare --detail`: what the first table of a comparison leaves out, by policy and by member."""

from ..comparison import Comparison
from ..summary import LevelSummary, Summary
from .grid import Column, Grid

_MEMBER_HEADINGS = ("share of seconds", "drafted", "accepted / judged", "refused", "own tokens")
_POLICY_HEADINGS = (
    "target calls /token",
    "accepted share",
    "wasted tokens",
    "TTFT ms",
    "TPOT ms",
    "tokens/s",
)


def detail_tables(comparison: Comparison) -> tuple[Grid, Grid]:
    """Further figures of every policy, and what each of its members did; the fastest policy first.

    Columns are defined in docs/glossary.md.
    """
    rows = comparison.ranked()
    return _by_policy(comparison, rows), _by_member(rows)


def _by_policy(comparison: Comparison, rows: tuple[Summary, ...]) -> Grid:
    return Grid(
        title="further figures",
        columns=_columns("policy", _POLICY_HEADINGS),
        rows=tuple(_policy_cells(comparison, row) for row in rows),
    )


def _policy_cells(comparison: Comparison, row: Summary) -> tuple[str, ...]:
    interval = comparison.output_tokens_per_s_interval(row)
    chance = "" if interval is None else f" ± {interval.half_width:,.1f}"
    return (
        row.policy,
        f"{row.target_calls_per_token:.3f}",
        f"{row.draft_acceptance_rate:.1%}",
        f"{row.wasted_tokens:,}",
        f"{1e3 * row.ttft_s.mean:,.1f}",
        f"{1e3 * row.tpot_s.mean:,.2f}",
        f"{comparison.output_tokens_per_s(row):,.1f}{chance}",
    )


def _by_member(rows: tuple[Summary, ...]) -> Grid:
    """A line for each policy, and one for each of its members that did something."""
    cells: list[tuple[str, ...]] = []
    ends: list[int] = []
    for row in rows:
        cells.append((row.policy, *("" for _ in _MEMBER_HEADINGS)))
        cells += [_member_cells(level) for level in row.levels if level.forwards or level.drafted or level.judged]
        ends.append(len(cells) - 1)
    return Grid(
        title="what each member did",
        columns=_columns("policy, member", _MEMBER_HEADINGS),
        rows=tuple(cells),
        lines=frozenset(ends),
    )


def _member_cells(level: LevelSummary) -> tuple[str, ...]:
    judged = (f"{level.accepted:,}/{level.judged:,}", f"{level.refused:,}") if level.judged else ("", "")
    return (
        f"  {level.name}",
        f"{level.share_of_seconds:.0%}",
        f"{level.drafted:,}" if level.drafted else "",
        *judged,
        f"{level.own:,}" if level.own else "",
    )


def _columns(first: str, headings: tuple[str, ...]) -> tuple[Column, ...]:
    return (Column(heading=first, number=False), *(Column(heading=heading) for heading in headings))
