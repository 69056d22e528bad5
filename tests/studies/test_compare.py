"""Comparisons as a notebook calls them: the same figures as the command line, whatever way they are asked."""

import re
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pyarrow as pa
import pytest
from paceline.base.errors import ArgumentError, innermost, is_foreign
from paceline.base.files import FOLDER_VARIABLE, processor
from paceline.policies import Draft, Policy, PolicySpec, Verify
from paceline.policies.oracles import OracleChain
from paceline.policies.specrouter.policy import SpecRouter
from paceline.policies.windows import Adaptive
from paceline.reports.side_by_side import SideBySide
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.base import NOTHING_TO_DECIDE, CostRangeError
from paceline.sim.recorded import recorded_pool
from paceline.sim.simulate import seconds_to_decide, simulate
from paceline.studies.compare import PolicyRuns, compare, regret_in, sweep
from paceline.studies.setting import Setting, named_policy, open_recording
from paceline.traces import SyntheticSpec, TrieRecording, make_trace, write_trace
from paceline.traces.profile import write_profile
from paceline.traces.recording import reordered

from ..profiles.profiles import made_profile
from ..sim.cost.shapes import META
from ..sim.cost.timed_recordings import recording_of, request_of, rounds_of, shapes
from ..sim.rounds import small_rounds
from ..sim.rounds.small_rounds import one_request, sequential

MODELS = ("draft", "mid", "target")
CHAINS = ["draft:4/target", "draft:3/mid:6/target"]


@pytest.fixture(scope="module")
def recording():
    sizes = {"requests": 4, "tokens": 24, "prompt_tokens": 4, "reach": 8, "run": 5}
    return make_trace(SyntheticSpec(name="small", models=MODELS, acceptance=(0.6, 0.8), tags=("math", "<b>"), **sizes))


@pytest.fixture
def folder(recording, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    write_trace(recording, tmp_path / "small.trace")
    return "small.trace"


@pytest.mark.parametrize(
    ("changes", "options", "profiled", "told"),
    [
        ({}, {}, False, "; for this machine's run paceline profile, then give `cost` here"),
        ({}, {}, True, "; `cost` here takes this machine's, of its newest profile of these models"),
        ({}, {"models": ["target=llama-3.1-8b", "draft=llama-3.2-1b"]}, True, ""),
        ({}, {"cost": "h100"}, False, None),
        ({"kind": "synthetic"}, {}, False, None),
        ({"costs": None}, {}, False, None),
    ],
)
def test_a_recording_without_seconds_says_whose_it_is_given(
    recording, tmp_path, monkeypatch, changes, options, profiled, told
):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    meta = recording.meta
    costs = {"costs": meta.costs if "costs" in changes else {}}
    bare = replace(recording, meta=meta.model_copy(update={"kind": "recorded", **changes, **costs}))
    if profiled:
        made = made_profile(names=MODELS, processor=processor())
        members = tuple(
            member.model_copy(update={"parameters": one.parameters, "dtype": one.dtype})
            for member, one in zip(made.meta.members, meta.models, strict=True)
        )
        made = replace(made, meta=made.meta.model_copy(update={"members": members}))
        write_profile(made, tmp_path / "profiles" / "a.profile")
    assumed = "the recording holds no seconds, so these are those of device h100"
    for found in (compare(bare, ["plain"], **options), sweep(bare, ["draft:1..2/target"], **options)):
        assert [line for line in found.meta["remarks"] if line.startswith(assumed)] == (
            [] if told is None else [assumed + told]
        )


class Mine(Policy):
    """A policy of a notebook."""

    def __init__(self, pool, tokens=3):
        self.draft, self.verify = Draft("draft", tokens), Verify(pool.target)

    def decide(self, seen):
        return self.verify if seen.num_pending or seen.room == 1 else self.draft


def test_policies_are_texts_classes_or_functions(recording):
    def longer(pool):
        return Mine(pool, tokens=5)

    text, spec = "adaptive,start=2", PolicySpec.parse("adaptive,start=3")
    found = compare(recording, [text, spec, Adaptive, Mine, longer]).runs.rows
    assert [row.policy for row in found] == [text, spec.label, "Adaptive", "Mine", "longer"]
    assert found[2].duration_s == compare(recording, ["adaptive"]).runs.rows[0].duration_s
    named = compare(recording, {"three": Mine, "five": lambda pool: Mine(pool, tokens=5)}).runs.rows
    assert [row.policy for row in named] == ["three", "five"]
    assert [row.duration_s for row in named] == [row.duration_s for row in found[-2:]]


def test_one_policy_and_a_path_do_as_well(recording, folder):
    found = compare(folder, "draft:4/target", log="logs")
    assert found.to_json() == compare(recording, ["draft:4/target"]).to_json()
    assert [path.name for path in (Path(folder).parent / "logs").iterdir()] == ["00-draft_4_target"]
    assert sweep(Path(folder), "draft:1..2/target").best(1) in {"draft:1/target", "draft:2/target"}


@pytest.mark.parametrize(
    ("policies", "options", "words"),
    [
        (["plain", "plain"], {}, "^`policies` plain is given twice$"),
        ([], {}, "^`policies` must hold at least one, got none$"),
        ([3], {}, "^`policies` must be texts, or classes and functions that take a pool, got 3$"),
        (["early-commit"], {"lossless": True}, "^policy early-commit is lossy, and `lossless` was asked for$"),
        (["plain"], {"models": {"target": "llama-3.1-8b"}}, "^`models` is for a device of the sheet, as"),
        (
            ["plain"],
            {"models": {"target": "llama-3.1-8b"}, "on": "h200"},
            "^`models` goes with `cost` DEVICE, not with `on`: seconds of small are of its own models$",
        ),
        (3, {}, "^`policies` must be a policy, a list of them or a mapping by name, got 3$"),
        ({1: "plain"}, {}, "^`policies` must have names that are texts, got 1$"),
        ({"plain": CHAINS[0]}, {}, "^`policies` must leave the name plain to paceline's own policy of that name$"),
        ({"oracle-chain": CHAINS[0]}, {"regret": True}, "^`policies` must leave the name oracle-chain to"),
        (CHAINS, {"nope": 1}, "^no keyword `nope`; there are cost, engine, efficiency, scale, "),
        (CHAINS, {"batch": 1.5}, "^`batch` must be a valid integer, got 1.5$"),
        (CHAINS, {"batch": 0}, "^`batch` must be a whole number from 1 to 1,000,000, got 0$"),
        (CHAINS, {"seeds": 0}, r"^`seeds` must be in \[1, 1000\], got 0$"),
        (CHAINS, {"by_tag": "math"}, "^`by_tag` must be a valid boolean, got 'math'$"),
        (CHAINS, {"scale": "draft=0.5"}, "^`scale` must be a valid dictionary, got 'draft=0.5'$"),
        (CHAINS, {"models": "target=llama"}, "^`models` must be several texts, got 'target=llama'$"),
    ],
)
def test_what_will_not_do_is_told_by_the_name_of_the_argument(recording, policies, options, words):
    with pytest.raises(ArgumentError, match=words):
        compare(recording, policies, **options)


@pytest.mark.parametrize(
    "name", ["per-tag,default=plain,maths=svip", "guarded(policy=per-tag(default=plain,maths=svip))"]
)
def test_a_tag_that_no_request_has_is_refused(recording, name):
    told = "names the tag maths, which no request of recording small has; there are <b>, math"
    with pytest.raises(ValueError, match=f"^policy {re.escape(name)} {told}$"):
        compare(recording, name)


def test_a_function_that_makes_one_policy_twice_is_refused_by_name(recording):
    made = []

    def shared(pool):
        made.append(made[0] if made else Adaptive(pool))
        return made[0]

    with pytest.raises(
        ArgumentError, match=r"^`policies` mine must make a new policy for every run, .* the same one twice$"
    ):
        compare(recording, {"mine": shared})
    assert len(made) == 2


def test_policies_that_take_turns_are_refused_as_one_that_comes_back_at_once(recording):
    kept = [Adaptive(recorded_pool(recording)) for _ in range(3)]
    policy = named_policy(lambda _: next(turns))
    turns = cycle(kept)
    assert [policy.build(None) for _ in kept] == kept
    for _ in range(2):  # one that is refused once is refused again
        with pytest.raises(ArgumentError, match=r"the same one twice$"):
            policy.build(None)


def test_policies_that_nobody_kept_are_new_however_many_there_were(recording):
    """Where one was, memory may hold another."""
    policy = named_policy(Adaptive)
    for _ in range(100):
        policy.build(recorded_pool(recording))


def test_a_policy_of_ours_may_bear_its_own_name(recording):
    given = {"plain": "plain", "mine": CHAINS[0]}
    named, listed = (compare(recording, policies).to_dicts() for policies in (given, ["plain", CHAINS[0]]))
    assert [row["speed_up"] for row in named] == [row["speed_up"] for row in listed]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batches": ()}, "^`batches` must hold one, got none$"),
        ({"batches": (4, 4)}, "^`batches` 4 is given twice$"),
        ({"batches": 2}, "^`batches` must be an instance of Sequence, got 2$"),
        ({"batch": 2}, "^no keyword `batch`; there are .*, batches$"),
        ({"on": "h100", "measured_on": "rtx4090"}, "^`on` does not apply to a sweep, "),
    ],
)
def test_what_a_sweep_does_not_take(recording, options, words):
    with pytest.raises(ArgumentError, match=words):
        sweep(recording, "draft:1..2/target", **options)


def test_a_recording_is_shown_in_a_line(recording):
    assert repr(recording) == f"small: {recording.about.holds}"


def test_a_notebook_shows_the_table_with_names_escaped(recording):
    page = compare(recording, {"<script>": "draft:4/target", "plain": "plain"}, by_tag=True)._repr_html_()
    assert "<script>" not in page
    assert all(escaped in page for escaped in ("&lt;script&gt;", "&lt;b&gt;", "1.00x"))


def test_rows_and_arrow_hold_the_figures_of_the_table(recording):
    found = compare(recording, CHAINS)
    rows = found.to_dicts()
    assert [row["policy"] for row in rows] == [row.policy for row in found.runs.ranked()]
    assert len({tuple(row) for row in rows}) == 1
    assert not [name for row in rows for name, value in row.items() if isinstance(value, dict)]
    assert rows[0]["speed_up"] == found.runs.speed_up(found.runs.ranked()[0])
    assert found.best == rows[0]["policy"]
    table = found.to_arrow()
    assert isinstance(table, pa.Table)
    assert table.to_pylist()[0]["ttft_s_mean"] == found.runs.ranked()[0].ttft_s.mean
    assert table.schema.field("speed_up").type == pa.float64()


def test_an_oracle_is_never_the_best(recording):
    found = compare(recording, CHAINS, regret=True)
    assert found.oracles == ("oracle-window", "oracle-chain")
    assert found.runs.ranked()[0].policy in found.oracles
    assert found.best in CHAINS


TRACE = TrieRecording(meta=META, requests=())


def cost(recording=TRACE, **options):
    return Setting(recording=recording, **options).priced()


def test_cost_of_a_recording_of_contexts():
    assert cost().name == "cpu"
    assert cost(cost="h100", scale={"draft": 0.5, "target": 2}).name == "h100 (vllm), draft x0.5, target x2"
    assert cost(cost="h100", scale={}, tensor_parallel=2).name == "h100 x2 tensor parallel (vllm)"
    assert cost(cost="cpu", extrapolate=True).forward_s("target", num_rows=1, new_tokens=10**6, context_tokens=0)


def test_cost_of_an_imported_recording():
    recording = recording_of(request_of("a", wall_s={"": 2.0}))
    assert cost(recording).name == "timed"
    assert cost(recording, cost="timed", scale={"eagle": 0.5}).name == "timed, eagle x0.5"


def test_seconds_of_a_log_that_a_device_contradicts():
    chains = ["eagle:4/target", "medusa:4/target"]

    def found(eagle_s, medusa_s, **options):
        rounds = {name: rounds_of([3, 2, 3]) for name in ("eagle", "medusa")}
        wall_s = {"eagle": eagle_s, "medusa": medusa_s}
        wall_s = {name: seconds for name, seconds in wall_s.items() if seconds is not None}
        timed = request_of("a", rounds, tokens=11, wall_s=wall_s)
        log = recording_of(timed, drafters=tuple(rounds), models=shapes(*rounds, "target"))
        return compare(log, chains, cost="h100", **options).runs

    def contradicted(*seconds, **options):
        return [each for each in found(*seconds, **options).meta["remarks"] if "the log's own seconds" in each]

    assert contradicted(9.0, 9.0) == []  # alike under the cost, too
    (told,) = contradicted(1.0, 40.0)
    assert told.startswith(
        "by the log's own seconds eagle:4/target is 40.00x medusa:4/target (11.0 and 0.3 tokens/s), "
    )
    assert told.endswith("): `cost` timed takes the log's")
    assert "by this cost 1.00x (0." in told
    assert contradicted(40.0, 1.0) == [told.replace("eagle", "x").replace("medusa", "eagle").replace("x:4", "medusa:4")]
    assert contradicted(1.0, 40.0, batch=2) == []  # the log's are of one request at a time
    assert contradicted(1.0, None) == []


@pytest.mark.parametrize("scale", [{"draft": 0}, {"draft": -1}, {"draft": 1e-7}, {"draft": 1e308}, {"other": 1}])
def test_a_scale_that_means_nothing(scale):
    with pytest.raises(ValueError, match=r"^`scale` "):
        cost(cost="h100", scale=scale)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"seeds": 0}, r"^`seeds` must be in \[1, 1000\], got 0$"),
        ({"seeds": 1001}, r"^`seeds` must be in \[1, 1000\], got 1001$"),
        ({"start": "drafts"}, "^`start` must be one of prefill, draft, recorded, got 'drafts'$"),
        ({"measured_on": "h100"}, "^`measured_on` goes with `on` DEVICE, got `measured_on` h100$"),
    ],
)
def test_arguments_are_named(options, told):
    with pytest.raises(ArgumentError, match=told):
        Setting(recording=TRACE, **options)


def test_regret_without_seconds_of_the_oracle_gives_the_reason():
    pool = recorded_pool(make_trace(SyntheticSpec(name="s", requests=1, tokens=4, models=("a", "b"))))
    runs = PolicyRuns(
        asked=["a:2/b"],
        summaries={},
        shares={},
        by_request={},
        spent={},
        refused={"oracle-chain": CostRangeError("no seconds")},
    )
    with pytest.raises(CostRangeError, match=r"^no seconds$"):
        regret_in(SideBySide(meta={}, baseline=None, rows=()), runs, {"oracle-chain": OracleChain(pool)})


@pytest.mark.parametrize("chains", [3, None, [3], object])
def test_chains_of_a_sweep_are_texts(recording, chains):
    with pytest.raises(ArgumentError, match=r"^`chains` must be one text or several, got "):
        sweep(recording, chains)


def test_a_sweep_says_how_much_of_its_chains_was_modelled():
    pico = open_recording().of_tags("dialogue", "math")
    within, beyond = (sweep(pico, f"draft:2..3/mid:{window}/target", seeds=1) for window in (4, 20))
    assert not any("modelled" in remark for remark in within.tables()[0].remarks)
    least = min(beyond.to_dicts(), key=lambda row: row["exact_share"])
    assert least["exact_share"] < 1
    assert any(remark.endswith(f"({least['policy']})") for remark in beyond.tables()[0].remarks)


def test_of_too_few_requests_a_sweep_tells_no_chain_from_the_fastest(recording):
    """Four requests make no interval: the slowest chain may be the fastest of others."""
    found = sweep(recording, "draft:1..6/target", seeds=1)
    cells = [row[1][-1] for row in found.tables()[0].rows]
    assert sorted(cells) == ["*", *"~~~~~"]
    assert "4 requests cannot tell for certain" in found.lines()[0]


def figures(found):
    told = {"seeds", "orders", "of_best", "of_best_ci"}
    return {row["policy"]: {name: row[name] for name in row if name not in told} for row in found.to_dicts()}


def test_orders_of_requests_are_joined_where_figures_depend_on_them():
    """A policy that learns has the mean over them; one that does not is run once, and its interval is as before."""
    pico, policies, orders = open_recording().of_tags("math", "code"), ["suffix", "draft:2/target"], 3
    found, once = compare(pico, policies, orders=orders), compare(pico, policies)
    alone = [figures(compare(reordered(pico, order), policies))["suffix"] for order in range(orders)]
    rates = [one["output_tokens_per_s"] for one in alone]
    own, before = figures(found), figures(once)
    assert own["suffix"]["output_tokens_per_s"] == pytest.approx(fmean(rates), rel=1e-12)
    assert len(set(rates)) == orders
    assert own["draft:2/target"] == before["draft:2/target"]
    assert {row["policy"]: row["orders"] for row in found.to_dicts()} == {"suffix": 3, "draft:2/target": 1, "plain": 1}
    (grid,) = found.tables()
    assert "±: 95% interval over requests, and over 3 orders of the requests, on which suffix depends" in grid.remarks


def test_orders_that_change_nothing_change_no_figure():
    pico, policies = open_recording(), ["draft:2/target", "plain"]
    found = compare(pico, policies, orders=50)
    assert figures(found) == figures(compare(pico, policies))
    assert "over 50 orders of the requests, on which no policy depends" in found.tables()[0].remarks[-1]


def test_orders_of_an_imported_log(tmp_path):
    """It has no tables that the orders could share; a policy that learns is run in each."""
    rounds = [{"feature": sequential([1, 1, 1, accepted] * 3, 2)} for accepted in (0, 1, 2)]
    requests = [one_request({"": 12, "feature": 12}, each, request_id=f"r{at}") for at, each in enumerate(rounds)]
    logged = small_rounds.recording_of(*requests, drafters=(("feature", True, 2),))
    cost = tmp_path / "cost.json"
    cost.write_text('{"feature": {"intercept_s": 0.001}, "target": {"intercept_s": 0.01}}')
    found = compare(logged, ["adaptive"], orders=3, cost=cost)
    assert {row["policy"]: row["orders"] for row in found.to_dicts()} == {"adaptive": 3, "plain": 1}


def test_chance_and_orders_are_joined(recording):
    """Where decisions are drawn, each run has the next seed and the next order, of the fewer anew from the first."""
    found = compare(recording, CHAINS, shift_acceptance={"draft": -0.1}, seeds=2, orders=3)
    assert [(row["seeds"], row["orders"]) for row in found.to_dicts()[:2]] == [(2, 3), (2, 3)]
    # Other seeds ran in the other orders: which of both moved a figure is not known.
    assert any(
        "over 3 orders of the requests, on which all policies may depend" in one for one in found.tables()[0].remarks
    )
    row = found.runs.rows[0]
    alone = [
        compare(reordered(recording, order), CHAINS, shift_acceptance={"draft": -0.1}, seeds=1, seed=seed).runs.rows[0]
        for seed, order in ((0, 0), (1, 1), (0, 2))
    ]
    assert found.runs.output_tokens_per_s(row) == pytest.approx(fmean(one.output_tokens_per_s for one in alone))


@pytest.mark.parametrize("orders", [0, 1001])
def test_orders_out_of_range_are_refused(recording, orders):
    with pytest.raises(ArgumentError, match=rf"`orders` must be in \[1, 1000\], got {orders}"):
        compare(recording, CHAINS, orders=orders)


def test_one_run_where_nothing_is_drawn():
    """Modelled decisions need no draw where the target alone judges: then another seed gives the same run."""
    recording, router = open_recording("smollm2").of_tags("code"), "specrouter"
    rows = {row["policy"]: row for row in compare(recording, ["confident", router], seeds=2).to_dicts()}
    assert 0 < rows["confident"]["exact_share"] < 1
    assert [(rows[name]["drawn"], rows[name]["seeds"]) for name in ("confident", router)] == [(False, 1), (True, 2)]
    (other,) = (row for row in compare(recording, ["confident"], seed=1).to_dicts() if row["policy"] == "confident")
    over_best = ("of_best", "of_best_ci")
    assert {k: v for k, v in other.items() if k not in over_best} == {
        k: v for k, v in rows["confident"].items() if k not in over_best
    }


class OneOfUsers(SpecRouter):
    """SpecRouter as a foreign class, which may draw by itself."""


@pytest.mark.parametrize(("policy", "seeds"), [("specrouter", [0, 1, 4]), (OneOfUsers, [0, 1, 2, 3, 4])])
def test_a_seed_whose_draws_fall_alike_is_not_replayed(monkeypatch, policy, seeds):
    """Its run is one that is known, as seeds differ in nothing but draws; a foreign policy may draw by itself."""
    code, replayed = open_recording("smollm2").of_tags("code"), []
    recording = code[[one.request_id for one in code.requests[:12]]]

    def noted(scenario, *others):
        replayed.append(scenario.seed)
        return simulate(scenario, *others)

    monkeypatch.setattr("paceline.studies.compare.simulate", noted)
    found = compare(recording, {"router": policy}, seeds=5)
    assert replayed == [*seeds, 0], "the last is the target alone"
    for seed, run in enumerate(found.runs.runs(found.runs.rows[0])):
        assert [run] == list(compare(recording, {"router": policy}, seed=seed, seeds=1).runs.rows)


def test_turns_of_a_session_are_drawn_together():
    """The wider interval of the sessions, the footnote and the last line that say so, and the keys of the JSON."""
    pico = open_recording()
    turns = replace(pico, requests=tuple(replace(one, session=one.tag) for one in pico.requests))
    policies = ["draft:4/target", "draft:5/target"]
    found, apart = compare(turns, policies), compare(pico, policies)
    row = found.runs.rows[0]
    assert found.runs.speed_up(row) == apart.runs.speed_up(row)
    assert found.runs.speed_up_interval(row).half_width > 1.2 * apart.runs.speed_up_interval(row).half_width
    assert (found.meta["sessions"], apart.meta["sessions"]) == (6, 0)
    assert "±: 95% interval over 6 sessions" in found.tables()[0].remarks
    assert "on these 60 requests of 6 sessions; about " in found.lines()[0]
    assert " sessions would do" in found.lines()[0]


def test_the_default_set_tells_routing_from_copying(recording):
    names = TrieTables(open_recording()).default_policies
    assert names[-2:] == ("specrouter", "specrouter,without=copies")
    assert "suffix" in names
    assert "specrouter,without=copies" not in [row.policy for row in compare(recording).runs.rows], "nothing to copy"


def test_drafts_longer_than_those_of_a_log_are_named(tmp_path):
    rounds = {"feature": sequential([1, 1, 1, 0] * 3, 2)}
    requests = [one_request({"": 12, "feature": 12}, rounds, request_id=f"r{place}") for place in range(3)]
    logged = small_rounds.recording_of(*requests, drafters=(("feature", True, 2),))
    cost = tmp_path / "cost.json"
    cost.write_text('{"feature": {"intercept_s": 0.001}, "target": {"intercept_s": 0.01}}')
    chains = ["feature:1/target", "feature:2/target"]
    assert compare(logged, chains, cost=cost).meta["remarks"] == []
    told = "feature drafted 2 tokens at most in the log, which says little of more: "
    found = compare(logged, [*chains, "feature:3/target"], cost=cost)
    assert found.meta["remarks"] == [f"{told}feature:3/target"]
    grid = sweep(logged, "feature:2..4/target", batches=[1, 2], cost=cost)
    assert grid.meta["remarks"] == [f"{told}feature:3/target, feature:4/target"]


def test_windows_longer_than_every_draft_are_said_not_to_differ(tmp_path):
    """The log's setting is 8 tokens, of which a stop let none of its drafts have more than 2."""
    rounds = {"feature": sequential([1, 1, 1, 0] * 3, 2)}
    requests = [one_request({"": 12, "feature": 12}, rounds, request_id=f"r{place}") for place in range(3)]
    logged = small_rounds.recording_of(*requests, drafters=(("feature", True, 8),))
    cost = tmp_path / "cost.json"
    cost.write_text('{"feature": {"intercept_s": 0.001}, "target": {"intercept_s": 0.01}}')
    found = compare(logged, ["feature:2/target", "feature:8/target"], cost=cost)
    told = "no draft of feature in the recording is longer than 2 tokens: windows of 2 or more do not differ"
    assert found.meta["remarks"] == [told]
    first, second, _ = found.runs.ranked()
    assert found.runs.output_tokens_per_s(first) == found.runs.output_tokens_per_s(second)
    assert compare(logged, ["feature:1/target"], cost=cost).meta["remarks"] == []


FOREIGN = """
from random import Random

from paceline.policies import Draft, Verify

class Coin:
    most_pending = 6

    def __init__(self, pool):
        self.rng, self.verify = Random(), Verify(pool.target)

    def decide(self, seen):
        if seen.num_pending or seen.room < 2:
            return self.verify
        return Draft("draft", self.rng.randint(1, min(6, seen.room - 1)))

    def learn(self, outcome):
        pass
"""


def test_a_policy_of_the_users_own_is_no_other_where_it_must_be_lossless(tmp_path):
    """Its seconds to decide were not found, and other seeds were taken for repetitions of the first."""
    (tmp_path / "coin.py").write_text(FOREIGN)
    watched = named_policy(f"{tmp_path / 'coin.py'}:Coin").admitted(
        recorded_pool(open_recording("pico")), lossless=True
    )
    asked = []
    cost = SimpleNamespace(name="c", decide_s=lambda name: asked.append(name) or NOTHING_TO_DECIDE)
    assert seconds_to_decide(watched, cost, None) is NOTHING_TO_DECIDE
    assert asked == ["Coin"]
    assert watched.most_pending == 6
    assert is_foreign(type(innermost(watched)))
