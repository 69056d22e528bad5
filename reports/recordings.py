"""Tables of a recording's content, tries or imported rounds."""

from collections.abc import Iterator

import numpy as np

from ..base.errors import counted
from ..traces.contexts.check import TrieSummary
from ..traces.contexts.meta import TrieMeta
from ..traces.meta import NgramInfo
from ..traces.rounds.check import MethodSummary, RoundsSummary
from ..traces.rounds.rounds import TRUST
from .tables import Column, Grid, facts, shown, table


def rounds_tables(summary: RoundsSummary) -> tuple[Grid, ...]:
    """The recording at a glance, its notes, and its methods by tag."""
    notes = table([{"": note} for note in summary.meta.notes], title="what is exact and what is unknown")
    return (_rounds_facts(summary), *([notes] if summary.meta.notes else []), _methods(summary))


def _rounds_facts(summary: RoundsSummary) -> Grid:
    meta, total = summary.meta, summary.total
    prompt_tokens = f"{total.num_prompt_tokens:,}" if total.num_prompt_tokens else "unknown"
    rows = {
        "drafters": "; ".join(_drafters(summary)),
        "target": meta.target,
        "model shapes": ", ".join(f"{model.name} {model.parameters:,}" for model in meta.models) or "none",
        "requests": f"{total.num_requests:,}",
        "tokens": f"{prompt_tokens} prompt, {total.num_output_tokens:,} output",
        "texts": f"token ids of {counted(summary.num_texts, 'request')}" if summary.num_texts else "no token ids",
        **_stated(summary),
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


def _stated(summary: RoundsSummary) -> dict[str, str]:
    """Of drafters whose log states acceptance, the share of drafts that keep each position; of others nothing."""
    rows = {}
    for drafter in summary.meta.drafters:
        if (stated := drafter.stated) is not None:
            window = drafter.window or 1
            kept = np.cumprod([*stated.hazards, *[stated.hazards[-1]] * window][:window])
            drafting = f"; {stated.drafting:.1%} of the steps draft" if stated.drafting < 1 else ""
            rows[f"{drafter.name} keeps by position"] = ", ".join(f"{share:.1%}" for share in kept) + drafting
    return rows


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
        {"tag": tag or "-", "method": name or f"{summary.meta.target} alone", **_method_cells(method)}
        for tag, group in groups
        for name, method in group.methods.items()
        if method.num_requests
    ]
    return table(cells, texts=("method",), title="what was recorded of each method")


def _method_cells(method: MethodSummary) -> dict[str, str]:
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


def trace_tables(summary: TrieSummary) -> tuple[Grid, Grid]:
    """The recording at a glance, and agreement with the target by tag."""
    return _trie_facts(summary), _agreement(summary)


def _trie_facts(summary: TrieSummary) -> Grid:
    meta, total = summary.meta, summary.total
    kind = "SYNTHETIC" if meta.kind == "synthetic" else "recorded"
    rows = {
        "models": ", ".join(f"{model.name} {model.parameters:,}" for model in meta.models),
        "prompt lookup": _lookup(meta.ngram),
        **_reader(meta),
        "sampling": meta.sampling.words_with_seed,
        "closure": f"{meta.closure.kind}, reach {meta.closure.reach}, run {meta.closure.run}",
        "requests": f"{total.num_requests:,}",
        "tokens": f"{total.num_prompt_tokens:,} prompt, {total.num_trunk_tokens:,} output",
        "contexts": f"{total.num_nodes:,}, {summary.nodes_per_trunk_token or 0:.1f} per output token",
        "size": f"{(summary.size_bytes or 0) / 1e6:.2f} MB, {summary.bytes_per_node or 0:.1f} bytes per context",
        "dtype": f"{meta.dtype}, {_trunk_ties(meta)}",
        "near ties": f"{meta.near_ties:,}",
        "seconds measured for": ", ".join(meta.costs) or "no device",
        "hardware": meta.hardware,
        "software": ", ".join(f"{name} {version}" for name, version in meta.software.items()),
    }
    if meta.profile is not None:
        rows["seconds from profile"] = meta.profile.words
    if meta.costs_doubt:
        rows["doubt"] = meta.costs_doubt
    return facts(f"{meta.name} ({kind})", rows)


def _agreement(summary: TrieSummary) -> Grid:
    models = summary.meta.model_names[:-1]
    headings = ("requests", "output tokens", *models)
    return Grid(
        title="share of trunk contexts where a model writes the target's token",
        columns=(Column(heading="tag", number=False), *(Column(heading=heading) for heading in headings)),
        rows=tuple(
            (
                tag,
                f"{group.num_requests:,}",
                f"{group.num_trunk_tokens:,}",
                *(shown(group.agreement[model], ".3f", unknown="-") for model in models),
            )
            for tag, group in [*summary.by_tag.items(), ("all", summary.total)]
        ),
    )


def _trunk_ties(meta: TrieMeta) -> str:
    if meta.trunk_near_ties is not None:
        return meta.trunk_near_ties.words
    return "made up" if meta.kind == "synthetic" else "near ties of the trunk not known"


def _lookup(ngram: NgramInfo | None) -> str:
    """How prompt lookup finds what to copy, in words; defaults are not mentioned."""
    if ngram is None:
        return "none"
    least = f"{ngram.min_match} to " if ngram.min_match > 1 else "up to "
    which = f", {ngram.occurrence} occurrence" if ngram.occurrence != "last" else ""
    return f"{ngram.name}, matches {least}{counted(ngram.max_match, 'token')}{which}"


def _reader(meta: TrieMeta) -> dict[str, str]:
    known = meta.features
    if known is None:
        return {}
    return {"target's states": f"read by {known.model}, recorded at {counted(known.depths, 'depth')}"}
