"""Microseconds of one prompt lookup; the source of `LOOKUP_S` in sim/cost/base.py.

python benchmarks/lookup.py [--calls 2000]
"""

from collections.abc import Callable
from random import Random
from statistics import fmean

from paceline.decoding.prompt_lookup import LookupRule, prompt_lookup
from paceline.sim.cost.base import LOOKUP_S
from paceline_laboratory.findings import Cell, table_cell
from paceline_laboratory.replays import RUNS, interleaved
from shared.report import parser_of, show

RULE = LookupRule(max_match=3)
CONTEXT_TOKENS = (100, 150, 200)
# Number of ids: with few of them a lookup often finds the last one again, with very many never.
KINDS = {"repeats often": 60, "repeats at times": 400, "never repeats": 10**9}


def contexts(num_tokens: int, vocabulary: int, count: int) -> list[list[int]]:
    rng = Random(num_tokens)
    return [[rng.randrange(vocabulary) for _ in range(num_tokens)] for _ in range(count)]


def job(texts: list[list[int]]) -> Callable[[], object]:
    return lambda: [prompt_lookup(text, num_tokens=8, rule=RULE) for text in texts]


def row(kind: str, num_tokens: int, texts: list[list[int]], seconds: float) -> list[Cell]:
    hits = fmean(bool(prompt_lookup(text, num_tokens=8, rule=RULE)) for text in texts)
    return [
        table_cell("context", kind),
        table_cell("tokens", num_tokens),
        table_cell("found", f"{hits:.0%}"),
        table_cell("microseconds", seconds * 1e6, digits=1),
    ]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    options = parser.parse_args()
    texts = {
        (kind, size): contexts(size, vocabulary, options.calls)
        for kind, vocabulary in KINDS.items()
        for size in CONTEXT_TOKENS
    }
    timings = interleaved({f"{kind} {size}": job(found) for (kind, size), found in texts.items()})
    seconds = {key: timings[f"{key[0]} {key[1]}"].cpu_s / options.calls for key in texts}
    show(f"medians of {RUNS}", [row(*key, found, seconds[key]) for key, found in texts.items()])
    mean_s = fmean(seconds.values())
    print(f"mean {mean_s * 1e6:.1f} microseconds; LOOKUP_S in sim/cost/base.py is {LOOKUP_S * 1e6:.1f}")
    if not 0.5 <= mean_s / LOOKUP_S <= 2.0:
        print("they differ by more than a factor of 2: measure on an idle machine and correct the constant")


if __name__ == "__main__":
    main()
