"""Synthetic recordings: sound, complete in their closure, and with the rates, seconds and chances asked for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from paceline import compare
from paceline.traces import SyntheticSpec, make_trace, read_trace, write_trace
from paceline.traces.folder import TRIE_FILES as FILES

from ..strategies import synthetic_specs


def trunk_agreement(trace, member=0):
    """[R, T] whether the member writes the target's token at each context of the trunk that wrote one."""
    rows = []
    for record in trace.requests:
        written = record.trie.next_token[:, record.trie.trunk[:-1]]
        rows.append(written[member] == written[-1])
    return np.array(rows)


def by_depth_off_trunk(trace, low, high):
    """Rate of equal next tokens of two models, by tokens since the trunk (entry 0: one token)."""
    equal, count = np.zeros(64), np.zeros(64)
    for record in trace.requests:
        trie = record.trie
        away = np.zeros(trie.num_nodes, dtype=np.int64)
        for node in range(1, trie.num_nodes):
            away[node] = 0 if trie.on_trunk[node] else away[trie.parent[node]] + 1
        same = trie.next_token[low] == trie.next_token[high]
        equal += np.bincount(away, weights=same, minlength=64)
        count += np.bincount(away, minlength=64)
    return (equal[1:] / np.maximum(count[1:], 1))[count[1:] > 0]


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    spec = SyntheticSpec(requests=3, tokens=20, models=("a", "b", "c"), acceptance=(0.6, 0.8), seed=7)
    for name, seed in (("one", 7), ("two", 7), ("other", 8)):
        write_trace(make_trace(replace(spec, seed=seed)), tmp_path / name)
    one, two, other = ([(tmp_path / name / file).read_bytes() for file in FILES] for name in ("one", "two", "other"))
    assert one == two
    assert one[2] != other[2]
    assert read_trace(tmp_path / "one").meta == spec.meta()


@given(spec=synthetic_specs())
def test_any_synthetic_trace_is_sound(spec, tmp_path_factory):
    path = tmp_path_factory.mktemp("synthetic") / "t.trace"
    write_trace(make_trace(spec), path)
    read = read_trace(path)
    assert [len(record.trie.trunk) for record in read.requests] == [spec.tokens + 1] * spec.requests


def closure_paths(trie, spec):
    """Nodes of the closure by its definition in words, walked path by path; fails where one is missing."""
    member_count = len(spec.models) - 1
    children = {(int(p), int(t)): node for node, (p, t) in enumerate(zip(trie.parent, trie.token, strict=True))}
    found = set()

    def walk(node, member, left_in_run, left_in_all):
        """Let `member` write on from here."""
        token = int(trie.next_token[member, node])
        on_trunk = bool(trie.on_trunk[node]) and token == trie.next_token[-1, node]
        if on_trunk or left_in_run == 0 or left_in_all == 0 or trie.depth[node] >= spec.tokens:
            return
        child = children[node, token]
        found.add(child)
        walk(child, member, left_in_run - 1, left_in_all - 1)
        for smaller in range(member):
            walk(child, smaller, spec.run, left_in_all - 1)

    for node in trie.trunk:
        for member in range(member_count):
            walk(int(node), member, spec.reach, spec.reach)
    return found


@given(spec=synthetic_specs())
@example(spec=SyntheticSpec(requests=2, tokens=12, models=("a", "b", "c", "d"), acceptance=(0.3,) * 3, reach=6, run=2))
@example(spec=SyntheticSpec(requests=2, tokens=12, models=("a", "b", "c"), acceptance=(0.5,) * 2, reach=6, run=1))
def test_the_monotone_closure_is_complete_and_holds_nothing_else(spec):
    for record in make_trace(spec).requests:
        off_trunk = set(np.flatnonzero(~record.trie.on_trunk).tolist())
        assert closure_paths(record.trie, spec) == off_trunk


@pytest.mark.parametrize("asked", [0.0, 0.3, 0.7])
def test_autocorrelation_is_a_two_state_chain_of_the_asked_rate(asked):
    spec = SyntheticSpec(requests=400, tokens=256, acceptance=(0.7,), autocorrelation=asked, reach=0)
    agrees = trunk_agreement(make_trace(spec))
    assert agrees.mean() == pytest.approx(0.7, abs=0.01)
    now, then = agrees[:, :-1].ravel(), agrees[:, 1:].ravel()
    assert np.corrcoef(now, then)[0, 1] == pytest.approx(asked, abs=0.015)
    stays = asked + (1 - asked) * 0.7
    assert then[now].mean() == pytest.approx(stays, abs=0.01)
    # A chain of order one: what came before the present does not matter.
    both = agrees[:, :-2].ravel() & agrees[:, 1:-1].ravel()
    assert agrees[:, 2:].ravel()[both].mean() == pytest.approx(stays, abs=0.01)


@pytest.mark.parametrize("decay", [0.05, 0.15])
def test_agreement_falls_along_a_run_as_asked_and_its_rate_over_all_stays(decay):
    spec = SyntheticSpec(requests=1000, tokens=256, acceptance=(0.7,), run_decay=decay, reach=0, prompt_tokens=1)
    agrees = trunk_agreement(make_trace(spec))
    assert agrees.mean() == pytest.approx(0.7, abs=0.005)
    # Requests begin amid a run: the first token is as any other.
    assert agrees[:, 0].mean() == pytest.approx(0.7, abs=0.05)
    missed = ~agrees[:, :-4]
    rates = []
    for ahead in range(1, 5):
        then = agrees[:, ahead : agrees.shape[1] - 4 + ahead]
        rates.append(then[missed].mean())
        missed = missed & then
    assert np.divide(rates[1:], rates[:-1]) == pytest.approx([1 - decay] * 3, rel=0.02)


THREE = SyntheticSpec(requests=200, tokens=256, models=("a", "b", "c"), acceptance=(0.6, 0.8), reach=0, prompt_tokens=1)


@pytest.mark.parametrize(("shared", "both"), [(1.0, 0.6), (0.0, 0.6 * 0.8)])
def test_acceptance_is_as_asked_and_shared_difficulty_decides_whether_members_agree_at_the_same_places(shared, both):
    trace = make_trace(replace(THREE, shared_difficulty=shared))
    first, second = (trunk_agreement(trace, member) for member in (0, 1))
    assert (first.mean(), second.mean()) == (pytest.approx(0.6, rel=0.01), pytest.approx(0.8, rel=0.01))
    assert (first & second).mean() == pytest.approx(both, rel=0.01)


def test_acceptance_off_the_trunk_falls_with_depth_as_asked():
    trunk = {"acceptance": (0.3, 0.4), "off_trunk": (0.9, 0.8), "depth_decay": 0.1, "reach": 4}
    trace = make_trace(replace(THREE, requests=60, **trunk))
    for low, high, asked in ((0, 1, 0.9), (1, 2, 0.8)):
        rates = by_depth_off_trunk(trace, low, high)
        assert rates[:4] == pytest.approx(asked * 0.9 ** np.arange(4), rel=0.02)
    assert by_depth_off_trunk(trace, 0, 2)[:4] == pytest.approx(0.72 * 0.81 ** np.arange(4), rel=0.02)


def test_acceptance_off_the_trunk_is_that_of_the_next_larger_model_unless_asked():
    usual = replace(THREE, acceptance=(0.3, 0.6), depth_decay=0.1)
    assert usual.off_trunk_rates(1) == pytest.approx([0.5, 0.6])
    assert usual.off_trunk_rates(3) == pytest.approx([0.5 * 0.81, 0.6 * 0.81])
    assert replace(THREE, acceptance=(0.3, 0.0)).off_trunk_rates(1) == pytest.approx([0, 0])


def test_confidence_is_calibrated():
    trace = make_trace(SyntheticSpec(requests=200, tokens=256, acceptance=(0.7,), reach=0))
    agrees = trunk_agreement(trace).ravel()
    probs = np.concatenate([np.exp(r.trie.next_log_prob[0, r.trie.trunk[:-1]]) for r in trace.requests])
    for low, high in ((0.3, 0.4), (0.5, 0.6), (0.7, 0.8), (0.9, 0.95)):
        inside = (probs >= low) & (probs < high)
        assert agrees[inside].mean() == pytest.approx(probs[inside].mean(), abs=0.04)


@pytest.mark.parametrize("acceptance", [(0.7,), (0.4, 0.6, 0.8)])
def test_gap_and_entropy_say_no_more_of_agreement_than_the_probability_does(acceptance):
    models = (*"abc"[: len(acceptance)], "target")
    trace = make_trace(SyntheticSpec(requests=400, tokens=256, models=models, acceptance=acceptance, reach=0))
    agrees = trunk_agreement(trace).ravel()
    for view in ("gap", "entropy"):
        values, probs = (
            np.concatenate([getattr(r.trie, name)[0, r.trie.trunk[:-1]] for r in trace.requests])
            for name in (view, "next_log_prob")
        )
        inside = (np.exp(probs) > 0.3) & (np.exp(probs) < 0.95)
        near = np.digitize(np.exp(probs[inside]), np.arange(0.3, 0.95, 0.005)) - 1
        medians = np.array([np.median(values[inside][near == group]) for group in range(near.max() + 1)])
        above = values[inside] > medians[near]
        # Where the probability is the same, agreement is as frequent above its median as below.
        assert agrees[inside][above].mean() == pytest.approx(agrees[inside][~above].mean(), abs=0.02)


@given(spec=synthetic_specs())
def test_probabilities_are_consistent(spec):
    for record in make_trace(spec).requests:
        trie = record.trie
        top = np.exp(trie.next_log_prob)
        assert (trie.gap <= top + 0.002).all()
        assert (trie.entropy >= -np.log(top) * top - 0.002).all()
        assert (trie.entropy <= np.log(spec.vocab_size)).all()
        parents = trie.parent[1:]
        written = trie.next_token[:, parents] == trie.token[1:]
        own, best = trie.own_log_prob[:, 1:], trie.next_log_prob[:, parents]
        assert (own[written] == best[written]).all()
        # The gap to the second best bounds every other token.
        assert (np.exp(own) <= np.exp(best) - trie.gap[:, parents] + 0.002)[~written].all()
        total = np.zeros_like(top)
        for model in range(len(spec.models)):
            np.add.at(total[model], parents, np.exp(own[model]))
        assert (total <= 1.02).all()
        for row, (low, high) in enumerate(spec.meta().pairs):
            # |p(x) - q(x)| is at most the distance, for the token x either of them writes.
            same = trie.next_token[low] == trie.next_token[high]
            assert (np.abs(top[low] - top[high]) <= trie.tvd[row] + 0.002)[same].all()


MANY = 10_000_000_000
BAD = [
    *[({name: 0}, "be >= 1, got 0") for name in ("requests", "tokens", "prompt_tokens")],
    *[({name: -1}, "be >= 0, got -1") for name in ("reach", "run", "seed")],
    *[({name: MANY}, "be <= 2,147,483,647, got 10000000000") for name in ("reach", "run")],
    ({"vocab_size": 8}, ""),
    ({"vocab_size": MANY}, "be < 2\\*\\*31"),
    ({"models": ()}, ""),
    ({"models": ("a", "a")}, r"name different models, at least the target, got \('a', 'a'\)"),
    ({"models": tuple("abcdefghijklmnopq"), "acceptance": (0.5,) * 16}, ".*at most 16, got 17"),
    ({"acceptance": (0.1, 0.2)}, "have 1 entries"),
    *[({"acceptance": given}, r"lie in \[0, 1\], got") for given in ((1.1,), (float("nan"),))],
    *[({"off_trunk": given}, "") for given in ((0.1, 0.2), (-0.1,))],
    ({"depth_decay": 1.5}, ""),
    ({"autocorrelation": 1.0}, r"lie in \[0, 1\), got 1.0"),
    *[({"run_decay": given}, "") for given in (1.0, -0.1, float("nan"))],
    ({"autocorrelation": 0.1, "run_decay": 0.1}, ""),
    ({"acceptance": (0.75,), "run_decay": 0.2}, ""),
    ({"shared_difficulty": -0.5}, ""),
    ({"confidence": 0.0}, ""),
    ({"cost_ratios": (0.0,)}, r"be positive and finite, got \(0.0,\)"),
    ({"cost_ratios": (0.1, 0.2)}, ""),
    *[({"target_forward_s": given}, f"be positive and finite, got {given}") for given in (0.0, float("inf"))],
    ({"cost_slope": -1.0}, ""),
    ({"tags": ()}, ""),
]


@pytest.mark.parametrize(("options", "rule"), BAD)
def test_a_bad_option_is_named(options, rule):
    with pytest.raises(ValueError, match=rf"^{next(iter(options))} must {rule}"):
        SyntheticSpec(**options)


@pytest.mark.parametrize("name", ["tokens", "prompt_tokens"])
def test_a_recording_that_memory_could_not_hold_is_named(name):
    for options in ({"requests": MANY}, {name: MANY}):
        with pytest.raises(ValueError, match=r"^requests x (prompt_)?tokens must be <= 10,000,000, got \d+$"):
            SyntheticSpec(**options)


def test_seconds_are_affine_in_new_tokens_and_follow_the_ratios_and_tags_are_given_in_turn():
    meta = SyntheticSpec(cost_ratios=(0.25,), target_forward_s=0.04, cost_slope=0.5).meta()
    table = meta.costs["cpu"]
    assert table["target"].seconds[:3] == pytest.approx((0.04, 0.06, 0.10))
    assert table["draft"].seconds == pytest.approx([0.25 * second for second in table["target"].seconds])
    assert meta.models[0].parameters < meta.models[1].parameters
    trace = make_trace(SyntheticSpec(requests=5, tokens=4, tags=("math", "code")))
    assert [record.tag for record in trace.requests] == ["math", "code", "math", "code", "math"]


def test_the_target_alone(tmp_path):
    spec = SyntheticSpec(requests=3, tokens=20, models=("target",))
    write_trace(make_trace(spec), tmp_path / "t.trace")
    read = read_trace(tmp_path / "t.trace")
    assert [record.trie.num_nodes for record in read.requests] == [21] * 3
    alone = compare(read, ["target"])
    assert [(row.policy, row.acceptance_length) for row in alone.runs.rows] == [("target", 1)]
    with pytest.raises(ValueError, match="unknown model 'draft'; this pool has target"):
        compare(read, ["draft:2/target"])


@pytest.mark.parametrize("given", [{"acceptance": (0.8,)}, {"reach": 3}, {"run_decay": 0.1}, {"cost_ratios": (0.5,)}])
def test_the_target_alone_takes_nothing_of_members(given):
    with pytest.raises(ValueError, match=f"^{next(iter(given))} must (have 0 entries|be left out for one model)"):
        SyntheticSpec(models=("target",), **given)
