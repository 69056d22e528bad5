"""What an imported recording holds, as tables for the terminal."""

from collections.abc import Iterator

from ...counted import counted
from ...traces.rounds.meta import TRUST
from ...traces.rounds.summary import MethodSummary, RoundsSummary
from .grid import Grid, facts, shown, table


def rounds_tables(summary: RoundsSummary) -> tuple[Grid, ...]:
    """The recording at a glance, its notes, and its methods by tag."""
    notes = table([{"": note} for note in summary.meta.notes], title="what is exact and what is unknown")
    return (_facts(summary), *([notes] if summary.meta.notes else []), _methods(summary))


def _facts(summary: RoundsSummary) -> Grid:
    meta, total = summary.meta, summary.total
    prompt_tokens = f"{total.num_prompt_tokens:,}" if total.num_prompt_tokens else "unknown"
    rows = {
        "drafters": "; ".join(_drafters(summary)),
        "target": meta.target,
        "model shapes": ", ".join(f"{model.name} {model.parameters:,}" for model in meta.models) or "none",
        "requests": f"{total.num_requests:,}",
        "tokens": f"{prompt_tokens} prompt, {total.num_output_tokens:,} output",
        "texts": f"token ids of {counted(summary.num_texts, 'request')}" if summary.num_texts else "no token ids",
        "seconds measured for": ", ".join(_measured(summary)) or "nothing",
        "size": "in memory" if summary.size_bytes is None else f"{summary.size_bytes / 1e6:.2f} MB",
        "hardware": meta.hardware or "unknown",
        "software": ", ".join(f"{name} {version}" for name, version in meta.software.items()) or "unknown",
    }
    return facts(f"{meta.name} (IMPORTED from {meta.source}; {TRUST[meta.form]})", rows)


def _drafters(summary: RoundsSummary) -> Iterator[str]:
    for drafter in summary.meta.drafters:
        window = "window unknown" if drafter.window is None else f"window {drafter.window}"
        kind = "depends on the start" if drafter.by_start else "reads tokens only"
        yield f"{drafter.name} ({window}, {kind}{', after a prefill' if drafter.prefilled else ''})"


def _measured(summary: RoundsSummary) -> Iterator[str]:
    for name, method in summary.total.methods.items():
        means = {"draft": method.draft_s, "verify": method.verify_s}
        parts = [f"{part} {1e3 * mean:.2f} ms a round" for part, mean in means.items() if mean is not None]
        if parts or method.token_s is not None:
            detail = f" ({', '.join(parts)})" if parts else ""
            yield f"{name or summary.meta.target}{detail}"


def _methods(summary: RoundsSummary) -> Grid:
    groups = [*summary.by_tag.items(), ("all", summary.total)]
    cells = [
        {"tag": tag or "-", "method": name or f"{summary.meta.target} alone", **_cells(method)}
        for tag, group in groups
        for name, method in group.methods.items()
        if method.num_requests
    ]
    return table(cells, texts=("method",), title="what was recorded of each method")


def _cells(method: MethodSummary) -> dict[str, str]:
    return {
        "requests": f"{method.num_requests:,}",
        "rounds": _rounds(method),
        "tokens/round": shown(method.tokens_per_round, ".2f", unknown="-"),
        "kept whole": shown(method.censored_share, ".1%", unknown="-"),
        "known": shown(method.known_share, ".1%", unknown="-"),
        "ms/token": "-" if method.token_s is None else f"{1e3 * method.token_s:.2f}",
    }


def _rounds(method: MethodSummary) -> str:
    """Rounds, and how many of them drafted nothing if any did."""
    if not method.num_rounds:
        return "-"
    return f"{method.num_rounds:,}" + (f" ({method.num_plain:,} plain)" if method.num_plain else "")
