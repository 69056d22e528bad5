"""Tokens per second of real decoding: against transformers and a hand-written loop, then by batch and cache.

All contenders are greedy, answer the same prompts and must write the same tokens. Those of transformers and the
hand-written loop run on models of their own, in the layout of transformers. One thread; medians of interleaved runs,
and ratios are medians of the ratios inside each turn.

python benchmarks/decoding.py [--prompts 8] [--tokens 48] [--repeats 7] [--only pairs|batches]
"""

import sys
from collections.abc import Callable, Sequence
from itertools import product
from operator import attrgetter
from statistics import fmean, median

from paceline.base.files import shipped
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import read_prompts
from paceline_laboratory.findings import Cell, table_cell
from paceline_laboratory.replays import RUNS, in_turns, peak_bytes
from paceline_laboratory.shared import watch_caches
from shared.contenders import Answered, Job, Task, by_hand, generating, mean_round, runtime
from shared.report import parser_of, show, verdict

WINDOWS = (2, 4, 8)
ASSISTED_GOAL, BY_HAND_GOAL, OUTSIDE_GOAL_S = 1.5, 1.2, 0.4e-3
CHAINS = ("plain", "draft:4/target", "draft:3/mid:6/target", "draft:3/slim:6/target")
BATCHES = (1, 4, 16)
CACHES = ("slots", "mask")
TOKENS_PER_S = attrgetter("tokens_per_s")
Turns = dict[str, list[Answered]]


def take_turns(jobs: dict[str, Job], runs: int) -> Turns:
    """Run all jobs in turn, `runs` times after one warm-up; exits if two wrote different tokens."""
    turns = in_turns(jobs, runs=runs, warm_ups=1)
    first = next(iter(turns))
    for name, answers in turns.items():
        if any(answered.texts != turns[first][0].texts for answered in answers):
            sys.exit(f"{name} and {first} wrote different tokens")
    return turns


def middle(turns: Turns, name: str, what: Callable[[Answered], float]) -> float:
    return median(what(answered) for answered in turns[name])


def ratio(turns: Turns, ours: str, theirs: str) -> float:
    """Our rate over theirs, the median over turns."""
    pairs = zip(turns[ours], turns[theirs], strict=True)
    return median(our.tokens_per_s / their.tokens_per_s for our, their in pairs)


def compare_pairs(pool: ModelPool, stock: ModelPool, task: Task, runs: int) -> None:
    """Show draft and target at batch 1 against others."""
    jobs = {"generate()": generating(stock, task), "paceline plain": runtime(pool, task, "plain")}
    for window in WINDOWS:
        chain = f"draft:{window}/target"
        jobs[f"assisted {window}"] = generating(stock, task, assistant="draft", window=window)
        jobs[f"by hand {window}"] = by_hand(stock, task, "draft", window)
        jobs[f"modules {window}"] = runtime(stock, task, chain, forward="modules")
        jobs[f"paceline {window}"] = runtime(pool, task, chain)
    turns = take_turns(jobs, runs)
    title = f"batch 1, {len(task.prompts)} prompts of {task.max_new_tokens} tokens; medians of {runs} interleaved runs"
    show(f"tokens/s, {title}", [pair_row(turns, window) for window in ("plain", *WINDOWS)])
    outside_s = middle(turns, "paceline 4", lambda answered: mean_round(answered).outside_s)
    reached = "reaches" if outside_s <= OUTSIDE_GOAL_S else "MISSES"
    print(f"outside the forwards at window 4: {outside_s * 1e3:.3f} ms a round ({reached} {OUTSIDE_GOAL_S * 1e3:g})\n")
    show_where_time_goes(turns, [name for name in jobs if name.startswith(("paceline", "modules"))], title)


def pair_row(turns: Turns, window: int | str) -> list[Cell]:
    """The rates of all contenders at one window, or without drafts."""

    def rate(name: str) -> float | None:
        return middle(turns, name, TOKENS_PER_S) if name in turns else None

    def over(other: str, goal: float) -> str:
        ours, theirs = f"paceline {window}", f"{other} {window}"
        return verdict(ratio(turns, ours, theirs), goal) if theirs in turns else ""

    return [
        table_cell("window", str(window)),
        table_cell("generate()", rate("generate()") if window == "plain" else None, digits=0),
        table_cell("assisted", rate(f"assisted {window}"), digits=0),
        table_cell("by hand", rate(f"by hand {window}"), digits=0),
        table_cell("paceline, modules", rate(f"modules {window}"), digits=0),
        table_cell("paceline", rate(f"paceline {window}"), digits=0),
        table_cell("over assisted", over("assisted", ASSISTED_GOAL)),
        table_cell("over by hand", over("by hand", BY_HAND_GOAL)),
    ]


def compare_batches(pool: ModelPool, task: Task, runs: int) -> None:
    """Show chains by batch and cache."""
    cases = {
        f"{chain}, {batch}, {cache}": (chain, batch, cache) for batch, chain, cache in product(BATCHES, CHAINS, CACHES)
    }
    jobs = {name: runtime(pool, task, chain, batch=batch, cache=cache) for name, (chain, batch, cache) in cases.items()}
    turns = take_turns(jobs, runs)

    def row(name: str) -> list[Cell]:
        chain, batch, cache = cases[name]
        budget = task.max_new_tokens
        held, _ = watch_caches(pool, chain, task.prompts, max_new_tokens=budget, batch=batch, cache=cache)
        return [
            table_cell("chain", chain),
            table_cell("batch", batch),
            table_cell("cache", cache),
            table_cell("seconds", middle(turns, name, lambda answered: answered.seconds), digits=2),
            table_cell("tokens/s", middle(turns, name, TOKENS_PER_S), digits=0),
            table_cell("over plain", ratio(turns, name, f"plain, {batch}, {cache}"), digits=2),
            table_cell("slots held", fmean(one.held_slots for one in held), digits=0),
            table_cell("slots live", fmean(one.live_slots for one in held), digits=0),
            table_cell("peak KV MB", max(one.held_bytes for one in held) / 1e6, digits=1),
        ]

    title = f"{len(task.prompts)} prompts of {task.max_new_tokens} tokens; medians of {runs} interleaved runs"
    show(title, map(row, cases))
    show_where_time_goes(turns, list(jobs), title)


def show_where_time_goes(turns: Turns, names: Sequence[str], title: str) -> None:
    """Show milliseconds of a round by kind of work."""

    def row(name: str) -> list[Cell]:
        rounds = [mean_round(answered) for answered in turns[name]]
        parts = {
            "forwards": median(one.forward_s for one in rounds),
            "placing": median(one.placing_s for one in rounds),
            "sampling": median(one.sampling_s for one in rounds),
            "policy": median(one.policy_s for one in rounds),
            "bookkeeping": median(one.bookkeeping_s for one in rounds),
            "outside forwards": median(one.outside_s for one in rounds),
        }
        return [
            table_cell("run", name),
            *(table_cell(part, seconds * 1e3, digits=3) for part, seconds in parts.items()),
        ]

    show(f"milliseconds a round, {title}", map(row, names))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--prompts", type=int, default=8, help="of batch 1; batches take at least the largest batch")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=RUNS)
    parser.add_argument("--only", choices=("pairs", "batches"))
    options = parser.parse_args()
    folder = shipped("pools", "pico")
    pool, stock = ModelPool.load(folder, threads=1), ModelPool.load(folder, threads=1)
    prompts = read_prompts(folder / "prompts.jsonl")
    if options.only != "batches":
        compare_pairs(pool, stock, Task(prompts[: options.prompts], options.tokens), options.repeats)
    if options.only != "pairs":
        count = max(options.prompts, *BATCHES)
        compare_batches(pool, Task(prompts[:count], options.tokens), options.repeats)
    print(f"peak memory {peak_bytes() / 1e6:,.0f} MB, both copies of the pool included")


if __name__ == "__main__":
    main()
