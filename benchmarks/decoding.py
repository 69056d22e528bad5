"""Tokens per second of real decoding: against transformers and a loop written by hand, then by batch and cache.

All contenders are greedy, answer the same prompts and must write the same tokens. Those of transformers and the loop
by hand run on models of their own, loaded as transformers lays them out. One thread; medians of interleaved runs, and
ratios are medians of the ratios inside each turn.

python benchmarks/decoding.py [--prompts 8] [--tokens 48] [--repeats 7] [--only pairs|batches]
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from contenders import Answered, Job, Round, Task, by_hand, generating, mean_round, runtime
from measuring import RUNS, peak_bytes
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import read_prompts
from paceline.shipped import shipped
from rich.console import Console
from rich.table import Table
from slots import watch_slots

WINDOWS = (2, 4, 8)
ASSISTED_GOAL, BY_HAND_GOAL, OUTSIDE_GOAL_S = 1.5, 1.2, 0.25e-3
CHAINS = ("plain", "draft:4/target", "draft:3/mid:6/target", "draft:3/slim:6/target")
BATCHES = (1, 4, 16)
CACHES = ("slots", "mask")
Turns = dict[str, list[Answered]]


def take_turns(jobs: dict[str, Job], runs: int) -> Turns:
    """Run all jobs in turn, `runs` times after one that warms up; exits where two wrote different tokens."""
    turns: Turns = {name: [] for name in jobs}
    for turn in range(runs + 1):
        for name, job in jobs.items():
            answered = job()
            first = next(iter(turns.values()))
            if first and answered.texts != first[0].texts:
                sys.exit(f"{name} and {next(iter(turns))} wrote different tokens")
            if turn or not first:
                turns[name].append(answered)
    next(iter(turns.values())).pop(0)
    return turns


def middle(turns: Turns, name: str, what: Callable[[Answered], float]) -> float:
    return median(what(answered) for answered in turns[name])


def ratio(turns: Turns, ours: str, theirs: str) -> float:
    """How many times as fast."""
    pairs = zip(turns[ours], turns[theirs], strict=True)
    return median(our.tokens_per_s / their.tokens_per_s for our, their in pairs)


def verdict(value: float, goal: float) -> str:
    return f"{value:.2f} ({'reaches' if value >= goal else 'MISSES'} {goal:g})"


def compare_pairs(pool: ModelPool, stock: ModelPool, task: Task, runs: int) -> None:
    """Batch 1, draft and target, against others."""
    jobs = {"generate()": generating(stock, task), "paceline plain": runtime(pool, task, "plain")}
    for window in WINDOWS:
        chain = f"draft:{window}/target"
        jobs[f"assisted {window}"] = generating(stock, task, assistant="draft", window=window)
        jobs[f"by hand {window}"] = by_hand(stock, task, "draft", window)
        jobs[f"modules {window}"] = runtime(stock, task, chain, forward="modules")
        jobs[f"paceline {window}"] = runtime(pool, task, chain)
    turns = take_turns(jobs, runs)
    title = f"batch 1, {len(task.prompts)} prompts of {task.max_new_tokens} tokens; medians of {runs} interleaved runs"
    headings = ("window", "generate()", "assisted", "by hand", "paceline, modules", "paceline", "over assisted")
    table = Table(*headings, "over by hand", title=f"tokens/s, {title}", title_justify="left")
    rates = {name: f"{middle(turns, name, lambda answered: answered.tokens_per_s):.0f}" for name in jobs}
    table.add_row("plain", rates["generate()"], "", "", "", rates["paceline plain"], "", "")
    for window in WINDOWS:
        kinds = (f"{kind} {window}" for kind in ("assisted", "by hand", "modules", "paceline"))
        over_assisted = verdict(ratio(turns, f"paceline {window}", f"assisted {window}"), ASSISTED_GOAL)
        over_hand = verdict(ratio(turns, f"paceline {window}", f"by hand {window}"), BY_HAND_GOAL)
        table.add_row(str(window), "", *(rates[kind] for kind in kinds), over_assisted, over_hand)
    show(table)
    outside_s = middle(turns, "paceline 4", lambda answered: mean_round(answered).outside_s)
    reached = "reaches" if outside_s <= OUTSIDE_GOAL_S else "MISSES"
    print(f"outside the forwards at window 4: {outside_s * 1e3:.3f} ms a round ({reached} {OUTSIDE_GOAL_S * 1e3:g})\n")
    show(where_time_goes(turns, [name for name in jobs if name.startswith(("paceline", "modules"))], title))


def compare_batches(pool: ModelPool, task: Task, runs: int) -> None:
    """Chains by batch and cache."""
    cases = {
        f"{chain}, {batch}, {cache}": (chain, batch, cache) for batch in BATCHES for chain in CHAINS for cache in CACHES
    }
    jobs = {name: runtime(pool, task, chain, batch=batch, cache=cache) for name, (chain, batch, cache) in cases.items()}
    turns = take_turns(jobs, runs)
    title = f"{len(task.prompts)} prompts of {task.max_new_tokens} tokens; medians of {runs} interleaved runs"
    headings = (
        "chain",
        "batch",
        "cache",
        "seconds",
        "tokens/s",
        "over plain",
        "slots held",
        "slots live",
        "peak KV MB",
    )
    table = Table(*headings, title=title, title_justify="left")
    for name, (chain, batch, cache) in cases.items():
        slots = watch_slots(pool, task, chain, batch=batch, cache=cache)
        table.add_row(
            *(chain, str(batch), cache),
            f"{middle(turns, name, lambda answered: answered.seconds):.2f}",
            f"{middle(turns, name, lambda answered: answered.tokens_per_s):.0f}",
            f"{ratio(turns, name, f'plain, {batch}, {cache}'):.2f}",
            *(f"{slots.held:,.0f}", f"{slots.live:,.0f}", f"{slots.peak_bytes / 1e6:.1f}"),
        )
    show(table)
    show(where_time_goes(turns, list(jobs), title))


def where_time_goes(turns: Turns, names: Sequence[str], title: str) -> Table:
    """Milliseconds of a round by kind of work."""
    headings = ("run", "forwards", "placing", "sampling", "policy", "bookkeeping", "outside forwards")
    table = Table(*headings, title=f"milliseconds a round, {title}", title_justify="left")
    for name in names:
        rounds = [mean_round(answered) for answered in turns[name]]
        parts = Round(*(median(column) for column in zip(*rounds, strict=True)))
        outside_s = median(one.outside_s for one in rounds)
        table.add_row(name, *(f"{seconds * 1e3:.3f}" for seconds in (*parts, outside_s)))
    return table


def show(table: Table) -> None:
    for column in table.columns[1:]:
        column.justify = "right"
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8, help="of batch 1; batches take at least the largest batch")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=RUNS)
    parser.add_argument("--only", choices=("pairs", "batches"))
    options = parser.parse_args()
    try:
        folder: Path = shipped("pools", "pico")
        pool, stock = ModelPool.load(folder, threads=1), ModelPool.load(folder, threads=1)
    except (FileNotFoundError, ValueError) as error:
        sys.exit(f"nothing was measured: {error}")
    prompts = read_prompts(folder / "prompts.jsonl")
    if options.only != "batches":
        compare_pairs(pool, stock, Task(prompts[: options.prompts], options.tokens), options.repeats)
    if options.only != "pairs":
        count = max(options.prompts, *BATCHES)
        compare_batches(pool, Task(prompts[:count], options.tokens), options.repeats)
    print(f"peak memory {peak_bytes() / 1e6:,.0f} MB, both copies of the pool included")


if __name__ == "__main__":
    main()
