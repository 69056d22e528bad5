"""The table of `paceline run`: one run, member by member."""

from collections.abc import Sequence

from ..base.errors import counted
from .comparison import REJECTION_REMARK, quality_line, tree_remarks
from .summary import LevelSummary, Summary
from .tables import Grid, table


def run_table(summary: Summary, remarks: Sequence[str] = (), *, start: str = "") -> Grid:
    """One row per member; totals in the title.

    `remarks` are what else its reader has to know, a line each; `start` is as `start_words` gives it.
    """
    return table(
        map(_level_cells, summary.levels),
        title=(
            f"{summary.policy}: {counted(summary.requests, 'request')}, {counted(summary.output_tokens, 'token')}, "
            f"{summary.output_tokens_per_s:,.1f} tokens/s, acceptance length {summary.acceptance_length:.2f}, "
            f"TTFT {summary.ttft_s.mean * 1e3:.1f} ms, TPOT {summary.tpot_s.mean * 1e3:.2f} ms, "
            f"policy {summary.policy_s:.3f} s ({summary.policy_share:.1%}){start}{_troubles(summary)}"
        ),
        remarks=(*_quality(summary), *tree_remarks(summary.levels), *remarks),
    )


def _level_cells(level: LevelSummary) -> dict[str, str]:
    return {
        "member": level.name,
        "seconds": f"{level.duration_s:.3f}",
        "share": f"{level.share_of_seconds:.1%}",
        "forwards": f"{level.forwards:,}",
        "drafted": f"{level.drafted:,}",
        "judged": f"{level.judged:,}",
        "accepted": f"{level.accepted:,}",
        "acceptance": _acceptance(level),
        "refused": f"{level.refused:,}",
    }


def _acceptance(level: LevelSummary) -> str:
    if level.trees:
        return "-"
    return f"{level.accepted / level.judged:.1%}" if level.judged else ""


def _quality(summary: Summary) -> list[str]:
    """What a lossy policy refused, and its texts beside the target's; nothing for any other."""
    quality = summary.quality
    if quality is None or not quality.lossy:
        return []
    lines = [f"rejection rate {summary.rejection_rate:.1%}", quality_line(quality)]
    return lines if quality.num_divergences is not None else [*lines, REJECTION_REMARK]


def _troubles(summary: Summary) -> str:
    """What went wrong, as a part of the title; empty if nothing did."""
    troubles = []
    if summary.failed:
        troubles.append(f"{counted(summary.failed, 'request')} failed")
    if summary.preempted:
        troubles.append(f"{counted(summary.preempted, 'step')} put off for lack of KV memory")
    if summary.thrashed:
        troubles.append(f"{counted(summary.thrashed, 'request')} slower than the target alone")
    return "".join(f"; {trouble}" for trouble in troubles)


def prefix_lines(summary: Summary) -> Sequence[str]:
    """A line for each member that looked texts up; none without prefix caches."""
    return [
        f"prefix cache of {level.name}: {level.hit_tokens / level.asked_tokens:.1%} of "
        f"{counted(level.asked_tokens, 'token')} found, {counted(level.evicted_blocks, 'block')} evicted"
        for level in summary.levels
        if level.asked_tokens
    ]
