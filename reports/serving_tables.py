"""Serving runs as tables and words: of one or more runs (`ServingReport`), and of both worlds side by side.

A row holds the runs of one setting at all its seeds: the mean of each figure and its 95% interval. The tables of a
workload are here as well.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import fmean, median
from typing import Any, TypeVar

from ..base.errors import counted
from ..runs.serving import ServingAbout, ServingMeta
from ..traces.workloads.arrival import AT_ONCE, PS_PER_S
from ..traces.workloads.drawn_arrivals import CLOSED
from ..traces.workloads.summary import WorkloadSummary
from .intervals import Interval, mean_interval, paired
from .page import Pictured
from .panels import AnyPanel, Section, by_category, ranking
from .serving import Promises, ServingMetrics
from .tables import Grid, facts, flat_rows, shown, table

LATENCIES = {"TTFT": "ttft_s", "TPOT": "tpot_s", "ITL": "itl_s", "E2E": "e2e_s", "queue": "queue_s"}
SESSION = {"session": "session_s"}  # of runs that have sessions
PARTS = ("mean", "p50", "p90", "p95", "p99")
IN_SECTIONS = (
    "±: half of a 95% interval over five parts of the requests, in order of arrival; near saturation it is too narrow, "
    "and far too wide where times grow through the run; there is none where fewer than 50 requests have a figure, or "
    "it is 0 in a part; other seeds say more"
)
# Figures that have a range where the cost has one, by flat name.
RANGED = (
    "output_tokens_per_s",
    "goodput_per_s",
    "in_system_s",
    *(f"{latency}_{part}" for latency in (LATENCIES | SESSION).values() for part in PARTS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One run and its figures."""

    folder: str  # as it was named
    meta: ServingMeta  # what was run
    metrics: ServingMetrics
    flat: Mapping[str, Any]  # the same by flat name, `ttft_s_mean`
    # 95% intervals by flat name, as far as one run gives them; empty if there are runs at other seeds
    intervals: Mapping[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRow:
    """Runs that differ in their seed alone, at least one."""

    runs: tuple[MeasuredRun, ...]
    # the first of them again, at the ends of its cost's range (`CostModel.ends`); empty if unknown
    ends: tuple[MeasuredRun, ...] = ()

    @property
    def about(self) -> ServingAbout:
        """What was run; its seed is that of the first run."""
        return self.runs[0].meta.about

    def mean(self, figure: str) -> float | None:
        """Mean over the runs of a figure by its flat name, `ttft_s_mean`; None where a run does not have it."""
        values = self._values(figure)
        return None if values is None else sum(values) / len(values)

    def interval(self, figure: str) -> Interval | None:
        """The same with its 95% interval over seeds; for one run over its sections; None without one."""
        if len(self.runs) == 1:
            return self.runs[0].intervals.get(figure)
        values = self._values(figure)
        return None if values is None else mean_interval(values)

    def cost_range(self, figure: str) -> tuple[float, float] | None:
        """The range over the cost's ends: the mean, shifted as the first run is; None if unknown."""
        first, mean = self.runs[0].flat.get(figure), self.mean(figure)
        ends = [end.flat.get(figure) for end in self.ends]
        known = [value / first for value in ends if value is not None] if first else []
        if mean is None or not known or len(known) < len(ends):
            return None
        return mean * min(1.0, *known), mean * max(1.0, *known)

    def by_seed(self, figure: str) -> dict[int, float]:
        """A figure of each run; all must have it."""
        return {run.meta.about.seed: run.flat[figure] for run in self.runs}

    @property
    def rejected(self) -> dict[int, float]:
        """Rejected requests of each run, by seed."""
        return self.by_seed("rejected")

    def _values(self, figure: str) -> list[float] | None:
        values = [run.flat.get(figure) for run in self.runs]
        known = [value for value in values if isinstance(value, int | float)]
        return known if len(known) == len(values) else None

    def to_json(self) -> dict[str, Any]:
        """Setting, each run's figures, and the means and intervals of those that have one."""
        runs = [
            {"folder": run.folder, "seed": run.meta.about.seed, "stopped": run.meta.stopped, **run.metrics.to_json()}
            for run in self.runs
        ]
        intervals = {name: found for name in self.runs[0].flat if (found := self.interval(name)) is not None}
        return {
            **self.about.model_dump(exclude={"seed"}),
            "runs": runs,
            "mean": {name: found.mean for name, found in intervals.items()},
            "ci": {name: list(found.bounds) for name, found in intervals.items()},
            "range": {name: list(ends) for name in RANGED if (ends := self.cost_range(name)) is not None},
        }


def rows_of_runs(named: Iterable[tuple[Mapping[str, Any], SeedRow]]) -> list[dict[str, Any]]:
    """A flat row for each run, after the name of its row; reasons of rejections are texts, not columns."""
    runs = [{**before, **run} for before, row in named for run in row.to_json()["runs"]]
    return flat_rows([{name: value for name, value in run.items() if name != "rejected_for"} for run in runs])


def reject_alike(ours: Mapping[int, float], theirs: Mapping[int, float]) -> bool:
    """Whether two rows, of rejected requests by seed, rejected as many at each seed, so that times compare."""
    return all(own == other for own, other in paired(ours, theirs))


Row = TypeVar("Row")


def rejecting_fewest(rows: Sequence[Row], rejected: Callable[[Row], Mapping[int, float]]) -> list[Row]:
    """Rows that reject the fewest requests in the mean, as many at each seed: times of the others are of fewer."""
    counts = [rejected(row) for row in rows]
    fewest = min(counts, key=lambda by_seed: fmean(by_seed.values()))
    return [row for row, own in zip(rows, counts, strict=True) if reject_alike(own, fewest)]


def seed_rows(runs: Sequence[MeasuredRun]) -> tuple[SeedRow, ...]:
    """The runs in rows, in the order of each row's first one.

    Raises ValueError for a setting that was run twice at one seed: their mean would count one draw twice.
    """
    rows: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        rows.setdefault(_setting(run.meta), []).append(run)
    for row in rows.values():
        _check_seeds(row)
    return tuple(SeedRow(runs=tuple(row)) for row in rows.values())


def _setting(meta: ServingMeta) -> str:
    """What runs of one row have in common, as a text; without notes, which may depend on the seed."""
    about = meta.about.model_copy(update={"seed": 0, "notes": ()})
    blocks = [(one.name, [member.num_blocks for member in one.members]) for one in meta.replicas]
    return f"{about.model_dump_json()} {meta.members} {blocks}"


def _check_seeds(row: Sequence[MeasuredRun]) -> None:
    seeds = [run.meta.about.seed for run in row]
    if len(set(seeds)) < len(seeds):
        folders = ", ".join(run.folder for run in row)
        raise ValueError(f"runs of one setting must differ in their seed, got seeds {seeds} of {folders}")


# By heading: (figure, style).
Shown = dict[str, tuple[str, Callable[[float], str]]]


def whole(number: float) -> str:
    """A count; a mean over seeds with one more decimal."""
    return f"{number:,.0f}" if number == int(number) else f"{number:,.1f}"


def styled(style: str) -> Callable[[float], str]:
    """A number in a style of format()."""
    return lambda number: f"{number:{style}}"


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds, without a unit; empty for None."""
    return "" if seconds is None else f"{1e3 * seconds:,.2f}"


SERVED: Shown = {
    "requests": ("requests", whole),
    "finished": ("finished", whole),
    "rejected": ("rejected", whole),
    "unfinished": ("unfinished", whole),
    "requests/s": ("requests_per_s", styled(",.3f")),
    "tokens/s": ("output_tokens_per_s", styled(",.1f")),
}
TAKEN: Shown = {
    "TTFT ms": ("ttft_s_mean", milliseconds),
    "TTFT p99": ("ttft_s_p99", milliseconds),
    "TPOT ms": ("tpot_s_mean", milliseconds),
    "TPOT p99": ("tpot_s_p99", milliseconds),
    "E2E ms": ("e2e_s_mean", milliseconds),
    "E2E p99": ("e2e_s_p99", milliseconds),
}
PROMISED: Shown = {"goodput /s": ("goodput_per_s", styled(",.3f")), "SLO met": ("slo_share", styled(".1%"))}
LOAD: Shown = {
    "running": ("running_mean", styled(",.2f")),
    "waiting": ("waiting_mean", styled(",.2f")),
    "preempted": ("preemptions", whole),
    "busy": ("busy_share", styled(".1%")),
}
_ALL: Shown = {**SERVED, **TAKEN, "in system ms": ("in_system_s", milliseconds), **LOAD}


def columns(*headings: str) -> Shown:
    """The figures under these headings, in their order."""
    return {heading: _ALL[heading] for heading in headings}


OF_MEMBER: Shown = {
    "busy s": ("busy_s", styled(",.3f")),
    "KV used": ("kv_use_mean", styled(".1%")),
    "KV most": ("kv_use_max", styled(".1%")),
    "hits by block": ("hit_share_blocks", styled(".1%")),
    "by token": ("hit_share_tokens", styled(".1%")),
    "accept. length": ("acceptance_length", styled(".2f")),
    "without own": ("accepted_per_verification", styled(".2f")),
    "acceptance": ("acceptance_rate", styled(".1%")),
}


def served_table(rows: Sequence[SeedRow], *, promised: bool, title: str, remarks: Iterable[str]) -> Grid:
    """One line per row: outcomes of its requests, and rates; `promised`: with service levels."""
    shown = {**SERVED, **(PROMISED if promised else {})}
    cells = [names_of(rows, row) | cells_of(row, shown, "") for row in rows]
    return table(cells, texts=_names(rows), title=title, remarks=remarks)


def load_table(rows: Sequence[SeedRow]) -> Grid:
    """One line per row: batch and queue over time, preemptions, busy share."""
    return table([names_of(rows, row) | cells_of(row, LOAD, "") for row in rows], texts=_names(rows), title="load")


def latency_table(rows: Sequence[SeedRow]) -> Grid:
    """For each row a line per latency, in milliseconds."""
    of_sessions = any(run.meta.sessions_ps for row in rows for run in row.runs)
    latencies = LATENCIES | SESSION if of_sessions else LATENCIES
    cells = [
        (names_of(rows, row) if not number else {})
        | {"latency": name}
        | cells_of(row, {part: (f"{figure}_{part}", milliseconds) for part in PARTS}, "")
        for row in rows
        for number, (name, figure) in enumerate(latencies.items())
    ]
    ends = [(number + 1) * len(latencies) - 1 for number in range(len(rows))]
    in_sections = any(len(row.runs) == 1 and row.runs[0].intervals for row in rows)
    remarks = [IN_SECTIONS] if in_sections else []
    return table(cells, texts={*_names(rows), "latency"}, title="latencies, ms", remarks=remarks, lines=ends)


def member_table(rows: Sequence[SeedRow]) -> Grid:
    """For each row a line per member."""
    cells = []
    ends = []
    for row in rows:
        for number, member in enumerate(row.runs[0].meta.members):
            named = names_of(rows, row) if not number else {}
            cells.append(named | {"member": member} | cells_of(row, OF_MEMBER, f"members_{member}_"))
        ends.append(len(cells) - 1)
    return table(cells, texts={*_names(rows), "member"}, title="members", lines=ends)


def _names(rows: Sequence[SeedRow]) -> set[str]:
    return {name for row in rows for name in names_of(rows, row)}


def names_of(rows: Sequence[SeedRow], row: SeedRow) -> dict[str, str]:
    """The name of a row: its policy, and all else in which rows differ; its folders where that is not enough."""
    named = {"policy": row.about.policy}
    for name in ("workload", "cluster"):
        if len({getattr(other.about, name) for other in rows}) > 1:
            named[name] = getattr(row.about, name)
    alike = [other for other in rows if all(getattr(other.about, name) == text for name, text in named.items())]
    return named if len(alike) == 1 else {**named, "run": ", ".join(run.folder for run in row.runs)}


def cells_of(row: SeedRow, shown: Shown, before: str) -> dict[str, str]:
    """Figures of a row by heading, with their intervals; `before` begins the flat names of all."""
    return {heading: _cell(row, before + figure, style) for heading, (figure, style) in shown.items()}


def cells_between(row: SeedRow, shown: Shown) -> dict[str, str]:
    """The range of each figure over the cost's ends, by heading."""
    found = {heading: (row.cost_range(figure), style) for heading, (figure, style) in shown.items()}
    return {
        heading: "-" if ends is None else f"{style(ends[0])} to {style(ends[1])}"
        for heading, (ends, style) in found.items()
    }


def _cell(row: SeedRow, figure: str, style: Callable[[float], str]) -> str:
    mean, interval = row.mean(figure), row.interval(figure)
    if mean is None:
        return "-"
    if interval is None or not interval.half_width:
        return style(mean)
    return f"{style(mean)} ± {style(interval.half_width)}"


VALIDATED_LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
VALIDATED_PARTS = ("mean", "p50", "p90", "p99")
THROUGHPUT = "output_tokens_per_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCell:
    """One cell in both worlds."""

    policy: str
    rate: float | None  # requested mean arrivals per second; None: the workload's own
    requests: int  # that arrived
    finished: tuple[int, int]  # in the simulator, and with the models
    preemptions: tuple[int, int]  # preempted in each, in the same order
    # figures by name, `LATENCIES` and `PARTS` joined by an underscore, and `THROUGHPUT`; seconds and tokens per second;
    # one without a request is left out
    simulated: Mapping[str, float]
    measured: Mapping[str, float]  # the same with the models, medians of the runs
    spread: float  # half the range of the measured runs' mean E2E as a share of its median
    other_answers: int  # requests that finished in both worlds with other tokens
    left: int  # requests whose models wrote another token than was recorded, in any run
    # emitted, cycled: simulated tokens, and those after the first pass of a recorded answer
    emitted: int
    cycled: int
    modelled: int  # simulated decisions that were modelled rather than replayed
    equal: bool  # whether members judged, accepted and wrote as many tokens in both worlds, level by level

    def error(self, name: str) -> float | None:
        """Relative error of a figure, infinite if only one world has it (or 0 was measured); None: neither has it."""
        ours, theirs = self.simulated.get(name), self.measured.get(name)
        if ours is None or not theirs:
            return None if not ours and not theirs else inf
        return ours / theirs - 1

    def errors(self) -> dict[str, float | None]:
        """The errors of all figures; None for an infinite one too, which JSON cannot hold."""
        errors = {name: self.error(name) for name in FIGURES}
        return {name: None if error == inf else error for name, error in errors.items()}


FIGURES = (*(f"{latency}_{part}" for latency in VALIDATED_LATENCIES for part in VALIDATED_PARTS), THROUGHPUT)


def figures_of(found: Mapping[str, Any], names: Sequence[str] = FIGURES) -> dict[str, float]:
    """The figures of a run in either world, out of its JSON; those without a request are left out."""
    (flat,) = flat_rows([found])
    return {name: flat[name] for name in names if flat.get(name) is not None}


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure that all runs have."""
    return {name: median(run[name] for run in runs) for name in runs[0] if all(name in run for run in runs)}


def half_range(values: Sequence[float]) -> float:
    """Half the range of values, as a share of their median; 0 without any."""
    return (max(values) - min(values)) / 2 / median(values) if values and median(values) else 0.0


def worst_and_median(cells: Sequence[LoadCell]) -> dict[str, Any]:
    """Absolute errors of each figure that a world has, over all cells: `median` and `worst`, infinite ones included.

    A world in which no request finished must not look like one without error.
    """
    found = {}
    for name in FIGURES:
        errors = [abs(error) for cell in cells if (error := cell.error(name)) is not None]
        if errors:
            found[name] = {"median": median(errors), "worst": max(errors)}
    return found


HEADINGS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
ERROR = "+.1%"


def load_cells_table(cells: Sequence[LoadCell], *, title: str) -> Grid:
    """Throughput, and whether both worlds did the same: a row for each rate and policy."""
    return table([_cell_row(cell) for cell in cells], texts=("policy", "work"), title=title)


def validation_latency_table(cells: Sequence[LoadCell], latency: str) -> Grid:
    """One latency in milliseconds, and the errors of its mean and percentiles: a row for each rate and policy."""
    heading = HEADINGS[latency]
    rows = [
        _key(cell)
        | {
            f"simulated {heading} ms": milliseconds(cell.simulated.get(f"{latency}_mean")),
            f"measured {heading} ms": milliseconds(cell.measured.get(f"{latency}_mean")),
            **{f"error of {part}": shown(cell.error(f"{latency}_{part}"), ERROR) for part in VALIDATED_PARTS},
        }
        for cell in cells
    ]
    return table(rows, texts=("policy",))


def _cell_row(cell: LoadCell) -> dict[str, str]:
    return _key(cell) | {
        "finished": f"{cell.finished[0]:,}, {cell.finished[1]:,}",
        "preempted": f"{cell.preemptions[0]:,}, {cell.preemptions[1]:,}",
        "simulated tokens/s": shown(cell.simulated.get(THROUGHPUT), ",.1f"),
        "measured tokens/s": shown(cell.measured.get(THROUGHPUT), ",.1f"),
        "error": shown(cell.error(THROUGHPUT), ERROR),
        "spread": f"{cell.spread:.1%}",
        "work": "equal" if cell.equal else "differs",
        "other answers": f"{cell.other_answers:,}",
    }


def _key(cell: LoadCell) -> dict[str, str]:
    return {"rate": "own" if cell.rate is None else f"{cell.rate:g}", "policy": cell.policy}


def what_was_asked(setting: Mapping[str, Any], cluster: str) -> list[str]:
    """Parts of a title, from the setting of a `ServingAbout` and the name of its cluster.

    Empty where seconds, acceptance and tags are those of the cluster's named device, the recording, the workload.
    Changes of times and lengths are not among them: the workload's notes count those.
    """
    found = []
    shifts: Mapping[str, float] = setting.get("shift_acceptance", {})
    if shifts:
        found.append("WHAT IF: " + ", ".join(f"acceptance of {name} {delta:+g}" for name, delta in shifts.items()))
    models: Mapping[str, str] | list[str] = setting.get("models", [])
    if models:
        texts = [f"{name}={text}" for name, text in models.items()] if isinstance(models, Mapping) else models
        found.append(f"shapes {', '.join(texts)}")
    seconds = []
    named = "cost" in setting  # else names of replicas' seconds hold devices and factors
    if named:
        seconds.append(f"cost {setting['cost']}{f' ({engine})' if (engine := setting.get('engine')) else ''}")
    elif set(own := [cost for one in setting.get("replicas", {}).values() if (cost := one.get("cost"))]) - {
        cluster,
        f"{cluster} (vllm)",
    }:
        seconds.append(f"seconds of {', '.join(dict.fromkeys(own))}")
    shares: Mapping[str, float] = setting.get("efficiency", {})
    seconds += [f"{name} {share:g}" for name, share in shares.items()]
    if named and "tensor_parallel" in setting:
        seconds.append(f"tensor parallel {setting['tensor_parallel']}")
    if "on" in setting:
        origin = f" from {setting['measured_on']}" if "measured_on" in setting else ""
        seconds.append(f"taken{origin} to {setting['on']}")
    factors: Mapping[str, float] = setting.get("scale", {})
    seconds += [f"{name} x{factor:g}" for name, factor in factors.items() if named]
    if "decide_s" in setting:
        seconds.append(f"{setting['decide_s']:g} s a decision")
    if seconds:
        found.append(", ".join(seconds))
    if "tag" in setting:
        found.append(f"all requests of tag {setting['tag'] or 'any'}")
    return found


def served_title(meta: Mapping[str, Any], *more: str, names: Sequence[str] = ("workload", "cluster", "trace")) -> str:
    """The title of figures under load: `names` of the meta of their comparison, what was asked, and `more` of it."""
    named = [f"{name} {meta[name]}" for name in names]
    return "; ".join([*named, *what_was_asked(meta["setting"], meta["cluster"]), *filter(None, more)])


def workload_tables(summary: WorkloadSummary) -> tuple[Grid, Grid]:
    """The workload at a glance, and the lengths of its requests."""
    about = summary.about
    return facts(f"{about.name} ({about.format})", dict(_facts(summary))), _lengths(summary)


def _facts(summary: WorkloadSummary) -> Iterator[tuple[str, str]]:
    yield "requests", f"{summary.num_requests:,}"
    if summary.session_requests is not None:
        sessions = f"{summary.num_sessions:,} of sessions, {summary.session_requests:.1f} requests each on average"
        yield "arrivals", f"{summary.num_arrivals:,}; {sessions}"
    if summary.rate is None or summary.gap_cv is None:
        yield "span", "all arrive at one time"
    else:
        yield "span", f"{summary.span_s:,.3f} s"
        once = "" if summary.session_requests is None else ", each session once"
        yield "mean rate", f"{summary.rate:.6g} arrivals/s{once}"
        yield "burstiness", f"{summary.gap_cv:.3f} (variation of the gaps; Poisson: 1)"
    yield "tokens", f"{summary.total_prompt_tokens:,} prompt, {summary.total_output_tokens:,} output"
    share = summary.shared_share
    if share is not None:
        blocks = f"{summary.shared_blocks:,} of {counted(summary.asked_blocks, 'block')}"
        unit = counted(summary.about.unit_tokens, "token")
        yield "shared prefixes", f"{share:.1%} of prompt tokens; {blocks} of {unit}"


def _lengths(summary: WorkloadSummary) -> Grid:
    rows = {
        "prompt tokens": (summary.prompt_tokens, 0),
        "output tokens": (summary.output_tokens, 0),
        "waits within sessions, s": (summary.wait_s, 2),
    }
    shown = [
        {"": name, "mean": f"{found.mean:,.{max(1, digits)}f}"}
        | {part: f"{getattr(found, part):,.{digits}f}" for part in ("p50", "p90", "p99", "max")}
        for name, (found, digits) in rows.items()
        if found is not None
    ]
    return table(shown, title="by request", remarks=summary.about.notes)


def class_table(rows: Sequence[tuple[Mapping[str, str], SeedRow]], *, promised: bool) -> Grid | None:
    """For each row a line per class; None where no request has a class.

    Each of `rows` has its name by heading; `promised`: with service levels.
    """
    shown = {**columns("requests", "finished"), **(PROMISED if promised else {}), **TAKEN}
    cells: list[dict[str, str]] = []
    ends: list[int] = []
    for named, row in rows:
        classes = dict.fromkeys(one.name for run in row.runs for one in run.metrics.classes)
        for number, name in enumerate(classes):
            before = {} if number else dict(named)
            cells.append(before | {"class": name or "none"} | cells_of(row, shown, f"classes_{name}_"))
        ends.append(len(cells) - 1)
    texts = {heading for named, _ in rows for heading in named} | {"class"}
    return table(cells, texts=texts, title="classes of requests", lines=ends) if cells else None


DRAWN_LATENCIES = {"Time to first token": "ttft_s", "Time per output token": "tpot_s", "Whole request": "e2e_s"}
DRAWN_PARTS = ("p50", "p90", "p99")


def unserved(runs: Sequence[MeasuredRun]) -> str:
    """How many requests of all runs were not served to their end, and why; "" where all were."""
    metrics = [run.metrics for run in runs]
    unfinished = sum(one.unfinished for one in metrics)
    rejected = Counter[str]()
    for one in metrics:
        rejected.update(one.rejected_for)
    parts = [f"{unfinished:,} unfinished"] if unfinished else []
    parts += [f"{count:,} rejected ({reason})" for reason, count in rejected.items()]
    requests = counted(sum(one.requests for one in metrics), "request")
    return f"of {requests} {', '.join(parts)}: in no latency but ITL" if parts else ""


STEADY = 5  # times the mean E2E latency that a run lasts at least, for its load to count as steady
_CLOSES = {"concurrency", "active_sessions"}  # options that make any workload a closed loop


def short_of(runs: Iterable[MeasuredRun]) -> list[str]:
    """A remark if open runs end before their load is steady: on the shortest, by the mean E2E latency."""
    shortest, times = None, float(STEADY)
    for run in runs:
        about, latency = run.meta.about, run.metrics.e2e_s
        is_closed = about.workload.startswith(f"{CLOSED}:") or _CLOSES & about.setting.keys()
        if is_closed or AT_ONCE in about.notes or latency is None or not latency.mean:
            continue
        if run.metrics.duration_s / latency.mean < times:
            shortest, times = about, run.metrics.duration_s / latency.mean
    if shortest is None:
        return []
    took = f"{shortest.policy} served {shortest.workload} in {times:.1f} times its mean E2E latency"
    return [f"{took}: the load was never steady, and more requests would tell more"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServingReport(Pictured):
    """The figures of one or several runs; prints as `paceline metrics` does."""

    rows: tuple[SeedRow, ...]  # one per setting, its seeds together
    promised: Promises  # service levels by class that goodput counts
    noted: bool = True  # whether the notes of runs are printed; False where they are shown elsewhere

    def tables(self) -> Sequence[Grid]:
        served = served_table(self.rows, promised=self.promised.any, title=self.headline(), remarks=self._remarks())
        classes = class_table([(names_of(self.rows, row), row) for row in self.rows], promised=self.promised.any)
        by_class = [] if classes is None else [classes]
        return [served, *by_class, latency_table(self.rows), load_table(self.rows), member_table(self.rows)]

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/glossary.md)."""
        return {**self.promised.to_json(), "rows": [row.to_json() for row in self.rows]}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each run; an object becomes a column for each of its keys, `ttft_s_mean`."""
        named = [
            ({name: getattr(row.about, name) for name in ("policy", "workload", "cluster")}, row) for row in self.rows
        ]
        return rows_of_runs(named)

    def sections(self) -> Sequence[Section]:
        served, *others = self.tables()
        *classes, latencies, load, members = others
        return [
            Section(topic="policies", tables=(served, *classes)),
            Section(topic="latency", tables=(latencies,), panels=tuple(self._drawn())),
            Section(topic="over_time", tables=(load,)),
            Section(topic="acceptance", tables=(members,)),
        ]

    def answer(self) -> Sequence[str]:
        """Which row is the best by throughput and by latency, where there are several; the outcome of each.

        None is by latency where one finished fewer requests than another: its latencies are of those.
        """
        best = []
        figures = [("most output tokens/s", "output_tokens_per_s", True)]
        if len({row.mean("finished") for row in self.rows}) == 1:
            figures.append(("least E2E at the 99th percentile", "e2e_s_p99", False))
        for words, figure, most in figures:
            known = [(mean, row) for row in self.rows if (mean := row.mean(figure)) is not None]
            if len(known) == len(self.rows) > 1:
                row = (max if most else min)(known, key=lambda one: one[0])[1]
                best.append(f"{words}: {' '.join(names_of(self.rows, row).values())}")
        told = [f"{'; '.join(best)}"] if best else []
        return [*told, *(self._in_words(row) for row in self.rows)]

    def configuration(self) -> Mapping[str, Any]:
        asked = {}
        for row in self.rows:
            seeds = [run.meta.about.seed for run in row.runs]
            name = " ".join(names_of(self.rows, row).values())
            asked[name] = {**row.about.model_dump(exclude={"notes", "seed"}), "seeds": seeds}
        return asked if len(asked) > 1 else next(iter(asked.values()))

    def partial(self) -> str:
        stopped = [run for row in self.rows for run in row.runs if run.meta.stopped]
        return f"{stopped[0].folder} stopped: {stopped[0].meta.stopped}" if stopped else ""

    def _in_words(self, row: SeedRow) -> str:
        runs = [run.metrics for run in row.runs]
        finished, asked = (sum(getattr(run, name) for run in runs) for name in ("finished", "requests"))
        parts = [f"{row.about.policy}: {finished:,} of {counted(asked, 'request')} finished"]
        speed = row.mean("output_tokens_per_s")
        parts += [] if speed is None else [f"{speed:,.1f} output tokens/s"]
        for name, figure in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("E2E", "e2e_s")):
            middle, tail = (row.mean(f"{figure}_{part}") for part in ("p50", "p99"))
            if middle is not None and tail is not None:
                parts.append(f"{name} {milliseconds(middle)} ms, p99 {milliseconds(tail)}")
        kept = row.mean("slo_share") if self.promised.any else None
        return "; ".join([*parts, *([] if kept is None else [f"{kept:.1%} kept the promises"])])

    def _drawn(self) -> list[AnyPanel]:
        names = [" ".join(names_of(self.rows, row).values()) for row in self.rows]
        found: list[AnyPanel] = []
        for title, figure in DRAWN_LATENCIES.items():
            parts = {part: [row.mean(f"{figure}_{part}") for row in self.rows] for part in DRAWN_PARTS}
            known = zip(*parts.values(), strict=True)
            in_ms = [[1e3 * value for value in values if value is not None] for values in known]
            whole = {name: values for name, values in zip(names, in_ms, strict=True) if len(values) == len(parts)}
            if len(self.rows) == 1 and whole:
                found.append(by_category(title, "ms", DRAWN_PARTS, whole))
            elif whole:
                spread = {name: (p50, (p50, p99)) for name, (p50, _, p99) in whole.items()}
                found.append(ranking(f"{title}, ms", spread, bars="mark: p50, bar: to p99", style=",.1f"))
        if len(self.rows) > 1:
            speeds = {name: row.mean("output_tokens_per_s") for name, row in zip(names, self.rows, strict=True)}
            fast = {name: (speed, None) for name, speed in speeds.items() if speed is not None}
            found += [ranking("Output tokens/s", fast, style=",.1f")] if fast else []
        return found

    def headline(self) -> str:
        about = self.rows[0].about
        same = {name: {getattr(row.about, name) for row in self.rows} for name in ("workload", "cluster")}
        parts = [f"{name} {getattr(about, name)}" for name, values in same.items() if len(values) == 1]
        if self._asked_alike:
            parts += what_was_asked(about.setting, about.cluster)
        durations = sorted(run.metrics.duration_s for row in self.rows for run in row.runs)
        parts.append(
            f"{durations[0]:,.3f} s" if len(durations) == 1 else f"{durations[0]:,.3f} to {durations[-1]:,.3f} s"
        )
        return "; ".join([*parts, *filter(None, [self.promised.in_words()])])

    @property
    def _asked_alike(self) -> bool:
        """Whether all runs have the same options, so that the title can name them."""
        return len({str(what_was_asked(row.about.setting, row.about.cluster)) for row in self.rows}) == 1

    def _remarks(self) -> list[str]:
        runs = [run for row in self.rows for run in row.runs]
        notes = [run.meta.about.notes if self.noted else () for run in runs]
        common = [note for note in notes[0] if all(note in others for others in notes)]
        remarks = list(common)
        for run, own in zip(runs, notes, strict=True):
            metrics = run.metrics
            about = run.meta.about
            asked = [] if self._asked_alike else what_was_asked(about.setting, about.cluster)
            remarks += [f"{run.folder}: {note}" for note in (*asked, *own) if note not in common]
            if left_out := unserved([run]):
                remarks.append(f"{run.folder}: {left_out}")
            moved = (metrics.transfers, metrics.host)
            remarks += [f"{run.folder}: {one.words}" for one in moved if one is not None]
            if run.meta.stopped:
                at_s = run.meta.ended_at_ps / PS_PER_S
                remarks.append(f"{run.folder}: partial, stopped at {at_s:,.3f} s ({run.meta.stopped})")
        remarks += short_of(runs) if self.noted else []
        if any(len(row.runs) > 1 for row in self.rows):
            remarks.append("±: 95% interval of the mean over seeds")
        return list(dict.fromkeys(remarks))
