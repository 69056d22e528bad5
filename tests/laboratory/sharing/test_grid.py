"""Cells of the experiment: seconds add up, drafts and hits are where they belong, and the same seed gives the same."""

from dataclasses import replace

import pytest
from paceline.base.files import shipped
from paceline.traces.contexts.store import read_trace
from paceline.traces.workloads import open_workload
from paceline_laboratory.experiments.sharing import (
    ATTENTION,
    CACHE,
    CHAINS,
    COST,
    LOADS,
    OFF,
    SHARINGS,
    THREE,
    Server,
    cells_table,
    interaction_table,
    served,
    served_load,
)

AGENT = next(load for load in LOADS if load.name == "persistent-agent")
SEEDS = (0, 1)


@pytest.fixture(scope="module")
def trace():
    return read_trace(shipped("recordings", "pico.trace"))


@pytest.fixture(scope="module")
def found(trace, tmp_path_factory):
    return served_load(AGENT, trace, SEEDS, 2, tmp_path_factory.mktemp("cells"))


def test_every_cell_is_served_at_every_seed(found):
    assert list(found.cells) == [(chain, sharing) for sharing in SHARINGS for chain in CHAINS]
    assert {len(cells) for cells in found.cells.values()} == {len(SEEDS)}
    assert len(cells_table(found).rows) == len(found.cells)
    assert len(interaction_table([found]).rows) == 4


def test_hits_are_where_there_is_a_cache_and_reading_is_the_rest(found):
    tokens = []
    for seed in SEEDS:
        prompts = 0
        for arrival in open_workload(AGENT.workload(2), seed=seed):
            one = [arrival]
            while one:
                prompts += one[0].prompt_tokens
                one = [] if one[0].turns is None else list(one[0].turns.after(one[0].arrives_ps))
        tokens.append(prompts)
    for (chain, sharing), cells in found.cells.items():
        for cell, prompts in zip(cells, tokens, strict=True):
            assert set(cell.hit_shares) == {name for name in COST if name in chain or name == "target"}
            assert set(cell.reading_s) == set(cell.writing_s) == set(cell.hit_shares)
            for name, share in cell.hit_shares.items():
                assert share == 0 if sharing == OFF else share > 0.5
                assert cell.reading_s[name] == pytest.approx((1 - share) * prompts * COST[name]["per_new_token_s"])
                assert cell.writing_s[name] > 0
            assert sum(cell.reading_s.values()) + sum(cell.writing_s.values()) <= cell.duration_s * (1 + 1e-9)


def test_sharing_changes_no_acceptance(found):
    """At one seed the same recorded answers stand for the requests, so a chain accepts the same."""
    for chain in CHAINS:
        lengths = [[one.acceptance_length for one in found.cells[chain, sharing]] for sharing in SHARINGS]
        assert lengths[0] == lengths[1] == lengths[2]


def test_attention_to_a_common_text_never_takes_longer(found):
    for chain in CHAINS:
        for once, each in zip(found.cells[chain, ATTENTION], found.cells[chain, CACHE], strict=True):
            assert once.writing_s["target"] <= each.writing_s["target"]


def test_a_server_says_who_keeps_no_cache(trace, tmp_path):
    server = Server(sharing=CACHE, uncached=("draft", "mid"))
    run = served(AGENT.workload(1), THREE, server, trace=trace, seed=0, folder=tmp_path)
    assert run.hit_shares["draft"] == run.hit_shares["mid"] == 0 < run.hit_shares["target"]
    again = served(AGENT.workload(1), THREE, replace(server, uncached=()), trace=trace, seed=0, folder=tmp_path)
    assert again.duration_s < run.duration_s
