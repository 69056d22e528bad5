"""The best static chain of a cell, as the policy that others are compared with."""

from dataclasses import replace

import pytest
from paceline.base.files import shipped
from paceline.policies.spec import PolicySpec
from paceline.traces.contexts.store import read_trace
from paceline_laboratory.arena.cells import ArenaCell
from paceline_laboratory.arena.play import RecordingStage, play
from paceline_laboratory.arena.statics import CellStatics
from paceline_laboratory.arena.store import BEST_STATIC


@pytest.fixture(scope="module")
def stage():
    trace = read_trace(shipped("recordings", "pico-coupled.trace"))
    return RecordingStage(replace(trace, requests=trace.requests[:12]))


@pytest.mark.parametrize("load", ["batch-1", "batch-8", "ninety"])
def test_no_chain_of_two_levels_is_faster_at_any_load_or_seed(stage, load):
    cell = ArenaCell(recording="pico-coupled", ladder="steep", load=load)
    statics = CellStatics(stage)
    for seed in (0, 1):
        best = statics.best(cell, seed)
        assert (best.cell, best.policy, best.seed) == (cell, BEST_STATIC, seed)
        again = play(stage, cell, PolicySpec.parse(best.chain), seed)
        assert replace(again, policy=BEST_STATIC, chain=best.chain) == best
        for text in ("plain", "draft:2/target", "draft:4/target", "mid:3/target", "ngram:4/target"):
            assert play(stage, cell, PolicySpec.parse(text), seed).tokens_per_s <= best.tokens_per_s * (1 + 1e-12)
