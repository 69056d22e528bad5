"""The figures of the experiment `routing`, against counts by hand."""

from collections import Counter

import pytest
from paceline.decoding.results import DRAFT, VERIFY
from paceline.policies import Band, Commit, Draft, Verify, Vouched, make_policy
from paceline.reports import summarise_run
from paceline.sim.recorded import recorded_pool
from paceline.traces import SyntheticSpec, make_trace
from paceline_laboratory.experiments.routing import _figures
from paceline_laboratory.replays import ALL

from ...sim.tries.small_traces import replay

MEMBERS = {"models": ("draft", "slim", "target"), "acceptance": (0.6, 0.8)}
TRACE = make_trace(SyntheticSpec(name="small", requests=6, tokens=20, prompt_tokens=4, reach=8, run=8, **MEMBERS))
POOL = recorded_pool(TRACE)


class Routed:
    """Drafts four; the slim verifier routes; what it escalated goes to the target, all else is committed."""

    def __init__(self):
        self.route, self.settle = Verify("slim", Band(0.6, 0.5)), Verify("target", Vouched(POOL.level("slim")))

    def decide(self, seen):
        last = seen.last
        if last is None or last.num_emitted:
            return Draft("draft", 4)
        if last.num_drafted:
            return self.route
        return self.settle if last.num_escalated else Commit(seen.num_pending)

    def learn(self, outcome):
        pass


def by_hand(log):
    """(refusals, drafted tokens looked at, calls of the target, tokens), step by step."""
    counts, before = Counter(), {}
    for request, kind, level, judged, accepted, emitted in zip(
        *(log.steps[name].tolist() for name in ("request", "kind", "level", "judged", "accepted", "emitted")),
        strict=True,
    ):
        counts["tokens"] += emitted
        if kind == VERIFY:
            counts["refusals"] += accepted < judged
            counts["calls"] += level == 2
            if before.get(request) == DRAFT:
                counts["seen"] += min(accepted + 1, judged)
        before[request] = kind
    return counts


@pytest.mark.parametrize("policy", ["chain", "routed"])
def test_rates_count_what_the_steps_did(policy):
    plain, _ = replay(TRACE, make_policy("plain", POOL))
    log, _ = replay(TRACE, make_policy("draft:4/target", POOL) if policy == "chain" else Routed())
    figures, counts = _figures(log, plain, ALL), by_hand(log)
    assert figures.rejection_rate == counts["refusals"] / counts["seen"]
    assert figures.calls_per_token == counts["calls"] / counts["tokens"]
    assert 0 < figures.rejection_rate < 1
    assert figures.calls_per_token == summarise_run(log).target_calls_per_token
    assert figures.speed_up == pytest.approx(
        summarise_run(log).output_tokens_per_s / summarise_run(plain).output_tokens_per_s
    )
    assert figures.quality.lossy is (policy == "routed")


def test_of_two_levels_it_is_one_less_the_rate_of_acceptance():
    plain, _ = replay(TRACE, make_policy("plain", POOL))
    log, _ = replay(TRACE, make_policy("draft:1/target", POOL))
    accepted, judged = (int(log.steps[name].sum()) for name in ("accepted", "judged"))
    assert _figures(log, plain).rejection_rate == pytest.approx(1 - accepted / judged)
