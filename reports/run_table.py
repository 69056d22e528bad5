"""One run, member by member, and what a lossy policy changed in the texts of a run."""

from collections.abc import Iterable, Sequence

from ..base.errors import counted
from .quality import Quality
from .summary import LevelSummary, Summary
from .tables import Grid, at_least, shown, table

REJECTION_REMARK = "texts are drawn again by rejection sampling: where two of them part means nothing and is left out"

_TREE_REMARK = "token trees: judged counts all nodes, of which one path can stay, so that accepted is no share of it"


def tree_remarks(levels: Iterable[LevelSummary]) -> list[str]:
    """One line if any member judged a token tree, else none."""
    return [_TREE_REMARK] if any(level.trees for level in levels) else []


def run_table(summary: Summary, remarks: Sequence[str] = (), *, start: str = "") -> Grid:
    """One row per member; totals in the title.

    `remarks` are further remarks, a line each; `start` is from `start_words`.
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
        "acceptance": "-" if level.trees else f"{level.accepted / level.judged:.1%}" if level.judged else "",
        "refused": f"{level.refused:,}",
    }


def _quality(summary: Summary) -> list[str]:
    """What a lossy policy rejected, and its texts compared with the target's; empty for any other."""
    quality = summary.quality
    if quality is None or not quality.lossy:
        return []
    lines = [f"rejection rate {summary.rejection_rate:.1%}", quality_line(quality)]
    return lines if quality.num_divergences is not None else [*lines, REJECTION_REMARK]


def _troubles(summary: Summary) -> str:
    """Failures, as a part of the title; empty without any."""
    troubles = []
    if summary.failed:
        troubles.append(f"{counted(summary.failed, 'request')} failed")
    if summary.preempted:
        troubles.append(f"{counted(summary.preempted, 'step')} put off for lack of KV memory")
    if summary.thrashed:
        troubles.append(f"{counted(summary.thrashed, 'request')} slower than the target alone")
    return "".join(f"; {trouble}" for trouble in troubles)


def prefix_lines(summary: Summary) -> Sequence[str]:
    """A line for each member that looked texts up; empty without prefix caches."""
    return [
        f"prefix cache of {level.name}: {level.hit_tokens / level.asked_tokens:.1%} of "
        f"{counted(level.asked_tokens, 'token')} found, {counted(level.evicted_blocks, 'block')} evicted"
        for level in summary.levels
        if level.asked_tokens
    ]


def quality_table(rows: Sequence[Summary]) -> Grid | None:
    """One row per policy; None if none of them is lossy. Columns are defined in docs/glossary.md."""
    if not any(row.quality and row.quality.lossy for row in rows):
        return None
    title = "what was refused, and the texts beside the target's own"
    return table(map(_quality_cells, rows), title=title, remarks=_remarks(rows))


def _quality_cells(row: Summary) -> dict[str, str]:
    cells = {"policy": row.policy, "rejection rate": f"{row.rejection_rate:.1%}"}
    quality = row.quality
    if quality is not None:
        cells["diverg. /1,000"] = shown(quality.divergences_per_1000, ".1f")
        cells["same text"] = shown(quality.text_agreement, ".1%")
        cells["log-lik. /token (own)"] = _log_likelihoods(quality)
        if quality.answers_total is not None:
            cells["answers right (own)"] = _answers(quality)
    return cells


def _remarks(rows: Sequence[Summary]) -> list[str]:
    known = [row.quality for row in rows if row.quality is not None]
    remarks = []
    least = min(quality.known_share for quality in known)
    if least < 1:
        remarks.append(f"log-lik.: of the tokens on record, {at_least(least)} of a policy's; nothing is guessed")
    if any(row.reanchored for row in rows):
        remarks.append("same text: too high, since replay goes back to the target's text where the record ends")
    if any(quality.num_divergences is None for quality in known):
        remarks.append(REJECTION_REMARK)
    return remarks


def quality_line(quality: Quality) -> str:
    """The quality of one run in a sentence."""
    parts = [f"{counted(quality.requests, 'text')} beside the target's own:"]
    if quality.num_divergences is not None:
        rate = shown(quality.divergences_per_1000, ".1f")
        parts.append(f"{counted(quality.num_divergences, 'divergence')}, {rate} per 1,000 tokens;")
    if quality.text_agreement is not None:
        prefix = shown(quality.prefix_agreement, ".1%")
        parts.append(f"{quality.text_agreement:.1%} of positions the same, {prefix} before the first difference;")
    parts.append(f"log-likelihood per token {_log_likelihoods(quality)}")
    if quality.answers_total is not None:
        parts.append(f"; answers right {_answers(quality)}")
    return " ".join(parts).replace(" ;", ";")


def _log_likelihoods(quality: Quality) -> str:
    own = shown(quality.own_log_prob_per_token, ".3f")
    return f"{shown(quality.log_prob_per_token, '.3f')} ({own})"


def _answers(quality: Quality) -> str:
    return f"{quality.answers_right:,} ({quality.answers_own:,}) of {quality.answers_total:,}"
