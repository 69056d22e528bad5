"""Tables for the terminal: one run, agreements, and what a recording holds (tries or imported rounds)."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from ..base.errors import counted
from ..runs.same_steps import Agreement, Difference, RecordExit
from ..traces.contexts.check import TrieSummary
from ..traces.contexts.meta import TrieMeta
from ..traces.meta import NgramInfo
from ..traces.rounds.check import MethodSummary, RoundsSummary
from ..traces.rounds.rounds import TRUST
from .comparison import REJECTION_REMARK, quality_line, tree_remarks
from .grid import Column, Grid, facts, shown, table
from .summary import LevelSummary, Summary

Decode = Callable[[list[int]], str]


def agreement_table(agreements: Iterable[Agreement]) -> Grid:
    """One row per policy: what was compared, and where the worlds first differ."""
    return table(map(_agreement_cells, agreements), texts=("first difference",))


def total_line(agreements: Sequence[Agreement]) -> str:
    """What was compared over all policies, and how many of them differ."""
    num_steps, num_tokens = (sum(row.num_steps for row in agreements), sum(row.num_tokens for row in agreements))
    differ = sum(row.difference is not None for row in agreements)
    verdict = f"policies that differ: {differ} of {len(agreements)}" if differ else "no difference"
    return f"compared {counted(num_steps, 'step')}, {counted(num_tokens, 'token')}: {verdict}"


def prefix_line(agreements: Sequence[Agreement]) -> str:
    """What of the prefix caches was compared, operation by operation, over all policies."""
    asked = sum(row.num_asked_tokens for row in agreements)
    hit = sum(row.num_hit_tokens for row in agreements)
    evicted = sum(row.num_evicted_blocks for row in agreements)
    return (
        f"prefix caches alike in both worlds: {hit:,} of {counted(asked, 'token')} found, "
        f"{counted(evicted, 'block')} evicted"
    )


def record_exit_line(agreement: Agreement, left: RecordExit) -> str:
    """Where a policy left the record, and how much of the run lies before that."""
    return (
        f"{agreement.policy}: left the record at step {left.step} of request {left.request_id} "
        f"({agreement.num_left} of {counted(agreement.num_requests, 'request')} left it; "
        f"{agreement.num_steps:,} of {counted(agreement.num_replayed, 'step')} compared)"
    )


def difference_text(agreement: Agreement, difference: Difference, decode: Decode) -> str:
    """The first difference of a policy with what stands around it, in lines; `decode` gives the text of token ids."""
    parts = {
        "both had committed": _text(difference.committed, decode),
        "simulator": difference.replayed.did,
        "runtime": difference.ran.did,
        "simulator commits next": _text(difference.replayed.tokens, decode),
        "runtime commits next": _text(difference.ran.tokens, decode),
    }
    width = max(len(name) for name in parts)
    first = (
        f"{agreement.policy}: request {difference.request_id}, step {difference.step}, after "
        f"{counted(difference.num_committed, 'committed token')}; answers differ in "
        f"{agreement.num_other_answers} of {counted(agreement.num_requests, 'request')}"
    )
    return "\n".join([first, *(f"  {name:<{width}}  {part}" for name, part in parts.items())])


def _agreement_cells(agreement: Agreement) -> dict[str, str]:
    first = agreement.difference
    return {
        "policy": agreement.policy,
        "requests": f"{agreement.num_requests:,}",
        "steps compared": f"{agreement.num_steps:,}",
        "tokens compared": f"{agreement.num_tokens:,}",
        "first difference": "none" if first is None else f"request {first.request_id}, step {first.step}",
    }


def _text(tokens: Sequence[int], decode: Decode) -> str:
    """Tokens as quoted text and as ids, which tell apart what reads alike."""
    return f"{decode(list(tokens))!r} {list(tokens)}" if tokens else "nothing"


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
    known = meta.features
    if known is None:
        return {}
    return {"target's states": f"read by {known.model}, recorded at {counted(known.depths, 'depth')}"}
