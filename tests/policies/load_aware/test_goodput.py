"""The window of most goodput falls as the batch grows, rises with the context, and is close to the best fixed one."""

from statistics import mean
from types import SimpleNamespace

import pytest
from paceline.policies import Verify, make_policy
from paceline.policies.check import check_pool
from paceline.policies.under_load import Goodput
from paceline.sim import TrieTables
from paceline.sim.cost.files import CostLine, FileCost
from paceline.traces import SyntheticSpec, make_trace

from ..lossless.recordings import recording, replayed, seconds_of
from .loads import Rounds, compute_bound


def windows(tables, cost, batch):
    """Of rounds that began while the batch was full, the first ones left out."""
    watched = Rounds(Goodput(tables.pool))
    replayed(tables, cost, watched, batch=batch)
    full = [window for num_running, window in watched.begun if num_running == batch]
    return full[len(full) // 3 :]


def test_the_window_falls_as_the_batch_grows():
    tables = recording(0.8, requests=128, tokens=48)
    means = [mean(windows(tables, compute_bound(), batch)) for batch in (1, 8, 32, 96)]
    assert means == sorted(means, reverse=True)
    assert means[0] > 6
    assert means[-1] < 1.5


@pytest.mark.parametrize("batch", [1, 8, 24, 64])
def test_it_is_nearly_as_fast_as_the_best_fixed_window(batch):
    tables, cost = recording(0.7, requests=max(32, 8 * batch), tokens=48), compute_bound()
    taken = {
        text: seconds_of(replayed(tables, cost, make_policy(text, tables.pool), batch=batch))
        for text in ("goodput", "plain", *(f"draft:{window}/target" for window in (1, 2, 4, 8)))
    }
    goodput = taken.pop("goodput")
    assert goodput < 1.05 * min(taken.values())
    assert max(taken.values()) > 1.2 * goodput, "windows matter here"


def test_the_window_grows_with_the_context():
    """Verification reads once what the rows hold, whatever the window: the more they hold, the less a token adds."""
    means = []
    for prompt_tokens in (8, 800):
        spec = SyntheticSpec(
            requests=96, tokens=48, prompt_tokens=prompt_tokens, models=("draft", "target"), acceptance=(0.7,)
        )
        lines = {
            "draft": CostLine(intercept_s=0.02),
            "target": CostLine(intercept_s=0.2, per_new_token_s=0.01, per_kv_token_s=1e-4),
        }
        means.append(mean(windows(TrieTables(make_trace(spec)), FileCost("lines", lines), 32)))
    assert means[1] > means[0] + 0.7


def test_it_hears_of_acceptance_where_nothing_pays():
    """A neighbour is played once in so many turns, and the drafter that has become good is used again."""
    cost = compute_bound(draft_s=0.3)
    bad, good = recording(0.05, requests=2, tokens=400), recording(0.95, requests=2, tokens=400)
    policy = Goodput(bad.pool)
    replayed(bad, cost, policy)
    assert policy.best == 0
    replayed(good, cost, policy)
    assert policy.best >= 4


def test_one_request_drafts_where_nothing_pays():
    """All of them at once would have the drafter read all of their texts."""
    tables = recording(0.05, requests=64, tokens=48)
    watched = Rounds(Goodput(tables.pool, explore=4))
    replayed(tables, compute_bound(draft_s=0.3), watched, batch=16)
    full = [window for num_running, window in watched.begun if num_running == 16]
    late = full[len(full) // 2 :]
    assert set(late) == {0, 1}
    assert late.count(1) <= len(late) // 16


@pytest.mark.parametrize(("prompt_tokens", "drafts"), [(4, True), (400, False)])
def test_a_drafter_that_reads_more_than_it_saves_is_left_alone(prompt_tokens, drafts):
    spec = SyntheticSpec(
        requests=96, tokens=24, prompt_tokens=prompt_tokens, models=("draft", "target"), acceptance=(0.7,)
    )
    lines = {
        "draft": CostLine(intercept_s=0.01, per_new_token_s=0.001),
        "target": CostLine(intercept_s=0.1, per_new_token_s=0.003),
    }
    means = mean(windows(TrieTables(make_trace(spec)), FileCost("lines", lines), 16))
    assert (means > 0.5) == drafts


def test_a_lookup_that_finds_nothing_leaves_plain_decoding():
    policy = Goodput(check_pool(), draft="ngram")
    nothing = [0] * 5
    load = SimpleNamespace(
        num_running=1, context_tokens=9, num_forwards=nothing, new_tokens=nothing, duration_s=nothing
    )
    seen = SimpleNamespace(num_pending=0, request_id="r", load=load, last=None)
    assert policy.decide(seen).model == "ngram"
    seen.last = SimpleNamespace(num_emitted=0)
    assert policy.decide(seen) == Verify("target")


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"start": 0}, r"start must be in \[1, most=8\], got 0"),
        ({"most": 1001}, r"most must be in \[1, 1,000\], got 1001"),
        ({"explore": 1}, "explore must be >= 2, got 1"),
        ({"memory": 0}, "memory must be >= 1, got 0"),
        ({"draft": "target"}, "draft must be a member below the target, got 'target'"),
    ],
)
def test_options_out_of_range_are_refused(options, rule):
    with pytest.raises(ValueError, match=rule):
        Goodput(check_pool(), **options)
