"""An observed run as tables and lines; `unknown` stands where a server did not tell."""

from dataclasses import asdict

from ...counted import counted
from ...runs.observed.meta import BY_TOKENIZER, ObservedAcceptance, ObservedRun
from ..tables.grid import Grid, facts, shown, table
from .figures import ObservedFigures

LATENCIES = {"TTFT": "ttft_s", "TPOT": "tpot_s", "ITL (chunks)": "itl_s", "E2E": "e2e_s"}
_NAMED = 5  # requests, of those that failed alike
UNKNOWN = "unknown"


def observed_tables(run: ObservedRun, figures: ObservedFigures) -> list[Grid]:
    """What was served, then latencies."""
    meta = run.meta
    loop = "open loop" if meta.concurrency is None else f"closed loop, {meta.concurrency} at a time"
    values = {
        "server": f"{meta.url}{meta.endpoint}, model {meta.model}",
        "load": f"{meta.workload}, {loop}",
        "requests": f"{figures.requests:,}: {figures.finished:,} finished, {figures.failed:,} failed, "
        f"{figures.unfinished:,} unfinished",
        "finish reasons": ", ".join(f"{why or UNKNOWN} {count:,}" for why, count in figures.finish_reasons.items()),
        "tokens": f"{_count(figures.prompt_tokens)} prompt, {_count(figures.output_tokens)} output",
        "duration": f"{figures.duration_s:.3f} s",
        "requests/s": shown(figures.requests_per_s, ".3f", unknown=UNKNOWN),
        "tokens/s": shown(figures.output_tokens_per_s, ",.1f", unknown=UNKNOWN),
        "acceptance": acceptance_words(meta.acceptance),
    }
    return [facts("observed", values), _latency_table(figures)]


def observed_lines(run: ObservedRun, figures: ObservedFigures) -> list[str]:
    """What a reader of the figures must know."""
    meta, lines = run.meta, [*run.meta.notes]
    for reason, names in figures.failures.items():
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        lines.append(f"{counted(len(names), 'request')} failed: {reason} ({', '.join(names[:_NAMED])}{more})")
    if figures.uncounted:
        lines.append(
            f"tokens of {counted(figures.uncounted, 'finished request')} are unknown: the server sent no usage, and "
            "chunks are no tokens"
        )
    if meta.counted_by == BY_TOKENIZER:
        lines.append("tokens were counted by the server's tokenizer, from the texts: no end of sequence is among them")
    if meta.acceptance_unknown:
        lines.append(f"acceptance is unknown: {meta.acceptance_unknown}")
    lines.append(f"requests were sent at most {1e3 * figures.late_s:.1f} ms after they were due")
    if meta.stopped:
        lines.append(f"partial, stopped at {meta.ended_at_ps / 1e12:.3f} s ({meta.stopped})")
    return lines


def acceptance_words(acceptance: ObservedAcceptance | None) -> str:
    """What is known of speculative decoding, in one line."""
    if acceptance is None:
        return UNKNOWN
    parts = []
    if acceptance.accepted is not None and acceptance.drafted is not None:
        rate = shown(acceptance.rate, ".1%", unknown=UNKNOWN)
        parts.append(f"{acceptance.accepted:,} of {acceptance.drafted:,} drafted tokens ({rate})")
    if acceptance.accept_length is not None:
        parts.append(f"{acceptance.accept_length:.2f} tokens a round")
    return f"{', '.join(parts) or UNKNOWN}; by {acceptance.source}"


def _latency_table(figures: ObservedFigures) -> Grid:
    rows = []
    for name, field in LATENCIES.items():
        spread = getattr(figures, field)
        parts = ("mean", "p50", "p90", "p95", "p99") if spread is None else asdict(spread)
        rows.append(
            {"latency": name}
            | {part: UNKNOWN if spread is None else f"{1e3 * getattr(spread, part):,.2f}" for part in parts}
        )
    return table(rows, title="latencies, ms")


def _count(count: int | None) -> str:
    return UNKNOWN if count is None else f"{count:,}"
