"""Arrivals from idle to saturation: up to which rate does speculation pay, and what follows the best fixed choice?

Short and long contexts, small and large batches; forwards as long as those of models of 1 and 8 billion parameters on
an A100. Drafts and verdicts are as recorded. Long contexts begin with one of a few texts that many requests share,
which a prefix cache holds: the cost is in holding a long context, not in reading it.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import numpy as np
from paceline.reports.panels import Panel, series_of
from paceline.studies.serving import simulate
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.contexts.recording import TrieRecording

from ..findings import Cell, ExperimentSetting, Finding, table, table_cell
from ..replays import TARGET_ALONE, a100_cost

CLUSTER = "[[replicas]]\ndevice = 'a100'\nmax_num_seqs = {max_num_seqs}\ntoken_budget = 8192\nkv_blocks = 100000\n"
FIXED = (TARGET_ALONE, *(f"draft:{window}/target" for window in (1, 2, 3, 4)))
REQUESTS, SEEDS = 1000, 2
PROMPT_TOKENS, OUTPUT_TOKENS = 200, 64
UNIT_TOKENS, DOCUMENTS, FIRST_S = 512, 8, 10
WITHIN = 0.03  # of the best fixed choice: counts as following it


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server and the kind of its requests."""

    name: str
    units: int  # of `UNIT_TOKENS` that a prompt shares with others, before `PROMPT_TOKENS` of its own
    max_num_seqs: int  # requests in a batch at most
    windows: str  # for `off-under-load`, set from measurements of fixed windows at this context
    rates: tuple[float, ...]  # arrivals per second, rising

    @property
    def policies(self) -> Mapping[str, str]:
        """Policies that depend on the load, by the name shown."""
        table_of = f"off-under-load,table={self.windows}"
        return {"goodput": "goodput", "off-under-load": table_of, "autotune": "autotune", "slo": "slo"}


SERVERS = (
    Server(name="short context, batch 16", units=0, max_num_seqs=16, windows="1:3/16:2", rates=(2, 10, 20, 40)),
    Server(
        name="short context, batch 256",
        units=0,
        max_num_seqs=256,
        windows="1:3/24:2/96:0",
        rates=(2, 20, 40, 60, 80, 160),
    ),
    Server(name="long context, batch 256", units=16, max_num_seqs=256, windows="1:3/20:2", rates=(2, 10, 15, 20, 40)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRate:
    """One server at one rate: mean seconds from arrival to end, over requests and seeds, by policy."""

    rate: float
    running: float
    seconds: Mapping[str, float]

    @property
    def best(self) -> str:
        """The best fixed choice."""
        return min(FIXED, key=lambda name: self.seconds[name])

    def behind(self, policy: str) -> float:
        """How much longer than under the best fixed choice, as a share; below 0 where it is better."""
        return self.seconds[policy] / self.seconds[self.best] - 1.0

    def speed_up(self, policy: str) -> float:
        """Speed-up over the target alone."""
        return self.seconds[TARGET_ALONE] / self.seconds[policy]


def run(setting: ExperimentSetting) -> Finding:
    """Serve every server's requests at its rates, under fixed chains and under policies that depend on the load."""
    trace = read_trace(setting.trace)
    trace = replace(trace, requests=trace.requests[: setting.limit])
    requests = REQUESTS if setting.limit is None else min(REQUESTS, setting.limit)
    with tempfile.TemporaryDirectory() as folder:
        found = {server: list(_swept(server, trace, setting.seed, requests, Path(folder))) for server in SERVERS}
    tables = [table(f"{server.name}: time in the system", map(_row, rates)) for server, rates in found.items()]
    return Finding(
        question="Up to which rate of arrivals does speculation pay, and which policies follow the best fixed choice?",
        tables=tuple(tables),
        panels=tuple(_panel(server, rates) for server, rates in found.items()),
        answer=_answer(found),
    )


def _swept(server: Server, trace: TrieRecording, seed: int, requests: int, folder: Path) -> Iterator[AtRate]:
    cost = a100_cost(trace, folder, ("draft", "target"))
    cluster, workload = folder / "cluster.toml", folder / "workload.jsonl"
    cluster.write_text(CLUSTER.format(max_num_seqs=server.max_num_seqs))
    for rate in server.rates:
        taken: dict[str, list[float]] = {}
        running: list[float] = []
        for one in range(seed, seed + SEEDS):
            workload.write_text("\n".join(_lines(server.units, requests, rate, one)))
            for name, policy in {**{name: name for name in FIXED}, **server.policies}.items():
                row = simulate(workload, policy, trace, cluster=cluster, cost=cost, seed=one).rows[0]
                taken.setdefault(name, []).append(row.mean("in_system_s") or 0.0)
                if name == TARGET_ALONE:
                    running.append(row.mean("running_mean") or 0.0)
        seconds = {name: mean(values) for name, values in taken.items()}
        yield AtRate(rate=rate, running=mean(running), seconds=seconds)


def _lines(units: int, requests: int, rate: float, seed: int) -> Iterator[str]:
    """A workload: each shared text is requested once, a second apart, then requests arrive as a Poisson process."""
    rng = np.random.default_rng(seed)
    yield json.dumps({"workload": "sweep", "unit_tokens": UNIT_TOKENS})
    at_s = FIRST_S + np.cumsum(rng.exponential(1.0 / rate, requests))
    texts = rng.integers(DOCUMENTS, size=requests)
    for arrives_s, text in [*enumerate(range(DOCUMENTS)), *zip(at_s.tolist(), texts.tolist(), strict=True)]:
        yield json.dumps(
            {
                "arrives_s": round(arrives_s, 9),
                "prompt_tokens": units * UNIT_TOKENS + PROMPT_TOKENS,
                "output_tokens": OUTPUT_TOKENS,
                "blocks": [text * units + unit for unit in range(units)],
            }
        )


def _row(one: AtRate) -> list[Cell]:
    aware = [table_cell(name, 100 * one.behind(name), "%", 1) for name in one.seconds if name not in FIXED]
    return [
        table_cell("arrivals", one.rate, "1/s", 0),
        table_cell("running", one.running, digits=1),
        table_cell(TARGET_ALONE, one.seconds[TARGET_ALONE], "s", 3),
        table_cell("best fixed choice", one.best),
        table_cell("its time", one.seconds[one.best], "s", 3),
        *aware,
    ]


def _panel(server: Server, rates: Sequence[AtRate]) -> Panel:
    shown = ("draft:2/target", "draft:4/target", *server.policies)
    lines = {name: [one.speed_up(name) for one in rates] for name in (TARGET_ALONE, *shown)}
    return Panel(
        title=server.name,
        x_label="arrivals (1/s)",
        y_label="time of plain over its time",
        series=series_of([one.rate for one in rates], lines),
    )


def _answer(found: Mapping[Server, Sequence[AtRate]]) -> str:
    every = [one for rates in found.values() for one in rates]
    words = []
    for server, rates in found.items():
        pays = [one.rate for one in rates if one.best != TARGET_ALONE]
        until = f"up to {max(pays):g} arrivals/s" if pays else "at no rate"
        words.append(f"{server.name}: {'at every rate' if len(pays) == len(rates) else until}")
    worst = {name: max(one.behind(name) for one in every) for name in SERVERS[0].policies}
    follow = [f"{name} ({_percent(worst[name])})" for name in worst if worst[name] <= WITHIN]
    others = [f"{name} ({_percent(worst[name])})" for name in worst if worst[name] > WITHIN]
    return (
        f"Speculation pays, by the mean time of requests in the system: {'; '.join(words)}. Never more than "
        f"{_percent(WITHIN)} behind the best fixed choice: {', '.join(follow) or 'none'}; at worst further behind: "
        f"{', '.join(others) or 'none'}. Below 0 a policy is better than every fixed choice."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
