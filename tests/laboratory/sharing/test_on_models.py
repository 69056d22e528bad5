"""Prompts that share text: groups with a head in common, and terms of both worlds from what was found."""

from itertools import takewhile

import pytest

pytest.importorskip("torch")

from paceline.base.files import shipped
from paceline.traces.contexts.store import read_trace
from paceline_laboratory.experiments.sharing import (
    CACHE,
    CACHES,
    CHAINS,
    OFF,
    PLAIN,
    PROMPTS_OF_GROUP,
    TWO,
    in_both_worlds,
    shared_prompts,
    term,
)
from paceline_laboratory.findings import ExperimentSetting
from paceline_laboratory.shared import pool_of


def common(texts):
    """Tokens that all begin with."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False)))


def test_prompts_of_a_group_share_full_blocks_and_others_share_none():
    setting = ExperimentSetting()
    pool, prompts = pool_of(setting), shared_prompts(setting)
    texts = [pool.encode(one.text) for one in prompts]
    for start in range(0, len(texts), PROMPTS_OF_GROUP):
        group = texts[start : start + PROMPTS_OF_GROUP]
        assert common(group) >= CACHES[CACHE].block_tokens
        others = texts[:start] + texts[start + PROMPTS_OF_GROUP :]
        assert all(common([group[0], other]) < CACHES[CACHE].block_tokens for other in others)
    assert len({tuple(text) for text in texts}) == len(texts)
    assert shared_prompts(ExperimentSetting(limit=2)) == prompts[:2]


@pytest.mark.slow
def test_both_worlds_take_the_same_steps_and_find_the_same():
    setting = ExperimentSetting(limit=4)
    found = in_both_worlds(pool_of(setting), shared_prompts(setting), read_trace(shipped("recordings", "pico.trace")))
    assert set(found) == {(chain, sharing) for chain in CHAINS for sharing in (OFF, CACHE)}
    assert term(found, PLAIN, "simulated") == 1.0 != term(found, TWO, "simulated")
    for (_, sharing), one in found.items():
        assert one.agreement.difference is None
        assert one.simulated_hits == one.measured_hits
        assert (one.measured_hits > 0) == (sharing == CACHE)
