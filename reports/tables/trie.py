"""What a recording holds, as tables for the terminal."""

from ...counted import counted
from ...traces.meta import NgramInfo
from ...traces.tries.meta import TrieMeta
from ...traces.tries.summary import TrieSummary
from .grid import Column, Grid, facts, shown


def trace_tables(summary: TrieSummary) -> tuple[Grid, Grid]:
    """The recording at a glance, and agreement with the target by tag."""
    return _facts(summary), _agreement(summary)


def _facts(summary: TrieSummary) -> Grid:
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
    """How prompt lookup finds what to copy, in words; what is as it always was is not said."""
    if ngram is None:
        return "none"
    least = f"{ngram.min_match} to " if ngram.min_match > 1 else "up to "
    which = f", {ngram.occurrence} occurrence" if ngram.occurrence != "last" else ""
    return f"{ngram.name}, matches {least}{counted(ngram.max_match, 'token')}{which}"


def _reader(meta: TrieMeta) -> dict[str, str]:
    """The drafter from the target's states, where there is one."""
    known = meta.features
    if known is None:
        return {}
    return {"target's states": f"read by {known.model}, recorded at {counted(known.depths, 'depth')}"}
