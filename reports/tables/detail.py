"""`compare --detail`: what the first table of a comparison leaves out, by policy and by member."""

from ..side_by_side import SideBySide
from ..summary import LevelSummary, Summary
from .comparison import shown_interval
from .grid import Grid, table


def detail_tables(comparison: SideBySide) -> tuple[Grid, Grid]:
    """Further figures of every policy, and what each of its members did; the fastest policy first.

    Columns are defined in docs/glossary.md.
    """
    rows = comparison.ranked()
    by_policy = table([_policy_cells(comparison, row) for row in rows], title="further figures")
    return by_policy, _by_member(rows)


def _policy_cells(comparison: SideBySide, row: Summary) -> dict[str, str]:
    chance = shown_interval(comparison.output_tokens_per_s_interval(row), ",.1f")
    return {
        "policy": row.policy,
        "target calls /token": f"{row.target_calls_per_token:.3f}",
        "accepted share": f"{row.draft_acceptance_rate:.1%}",
        "wasted tokens": f"{row.wasted_tokens:,}",
        "TTFT ms": f"{1e3 * row.ttft_s.mean:,.1f}",
        "TPOT ms": f"{1e3 * row.tpot_s.mean:,.2f}",
        "tokens/s": f"{comparison.output_tokens_per_s(row):,.1f}{chance}",
    }


def _by_member(rows: tuple[Summary, ...]) -> Grid:
    """A line for each policy, and one for each of its members that did something."""
    cells: list[dict[str, str]] = []
    ends: list[int] = []
    for row in rows:
        active = [level for level in row.levels if level.forwards or level.drafted or level.judged]
        cells += [{"policy, member": row.policy}, *map(_member_cells, active)]
        ends.append(len(cells) - 1)
    return table(cells, title="what each member did", lines=ends)


def _member_cells(level: LevelSummary) -> dict[str, str]:
    return {
        "policy, member": f"  {level.name}",
        "share of seconds": f"{level.share_of_seconds:.0%}",
        "drafted": f"{level.drafted:,}" if level.drafted else "",
        "accepted / judged": f"{level.accepted:,}/{level.judged:,}" if level.judged else "",
        "refused": f"{level.refused:,}" if level.judged else "",
        "own tokens": f"{level.own:,}" if level.own else "",
    }
