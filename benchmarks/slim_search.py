"""The rank among all masks of a search's best slim verifier, with and without its Bayesian part.

python benchmarks/slim_search.py [--share 0.45] [--prompts 6] [--trials 60]

Every mask of the shipped pool's target is measured once; searches with several seeds then read from that list.
"""

from collections.abc import Mapping
from itertools import combinations
from statistics import fmean

from paceline.base.files import shipped
from paceline.base.terminal import tracked
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.submodels import make_submodel
from paceline.runtime.prompts import read_prompts
from paceline.runtime.slim import (
    Budget,
    Distance,
    Mask,
    best_trial,
    calibrate,
    measure_distance,
    num_skipped,
    search_masks,
)
from paceline_laboratory.findings import Cell, table_cell
from shared.report import parser_of, show

SEEDS = range(12)
NEW_TOKENS = 32


def every_mask(pool: ModelPool, skipped: int, num_prompts: int) -> dict[Mask, Distance]:
    """The distance of each mask."""
    folder = shipped("pools", "pico")
    prompts = read_prompts(folder / "prompts.jsonl")[:num_prompts]
    calibration = calibrate(pool, prompts, max_new_tokens=NEW_TOKENS)
    masks = list(combinations(range(pool.target.num_layers), skipped))
    every = tracked(masks, "every mask", total=len(masks), unit="masks")
    return {mask: measure_distance(make_submodel(pool.target.model, mask), calibration) for mask in every}


def ranks(known: Mapping[Mask, Distance], num_layers: int, skipped: int, trials: int, random_trials: int) -> list[int]:
    """The rank among all masks of each seed's best mask, from 1."""
    order = sorted(known, key=lambda mask: (known[mask].tvd, known[mask].disagreement, mask))
    found = []
    for seed in SEEDS:
        budget = Budget(trials=trials, random_trials=random_trials, seed=seed)
        best = best_trial(search_masks(known.__getitem__, num_layers, skipped, budget))
        found.append(order.index(best.skip_layers) + 1)
    return found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--share", type=float, default=0.45)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--trials", type=int, default=60)
    options = parser.parse_args()
    pool = ModelPool.load(shipped("pools", "pico"))
    num_layers = pool.target.num_layers
    skipped = num_skipped(options.share, num_layers)
    known = every_mask(pool, skipped, options.prompts)
    title = f"{len(known)} masks of {skipped} of {num_layers} layers; rank of the best found, over {len(SEEDS)} seeds"
    sizes = [(trials, random) for trials in (options.trials // 2, options.trials) for random in (trials, trials // 3)]
    show(title, [row(*size, ranks(known, num_layers, skipped, *size)) for size in sizes])


def row(trials: int, random_trials: int, found: list[int]) -> list[Cell]:
    return [
        table_cell("trials", trials),
        table_cell("random", random_trials),
        table_cell("best found", f"{found.count(1)} of {len(found)}"),
        table_cell("mean rank", fmean(found), digits=1),
        table_cell("worst rank", max(found)),
    ]


if __name__ == "__main__":
    main()
