"""The experiment `sharing`: its cells, the interaction term, and prompts that share text on models."""

from dataclasses import replace
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.files import shipped
from paceline.traces.contexts.store import read_trace
from paceline.traces.workloads import open_workload
from paceline_laboratory.experiments.sharing import (
    ATTENTION,
    CACHE,
    CACHES,
    CHAINS,
    LESS,
    LOADS,
    MORE,
    OFF,
    OPEN,
    PLAIN,
    PROMPTS_OF_GROUP,
    SHARINGS,
    THREE,
    TWO,
    SharingServer,
    cells_table,
    in_both_worlds,
    interaction,
    interaction_table,
    served,
    served_load,
    shared_prompts,
    term,
)
from paceline_laboratory.findings import ExperimentSetting
from paceline_laboratory.replays import A100_COST
from paceline_laboratory.shared import pool_of

AGENT = next(load for load in LOADS if load.name == "persistent-agent")
SEEDS = (0, 1)


@pytest.fixture(scope="module")
def trace():
    return read_trace(shipped("recordings", "pico.trace"))


@pytest.fixture(scope="module")
def found(trace, tmp_path_factory):
    return served_load(AGENT, trace, SEEDS, 1, tmp_path_factory.mktemp("cells"))


def test_every_cell_is_served_at_every_seed(found):
    assert list(found.cells) == [(chain, sharing) for sharing in SHARINGS for chain in CHAINS]
    assert {len(cells) for cells in found.cells.values()} == {len(SEEDS)}
    assert len(cells_table(found).rows) == len(found.cells)
    assert len(interaction_table([found]).rows) == 4


def test_hits_are_where_there_is_a_cache_and_reading_is_the_rest(found):
    tokens = []
    for seed in SEEDS:
        prompts = 0
        for arrival in open_workload(AGENT.workload(1), seed=seed):
            one = [arrival]
            while one:
                prompts += one[0].prompt_tokens
                one = [] if one[0].turns is None else list(one[0].turns.after(one[0].arrives_ps))
        tokens.append(prompts)
    for (chain, sharing), cells in found.cells.items():
        for cell, prompts in zip(cells, tokens, strict=True):
            assert set(cell.hit_shares) == {name for name in A100_COST if name in chain or name == "target"}
            assert set(cell.reading_s) == set(cell.writing_s) == set(cell.hit_shares)
            for name, share in cell.hit_shares.items():
                assert share == 0 if sharing == OFF else share > 0.5
                assert cell.reading_s[name] == pytest.approx((1 - share) * prompts * A100_COST[name]["per_new_token_s"])
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
    server = SharingServer(sharing=CACHE, uncached=("draft", "mid"))
    run = served(AGENT.workload(1), THREE, server, trace=trace, seed=0, folder=tmp_path)
    assert run.hit_shares["draft"] == run.hit_shares["mid"] == 0 < run.hit_shares["target"]
    again = served(AGENT.workload(1), THREE, replace(server, uncached=()), trace=trace, seed=0, folder=tmp_path)
    assert again.duration_s < run.duration_s


SECONDS = st.floats(1e-3, 1e6)
RUNS = st.integers(2, 5).flatmap(lambda seeds: st.tuples(*[st.lists(SECONDS, min_size=seeds, max_size=seeds)] * 4))


@given(RUNS)
def test_the_term_is_the_same_either_way(runs):
    """What sharing does to the speed-up of speculation, and what speculation does to that of sharing."""
    neither, speculation, sharing, both = runs
    one, other = interaction(*runs), interaction(neither, sharing, speculation, both)
    assert one.term.mean == pytest.approx(other.term.mean, rel=1e-9)
    assert one.gain.mean == other.without.mean
    assert (one.words == MORE) == (one.term.mean - one.term.half_width > 1)
    assert (one.words == LESS) == (one.term.mean + one.term.half_width < 1)


@given(st.floats(0.5, 4), st.floats(1.1, 4), st.integers(2, 5))
def test_independent_changes_have_a_term_of_one(speed_up, gain, seeds):
    each = [1.0 + seed for seed in range(seeds)]
    found = interaction(
        each, [t / speed_up for t in each], [t / gain for t in each], [t / speed_up / gain for t in each]
    )
    assert found.term.mean == pytest.approx(1.0)
    assert found.term.half_width == pytest.approx(0.0, abs=1e-9)
    assert found.words in (MORE, LESS, OPEN)


@given(st.floats(1, 100), st.floats(1, 100), st.floats(0.1, 10), st.floats(0.01, 0.99))
def test_reading_that_goes_makes_quicker_writing_worth_more_and_slower_writing_less(reading, writing, factor, left):
    """Amdahl's law: the term is above 1 if and only if speculation takes less time to write."""
    found = interaction(
        [reading + writing] * 2,
        [reading + factor * writing] * 2,
        [left * reading + writing] * 2,
        [left * reading + factor * writing] * 2,
    )
    term = found.term.mean
    assert (term > 1 + 1e-12) == (factor < 1) or abs(term - 1) < 1e-9


def test_one_seed_has_no_interval():
    with pytest.raises(ValueError, match="an interval needs at least 2 values, got 1"):
        interaction([1.0], [1.0], [1.0], [1.0])


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
