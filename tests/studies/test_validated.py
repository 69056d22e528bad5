"""Servers: real models do the work of the simulated engine, observed runs are replayed, and seconds fitted to them."""

import json
import math
from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import typer
from paceline.base.errors import ArgumentError
from paceline.cli.seconds import _Bounds
from paceline.decoding.steps import PolicyError
from paceline.reports.observed import errors_between
from paceline.reports.serving_tables import FIGURES, LoadCell
from paceline.runs.observed import (
    ObservedAcceptance,
    ObservedMeta,
    ObservedRequest,
    ObservedRun,
    read_observed,
    read_run,
    write_observed,
)
from paceline.runtime.world import TorchWorld
from paceline.sim.cost.base import DraftTerms
from paceline.sim.cost.files import CostLine, DrafterFigures, FileCost
from paceline.sim.serving.charges import ServingCharges
from paceline.sim.serving.cluster import open_cluster
from paceline.studies import calibrate
from paceline.studies import validate_under_load as served_worlds
from paceline.studies.observed_runs import Drafts, Replayable, ReplayedRequests, drafts_of, replayable
from paceline.studies.record import record
from paceline.studies.serving import simulate
from paceline.studies.setting import named_policy
from paceline.studies.validate_observed import validate_observed
from paceline.studies.validate_under_load import LoadValidation, ModelsWorld, ServedWorlds, validate_under_load
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.meta import Sampling
from paceline.traces.workloads import Arrival, WorkloadAbout
from paceline.traces.workloads.arrival import PS_PER_S

from ..cli.command_line import done, paceline, refused
from ..tiny_models import random_prompts, tiny_pool_of_four

POOL = tiny_pool_of_four()
PROMPTS = random_prompts(8, seed=3, longest=30)
LINES = {
    name: CostLine(intercept_s=0.003 * level, per_new_token_s=0.0004 * level)
    for level, name in enumerate(("draft", "mid", "slim", "target"), start=1)
}
COST = FileCost("line", LINES)
POLICIES = ("plain", "draft:3/target", "draft:2/mid:4/target", "ngram:3/mid:4/target", "adaptive")


def write_cluster(folder, *, count=1, max_num_seqs=4, token_budget=16, blocks=200, prefix_cache="false"):
    text = f"""
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
    (folder / "mine.toml").write_text(text, encoding="utf-8")
    return folder / "mine.toml"


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
        return ServedWorlds(POOL, recording, open_cluster(write_cluster(tmp_path, **cluster), recording), COST, seed=5)

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

    def draft(self, level, rows, fed=None):
        ran = super().draft(level, rows)
        if POOL_OF_LOOP.members[level].model_free:
            return ran._replace(duration_ps=self._charges.looked_up(len(rows)))
        return ran._replace(duration_ps=self._charges.drafted(level, rows, ran.rows, fed)[-1])

    def verify(self, level, rows, chunks=(), fed=None):
        ran = super().verify(level, rows, chunks)
        return ran._replace(duration_ps=self._charges.verified(level, (*rows, *chunks))[-1])

    def catch_up(self, level, rows):
        super().catch_up(level, rows)
        return self._charges.verified(level, rows)[-1]


POOL_OF_LOOP = served_worlds.loaded_pool(POOL)
CLUSTERS = {
    "ample": {},
    "small chunks": {"token_budget": 5},
    "short of memory": {"blocks": 14, "max_num_seqs": 6},
    "two replicas": {"count": 2, "max_num_seqs": 2},
}


@pytest.mark.parametrize(("policy", "cluster"), [
    (policy, cluster)
    for place, cluster in enumerate(CLUSTERS)
    for policy in (POLICIES[place % 5], POLICIES[(place + 2) % 5], POLICIES[(place + 3) % 5])
])  # fmt: skip
@pytest.mark.one_in(3)
def test_at_the_same_seconds_both_worlds_are_one(worlds, monkeypatch, policy, cluster):
    """Every time, every preemption, every block and every token."""
    monkeypatch.setattr(served_worlds, "ModelsWorld", PricedModels)
    both = worlds(**CLUSTERS[cluster])
    workload = both.attached(Listed(12))
    simulated, ran = (run(named_policy(policy), workload) for run in (both.simulated, both.measured))
    assert ran.left == frozenset()
    assert ran.tokens == simulated.tokens
    ours, theirs = (one.log.meta.model_dump() for one in (simulated, ran))
    for replica in (*ours["replicas"], *theirs["replicas"]):
        del replica["path"], replica["states"]  # only the simulation adds up cycles
    assert ours == theirs
    for ours, theirs in zip(
        (simulated.log.requests, simulated.log.preemptions), (ran.log.requests, ran.log.preemptions), strict=True
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


BREAKS = """
from paceline.policies import Verify

class Breaks:
    def __init__(self, pool):
        self.verify = Verify(pool.target)

    def decide(self, seen):
        if seen.num_emitted > 3:
            raise RuntimeError("oh")
        return self.verify

    def learn(self, outcome):
        pass
"""


def test_a_table_of_errors(path, tmp_path):
    file = write_cluster(tmp_path)
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
    assert any("decisions were modelled" in line for line in found.lines()) == (modelled > 0)
    told = replace(found, cells=(replace(found.cells[0], modelled=1234, emitted=5678),)).lines()
    assert "1,234 decisions were modelled rather than replayed, over 5,678 output tokens" in told
    assert len(found.to_dicts()) == 4
    assert found.to_json()["errors"]["ttft_s_mean"]["worst"] >= found.to_json()["errors"]["ttft_s_mean"]["median"]


@pytest.mark.parametrize(
    ("simulated", "measured", "error"),
    [(1.0, None, math.inf), (None, 1.0, math.inf), (1.0, 0.0, math.inf), (None, None, None), (1.1, 1.0, 0.1)],
)
def test_a_figure_that_one_world_lacks_fails_every_bound(simulated, measured, error):
    cell = LoadCell(
        policy="plain", rate=None, requests=4, finished=(4, 4), preemptions=(0, 0), simulated={}, measured={},
        spread=0.0, other_answers=0, left=0, emitted=4, cycled=0, modelled=0, equal=True,
    )  # fmt: skip
    sound = dict.fromkeys(FIGURES, 1.0)
    other = {
        world: {name: value for name in ("ttft_s_mean", "e2e_s_mean") if value is not None}
        for world, value in (("simulated", simulated), ("measured", measured))
    }
    meta = dict.fromkeys(("pool", "trace", "workload", "cluster", "cost"), "one") | {"runs": 1, "notes": []}
    cells = (replace(cell, simulated=sound, measured=sound), replace(cell, **other))
    found = LoadValidation(meta=meta, cells=cells)
    assert cells[1].error("e2e_s_mean") == (error if error is None else pytest.approx(error))
    median, worst = found.errors
    assert worst == pytest.approx(error or 0.0)
    for name in ("mean_bound", "tail_bound"):
        bounds = _Bounds(**{name: 10.0})
        if error != math.inf:
            bounds.exit_beyond(median, worst)
            continue
        with pytest.raises(typer.Exit):
            bounds.exit_beyond(median, worst)
    told = "only one world has some figure in 1 cell: its error counts as infinite"
    assert (told in found.lines()) == (error == math.inf)
    assert ("+inf%" in repr(found)) == (error == math.inf)
    json.dumps(found.to_json(), allow_nan=False)


def _cost_file(folder):
    path = folder / "cost.json"
    figures = {
        name: {"intercept_s": line.intercept_s, "per_new_token_s": line.per_new_token_s} for name, line in LINES.items()
    }
    path.write_text(json.dumps(figures), encoding="utf-8")
    return str(path)


def test_a_policy_that_breaks_in_the_replay_is_refused_before_the_models_run(path, tmp_path, monkeypatch):
    """What they had measured of others was lost."""
    (tmp_path / "mine.py").write_text(BREAKS)
    monkeypatch.setattr(served_worlds, "in_turns", lambda *_: pytest.fail("the models ran"))
    with pytest.raises(PolicyError, match="decide raised RuntimeError"):
        validate_under_load(
            POOL, PROMPTS, path, ["plain", f"{tmp_path / 'mine.py'}:Breaks"], workload="poisson:rate=9,requests=4",
            cluster=write_cluster(tmp_path), cost=_cost_file(tmp_path), runs=1,
        )  # fmt: skip


def test_a_cluster_with_prefix_caches_is_refused(worlds):
    with pytest.raises(ValueError, match=r"^cluster mine, replica tiny: prefix_cache must be false, .* for draft$"):
        worlds(prefix_cache="true")


def test_a_recording_that_was_sampled_is_refused(recording, tmp_path):
    file = write_cluster(tmp_path)
    sampled = recording.meta.model_copy(update={"sampling": Sampling(mode="coupled", temperature=0.5, seed=1)})
    with pytest.raises(ArgumentError, match=r"^`recording` must be greedy"):
        ServedWorlds(POOL, replace(recording, meta=sampled), open_cluster(file, recording), COST, seed=0)


def test_a_lossy_policy_is_refused(worlds):
    with pytest.raises(ArgumentError, match=r"^`policies` must be lossless"):
        worlds().build(named_policy("early-commit"))


def test_a_lossy_step_that_no_policy_declared_is_no_near_tie(worlds, tmp_path):
    """Requests that had other text were said to have left the record by a near tie."""
    (tmp_path / "lossy.py").write_text(
        BREAKS.replace('raise RuntimeError("oh")', "return Verify('target', Ratio(0.05))")
    )
    text = (tmp_path / "lossy.py").read_text().replace("import Verify", "import Ratio, Verify")
    (tmp_path / "lossy.py").write_text(text)
    both, policy = worlds(), named_policy(f"{tmp_path / 'lossy.py'}:Breaks")
    for run in (both.simulated, both.measured):
        with pytest.raises(PolicyError, match="is lossy, and only lossless policies were asked for"):
            run(policy, both.attached(Listed(3)))


@pytest.mark.parametrize(
    ("rates", "said"), [([], "must hold at least one"), ([0], "must be in"), ([2, 2], "must differ, got 2 twice")]
)
def test_rates_are_those_that_a_comparison_takes(rates, said):
    with pytest.raises(ArgumentError, match=f"^`rates` {said}"):
        validate_under_load(None, [], "none.trace", workload="poisson:requests=1", cluster="h100", rates=rates)


CLUSTER = '[[replicas]]\ndevice = "cpu-roofline"\nmax_num_seqs = 4\nprefix_cache = false\n'
SECONDS = {"intercept_s": 0.004, "per_new_token_s": 0.0008, "per_kv_token_s": 1e-6}


@pytest.fixture(scope="module")
def observed_runs(tmp_path_factory):
    """Two runs of a server whose seconds are known: the simulator's own, told as if a client had seen them."""
    place = tmp_path_factory.mktemp("observed")
    (place / "c.toml").write_text(CLUSTER)
    figures = dict.fromkeys(("draft", "mid", "slim", "target"), SECONDS)
    (place / "s.json").write_text(json.dumps(figures))
    for seed, name in ((1, "a"), (2, "b")):
        load = "poisson:rate=20,requests=25,prompt=lognormal:60:1,output=4..40"
        options = {"cluster": place / "c.toml", "cost": str(place / "s.json"), "seed": seed}
        write_observed(observed(simulate(load, "plain", **options).log), place / name)
    return place


def observed(log):
    """A log of the simulator as a client's; times move by 5 s, since a run does not begin with its first request."""
    columns = {name: column.tolist() for name, column in log.requests.items() if name != "cached_tokens"}
    later = 5 * 10**12
    requests = tuple(
        ObservedRequest(
            request_id=name,
            prompt_id="p",
            asked_tokens=columns["output_tokens"][row],
            due_at_ps=columns["arrived_at_ps"][row] + later,
            sent_at_ps=columns["arrived_at_ps"][row] + later,
            outputs_at_ps=(columns["first_token_at_ps"][row] + later, columns["ended_at_ps"][row] + later),
            ended_at_ps=columns["ended_at_ps"][row] + later,
            prompt_tokens=columns["prompt_tokens"][row],
            output_tokens=columns["output_tokens"][row],
            finish_reason="length",
        )
        for row, name in enumerate(columns["request_id"])
    )
    about = {"url": "http://h", "model": "m", "endpoint": "/v1/completions", "workload": "w", "prompts": "p"}
    meta = ObservedMeta(**about, loop="open", ended_at_ps=log.meta.ended_at_ps + later)
    return ObservedRun(meta, requests)


def test_what_the_simulator_did_is_replayed_without_an_error(observed_runs):
    found = validate_observed(observed_runs / "b", cluster=observed_runs / "c.toml", cost=str(observed_runs / "s.json"))
    assert found.within
    assert max(abs(cell.error) for cell in found.cells) < 1e-9


@pytest.mark.parametrize("given", [{"policy": "plain"}, {"recording": "pico"}])
def test_the_tokens_of_a_round_are_not_stated_where_its_rounds_are_not_replayed(observed_runs, given):
    with pytest.raises(ArgumentError, match=r"RUN=K must be RUN alone where its own rounds are not replayed, .*b=3'"):
        validate_observed(f"{observed_runs / 'b'}=3", cluster=observed_runs / "c.toml", **given)


@pytest.mark.parametrize(
    ("model", "told"), [("Qwen/Qwen2.5-14B-Instruct", True), ("Qwen/Qwen2.5-1.5B", False), ("m", False)]
)
def test_a_run_faster_than_the_peaks_of_its_device_is_named(observed_runs, tmp_path, model, told):
    """A step of the target alone takes 11 ms there; reading 29.5 GB of weights takes an L40S 32.5 ms."""
    for name, count in (("a", 12), ("b", 25)):
        run = read_run(observed_runs / name)
        meta = run.meta.model_copy(update={"model": model})
        write_observed(ObservedRun(meta, run.requests[:count]), tmp_path / name)
    cost = {"cost": str(observed_runs / "s.json")}
    for given in (cost, {"calibrate_on": tmp_path / "a"}):
        notes = validate_observed(tmp_path / "b", cluster="l40s", **given).meta["notes"]
        found = [note for note in notes if "another device, dtype or model than said?" in note]
        assert len(found) == told * (1 if given is cost else 2)
        for note in found:
            assert "the peaks of l40s allow 32.4 ms at best for Qwen/Qwen2.5-14B-Instruct: another device" in note


def test_seconds_are_found_again_in_another_run(observed_runs):
    """A cluster whose seconds are yet to be found is refused until then."""
    cluster = observed_runs / "served.toml"
    cluster.write_text(f'{CLUSTER}cost = "w.json"\n')
    with pytest.raises(ValueError, match=r"replicas\[0\]\.cost cannot be taken: .*w\.json: file: must be a readable"):
        validate_observed(observed_runs / "b", cluster=cluster)
    fitting = {"calibrate_on": observed_runs / "a", "write_cost": observed_runs / "w.json"}
    found = validate_observed(observed_runs / "b", cluster=cluster, **fitting, mean_bound=1e-9)
    assert max(abs(cell.error) for cell in found.cells) < 0.03
    told = found.to_json()["calibration"]
    assert told["misfit"] == found.calibration.misfit < 0.02
    (line,) = told["cost"].values()
    decode_s = SECONDS["intercept_s"] + SECONDS["per_new_token_s"]
    assert line["intercept_s"] + line["per_new_token_s"] == pytest.approx(decode_s, rel=0.02)
    assert line["per_new_token_s"] == pytest.approx(SECONDS["per_new_token_s"], rel=0.02)
    judged = {"runs": [found.calibration.runs[0]], "observed": found.meta["observed"], "within": False}
    assert json.loads((observed_runs / "w.json").read_text()) == told["cost"] | {
        "fit": judged | {"verdict": found.lines()[-1]}
    }
    assert "figures are within their bounds; beyond: TTFT mean" in found.lines()[-1]
    assert all(term["low"] <= term["seconds"] <= term["high"] for term in told["terms"])
    assert all(0 < term["share"] <= 1 for term in told["terms"])


DRAFT_S = 0.0012


@pytest.fixture(scope="module")
def drafting_runs(observed_runs):
    """The same server, which drafts three tokens a round: `c` and `d`; and `p`, in which it does not."""
    for seed, name, tokens in ((3, "p", 0), (4, "c", 3), (5, "d", 3)):
        write_observed(told_of(requests_of(seed), tokens, observed_runs / "c.toml"), observed_runs / name)
    return observed_runs


def requests_of(seed, count=20):
    """What `count` requests ask for, and in how many rounds their answers are drafted."""
    rng, now_ps, found = Random(seed), 0, []
    for number in range(count):
        now_ps += int(rng.expovariate(15) * PS_PER_S)
        output = rng.randint(6, 40)
        one = ObservedRequest(
            request_id=f"q{number}",
            prompt_id="p",
            asked_tokens=output,
            due_at_ps=now_ps,
            sent_at_ps=now_ps,
            outputs_at_ps=(now_ps,),
            ended_at_ps=now_ps,
            prompt_tokens=rng.randint(5, 90),
            output_tokens=output,
        )
        rounds = -(-(output - 1) // 4)
        found.append((one, rng.randint(rounds, max(rounds, (output - 1) // 2))))
    return found


def told_of(asked, tokens, cluster, draft_s=DRAFT_S, source="a test", seconds=SECONDS, slower=lambda place: 1.0):
    """What a client sees of them: every round is a chunk, and counters tell of drafts.

    `slower` is by what factor the answer at a place of the run takes longer, to its first token and from there on.
    """
    requests = ReplayedRequests(name="truth", requests=tuple(one for one, _ in asked), left_out=0, tagged=True)
    drafts = Drafts(tokens=tokens, rounds=tuple(rounds for _, rounds in asked)) if tokens else Drafts()
    about = {"url": "http://h", "model": "m", "endpoint": "/v1/completions", "workload": "w", "prompts": "p"}
    blank = ObservedRun(ObservedMeta(**about, loop="open", ended_at_ps=0), requests.requests)
    terms = DraftTerms(0.0, draft_s)
    cost = FileCost(
        "truth", {"draft": DrafterFigures(terms=terms, forwards=None), "target": CostLine.model_validate(seconds)}
    )
    replayer = Replayable(run=blank, requests=requests, drafts=drafts).replayer(cluster, None, 0)
    log = replayer.priced(cost).served(requests)
    columns, begun = log.requests, requests.requests[0].sent_at_ps
    seen, accepted = [], 0
    for place, ((one, rounds), row) in enumerate(zip(asked, requests.rows_of(log), strict=True)):
        first, ended = (int(columns[name][row]) + begun for name in ("first_token_at_ps", "ended_at_ps"))
        first, ended = one.sent_at_ps + int((first - one.sent_at_ps) * slower(place)), ended - first
        ended = first + int(ended * slower(place))
        steps = rounds if tokens else one.output_tokens - 1
        outputs = tuple(first + (ended - first) * step // steps for step in range(steps + 1))
        seen.append(replace(one, outputs_at_ps=outputs, ended_at_ps=ended))
        accepted += one.output_tokens - 1 - steps
    num_rounds = sum(rounds for _, rounds in asked)
    told = ObservedAcceptance(source=source, drafts=num_rounds, drafted=tokens * num_rounds, accepted=accepted)
    last = max(one.ended_at_ps for one in seen)
    meta = ObservedMeta(**about, loop="open", acceptance=told if tokens else None, ended_at_ps=last)
    return ObservedRun(meta, tuple(seen))


@pytest.mark.slow
def test_terms_of_target_and_drafter_are_found_in_runs_with_and_without_drafts(drafting_runs):
    here = {name: drafting_runs / name for name in ("p", "c", "d")}
    written = drafting_runs / "mine.json"
    options = ("--cluster", drafting_runs / "c.toml", "--json", "-")
    calibrated = ("--calibrate", here["p"], "--calibrate", here["c"], "--write-cost", written)
    found = json.loads(done("validate", "--observed", here["d"], *calibrated, *options))
    cost = found["calibration"]["cost"]
    assert cost["target"]["intercept_s"] == pytest.approx(SECONDS["intercept_s"], rel=0.02)
    assert cost["target"]["per_new_token_s"] == pytest.approx(SECONDS["per_new_token_s"], rel=0.02)
    assert cost["draft"] == {"per_token_s": pytest.approx(DRAFT_S, rel=0.02)}
    assert found["policy"] == "draft:3/target"
    assert max(abs(cell["error"]) for cell in found["cells"]) < 0.03
    (told,) = (line for line in found["calibration"]["cannot_tell"] if "per_round_s" in line)
    assert "as all drafts have 3" in told
    file = json.loads(written.read_text())
    assert file["draft"].pop("draft_lengths") == [3]
    assert file.pop("fit")["within"] is found["within"] is True
    assert file == cost
    again = json.loads(done("validate", "--observed", here["d"], "--cost", written, *options))
    assert [cell["simulated"] for cell in again["cells"]] == pytest.approx(
        [cell["simulated"] for cell in found["cells"]], rel=1e-6
    )


class LinearServer:
    """Serves in no time: each term of the cost adds to each time, which is then off by chance."""

    def __init__(self, spread):
        self.rng, self.spread = np.random.default_rng(1), spread

    def priced(self, figures):
        self.seconds = sum(seconds for terms in figures.values() for seconds in terms.values())
        return self

    def served(self, requests):
        return self.seconds * self.rng.lognormal(0, self.spread, (len(requests.requests), 2)) * PS_PER_S


@pytest.mark.parametrize("spread", [0, 1e-3, 0.3])
def test_progress_never_promises_fewer_runs_of_the_simulator_than_are_left(drafting_runs, monkeypatch, spread):
    monkeypatch.setattr(calibrate, "simulated_ps", lambda requests, served: served)
    monkeypatch.setattr(calibrate, "_cost_of", lambda name, figures, target: figures)
    runs = [replayable(drafting_runs / name) for name in ("p", "c")]
    fit, seen = calibrate._Fit(runs, [LinearServer(spread) for _ in runs]), []
    fit.on_run = lambda: seen.append((fit.tried, fit.most))
    before = fit.most
    found = fit.fitted()
    assert [tried for tried, _ in seen] == list(range(1, found.tried + 1))
    assert min(most for _, most in seen) >= found.tried
    assert [most for _, most in seen] == sorted((most for _, most in seen), reverse=True)
    assert seen[0][1] == before > seen[-1][1]


def off_by(spread, seed):
    """Times that are off by chance, as those of a shared machine are."""
    rng = Random(seed)
    return lambda _: math.exp(rng.gauss(0, spread))


@pytest.mark.slow
@pytest.mark.parametrize("per_row_s", [0.0, 0.0012])
def test_a_term_is_taken_where_times_need_it_though_each_of_them_is_off(observed_runs, tmp_path, per_row_s):
    """Single times say little of a term that all of them together show beyond doubt."""
    truth = {"intercept_s": 0.004, "per_new_token_s": 0.0008, "per_row_s": per_row_s}
    for seed, tokens in ((3, 0), (4, 3)):
        told = told_of(requests_of(seed, 40), tokens, observed_runs / "c.toml", seconds=truth, slower=off_by(0.1, seed))
        write_observed(told, tmp_path / f"k{tokens}")
    write_observed(told_of(requests_of(5), 3, observed_runs / "c.toml", seconds=truth), tmp_path / "judged")
    found = validate_observed(
        tmp_path / "judged", cluster=observed_runs / "c.toml", calibrate_on=[tmp_path / "k0", tmp_path / "k3"]
    )
    terms = {str(one.term): one for one in found.calibration.terms}
    assert ("target.per_row_s" in terms) == (per_row_s > 0)
    if per_row_s:
        assert terms["target.per_row_s"].seconds == pytest.approx(per_row_s, rel=0.25)
    medians = [abs(cell.error) for cell in found.cells if cell.name.endswith("_p50")]
    assert max(medians) < 0.08


def serial_result(seed, tokens):
    """A benchmark's result of a server that answers one request after another, at known seconds without any chance."""
    rng, now_s, found = Random(seed), 0.0, {key: [] for key in ("input_lens", "output_lens", "ttfts", "itls")}
    starts, drafts, accepted = [], 0, 0
    for _ in range(16):
        prompt, output = rng.randint(5, 400), rng.randint(2, 60)
        left, gaps, first_s = output - 1, [], 0.012 + 3e-5 * prompt
        while left > 0:
            kept = next((place for place in range(tokens) if rng.random() > 0.7), tokens)
            gaps.append(0.012 + 3e-5 * (tokens + 1) + (0.003 + 0.001 * tokens if tokens else 0.0))
            left, drafts, accepted = left - kept - 1, drafts + 1, accepted + kept
        for key, value in zip(found, (prompt, output, first_s, gaps), strict=True):
            found[key].append(value)
        starts.append(now_s)
        now_s += first_s + sum(gaps) + rng.random() * 0.05
    counts = (drafts, tokens * drafts, accepted) if tokens else ()
    names = ("spec_decode_num_drafts", "spec_decode_draft_tokens", "spec_decode_accepted_tokens")
    return found | {"start_times": starts, "max_concurrency": 1} | dict(zip(names, counts, strict=False))


def test_errors_below_what_the_simulator_distinguishes_count_alike():
    fit = object.__new__(calibrate._Fit)
    fit._is_first = np.array([True, False])
    exact, even = np.array([1e-5, 0.1]), np.array([1e-3, 0.01])  # of a first token, and of the rest of its answer
    assert fit._loss(even) < fit._loss(exact)
    first, rest = fit._weights(exact)
    assert first < 1e3 * rest


def test_as_many_requests_as_terms_do_not_say_how_sure_these_are(observed_runs, tmp_path):
    write_observed(told_of(requests_of(3, 2), 0, observed_runs / "c.toml"), tmp_path / "few")
    found = validate_observed(observed_runs / "b", cluster=observed_runs / "c.toml", calibrate_on=tmp_path / "few")
    assert [(term.low, term.high) for term in found.calibration.terms] == [(0, math.inf)] * 2
    assert [(term["low"], term["high"]) for term in found.to_json()["calibration"]["terms"]] == [(0, None)] * 2
    assert all(f"these runs cannot tell {term.term}" in str(found) for term in found.calibration.terms)


def test_a_wait_that_is_steep_in_a_term_makes_it_no_surer():
    """A request that came during the hundredth step waits for its end: a sawtooth of the seconds of a step."""
    found = calibrate._Found(np.array([2.0]), np.zeros(3), np.array([[0.5], [0.25], [-50.0]]))
    assert (found.bounded * found.values).tolist() == [[1.0], [0.5], [-1.0]]


@pytest.mark.slow
def test_first_tokens_that_fit_to_the_last_digit_do_not_outweigh_all_else(tmp_path):
    """An answer that the simulator ends a little later than the server delays the next one's first token."""
    for name, seed, tokens in (("plain", 1, 0), ("k3", 2, 3), ("k5", 3, 5), ("judged", 4, 3)):
        (tmp_path / name).write_text(json.dumps(serial_result(seed, tokens)))
    (tmp_path / "one.toml").write_text('[[replicas]]\ndevice = "h100"\nmax_num_seqs = 8\ntoken_budget = 8192\n')
    runs = [tmp_path / name for name in ("plain", "k3", "k5")]
    found = validate_observed(tmp_path / "judged", cluster=tmp_path / "one.toml", calibrate_on=runs)
    terms = {str(one.term): one.seconds for one in found.calibration.terms}
    assert terms["draft.per_round_s"] == pytest.approx(0.003, rel=0.1)
    assert terms["draft.per_token_s"] == pytest.approx(0.001, rel=0.1)


def test_a_pace_that_changes_is_told(observed_runs, tmp_path):
    write_observed(told_of(requests_of(3), 0, observed_runs / "c.toml"), tmp_path / "even")
    later = told_of(requests_of(4), 0, observed_runs / "c.toml", slower=lambda place: 1.25 if place >= 10 else 1.0)
    write_observed(later, tmp_path / "changed")
    told = {
        name: [line for line in found.lines() if "the pace of" in line]
        for name in ("even", "changed")
        if (
            found := validate_observed(
                tmp_path / name, cluster=observed_runs / "c.toml", cost=str(observed_runs / "s.json")
            )
        )
    }
    assert told["even"] == []
    (line,) = told["changed"]
    assert "off by +0.0% in its first half and -20.0% in its second half" in line
    assert line.endswith("use a quieter one, or shorter runs in turns)")  # also where it was one of several in turns


def test_rounds_of_answers_are_their_chunks_also_where_a_few_share_one(observed_runs):
    """Counters then tell a few more rounds than there are chunks; by the mean all answers would be alike."""
    asked = requests_of(4)
    run = told_of(asked, 3, observed_runs / "c.toml")
    requests = tuple(
        replace(one, outputs_at_ps=one.outputs_at_ps[:-2] + one.outputs_at_ps[-1:]) if place % 4 == 0 else one
        for place, one in enumerate(run.requests)
    )
    replayed = ReplayedRequests(name="joined", requests=requests, left_out=0)
    drafts = drafts_of(replayed, run.meta, None)
    assert drafts.told_by == "a chunk of its stream is a round"
    off = [true - found for (_, true), found in zip(asked, drafts.rounds, strict=True)]
    assert max(off) <= 1
    half = tuple(replace(one, outputs_at_ps=one.outputs_at_ps[::2]) for one in run.requests)
    told = drafts_of(replace(replayed, requests=half), run.meta, None).told_by
    assert told.endswith("in the mean, not by answer")


def test_runs_that_cannot_be_calibrated_together_are_refused_by_name(drafting_runs):
    here, cluster = drafting_runs, ("--cluster", drafting_runs / "c.toml")
    run = read_observed(here / "c")

    def kept(name, **changes):
        write_observed(ObservedRun(run.meta.model_copy(update=changes), run.requests), here / name)
        return here / name

    other = kept("host", url="http://other:80")
    judged = ("validate", "--observed", here / "d", *cluster, "--calibrate", here / "p")
    assert f"{other} of other" in refused(*judged, "--calibrate", other)
    assert "must have runs of one model" in refused(*judged, "--calibrate", kept("model", model="n"))
    named = (kept("first", drafter="one"), kept("second", drafter="two", notes=("x",)))
    assert "must have runs of one drafter" in refused(*judged, "--calibrate", named[0], "--calibrate", named[1])
    assert "must have a run that drafts" in refused(*judged)
    uneven = kept("uneven", acceptance=ObservedAcceptance(source="s", drafts=10, drafted=25, accepted=5))
    assert "drafted 2.5 tokens a round, a calibration needs" in refused(*judged, "--calibrate", uneven)
    silent = kept("silent", acceptance=ObservedAcceptance(source="s", accept_length=2.0))
    assert "silent=3 for K = 3" in refused(*judged, "--calibrate", silent)
    assert "RUN=K must end with the tokens that a round drafts" in refused(*judged, "--calibrate", f"{silent}=x")
    assert "does not know its models" in refused("validate", "--observed", here / "d", *cluster)
    assert "--trace must be left out where --calibrate" in refused(
        *judged, "--calibrate", here / "c", "--trace", "pico", "--policy", "draft:3/target"
    )
    assert "--write-cost goes with --calibrate" in refused(
        "validate", "--observed", here / "p", *cluster, "--write-cost", here / "x.json"
    )
    one = replace(run.requests[0], output_tokens=1, outputs_at_ps=run.requests[0].outputs_at_ps[:1])
    one = replace(one, ended_at_ps=one.outputs_at_ps[0])
    write_observed(ObservedRun(run.meta.model_copy(update={"acceptance": None}), (one,)), here / "few")
    said = refused("validate", "--observed", here / "p", *cluster, "--calibrate", here / "few")
    assert "has 1 observed time for 2 terms" in said


def test_other_seconds_are_beyond_the_bounds_and_said_so(observed_runs):
    given = {"cluster": observed_runs / "c.toml", "cost": "cpu-roofline"}
    found = validate_observed(observed_runs / "b", **given)
    assert not found.within
    assert "beyond: TTFT mean, ms" in found.lines()[-1]
    assert "simulated: target of pico, 8,689,408 parameters" in found.lines()
    assert validate_observed(observed_runs / "b", **given, mean_bound=10.0, tail_bound=10.0).within
    asked = ("validate", "--observed", observed_runs / "b", "--cluster", given["cluster"], "--cost", "cpu-roofline")
    ran = paceline(*asked)
    assert (ran.code, "; beyond: TTFT mean, ms" in " ".join(ran.out.split())) == (1, True)
    done(*asked, "--mean-bound", 10, "--tail-bound", 10)


def test_an_error_says_what_other_requests_could_have_made_of_it(observed_runs):
    """Each answer takes its own time by chance, 8% more in the mean: few cannot tell that from a bound near it."""
    run, rng = read_observed(observed_runs / "b"), np.random.default_rng(1)
    slow = {one.request_id: rng.lognormal(np.log(1.08), 0.3) for one in run.requests}
    requests = tuple(
        replace(one, outputs_at_ps=(one.outputs_at_ps[0], ended), ended_at_ps=ended)
        for one in run.requests
        for ended in [one.outputs_at_ps[0] + round((one.ended_at_ps - one.outputs_at_ps[0]) * slow[one.request_id])]
    )
    meta = run.meta.model_copy(update={"ended_at_ps": max(one.ended_at_ps for one in requests)})
    write_observed(ObservedRun(meta, requests), observed_runs / "noisy")
    given = {"cluster": observed_runs / "c.toml", "cost": str(observed_runs / "s.json")}
    exact = {cell.name: cell for cell in validate_observed(observed_runs / "b", **given).cells}
    assert exact["tpot_s_mean"].between == pytest.approx((0, 0), abs=1e-9)
    assert (exact["tpot_s_p99"].between, exact["duration_s"].between) == (None, None)  # of 25 requests, and of one run

    def judged(bound):
        found = validate_observed(observed_runs / "noisy", **given, mean_bound=bound)
        return found, next(cell for cell in found.cells if cell.name == "tpot_s_mean")

    _, cell = judged(0.1)
    low, high = cell.between
    assert low < cell.error < high
    assert cell.to_json()["error_ci"] == cell.between
    near = abs(cell.error)
    for bound, within, chance in ((near - 0.01, False, True), (near + 0.01, True, True), (0.9, True, False)):
        _, cell = judged(bound)
        assert (cell.within, cell.may_be_chance) == (within, chance)
    assert " of them maybe; beyond" in judged(near + 0.01)[0].lines()[-1]
    assert f"TPOT mean, ms {cell.error:+.1%} (maybe)" in judged(near - 0.01)[0].lines()[-1]


def test_nine_in_ten_intervals_of_errors_hold_the_error_of_all_requests():
    rng, held = np.random.default_rng(0), Counter()

    def pairs(number):
        seconds = rng.lognormal(0, 0.6, number)
        return np.stack([seconds * rng.lognormal(-0.1, 0.25, number), seconds], axis=1)

    every = pairs(400_000)
    true = {part: np.percentile(every, percent, axis=0) for part, percent in (("p50", 50), ("p90", 90))}
    true["mean"] = every.mean(axis=0)
    for _ in range(100):
        for part, (low, high) in errors_between(pairs(20)).items():
            held[part] += low <= true[part][0] / true[part][1] - 1 <= high
    assert min(held.values()) >= 90
    assert set(held) == {"mean", "p50", "p90"}


def test_intervals_of_errors_hold_the_error_though_requests_wait_for_each_other():
    rng, held = np.random.default_rng(0), Counter()

    def took(seconds, arrived):
        """Of one server that answers in turn."""
        ends = np.cumsum(seconds) + np.maximum.accumulate(arrived - np.cumsum(seconds) + seconds)
        return ends - arrived

    for _ in range(100):
        arrived, seconds = np.cumsum(rng.exponential(1 / 0.7, 100)), rng.lognormal(-0.125, 0.5, 100)
        worlds = [took(seconds * rng.lognormal(0, 0.3, 100), arrived) for _ in range(2)]  # alike: the true error is 0
        for part, (low, high) in errors_between(np.stack(worlds, axis=1)).items():
            held[part] += low <= 0 <= high
    assert min(held.values()) >= 80  # over requests drawn one by one it was 31 for the mean


def test_a_fit_is_never_judged_on_its_own_run(observed_runs):
    run = read_observed(observed_runs / "a")
    write_observed(run, observed_runs / "copy")
    renamed = run.meta.model_copy(update={"url": "http://b"})
    write_observed(ObservedRun(renamed, run.requests), observed_runs / "renamed")
    cluster = ("--cluster", observed_runs / "c.toml")
    for same in ("a", "copy", "renamed"):
        said = refused("validate", "--observed", observed_runs / "a", "--calibrate", observed_runs / same, *cluster)
        assert said.startswith("--calibrate must be another run than --observed")


def test_what_did_not_finish_is_not_replayed_and_said_so(observed_runs):
    run = read_observed(observed_runs / "b")
    first, second, *rest = run.requests
    kept = (replace(first, failed="HTTP 500: no"), replace(second, ended_at_ps=None), *rest)
    write_observed(ObservedRun(run.meta, kept), observed_runs / "less")
    asked = ("--observed", observed_runs / "less", "--cluster", observed_runs / "c.toml", "--json", "-")
    ran = paceline("validate", *asked)
    found = json.loads(ran.out)
    assert (ran.code, ran.err, found["within"]) == (1, "", False)  # seconds of the device, not of the server
    assert found["requests"] == len(rest)
    assert found["notes"] == [
        "2 observed requests did not finish, or had no text: not replayed",
        "simulated: target of pico, 8,689,408 parameters",
    ]


@pytest.mark.parametrize("blocks", [1, 6])
def test_what_the_simulator_does_not_finish_is_no_pass(observed_runs, blocks):
    """Figures were of the others, and nothing said so; a latency that none of them had got no verdict."""
    cluster = observed_runs / "small.toml"
    cluster.write_text(f"{CLUSTER}kv_blocks = {blocks}\n")
    found = validate_observed(observed_runs / "b", cluster=cluster, cost=str(observed_runs / "s.json"))
    assert any(
        note.endswith(" did not finish in the simulator, whose figures are of the others") for note in found.lines()
    )
    none = [cell for cell in found.cells if cell.simulated is None]
    assert not any(cell.within for cell in none)
    assert bool(none) == (blocks == 1)
    assert found.within is False
    assert ("beyond: TTFT mean, ms unknown" in found.lines()[-1]) == (blocks == 1)


def test_a_recording_alone_does_not_make_a_run_that_drafted_plain(drafting_runs):
    asked = ("validate", "--observed", drafting_runs / "d", "--cluster", drafting_runs / "c.toml", "--trace", "pico")
    told = f"--trace goes with --policy, since {drafting_runs / 'd'} drafted: without one the target is alone"
    assert refused(*asked, "--cost", "cpu-roofline") == told
    ran = paceline(*asked, "--cost", "cpu-roofline", "--policy", "draft:3/target")
    assert "acceptance: simulated" in ran.out


def test_what_cannot_be_replayed_is_refused_by_name(observed_runs):
    run = read_observed(observed_runs / "b")
    first, *rest = run.requests
    write_observed(ObservedRun(run.meta, (replace(first, output_tokens=None), *rest)), observed_runs / "blind")
    cluster = ("--cluster", observed_runs / "c.toml")
    said = refused("validate", "--observed", observed_runs / "blind", *cluster)
    assert f"blind: request {first.request_id}: output_tokens must be known to be replayed" in said
    write_observed(ObservedRun(run.meta, ()), observed_runs / "none")
    assert "must hold a request that finished" in refused("validate", "--observed", observed_runs / "none", *cluster)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--observed goes with --cluster FILE or --cluster DEVICE"),
        (("--cluster", "h100", "--prompts", "p"), "--prompts does not apply to --observed"),
        (("--cluster", "h100", "--runs", "2"), "--runs does not apply to --observed"),
        (("--cluster", "h100", "--policy", "plain", "--policy", "ngram"), "--policy must be given once"),
        (("--cluster", "h100", "--mean-bound", "0"), "--mean-bound must be in (0, 10], got 0"),
        (("--cluster", "h100", "--calibrate", "a", "--cost", "cpu"), "--cost must be left out beside --calibrate"),
    ],
)
def test_options_that_do_not_go_together(observed_runs, options, said):
    assert said in refused("validate", "--observed", observed_runs / "b", *options)
    assert refused("validate", "--cluster", "h100") == "--trace must be given, except with --observed"


def test_a_policy_beside_those_of_the_cluster_is_refused(observed_runs):
    (observed_runs / "own.toml").write_text(f'{CLUSTER}policy = "plain"\n')
    options = ("validate", "--observed", observed_runs / "b", "--cluster", observed_runs / "own.toml")
    ran = paceline(*options)
    assert "figures are within" in ran.out
    assert (ran.code, ran.err) == (1, "")  # seconds of the device, not of the server
    assert "--policy must be left out: every replica" in refused(*options, "--policy", "plain")
