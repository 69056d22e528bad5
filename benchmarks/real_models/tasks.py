"""A real model on real tasks, greedy, one request at a time: chains and SpecRouter against transformers.

Each file of prompts is a task. All contenders answer the first prompts of every task, in turn (one of each task, then
the next of each), and must write the same tokens; SpecRouter starts without knowledge. One thread; rates are medians of
interleaved runs, ratios medians of the ratios inside each turn, their intervals by a paired bootstrap over the prompts
of each task. `drop-in` is `generate()` with `custom_generate=paceline.generate`, `prepared` the same with models from
`paceline.prepare`; `--few` leaves out both and assisted generation.

python benchmarks/real_models/tasks.py gsm8k.jsonl humaneval.jsonl ... [--pool smollm2-feature] [--prompts 8]
"""

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import paceline
from paceline.base.files import pool_path
from paceline.reports.intervals import Interval
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prepare import Prepared
from paceline.runtime.prompts import Prompt, read_prompts
from paceline_laboratory.findings import Cell, table_cell
from paceline_laboratory.replays import in_turns
from shared.contenders import Answered, Job, Task, drop_in, generating, runtime
from shared.report import parser_of, show, verdict

GENERATE, DROP_IN, PREPARED, PLAIN, ROUTER = "generate()", "drop-in", "prepared", "plain", "specrouter"
ASSISTED_WINDOWS = (2, 4)
CHAINS = (
    "draft:2/target", "draft:4/target", "mid:3/target", "mid:5/target", "feature:2/target", "feature:4/target",
    "draft:2/mid:4/target", "ngram:5/target", "ngram:6/target", "ngram:5/feature:3/target",
)  # fmt: skip
GENERATE_GOAL, PLAIN_GOAL, ROUTER_GOAL, ASSISTED_GOAL, PREPARED_GOAL = 1.5, 1.3, 0.98, 1.3, 1.0
DRAWS = 2000  # of the bootstrap
Rates = dict[str, dict[str, list[float]]]  # tokens per second by contender and task, a number for each turn


def jobs_of(
    pool: ModelPool, stock: ModelPool, fast: Prepared, task: Task, policies: Iterable[str], *, few: bool
) -> dict[str, Job]:
    ours = {policy: runtime(pool, task, policy) for policy in (PLAIN, *policies, ROUTER)}
    if few:
        return {GENERATE: generating(stock, task), **ours}
    assisted = {f"assisted draft:{n}": generating(stock, task, assistant="draft", window=n) for n in ASSISTED_WINDOWS}
    one_by_one = {f"{DROP_IN} draft:{n}": drop_in(stock, task, "draft", n) for n in ASSISTED_WINDOWS}
    prepared = {f"{PREPARED} draft:{n}": drop_in(stock, task, "draft", n, prepared=fast) for n in ASSISTED_WINDOWS}
    return {GENERATE: generating(stock, task), **assisted, **one_by_one, **prepared, **ours}


def rates_of(turns: dict[str, list[Answered]], prompts: list[Prompt]) -> Rates:
    """Rates by contender and task; exits if two wrote different tokens."""
    texts = turns[PLAIN][0].texts
    for name, answers in turns.items():
        parted = [
            prompt.request_id
            for answered in answers
            for prompt, ours, theirs in zip(prompts, answered.texts, texts, strict=True)
            if ours != theirs
        ]
        if parted:
            sys.exit(f"{name} and {PLAIN} wrote different tokens for {', '.join(sorted(set(parted)))}")
    return {name: rates_by_task(answers, prompts) for name, answers in turns.items()}


def rates_by_task(answers: list[Answered], prompts: list[Prompt]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for tag in dict.fromkeys(prompt.tag for prompt in prompts):
        rows = [row for row, prompt in enumerate(prompts) if prompt.tag == tag]
        found[tag] = [
            sum(len(one.texts[row]) for row in rows) / sum(one.each_s[row] for row in rows) for one in answers
        ]
    return found


def ratio(rates: Rates, ours: str, theirs: str, task: str) -> float:
    """Our rate over theirs in one task, the median over turns."""
    return median(our / their for our, their in zip(rates[ours][task], rates[theirs][task], strict=True))


def mean_ratio(rates: Rates, ours: str, theirs: str) -> float:
    """The mean ratio over tasks."""
    return fmean(ratio(rates, ours, theirs, task) for task in rates[ours])


def means_over(turns: dict[str, list[Answered]], prompts: list[Prompt], theirs: str) -> dict[str, Interval]:
    """By contender the mean ratio to `theirs` over tasks, and its 95% interval over the prompts of each."""
    rng = np.random.default_rng(0)
    tags = [prompt.tag for prompt in prompts]
    rows = [np.flatnonzero([tag == one for tag in tags]) for one in dict.fromkeys(tags)]
    drawn = [task[rng.integers(len(task), size=(DRAWS, len(task)))] for task in rows]
    seconds = {name: np.mean([one.each_s for one in answers], axis=0) for name, answers in turns.items()}

    def ratios(name: str, of: list[np.ndarray]) -> np.ndarray:  # all wrote the same tokens
        return np.mean([seconds[theirs][task].sum(-1) / seconds[name][task].sum(-1) for task in of], axis=0)

    found = {}
    for name in turns:
        low, high = np.quantile(ratios(name, drawn), [0.025, 0.975])
        found[name] = Interval(mean=float(ratios(name, rows)), low=float(low), high=float(high))
    return found


def show_rates(rates: Rates, title: str, over_plain: dict[str, Interval], over_generate: dict[str, Interval]) -> None:
    def row(name: str) -> list[Cell]:
        by_task = [table_cell(f"{task}, tokens/s", median(rates[name][task]), digits=1) for task in rates[name]]
        over = [table_cell(task, f"{ratio(rates, name, PLAIN, task):.2f}x") for task in rates[name]]
        means = [
            table_cell("mean over plain", f"{mean_ratio(rates, name, PLAIN):.2f}x {span(over_plain[name])}"),
            table_cell(
                f"mean over {GENERATE}", f"{mean_ratio(rates, name, GENERATE):.2f}x {span(over_generate[name])}"
            ),
        ]
        return [table_cell("contender", name), *by_task, *over, *means]

    show(title, map(row, rates))


def span(found: Interval) -> str:
    return f"[{found.low:.2f}, {found.high:.2f}]"


def show_verdicts(rates: Rates, chains: list[str]) -> None:
    """Show the goals and the results."""
    best = max(chains, key=lambda name: mean_ratio(rates, name, PLAIN))
    ours = max(filter(lambda name: name.startswith("draft:") and name.count("/") == 1, chains), default=None,
               key=lambda name: mean_ratio(rates, name, PLAIN))  # fmt: skip
    print(f"{best} over {GENERATE}: {verdict(mean_ratio(rates, best, GENERATE), GENERATE_GOAL)}")
    print(f"{best} over {PLAIN}: {verdict(mean_ratio(rates, best, PLAIN), PLAIN_GOAL)}")
    assisted = [name for name in rates if name.startswith("assisted")]
    if ours is not None and assisted:
        theirs = max(assisted, key=lambda name: mean_ratio(rates, name, PLAIN))
        print(f"{ours} over {theirs}, the best of both: {verdict(mean_ratio(rates, ours, theirs), ASSISTED_GOAL)}")
    for kind in (DROP_IN, PREPARED):
        if not any(name.startswith(kind) for name in rates):
            continue
        inside = max((name for name in rates if name.startswith(kind)), key=lambda n: mean_ratio(rates, n, GENERATE))
        print(f"{inside} over {GENERATE}: {verdict(mean_ratio(rates, inside, GENERATE), PREPARED_GOAL)}")
    for task in rates[PLAIN]:
        static = max(chains, key=lambda name: ratio(rates, name, PLAIN, task))
        print(f"{task}: {ROUTER} over {static}: {verdict(ratio(rates, ROUTER, static, task), ROUTER_GOAL)}")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="prompts, as `paceline prompts` writes them; one a task")
    parser.add_argument("--pool", default="smollm2-feature")
    parser.add_argument("--prompts", type=int, default=8, help="of each task")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--chain", action="append", help="instead of those of the script; repeated")
    parser.add_argument("--policy", action="append", default=[], help="besides the chains, no fixed one; repeated")
    parser.add_argument("--few", action="store_true", help="of transformers, generate() alone")
    options = parser.parse_args()
    tasks = [
        [replace(one, tag=file.stem, request_id=f"{file.stem}/{one.request_id}") for one in read_prompts(file)]
        for file in options.files
    ]
    short = [file.name for file, task in zip(options.files, tasks, strict=True) if len(task) < options.prompts]
    if short or options.prompts < 1:
        parser.error(f"--prompts must be from 1 to the prompts of each file, got {options.prompts}")
    if len({file.stem for file in options.files}) < len(tasks):
        parser.error("files must have different names")
    prompts = [prompt for turn in zip(*(task[: options.prompts] for task in tasks), strict=True) for prompt in turn]
    path, chains = pool_path(options.pool), options.chain or list(CHAINS)
    pool, stock = ModelPool.load(path, threads=1, chat=True), ModelPool.load(path, threads=1, chat=True)
    task = Task(prompts, options.tokens)
    fast = paceline.prepare(stock.target.model, {"draft": stock.member("draft").model})
    policies = [*chains, *options.policy]
    warm = jobs_of(pool, stock, fast, Task(prompts[:1], 8), policies, few=options.few)
    for job in warm.values():
        job()
    turns = in_turns(jobs_of(pool, stock, fast, task, policies, few=options.few), runs=options.repeats, warm_ups=0)
    rates = rates_of(turns, prompts)
    of = f"{len(prompts)} prompts of {len(tasks)} tasks, {options.tokens} tokens at most"
    title = f"{options.pool}, {of}; medians of {options.repeats} interleaved runs"
    show_rates(rates, title, means_over(turns, prompts, PLAIN), means_over(turns, prompts, GENERATE))
    show_verdicts(rates, chains)


if __name__ == "__main__":
    main()
