"""Microseconds of one prompt lookup; `LOOKUP_S` of sim/cost/base.py is what this printed.

python benchmarks/lookup.py [--calls 2000]
"""

import argparse
from collections.abc import Callable
from random import Random

from measuring import RUNS, interleaved
from paceline.decoding.prompt_lookup import LookupRule, prompt_lookup
from paceline.sim.cost.base import LOOKUP_S
from rich.console import Console
from rich.table import Table

RULE = LookupRule(max_match=3)
CONTEXT_TOKENS = (100, 150, 200)
# Ids to choose from: of few ids a lookup often finds the last one again, of very many never.
KINDS = {"repeats often": 60, "repeats at times": 400, "never repeats": 10**9}


def contexts(num_tokens: int, vocabulary: int, count: int) -> list[list[int]]:
    rng = Random(num_tokens)
    return [[rng.randrange(vocabulary) for _ in range(num_tokens)] for _ in range(count)]


def job(texts: list[list[int]]) -> Callable[[], object]:
    return lambda: [prompt_lookup(text, num_tokens=8, rule=RULE) for text in texts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    options = parser.parse_args()
    texts = {
        (kind, size): contexts(size, vocabulary, options.calls)
        for kind, vocabulary in KINDS.items()
        for size in CONTEXT_TOKENS
    }
    timings = interleaved({f"{kind} {size}": job(found) for (kind, size), found in texts.items()})
    table = Table("context", "tokens", "found", "microseconds", title=f"medians of {RUNS}", title_justify="left")
    seconds = []
    for (kind, size), found in texts.items():
        hits = sum(bool(prompt_lookup(text, num_tokens=8, rule=RULE)) for text in found) / options.calls
        seconds.append(timings[f"{kind} {size}"].cpu_s / options.calls)
        table.add_row(kind, str(size), f"{hits:.0%}", f"{seconds[-1] * 1e6:.1f}")
    Console(width=80).print(table)
    mean_s = sum(seconds) / len(seconds)
    print(f"mean {mean_s * 1e6:.1f} microseconds; LOOKUP_S in sim/cost/base.py is {LOOKUP_S * 1e6:.1f}")
    if not 0.5 <= mean_s / LOOKUP_S <= 2.0:
        print("they differ by more than a factor of 2: measure on an idle machine and correct the constant")


if __name__ == "__main__":
    main()
