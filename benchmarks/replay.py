"""Simulated output tokens per second on one core, metrics included.

python benchmarks/replay.py [--requests 200] [--tokens 256] [--runs 7] [--against ANOTHER_CHECKOUT]
"""

from collections.abc import Callable
from itertools import count
from pathlib import Path

from paceline.policies.by_name import make_policy
from paceline.reports.summary import summarise_run
from paceline.sim.cost.base import CostModel
from paceline.sim.cost.by_name import make_cost
from paceline.sim.replay_tables import ReplayTables, tables_of
from paceline.sim.simulate import Scenario, simulate
from paceline.traces import SyntheticSpec, TrieRecording, make_trace
from paceline.traces.contexts.trie import TrieRequest
from paceline.traces.rounds.recording import RoundsRecording
from paceline.traces.rounds.rounds import RoundsRequest
from paceline_laboratory.findings import Cell, table_cell
from paceline_laboratory.replays import RUNS, Timing, interleaved, peak_bytes
from shared.against import show_against
from shared.engine_logs import log_of, sequential
from shared.report import parser_of, show

GOALS = (200_000, 500_000)
WINDOW = 4  # of the rounds in the imported recording
STEPWISE = ", stepwise"  # suffix: the loop asks the policy for every step, without walked rounds
CASES = (
    ("contexts", "draft:4/target", 1),
    ("contexts", f"draft:4/target{STEPWISE}", 1),
    ("contexts", "plain", 1),
    ("contexts", "draft:3/mid:6/target", 1),
    ("contexts", f"draft:3/mid:6/target{STEPWISE}", 1),
    ("contexts", "adaptive", 1),
    ("contexts", "confident", 1),
    ("contexts", "draft:4/target", 16),
    ("contexts", f"draft:4/target{STEPWISE}", 16),
    ("contexts", "draft:3/mid:6/target", 16),
    ("rounds", "draft:4/target", 1),
    ("rounds", "draft:6/target", 1),
    ("rounds", "adaptive", 1),
)


def rounds_of(trace: TrieRecording) -> RoundsRecording:
    """The same texts as in an engine's log: rounds of the smallest model, whose tokens count only in their round."""

    def request(record: TrieRequest) -> RoundsRequest:
        trie = record.trie
        agrees = (trie.next_token[0] == trie.next_token[-1])[trie.trunk[:-1]]
        return RoundsRequest(
            request_id=record.request_id,
            tag=record.tag,
            prompt_tokens=len(record.prompt),
            num_tokens={"": len(agrees)},
            rounds={"draft": sequential(len(agrees), WINDOW, lambda start: agrees[start : start + WINDOW])},
        )

    return log_of("rounds", map(request, trace.requests), window=WINDOW)


def job(tables: ReplayTables, cost: CostModel, policy: str, batch: int) -> Callable[[], object]:
    # Played steps are kept by seed.
    scenarios = (Scenario(tables=tables, cost=cost, batch=batch, seed=seed) for seed in count())
    name, stepwise = policy.removesuffix(STEPWISE), policy.endswith(STEPWISE)
    return lambda: summarise_run(simulate(next(scenarios), make_policy(name, tables.pool), name, stepwise=stepwise))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--against", type=Path, help="compare with another checkout of this repository, in turns")
    options = parser.parse_args()
    if options.against is not None:
        show_against(options.against, requests=options.requests, tokens=options.tokens, turns=options.runs)
        return
    spec = SyntheticSpec(
        requests=options.requests,
        tokens=options.tokens,
        prompt_tokens=16,
        models=("draft", "mid", "target"),
        acceptance=(0.8, 0.9),
        reach=11,
        run=3,
    )
    trace = make_trace(spec)
    recordings = {"contexts": tables_of(trace), "rounds": tables_of(rounds_of(trace))}
    cost = make_cost("cpu", trace)
    cases = {f"{kind} {name} {batch}": (kind, name, batch) for kind, name, batch in CASES}
    jobs = {case: job(recordings[kind], cost, name, batch) for case, (kind, name, batch) in cases.items()}
    timings = interleaved(jobs, runs=options.runs)
    num_nodes = sum(record.trie.num_nodes for record in trace.requests)
    title = (
        f"{options.requests} requests of {options.tokens} tokens, {num_nodes:,} contexts; simulate and summarise, "
        f"medians of {options.runs} interleaved runs"
    )
    tokens = options.requests * options.tokens
    show(title, [row(case, timings[name], tokens) for name, case in cases.items()])
    print(f"peak memory {peak_bytes() / 1e6:,.0f} MB")


def row(case: tuple[str, str, int], taken: Timing, tokens: int) -> list[Cell]:
    kind, policy, batch = case
    return [
        table_cell("recording", kind),
        table_cell("policy", policy),
        table_cell("batch", batch),
        table_cell("seconds", taken.wall_s, digits=3),
        table_cell("tokens/s", tokens / taken.wall_s, digits=0),
        table_cell("tokens/CPU s", tokens / taken.cpu_s, digits=0),
        *(table_cell(f"of {goal:,}", tokens / taken.wall_s / goal, digits=2) for goal in GOALS),
    ]


if __name__ == "__main__":
    main()
