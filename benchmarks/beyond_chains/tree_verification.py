"""Milliseconds in which pico's target judges a token tree of 16 nodes, and a chain of 16 tokens, in one forward each.

Whole operations, as in a run: the forward of 17 tokens (the text's last one and the judged ones), the verdict, and the
update of the caches. Both requests follow the same prompt and continue from their own tokens.

python benchmarks/beyond_chains/tree_verification.py [--runs 15]
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from paceline.decoding.results import Drafted, Judged
from paceline.decoding.session import Session
from paceline.decoding.steps import Draft, Verify
from paceline.decoding.trees import DraftTree, tree_shape
from paceline.runtime.forward_kinds import CACHES, CacheKind
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.threads import Memory
from paceline.runtime.world import TorchWorld
from paceline.studies.decode import load_pool
from paceline.traces.meta import Sampling
from paceline_laboratory.findings import Cell, table_cell
from shared.report import parser_of, show

NODES = 16
CONTEXTS = (64, 256, 384)  # pico has 512 positions, and requests need room to continue
SHAPES = ("4x3", "beam=4,depth=5,tokens=16", "16")
WARM_UPS = 2


class Judging:
    """One request that drafts and judges by rounds."""

    def __init__(self, pool: ModelPool, cache: CacheKind, step: Draft | DraftTree, context: int) -> None:
        self.world = TorchWorld(pool=pool, sampling=Sampling(mode="greedy"), memory=Memory(cache=cache))
        self.step, self.target = step, len(pool.members) - 1
        members = loaded_pool(pool)
        self.verify, self.drafter = Verify(members.target), members.level(step.model)
        prompt = tuple(7 + (31 * at) % 1000 for at in range(context - 1))
        self.session = Session(
            pool=members, request_id="r", tag="", prompt=prompt, budget=512 - context, eos=frozenset()
        )
        self.world.open(self.session)
        self.judge(trees=False)

    def draft(self) -> int:
        """The number of tokens to judge."""
        items = [(self.session, self.step)]
        run = self.world.draft_trees if isinstance(self.step, DraftTree) else self.world.draft
        (row,) = run(self.drafter, items).rows
        assert isinstance(row, Drafted)
        self.session.drafted(self.step, self.drafter, row, duration_s=0.0, num_rows=1)
        return len(row.tokens)

    def judge(self, *, trees: bool) -> float:
        """Judge the draft; returns seconds of the operation."""
        run = self.world.verify_trees if trees else self.world.verify
        results = run(self.target, [(self.session, self.verify)])
        (row,) = results.rows
        assert isinstance(row, Judged)
        self.session.judged(self.verify, self.target, row, duration_s=results.duration_s, num_rows=1)
        return results.duration_s

    def round(self) -> float:
        """Draft and judge one round; returns seconds of judging, and checks the number of tokens."""
        num_judged = self.draft()
        assert num_judged == NODES, num_judged
        return self.judge(trees=isinstance(self.step, DraftTree))


def rows(pool: ModelPool, runs: int) -> Iterator[list[Cell]]:
    drafter = next(member.name for member in pool.members if member.model is not None)
    steps = {"chain": Draft(drafter, NODES)} | {shape: DraftTree(drafter, tree_shape(shape)) for shape in SHAPES}
    for cache in CACHES:
        for context in CONTEXTS:
            judging = {name: Judging(pool, cache, step, context) for name, step in steps.items()}
            taken: dict[str, list[float]] = {name: [] for name in steps}
            for turn in range(WARM_UPS + runs):  # interleaved
                for name, one in judging.items():
                    seconds = one.round()
                    if turn >= WARM_UPS:
                        taken[name].append(seconds)
            found = {name: median(each) for name, each in taken.items()}
            for shape in SHAPES:
                yield [
                    table_cell("cache", cache),
                    table_cell("context", context),
                    table_cell("tree", shape),
                    table_cell("chain ms", 1e3 * found["chain"], digits=2),
                    table_cell("tree ms", 1e3 * found[shape], digits=2),
                    table_cell("tree / chain", found[shape] / found["chain"], digits=2),
                ]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=15, help="operations of each kind")
    options = parser.parse_args()
    pool = load_pool(None, threads=1)
    title = f"judging {NODES} tokens by {pool.name}'s target, medians of {options.runs} operations in turn"
    show(title, rows(pool, options.runs), lines=[len(CONTEXTS) * len(SHAPES) - 1])


if __name__ == "__main__":
    main()
