"""The ends of a run, and what is refused."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from paceline.base.errors import ArgumentError
from paceline.decoding.legal_steps import Policy
from paceline.decoding.steps import PolicyError
from paceline.policies.by_name import make_policy, own_policies
from paceline.policies.fixed import Plain
from paceline.sim.serving.engine import needed, within_budget
from paceline.sim.serving.limits import EngineLimits, KvLimits
from paceline.sim.serving.replica import ReplicaSpec
from paceline.sim.serving.requests import Deadline
from paceline.sim.serving.running import TURN_PS
from paceline.traces.workloads.arrival import MOST_PS, PS_PER_S, Arrival

from .served_runs import POLICIES, LineCost, Run, limits_of, pico

HEAD = Path(__file__).parents[3] / "policies" / "learned" / "head.json"
# Policies that need an option.
GIVEN = {
    "chain": "draft:2/target",
    "per-tag": "per-tag(default=adaptive)",
    "per-turn": "per-turn(policy=adaptive)",
    "guarded": "guarded(policy=adaptive)",
    "specdec++": f"specdec++,head={HEAD}",
}
MANY = [Arrival(f"q{index}", index * 10**8, 20, 40) for index in range(30)]


def test_a_request_that_never_fits_is_rejected_and_the_run_goes_on():
    arrivals = [Arrival("long", 0, 90, 11), Arrival("just", 0, 90, 10), Arrival("short", 5, 3, 3)]
    log = Run(arrivals, pico(), "draft:4/target", limits_of(pico(), num_blocks=25)).go().log
    assert log.requests["rejected"].tolist() == [
        "longer than the 100 tokens that KV memory of draft holds",
        "",
        "",
    ]
    assert log.finished.tolist() == [False, True, True]
    assert log.requests["ended_at_ps"][0] == 0


@pytest.mark.parametrize("policy", ["target", "draft:4/target"])
def test_a_request_that_a_member_does_not_take_is_rejected(policy):
    arrivals = [Arrival("long", 0, 90, 11), Arrival("longer", 0, 100, 21), Arrival("just", 0, 90, 10)]
    given = replace(limits_of(pico()), max_model_len={"target": 120, "draft": 100})
    log = Run(arrivals, pico(), policy, given).go().log
    assert log.requests["rejected"].tolist() == [
        "longer than the 100 tokens of max_model_len of draft",
        "longer than the 120 tokens of max_model_len of target",
        "",
    ]
    assert log.finished.tolist() == [False, False, True]


def test_an_overloaded_run_ends_at_its_horizon():
    run = Run(MANY, pico(), limits=limits_of(pico(), max_num_seqs=1), horizon_ps=PS_PER_S // 50).go()
    log = run.log
    assert (run.served.stopped, log.meta.stopped, log.meta.ended_at_ps) == ("horizon", "horizon", PS_PER_S // 50)
    assert 0 < log.finished.sum() < len(MANY)


def test_a_horizon_after_the_end_stops_nothing():
    run = Run(MANY, pico(), horizon_ps=PS_PER_S).go()
    assert (run.served.stopped, run.log.meta.stopped) == ("", "")
    assert run.times() == Run(MANY, pico()).go().times()


def test_a_run_is_stopped_at_the_latest_time_that_a_log_holds():
    log = Run([*MANY, Arrival("late", MOST_PS - 1, 20, 40)], pico()).go().log
    assert (log.meta.stopped, log.meta.ended_at_ps) == ("latest time of a log", MOST_PS)
    assert log.finished.tolist() == [True] * len(MANY) + [False]


class Interrupted(Plain):
    """Somebody presses Ctrl-C while it decides for the hundredth time."""

    def __init__(self):
        super().__init__(pico().pool)
        self.asked = 0

    def decide(self, seen):
        self.asked += 1
        if self.asked == 100:
            raise KeyboardInterrupt
        return super().decide(seen)


class AskedInVain:
    """Counts how often a run asks whether it is to stop."""

    asked = 0

    def ended(self):
        pass

    def interrupted(self):
        self.asked += 1
        return False


@pytest.mark.parametrize("policy", ["target", "draft:4/target"])
def test_a_run_can_be_stopped_long_after_the_last_request_came(policy):
    """However far the fast path could fly to its end."""
    watcher = AskedInVain()
    slow = LineCost(pico(), each=200_000)
    run = Run([Arrival("long", 0, 10, 3_000)], pico(), policy, cost=slow, watcher=watcher).go()
    num_turns = run.log.meta.ended_at_ps // (2 * TURN_PS)  # the last operation of a turn may end a little after it
    assert watcher.asked > num_turns > 2


def test_what_was_simulated_before_an_interrupt_stays():
    run = Run(MANY, pico(), Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.go()
    log = run.log
    assert log.meta.stopped == "interrupted"
    assert log.requests["emitted_tokens"].sum() > 50


class Session:
    """Turns of a closed loop: each request comes a second after the one before it has ended."""

    def __init__(self, left):
        self.left = left

    depths = ()

    def after(self, ended_ps):
        if not self.left:
            return ()
        return (Arrival(f"turn{self.left}", ended_ps + PS_PER_S, 10, 5, turns=Session(self.left - 1)),)


@pytest.mark.parametrize("router", ["round-robin", "least-loaded"])
def test_turns_of_a_session_follow_its_requests(router):
    run = Run([Arrival("first", 7, 10, 5, turns=Session(3))], pico(), num_replicas=2, router=router).go()
    requests = run.log.requests
    assert requests["request_id"].tolist() == ["first", "turn3", "turn2", "turn1"]
    assert (requests["arrived_at_ps"][1:] - requests["ended_at_ps"][:-1] == PS_PER_S).all()


@pytest.mark.parametrize("router", ["round-robin", "least-loaded", "prefix-affinity", "two-choices"])
@pytest.mark.parametrize("stale_ps", [0, 10**9])
def test_every_router_serves_all(router, stale_ps):
    arrivals = [arrival._replace(blocks=(1, 2)) for arrival in MANY]
    run = Run(arrivals, pico(), num_replicas=3, router=router, stale_ps=stale_ps, unit_tokens=10,
              limits=limits_of(pico(), block_tokens=5)).go()  # fmt: skip
    assert run.log.finished.all()


def test_a_prefix_that_was_read_is_not_read_again():
    arrivals = [Arrival(f"q{index}", index * PS_PER_S, 25, 4, blocks=(1, 2)) for index in range(2)]
    log = Run(arrivals, pico(), "draft:4/target", unit_tokens=10, limits=limits_of(pico(), block_tokens=5)).go().log
    members = dict(zip(pico().pool.names, log.requests["cached_tokens"].T.tolist(), strict=True))
    assert members == {"ngram": [0, 0], "draft": [0, 20], "mid": [0, 0], "slim": [0, 0], "target": [0, 20]}
    assert log.requests["first_token_at_ps"][1] - PS_PER_S < log.requests["first_token_at_ps"][0]


class Looking(Plain):
    """Writes down what it sees."""

    def __init__(self):
        super().__init__(pico().pool)
        self.seen = []

    def decide(self, seen):
        load = seen.load
        self.seen.append(
            (seen.num_prompt, seen.num_emitted, seen.remaining, len(seen.emitted_from(0)), seen.slo, seen.deadline_s)
        )
        assert load.context_tokens == 20 + seen.num_emitted
        assert (load.num_running, load.num_waiting) == (1, 0)
        assert 0 < load.free_kv_share < 1
        answer = seen.emitted_from(0)
        assert all(seen.emitted_from(start) == answer[start:] for start in (-500, -3, -1, 3, 299))
        return super().decide(seen)


def test_a_policy_sees_the_whole_answer_and_when_it_is_due():
    looking = Looking()
    arrival = Arrival("q", PS_PER_S, 20, 300, slo="chat")
    deadlines = {"chat": Deadline(0.5, 0.1)}
    Run([arrival], pico(), lambda: looking, limits_of(pico(), num_blocks=100), deadlines=deadlines).go()
    assert [seen[:4] for seen in looking.seen] == [(20, out, 300 - out, out) for out in range(1, 300)]
    assert looking.seen[0][4:] == ("chat", pytest.approx(1.6))


def test_answers_go_round_where_more_is_wanted():
    run = Run([Arrival("q", 0, 20, 1000)], pico(), "draft:4/target").go()
    text = run.outputs["q"]
    assert len(text) == 1000
    period = next(length for length in range(1, 1000) if text[length:] == text[:-length])
    assert run.served.num_cycled == 1000 - period


def test_a_draft_over_what_a_smaller_member_wrote_is_fed_its_last_token_and_a_verification_all_of_it():
    row = SimpleNamespace(num_text=10, tokens=[7, 7, 7], first_unjudged=lambda level: 0)
    assert (needed(row, 1, drafts=True), needed(row, 1, drafts=False)) == (12, 9)
    assert within_budget(1, drafts=True, rows=[row] * 4, budget=3) == ([row] * 3, [row])
    assert within_budget(1, drafts=False, rows=[row] * 4, budget=8) == ([row] * 2, [row] * 2)
    assert within_budget(1, drafts=False, rows=[row] * 2, budget=3) == ([row], [row])  # the first in any case


@pytest.mark.parametrize("policy", POLICIES)
def test_a_draft_that_is_wider_than_the_budget_runs_alone(policy):
    run = Run(MANY, pico(), policy, limits_of(pico(), token_budget=2)).go()
    assert run.log.finished.all()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"horizon_ps": 0}, rf"`horizon_ps` must be in \[1, {MOST_PS}\], got 0"),
        ({"policy": "oracle-chain"}, "sees ahead"),
        ({"arrivals": [Arrival("late", 5, 1, 1), Arrival("early", 4, 1, 1)]}, "request early: arrives_ps must be >= 5"),
        ({"arrivals": [Arrival("q", 0, 1, 1, tag="poetry")]}, "no request of the recording has the tag 'poetry'"),
        ({"unit_tokens": 7}, "block_tokens of draft must divide the 7 tokens"),
        (
            {
                "limits": EngineLimits(max_num_seqs=1, token_budget=1, kv={"target": KvLimits(num_blocks=1)}),
                "policy": "draft:4/target",
            },
            "`kv` must hold limits of every model that runs, draft has none",
        ),
    ],
)
def test_what_cannot_be_served_is_refused(options, says):
    options = {"arrivals": MANY, "tables": pico()} | options
    with pytest.raises(ArgumentError, match=says):
        Run(**options).go()


class Silent(Policy):
    """Wants nothing."""

    def decide(self, seen):
        return None


def test_a_policy_that_returns_no_step_is_named():
    with pytest.raises(PolicyError, match="got None, not a step: return a Draft"):
        Run([Arrival("q", 0, 5, 5)], pico(), Silent).go()


def test_replicas_do_not_share_a_policy():
    policy = make_policy("target", pico().pool)
    spec = ReplicaSpec(policy=policy, policy_name="target", cost=LineCost(pico()), limits=limits_of(pico()))
    run = Run(MANY, pico())
    workload, tables, _ = run._given
    run._given = workload, tables, [spec, spec]
    with pytest.raises(ArgumentError, match="must not share a policy object"):
        run.go()


# Oracles, token trees and members that work ahead are refused under load, by name.
NOT_SERVED = ("oracle", "tree", "pearl", "dsi", "pipespec")


@pytest.mark.parametrize("policy", [name for name in own_policies() if not name.startswith(NOT_SERVED)])
def test_every_policy_bears_that_requests_are_put_back(policy):
    policy = GIVEN.get(policy, policy)
    arrivals = [Arrival(f"q{index}", index * 3 * 10**8, 20 + index % 9, 70) for index in range(14)]
    run = Run(arrivals, pico(), policy, limits_of(pico(), num_blocks=50, token_budget=32)).go()
    assert run.log.finished.all()
    assert len(run.log.preemptions["at_ps"]) > 0
