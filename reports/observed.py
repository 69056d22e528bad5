"""The figures of an observed run (docs/observing.md defines each), its tables, and simulated figures beside them.

Figures are over finished requests, except gaps of chunks, which are of all. Requests with unknown tokens are left out
where tokens are needed; `unknown` is shown for what a server did not report.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import counted
from ..runs.observed import BY_TOKENIZER, ObservedAcceptance, ObservedRequest, ObservedRun
from ..runs.serving import ServingLog
from ..traces.workloads.arrival import PS_PER_S
from .sections import SECTIONS, half_widths
from .serving import Promises, metrics_of
from .serving_tables import FIGURES, THROUGHPUT, VALIDATED_LATENCIES, VALIDATED_PARTS, figures_of
from .summary import Spread, spread_over
from .tables import Grid, facts, shown, table


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedFigures:
    """Seconds and counts; None: unknown."""

    requests: int  # that were sent: finished, failed and unfinished ones
    finished: int
    failed: int
    unfinished: int
    uncounted: int  # finished ones whose tokens are unknown
    # prompt_tokens, output_tokens: of finished requests; None where those of any are unknown
    prompt_tokens: int | None
    output_tokens: int | None
    duration_s: float  # from the first request until the last that finished had ended
    requests_per_s: float | None  # finished ones
    output_tokens_per_s: float | None  # of finished ones
    ttft_s: Spread | None  # from sending to the first chunk with text
    tpot_s: Spread | None  # from there to the end, by tokens after the first; of requests of two tokens or more
    itl_s: Spread | None  # between two chunks with text
    e2e_s: Spread | None  # from sending to the end of the answer
    late_s: float  # longest time from when a request was due to when it was sent
    finish_reasons: dict[str, int]  # finished requests by reason; "" if none was given
    failures: dict[str, list[str]]  # requests by what went wrong

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/observing.md)."""
        return asdict(self)


def observed_figures(run: ObservedRun) -> ObservedFigures:
    """The figures of a run."""
    finished, failed = run.finished, run.failed
    began_ps = min((one.sent_at_ps for one in run.requests), default=0)
    lasted_ps = [one.ended_at_ps - began_ps for one in finished if one.ended_at_ps is not None]
    duration_s = max(lasted_ps, default=0) / PS_PER_S
    output = _total([one.output_tokens for one in finished])
    return ObservedFigures(
        requests=len(run.requests),
        finished=len(finished),
        failed=len(failed),
        unfinished=len(run.requests) - len(finished) - len(failed),
        uncounted=sum(one.output_tokens is None or one.prompt_tokens is None for one in finished),
        prompt_tokens=_total([one.prompt_tokens for one in finished]),
        output_tokens=output,
        duration_s=duration_s,
        requests_per_s=len(finished) / duration_s if duration_s else None,
        output_tokens_per_s=None if output is None or not duration_s else output / duration_s,
        ttft_s=_spread([one.outputs_at_ps[0] - one.sent_at_ps for one in finished if one.outputs_at_ps]),
        tpot_s=_spread([tpot for one in finished if (tpot := tpot_ps(one)) is not None]),
        itl_s=_spread([gap for one in run.requests for gap in np.diff(one.outputs_at_ps).tolist()]),
        e2e_s=_spread([one.ended_at_ps - one.sent_at_ps for one in finished if one.ended_at_ps is not None]),
        late_s=max((one.sent_at_ps - one.due_at_ps for one in run.requests), default=0) / PS_PER_S,
        finish_reasons=dict(Counter(one.finish_reason for one in finished)),
        failures={
            reason: [one.request_id for one in failed if one.failed == reason]
            for reason in dict.fromkeys(one.failed for one in failed)
        },
    )


def tpot_ps(one: ObservedRequest) -> float | None:
    """Picoseconds for each token after the first; None for fewer than two tokens, or an unknown number."""
    if one.ended_at_ps is None or not one.outputs_at_ps or one.output_tokens is None or one.output_tokens < 2:
        return None
    return (one.ended_at_ps - one.outputs_at_ps[0]) / (one.output_tokens - 1)


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _spread(times_ps: Sequence[float]) -> Spread | None:
    if not times_ps:
        return None
    return spread_over(np.array(times_ps, dtype=np.float64) / PS_PER_S)


DURATION = "duration_s"
TAIL = ("p90", "p99")
_PERCENTS = tuple(int(part[1:]) for part in VALIDATED_PARTS[1:])  # after the mean
_COLUMNS = ("arrived_at_ps", "first_token_at_ps", "ended_at_ps", "output_tokens")
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCell:
    """One figure in both worlds."""

    name: str  # as `ttft_s_p90`
    # simulated, observed: seconds, or tokens a second; None where a world has none
    simulated: float | None
    observed: float | None
    bound: float  # largest size of the relative error that passes, > 0
    # the error's 95% interval over sections of the run, of latencies; None: unknown
    between: tuple[float, float] | None = None

    @property
    def error(self) -> float | None:
        """Simulated over observed, less 1; None where a world has none."""
        return None if self.simulated is None or not self.observed else self.simulated / self.observed - 1

    @property
    def within(self) -> bool | None:
        """Whether the error is within the bound; None where nothing was observed, and not where only that was."""
        if self.error is None:
            return False if self.observed else None
        return abs(self.error) <= self.bound

    @property
    def may_be_chance(self) -> bool:
        """Whether another such run might have had the other verdict."""
        if self.between is None or self.within is None:
            return False
        low, high = self.between
        most, least = max(abs(low), abs(high)), 0.0 if low <= 0 <= high else min(abs(low), abs(high))
        return most > self.bound if self.within else least <= self.bound

    def to_json(self) -> dict[str, Any]:
        own = {"name": self.name, "simulated": self.simulated, "observed": self.observed, "bound": self.bound}
        return own | {"error": self.error, "error_ci": self.between, "within": self.within}


def compared(run: ObservedRun, log: ServingLog, *, mean_bound: float, tail_bound: float) -> tuple[ObservedCell, ...]:
    """The cells of an observed run, only with replayed requests, compared with the log of its replay.

    `mean_bound` is of means, medians, throughput and duration, `tail_bound` of `TAIL`.
    """
    both = (metrics_of(log, Promises()).to_json(), observed_figures(run).to_json())
    simulated, observed = (figures_of(found, (*FIGURES, DURATION)) for found in both)
    between = _between(run, log)
    return tuple(
        ObservedCell(
            name=name,
            simulated=simulated.get(name),
            observed=observed.get(name),
            bound=tail_bound if name.rpartition("_")[2] in TAIL else mean_bound,
            between=between.get(name),
        )
        for name in (*FIGURES, DURATION)
    )


def cells_table(cells: Sequence[ObservedCell], title: str) -> Grid:
    """A row for each figure."""
    return table([_row(cell) for cell in cells], texts=("verdict",), title=title)


def verdict(cells: Sequence[ObservedCell]) -> str:
    """How many figures are within their bounds, and which are not, in one line."""
    judged = [cell for cell in cells if cell.within is not None]
    beyond = [cell for cell in judged if not cell.within]
    worst = ", ".join(f"{_heading(cell.name)} {_error(cell)}{' (maybe)' * cell.may_be_chance}" for cell in beyond)
    told = f"{len(judged) - len(beyond)} of {len(judged)} figures are within their bounds"
    chance = sum(cell.may_be_chance for cell in judged if cell.within)
    told += f", {chance} of them maybe" if chance else ""
    return f"{told}; beyond: {worst}" if beyond else told


def _between(run: ObservedRun, log: ServingLog) -> dict[str, tuple[float, float]]:
    """The interval of each latency's error."""
    rows = {name: row for row, name in enumerate(log.requests["request_id"].tolist())}
    seen: dict[str, list[tuple[float, float]]] = {latency: [] for latency in VALIDATED_LATENCIES}
    for one in run.finished:
        row = rows.get(one.request_id)
        if row is None or not log.finished[row] or one.ended_at_ps is None or not one.outputs_at_ps:
            continue
        arrived, first, ended, tokens = (int(log.requests[name][row]) for name in _COLUMNS)
        seen["ttft_s"].append((first - arrived, one.outputs_at_ps[0] - one.sent_at_ps))
        seen["e2e_s"].append((ended - arrived, one.ended_at_ps - one.sent_at_ps))
        if tokens > 1 and (each := tpot_ps(one)) is not None:
            seen["tpot_s"].append(((ended - first) / (tokens - 1), each))
    return {
        f"{latency}_{part}": ends
        for latency, pairs in seen.items()
        if len(pairs) >= SECTIONS
        for part, ends in errors_between(np.array(pairs, dtype=np.float64)).items()
    }


def errors_between(pairs: NDArray[np.float64]) -> dict[str, tuple[float, float]]:
    """95% intervals of (simulated over observed) - 1, by part, of `[N, 2]` seconds of the same requests.

    Requests are in order of arrival, at least `SECTIONS`. Those of a queue wait for each other, so the interval is over
    sections (`sections.py`) and not over requests. A percentile that only the longest request exceeds has none.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = _ratios(pairs)
        width = half_widths(np.array([_ratios(part) for part in np.array_split(pairs, SECTIONS)]), whole)
        ends = np.expm1(np.log(whole) + np.outer((-1, 1), width)).T
    return {
        part: (float(low), float(high))
        for part, percent, (low, high) in zip(VALIDATED_PARTS, (0, *_PERCENTS), ends, strict=True)
        if np.isfinite((low, high)).all() and len(pairs) * (100 - percent) >= 100
    }


def _ratios(pairs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Simulated over observed, of the mean and each percentile."""
    figures = np.stack([pairs.mean(axis=0), *np.percentile(pairs, _PERCENTS, axis=0)])
    found: NDArray[np.float64] = figures[:, 0] / figures[:, 1]
    return found


def _row(cell: ObservedCell) -> dict[str, str]:
    words = UNKNOWN if cell.within is None else "within" if cell.within else "beyond"
    between = "" if cell.between is None else " to ".join(f"{end:+.0%}" for end in cell.between)
    return {
        "figure": _heading(cell.name),
        "simulated": _shown(cell, cell.simulated),
        "observed": _shown(cell, cell.observed),
        "error": _error(cell),
        "95%": between,
        "bound": f"{cell.bound:.1%}",
        "verdict": f"maybe {words}" if cell.may_be_chance else words,
    }


def _error(cell: ObservedCell) -> str:
    return shown(cell.error, "+.1%", unknown=UNKNOWN)


def _heading(name: str) -> str:
    if name == THROUGHPUT:
        return "tokens/s"
    if name == DURATION:
        return "total s"
    latency, _, part = name.rpartition("_s_")
    return f"{latency.upper()} {part}, ms"


def _shown(cell: ObservedCell, figure: float | None) -> str:
    if figure is None:
        return UNKNOWN
    if cell.name in {THROUGHPUT, DURATION}:
        return f"{figure:,.2f}"
    return f"{1e3 * figure:,.2f}"


LATENCIES = {"TTFT": "ttft_s", "TPOT": "tpot_s", "ITL (chunks)": "itl_s", "E2E": "e2e_s"}
_NAMED = 5  # requests shown of those that failed alike


def observed_tables(run: ObservedRun, figures: ObservedFigures) -> list[Grid]:
    """Tables of requests, then latencies."""
    meta = run.meta
    loop = "open loop" if meta.concurrency is None else f"closed loop, {meta.concurrency} at a time"
    values = {
        "server": f"{meta.url}{meta.endpoint}, model {meta.model}",
        "load": f"{meta.workload}, {loop}",
        "requests": f"{figures.requests:,}: {figures.finished:,} finished, {figures.failed:,} failed, "
        f"{figures.unfinished:,} unfinished",
        "finish reasons": ", ".join(f"{why or UNKNOWN} {count:,}" for why, count in figures.finish_reasons.items()),
        "tokens": f"{shown(figures.prompt_tokens, ',', unknown=UNKNOWN)} prompt, "
        f"{shown(figures.output_tokens, ',', unknown=UNKNOWN)} output",
        "duration": f"{figures.duration_s:.3f} s",
        "requests/s": shown(figures.requests_per_s, ".3f", unknown=UNKNOWN),
        "tokens/s": shown(figures.output_tokens_per_s, ",.1f", unknown=UNKNOWN),
        "acceptance": acceptance_words(meta.acceptance),
    }
    return [facts("observed", values), _latency_table(figures)]


def observed_lines(run: ObservedRun, figures: ObservedFigures) -> list[str]:
    """Remarks that readers of the figures need."""
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
        chats = ", and a chat template only on vLLM" if "chat" in meta.endpoint else ""
        lines.append(f"tokens were counted by the server's tokenizer: no end of sequence is among them{chats}")
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
