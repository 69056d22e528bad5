"""Real models do the work of the simulated engine: the same decisions, and their own seconds."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from paceline.base.errors import ArgumentError
from paceline.decoding.world import VerifyItem
from paceline.runtime.world import TorchWorld
from paceline.sim.cost.files import CostLine, FileCost
from paceline.sim.serving.charges import ServingCharges
from paceline.sim.serving.cluster import open_cluster
from paceline.studies import validate_under_load as served_worlds
from paceline.studies.record import record
from paceline.studies.setting import named_policy
from paceline.studies.validate_under_load import ModelsWorld, ServedWorlds, validate_under_load
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.meta import Sampling
from paceline.traces.workloads import Arrival, WorkloadAbout
from paceline.traces.workloads.arrival import PS_PER_S

from ...tiny_models import random_prompts, tiny_pool_of_four

POOL = tiny_pool_of_four()
PROMPTS = random_prompts(8, seed=3, longest=30)
LINES = {
    name: CostLine(intercept_s=0.003 * level, per_new_token_s=0.0004 * level)
    for level, name in enumerate(("draft", "mid", "slim", "target"), start=1)
}
COST = FileCost("line", LINES)
POLICIES = ("plain", "draft:3/target", "draft:2/mid:4/target", "ngram:3/mid:4/target", "adaptive")


def cluster_text(*, count=1, max_num_seqs=4, token_budget=16, blocks=200, prefix_cache="false", more=""):
    return f"""
{more}
[devices.box]
flops_per_s = {{ float32 = 1e11 }}
bytes_per_s = 1e10
memory_bytes = 4e9

[[replicas]]
name = "tiny"
device = "box"
count = {count}
max_num_seqs = {max_num_seqs}
token_budget = {token_budget}
block_tokens = 4
kv_blocks = {blocks}
prefix_cache = {prefix_cache}
"""


class Listed:
    """Arrivals at random times, some at once."""

    def __init__(self, count, seed=0):
        rng, now_ps, self.arrivals = Random(seed), 0, []
        for index in range(count):
            now_ps += rng.choice((0, PS_PER_S // 100, PS_PER_S // 10))
            self.arrivals.append(Arrival(f"q{index}", now_ps, 7, 7, tag=rng.choice(("", "a", "b"))))
        self.about = WorkloadAbout(name="listed", files=(), format="list", unit_tokens=0, num_requests=count, notes=())

    def __iter__(self):
        return iter(self.arrivals)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("under_load") / "a.trace"
    record(POOL, PROMPTS, path, max_new_tokens=16, costs=False)
    return path


@pytest.fixture(scope="module")
def recording(path):
    return read_trace(path)


@pytest.fixture
def worlds(recording, tmp_path):
    def make(**cluster):
        file = tmp_path / "mine.toml"
        file.write_text(cluster_text(**cluster), encoding="utf-8")
        return ServedWorlds(POOL, recording, open_cluster(file, recording), COST, seed=5)

    return make


class PricedModels(ModelsWorld):
    """Models that are said to take what the simulator says; caches are compared with sessions before every step."""

    def __init__(self, models, answers, trunks, left, stopwatch):
        checked = TorchWorld(pool=models.pool, sampling=models.sampling, debug=True)
        super().__init__(checked, answers, trunks, left, stopwatch)
        self._charges = ServingCharges(COST, POOL_OF_LOOP, lambda: 0.0)

    def close(self, session):
        super().close(session)
        self._charges.close(session.request_id)

    def draft(self, level, items):
        results = super().draft(level, items)
        if POOL_OF_LOOP.members[level].model_free:
            self.duration_ps = self._charges.looked_up(len(items))
            return results
        _, self.duration_ps = self._charges.drafted(level, items, results.rows)
        return results

    def verify(self, level, items, chunks: Sequence[VerifyItem] = ()):
        results = super().verify(level, items, chunks)
        _, self.duration_ps = self._charges.verified(level, [*items, *chunks])
        return results

    def catch_up(self, level, sessions):
        super().catch_up(level, sessions)
        _, self.duration_ps = self._charges.verified(level, [(session, None) for session in sessions])


POOL_OF_LOOP = served_worlds.loaded_pool(POOL)
CLUSTERS = {
    "ample": {},
    "small chunks": {"token_budget": 5},
    "short of memory": {"blocks": 14, "max_num_seqs": 6},
    "two replicas": {"count": 2, "max_num_seqs": 2},
}


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_at_the_same_seconds_both_worlds_are_one(worlds, monkeypatch, policy, cluster):
    """Every time, every preemption, every block and every token."""
    monkeypatch.setattr(served_worlds, "ModelsWorld", PricedModels)
    both = worlds(**cluster)
    workload = both.attached(Listed(12))
    simulated, ran = (run(named_policy(policy), workload) for run in (both.simulated, both.measured))
    assert ran.left == frozenset()
    assert ran.tokens == simulated.tokens
    assert ran.log.meta == simulated.log.meta
    for ours, theirs in zip(
        (simulated.log.requests, simulated.log.preemptions, simulated.log.series),
        (ran.log.requests, ran.log.preemptions, ran.log.series),
        strict=True,
    ):
        for name, column in ours.items():
            np.testing.assert_array_equal(column, theirs[name])


def test_memory_is_short_in_one_of_the_clusters(worlds):
    both = worlds(**CLUSTERS["short of memory"])
    assert len(both.simulated(named_policy("plain"), both.attached(Listed(12))).log.preemptions["request"]) > 0


@pytest.mark.parametrize("policy", ["plain", "draft:2/mid:4/target"])
def test_measured_seconds_change_when_things_happen_and_nothing_else(worlds, policy):
    both = worlds(blocks=40)
    workload = both.attached(Listed(12))
    simulated, ran = (run(named_policy(policy), workload) for run in (both.simulated, both.measured))
    assert ran.tokens == simulated.tokens
    assert ran.log.meta.levels == simulated.log.meta.levels
    requests = ran.log.requests
    assert ran.log.finished.all()
    assert (requests["emitted_tokens"] == requests["output_tokens"]).all()
    assert (requests["scheduled_at_ps"] >= requests["arrived_at_ps"]).all()
    assert (requests["first_token_at_ps"] > requests["scheduled_at_ps"]).all()
    assert (requests["ended_at_ps"] >= requests["first_token_at_ps"]).all()


def test_requests_are_as_long_as_what_was_recorded(worlds, recording):
    both = worlds()
    lengths = {(len(one.prompt), len(one.trie.trunk) - 1) for one in recording.requests}
    assert {(one.prompt_tokens, one.output_tokens) for one in both.attached(Listed(12))} <= lengths


def test_a_table_of_errors(path, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(cluster_text(), encoding="utf-8")
    found = validate_under_load(
        POOL, PROMPTS, path, ["plain", "draft:2/target"], workload="poisson:requests=10", cluster=file, rates=(5, 50),
        cost=_cost_file(tmp_path), runs=2,
    )  # fmt: skip
    assert [(cell.rate, cell.policy) for cell in found.cells] == [
        (5, "plain"), (5, "draft:2/target"), (50, "plain"), (50, "draft:2/target"),
    ]  # fmt: skip
    for cell in found.cells:
        assert cell.equal
        assert cell.finished == (10, 10)
        assert (cell.other_answers, cell.left, cell.cycled) == (0, 0, 0)
        assert cell.emitted > 0
        assert cell.simulated.keys() == cell.measured.keys() == cell.errors().keys()
        assert cell.simulated["ttft_s_p50"] <= cell.simulated["ttft_s_p90"] <= cell.simulated["e2e_s_p99"]
        assert cell.error("e2e_s_mean") == cell.simulated["e2e_s_mean"] / cell.measured["e2e_s_mean"] - 1
    assert "equal work in 4 of 4 cells" in repr(found)
    modelled = sum(cell.modelled for cell in found.cells)
    assert (f"{modelled:,} decisions were modelled rather than replayed" in found.lines()) == (modelled > 0)
    told = replace(found, cells=(replace(found.cells[0], modelled=1234),)).lines()
    assert "1,234 decisions were modelled rather than replayed" in told
    assert len(found.to_dicts()) == 4
    assert found.to_json()["errors"]["ttft_s_mean"]["worst"] >= found.to_json()["errors"]["ttft_s_mean"]["median"]


def _cost_file(folder):
    path = folder / "cost.json"
    lines = ", ".join(
        f'"{name}": {{"intercept_s": {line.intercept_s}, "per_new_token_s": {line.per_new_token_s}}}'
        for name, line in LINES.items()
    )
    path.write_text(f"{{{lines}}}", encoding="utf-8")
    return str(path)


def test_a_cluster_with_prefix_caches_is_refused(worlds):
    with pytest.raises(ValueError, match=r"^cluster mine, replica tiny: prefix_cache must be false, .* for draft$"):
        worlds(prefix_cache="true")


def test_a_recording_that_was_sampled_is_refused(recording, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(cluster_text(), encoding="utf-8")
    sampled = recording.meta.model_copy(update={"sampling": Sampling(mode="coupled", temperature=0.5, seed=1)})
    with pytest.raises(ArgumentError, match=r"^`recording` must be greedy"):
        ServedWorlds(POOL, replace(recording, meta=sampled), open_cluster(file, recording), COST, seed=0)


def test_a_lossy_policy_is_refused(worlds):
    with pytest.raises(ArgumentError, match=r"^`policies` must be lossless"):
        worlds().build(named_policy("early-commit"))


@pytest.mark.parametrize(
    ("rates", "said"), [([], "must hold at least one"), ([0], "must be in"), ([2, 2], "must differ, got 2 twice")]
)
def test_rates_are_those_that_a_comparison_takes(rates, said):
    with pytest.raises(ArgumentError, match=f"^`rates` {said}"):
        validate_under_load(None, [], "none.trace", workload="poisson:requests=1", cluster="h100", rates=rates)
