"""A recording holds what a drafter from the target's states says of each context at each depth."""

import numpy as np
import pytest
import torch
from paceline.base.errors import ArgumentError
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import Prompt
from paceline.runtime.recording.recorder import record
from paceline.studies.compare import compare
from paceline.studies.load import compare_under_load
from paceline.traces.contexts.store import read_trace, write_trace
from paceline.traces.errors import TraceFormatError
from paceline.traces.meta import Closure, Sampling, TreeClosure

from .feature_pools import says, written

GREEDY = Sampling(mode="greedy")
PROMPTS = [Prompt(request_id=f"r{token}", tag="t", text=f"w{token} w{token + 3}") for token in range(1, 4)]


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return ModelPool.load(written(tmp_path_factory.mktemp("pool"), members=("mid", "target")))


def recorded(pool, out, *, kind="monotone", reach=5, sampling=GREEDY):
    closure = Closure(kind=kind, reach=reach, run=3)
    return record(pool, PROMPTS, sampling=sampling, closure=closure, max_new_tokens=8, out=out)


def contexts(request):
    """The tokens of every node."""
    trie, found = request.trie, []
    for node in range(trie.num_nodes):
        above = int(trie.parent[node])
        found.append([*request.prompt] if above < 0 else [*found[above], int(trie.token[node])])
    return found


@pytest.mark.parametrize(("kind", "reach"), [("monotone", 5), ("full", 3)])
def test_every_context_at_every_depth_is_as_defined(pool, tmp_path, kind, reach):
    trace = recorded(pool, tmp_path / "a.trace", kind=kind, reach=reach)
    assert trace.meta.features.model == "feature"
    assert trace.meta.features.depths == reach
    rng, num_looked = np.random.default_rng(0), 0
    for request in trace.requests:
        trie, texts = request.trie, contexts(request)
        for node in {*trie.trunk.tolist(), *rng.choice(trie.num_nodes, 40).tolist()}:
            for depth in range(1, reach + 1):
                if depth > max(1, trie.depth[node]):
                    assert trie.features.next_token[depth - 2, node] == -1
                    continue
                logits = says(pool, texts[node], len(texts[node]) - depth)
                log_probs = torch.log_softmax(logits, -1)
                row = trie if depth == 1 else trie.features
                at = (trace.meta.model_names.index("feature") if depth == 1 else depth - 2, node)
                assert row.next_token[at] == int(logits.argmax())
                assert row.next_log_prob[at] == pytest.approx(float(log_probs.max()), abs=2e-3)
                entropy = float(torch.special.entr(log_probs.exp()).sum())
                assert row.entropy[at] == pytest.approx(entropy, abs=2e-3)
                for child in np.flatnonzero(trie.parent == node):
                    given = row.own_log_prob[at[0], child]
                    assert given == pytest.approx(max(float(log_probs[trie.token[child]]), -63.999), abs=2e-3)
                num_looked += depth > 1
    assert num_looked > 100


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(mode="coupled", temperature=0.8, seed=5)])
def test_a_recording_is_read_as_it_was_written(pool, tmp_path, sampling):
    trace = recorded(pool, tmp_path / "a.trace", sampling=sampling)
    read = read_trace(tmp_path / "a.trace")
    assert read.meta == trace.meta
    for one, other in zip(trace.requests, read.requests, strict=True):
        for name in ("next_token", "next_log_prob", "top_log_prob", "gap", "entropy", "own_log_prob", "tvd"):
            assert np.array_equal(getattr(one.trie.features, name), getattr(other.trie.features, name)), name
    write_trace(read, tmp_path / "b.trace")
    for name in ("meta.json", "nodes.parquet", "requests.parquet"):
        assert (tmp_path / "a.trace" / name).read_bytes() == (tmp_path / "b.trace" / name).read_bytes()


def test_a_broken_view_is_refused_by_name(pool, tmp_path):
    trace = recorded(pool, tmp_path / "a.trace")
    for name, value, complaint in (
        ("next_token", 40, r"feature@2.next_token: must lie in \[0, 40\)"),
        ("next_token", -1, r"feature@2.next_token: must lie in \[0, 40\)"),
        ("entropy", 1e9, "feature@2.entropy"),
        ("gap", 1e-9, "feature@2.gap: must be a multiple of"),
    ):
        views = trace.requests[0].trie.features
        array = getattr(views, name)
        kept = array[0, -1]
        array[0, -1] = value
        with pytest.raises(TraceFormatError, match=complaint):
            write_trace(trace, tmp_path / "b.trace")
        array[0, -1] = kept


@pytest.fixture(scope="module")
def trace(pool, tmp_path_factory):
    return recorded(pool, tmp_path_factory.mktemp("trace") / "a.trace", reach=6)


WITH_TREES = Closure(kind="monotone", reach=2, run=2, trees=(TreeClosure(model="mid", shape="2x1"),))
ARRIVAL = '{"arrival_s": 0.5, "prompt_tokens": 4, "output_tokens": 4}\n'
SEES_AHEAD = "sees ahead, which rounds beside feature do not allow"


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda pool, trace, folder: record(
                pool, PROMPTS, sampling=GREEDY, closure=WITH_TREES, max_new_tokens=4, out=folder / "a.trace"
            ),
            "`trees` do not go with feature",
        ),
        (lambda pool, trace, _: trace.shifted({"feature": 0.1}, seed=0), "`shift_acceptance` does not go with feature"),
        (lambda pool, trace, _: compare(trace, policies=["oracle-window"], cost="h100"), SEES_AHEAD),
        (lambda pool, trace, _: compare(trace, policies=["oracle-chain"], cost="h100"), SEES_AHEAD),
        (
            lambda pool, trace, _: compare(trace, policies=["feature:2/target"], cost="h100", prefix_cache=16),
            "`prefix_cache` does not go with feature",
        ),
        (
            lambda pool, trace, folder: compare_under_load(trace, "plain", workload=folder / "w.jsonl", cluster="h100"),
            "must not be of a member that reads the target's states under load",
        ),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(pool, trace, tmp_path, call, told):
    (tmp_path / "w.jsonl").write_text(ARRIVAL, encoding="utf-8")
    with pytest.raises(ArgumentError, match=told):
        call(pool, trace, tmp_path)
