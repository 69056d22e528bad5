"""The quality of texts, and how much was refused, in words and as a table; shown only where a policy is lossy."""

from collections.abc import Iterable, Sequence

from ...counted import counted
from ..quality import Quality
from ..summary import LevelSummary, Summary
from .grid import Grid, shown, table

REJECTION_REMARK = "texts are drawn anew by rejection sampling: where two of them part means nothing and is left out"

_TREE_REMARK = "token trees: judged counts all nodes, of which one path can stay, so that accepted is no share of it"


def tree_remarks(levels: Iterable[LevelSummary]) -> list[str]:
    """One line if any member judged a token tree, else none."""
    return [_TREE_REMARK] if any(level.trees for level in levels) else []


def quality_table(rows: Sequence[Summary]) -> Grid | None:
    """One row per policy; None if none of them is lossy. Columns are defined in docs/glossary.md."""
    if not any(row.quality and row.quality.lossy for row in rows):
        return None
    title = "what was refused, and the texts beside the target's own"
    return table(map(_cells, rows), title=title, remarks=_remarks(rows))


def _cells(row: Summary) -> dict[str, str]:
    """Empty where nothing is known."""
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
    """What a reader of the columns has to know, a line each."""
    known = [row.quality for row in rows if row.quality is not None]
    remarks = []
    least = min(quality.known_share for quality in known)
    if least < 1:
        remarks.append(f"log-lik.: of the tokens on record, at least {least:.1%} of a policy's; nothing is guessed")
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
