"""A drafter from the target's states says what its definition says: in every chain and batch, and in recordings."""

import numpy as np
import pytest
import torch
from paceline.base.errors import ArgumentError
from paceline.decoding.prefix_cache import PrefixCacheSize
from paceline.decoding.rules import NO_SIGNAL
from paceline.decoding.steps import PolicyError
from paceline.policies import Commit, Draft, Verify
from paceline.runtime.draft import FeatureReader
from paceline.runtime.pools.check import check_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError
from paceline.runtime.prompts import prompts_of
from paceline.runtime.recording.recorder import record
from paceline.runtime.threads import Memory
from paceline.sim.contexts import TrieTables
from paceline.sim.contexts_answers import UNKNOWN
from paceline.studies.agree import agree, synthetic_cost
from paceline.studies.compare import compare
from paceline.studies.decode import decode
from paceline.studies.load import compare_under_load
from paceline.traces.contexts.on_disk import read_trace, write_trace
from paceline.traces.errors import TraceFormatError
from paceline.traces.meta import Closure, TreeClosure

from ...pairs import pairs
from ..offline import GREEDY, REJECTION, Decides
from .feature_pools import CHAINS, COUPLED, PROMPTS, READS, SAID, VOCABULARY, WIDTH, says, written


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return ModelPool.load(written(tmp_path_factory.mktemp("pool"), members=("ngram", "mid", "slim", "target")))


def texts(pool, policy, *, num_tokens=20, **options):
    found = decode(pool, PROMPTS, policy, max_new_tokens=num_tokens, debug=True, quality=False, **options)
    assert not any(output.error for output in found.outputs), [output.error for output in found.outputs]
    return {output.request_id: output.tokens for output in found.outputs}


@pytest.fixture(scope="module")
def targets_own(pool):
    """Texts of the target alone, by sampling."""
    return {sampling: texts(pool, "plain", sampling=sampling) for sampling in (None, COUPLED)}


@pytest.mark.parametrize(
    ("policy", "batch", "sampling", "cache"), pairs(CHAINS, (1, 4), (None, COUPLED), ("slots", "mask"))
)
@pytest.mark.one_in(3)
def test_the_text_is_the_targets_own(pool, targets_own, policy, batch, sampling, cache):
    assert texts(pool, policy, batch=batch, sampling=sampling, memory=Memory(cache=cache)) == targets_own[sampling]


def test_a_request_that_lost_its_memory_drafts_as_before(pool, targets_own):
    """Four requests in memory for fewer: some give up their caches and read anew."""
    memory = Memory(limit_bytes=250_000)
    assert texts(pool, "feature:2/mid:3/target", batch=4, memory=memory) == targets_own[None]
    texts(pool, "feature:3/target", sampling=REJECTION, batch=2)  # runs


def test_it_says_the_same_fused_and_by_its_modules(pool):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (6,), generator=generator)
    states = torch.randn(6, WIDTH, generator=generator)
    kept, said = states.clone(), {"modules": [], "fused": []}
    for kind, answers in said.items():
        _, forward = pool.reader(kind, share_weights=True)
        assert forward.name == kind
        cache = forward.slot_cache()
        for start, end in ((0, 1), (1, 4), (4, 6)):
            placement = cache.place(("a",), (end - start,))
            answers.append(forward.after(ids[start:end], states[start:end], placement, cache, slice(None)))
    torch.testing.assert_close(said["fused"], said["modules"], rtol=1e-4, atol=1e-4)
    assert torch.equal(states, kept)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 4])
def test_what_is_said_depends_on_the_context_and_on_what_the_target_has_judged(pool, monkeypatch, batch):
    depths, heard = set(), set()
    write, contexts = FeatureReader.write, FeatureReader.contexts

    def check(state, context, logits):
        judged = state.session.num_judged
        torch.testing.assert_close(logits, says(pool, context, judged), rtol=1e-3, atol=2e-4)
        depths.add(len(context) - judged)

    def written_of(reader, sampler, writings):
        write(reader, sampler, writings)
        for writing in writings:
            text = writing.state.session.tail(0)
            heard.update(writing.tokens)
            for count, row in enumerate(writing.rows):
                check(writing.state, text + writing.tokens[:count], row)

    def contexts_of(reader, states, feeds, counts):
        logits = contexts(reader, states, feeds, counts)
        rows = iter(logits.unbind())
        for state, count in zip(states, counts, strict=True):
            text = state.session.tail(0)
            for left in range(count - 1, -1, -1):
                check(state, text[: len(text) - left], next(rows))
        return logits

    monkeypatch.setattr(FeatureReader, "write", written_of)
    monkeypatch.setattr(FeatureReader, "contexts", contexts_of)
    for policy, cache, paired in pairs(CHAINS[:6], ("slots", "mask"), (1, 4)):
        if paired == batch:
            texts(pool, policy, num_tokens=12, batch=batch, memory=Memory(cache=cache))
    assert depths >= set(range(1, 8))
    assert heard <= set(SAID)


# -- pools


@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_pool_knows_its_sizes(tmp_path, num_layers):
    folder = written(tmp_path, num_layers=num_layers)
    feature = ModelPool.load(folder).member("feature")
    layers = sum(weight.numel() for weight in feature.model.model.layers.parameters())
    assert feature.num_parameters == layers + WIDTH + 2 * WIDTH * WIDTH + len(SAID) * WIDTH
    found = check_pool(folder)
    assert found.works
    assert found.members[0].num_parameters == feature.num_parameters


def test_the_head_may_be_the_targets_whole(tmp_path):
    pool = ModelPool.load(written(tmp_path, keys=READS))
    assert pool.member("feature").model.lm_head is pool.target.model.lm_head


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"fc": None}, "members[0].path must hold every weight (fc.weight is missing)"),
        ({"fc": (WIDTH, WIDTH)}, "must hold fc.weight of 32 x 64, not 32 x 32"),
        ({"width": 16, "fc": (16, 32)}, "features_of must be a member of the same hidden size (16), got 'target'"),
        ({"keys": READS + 'dtype = "bfloat16"\n'}, "features_of must be a member of the same dtype (bfloat16)"),
        ({"keys": 'features_of = "mid"\n', "members": ("mid", "target")}, "features_of must be the target (target)"),
        ({"keys": READS + 'embeddings_of = "target"\n'}, "may not have both features_of and embeddings_of"),
        ({"keys": READS + 'tokenizer = "tokenizer.json"\n'}, "may not have both features_of and tokenizer"),
        ({"keys": READS + 'tp_plan = "auto"\n'}, "may not have both features_of and tp_plan"),
        ({"after": READS}, "features_of must not be given for the target"),
        ({"before": f'"two"\npath = "feature"\n{READS}'}, "features_of must be given for one member"),
        ({"before": '"part"\nsubmodel_of = "feature"\nskip_layers = []\n'}, "must not be a member that drafts"),
    ],
)
def test_faults_of_pools_are_one_line(tmp_path, changes, complaint):
    changes = {"keys": READS} | changes
    before, after = changes.pop("before", ""), changes.pop("after", "")
    file = written(tmp_path, **changes) / "pool.toml"
    target = '[[members]]\nname = "target"'
    before = before and f"[[members]]\nname = {before}"
    file.write_text(file.read_text(encoding="utf-8").replace(target, before + target) + after, encoding="utf-8")
    with pytest.raises(PoolFileError) as caught:
        ModelPool.load(tmp_path)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"memory": Memory(prefixes=PrefixCacheSize(num_blocks=8, block_tokens=4))}, ArgumentError, "does not go with"),
        ({"start": "draft"}, ArgumentError, "must be prefill beside feature"),
        ({"rollouts": "2@4"}, ArgumentError, "`rollouts` do not go with feature"),
        ({"forward": "compiled"}, ArgumentError, "must not be compiled where feature reads"),
        ({"policy": "pearl"}, PolicyError, "no member works ahead beside"),
        ({"policy": "tree"}, PolicyError, "trees are not"),
    ],
)
def test_what_cannot_be_decoded_is_refused_by_name(pool, options, error, complaint):
    with pytest.raises(error, match=complaint):
        decode(pool, PROMPTS, **{"policy": "feature:2/target", "max_new_tokens": 8, **options})


# -- both worlds


def agreed(pool, prompts, policies, **options):
    found = agree(pool, prompts, policies, **options)
    assert found.agree, [(one.policy, one.difference) for one in found.policies if one.difference]
    return found.policies


@pytest.mark.parametrize(("sampling", "batch", "cache"), [(GREEDY, 4, "mask"), (COUPLED, 1, "slots")], ids=str)
def test_both_worlds_take_the_same_steps(pool, shared, sampling, batch, cache):
    def recorded(out):
        closure = Closure(kind="monotone", reach=12, run=12)
        record(pool, prompts_of(PROMPTS[:4]), sampling=sampling, closure=closure, max_new_tokens=11, out=out)

    recording = shared(f"features-{sampling.mode}.trace", recorded)
    asked = {"sampling": sampling, "max_new_tokens": 11, "batch": batch, "cache": cache}
    for one in agreed(pool, PROMPTS[:4], CHAINS, recording=recording, **asked):
        assert one.left is None
        assert one.num_steps > 20


def test_lossy_judges_agree_as_far_as_it_is_recorded(pool):
    lossy = ["via-sd", "cascade"]
    found = agreed(pool, PROMPTS[:3], lossy, max_new_tokens=10, batch=4, reach=8, run=8)
    assert sum(one.num_steps for one in found) > 10
    for sampling in (None, COUPLED):  # and to the end in a full closure
        options = {"sampling": sampling, "max_new_tokens": 4, "closure": "full", "reach": 4}
        assert all(one.left is None for one in agreed(pool, PROMPTS[:3], lossy, **options))


@pytest.mark.parametrize(
    ("policy", "reach", "run"),
    [
        ("feature:4/target", 4, 0),
        ("feature:2/mid:3/target", 5, 2),
        ("ngram:3/feature:4/target", 7, 3),
        ("feature:2/mid:3/slim:4/target", 9, 5),
    ],
)
def test_the_closure_holds_what_its_reach_and_run_promise(pool, policy, reach, run):
    agreed(pool, PROMPTS[:3], [policy], max_new_tokens=16, reach=reach, run=run)


def test_a_policy_that_leaves_the_recording_is_told_so(pool):
    with pytest.raises(ValueError, match="policy feature:6/target leaves the recording"):
        agree(pool, PROMPTS, ["feature:6/target"], max_new_tokens=20, reach=3)


def commits_unread(pool):
    """Drafts two tokens, and commits one that the target has not read: what it has judged falls behind."""

    def decide(seen):
        if seen.num_pending and seen.last is not None and isinstance(seen.last.step, Draft):
            return Commit(1)
        return Verify(pool.target) if seen.num_pending > 2 or seen.room < 1 else Draft("feature", 2)

    return Decides(decide)


def test_what_was_committed_without_the_target_is_not_judged(pool):
    (found,) = agreed(pool, PROMPTS, [commits_unread], max_new_tokens=5, closure="full", reach=5)
    assert found.left is None
    assert found.num_steps > 20


# -- recordings


def recorded(pool, out, *, kind="monotone", reach=5, sampling=GREEDY, budget=8, **more):
    closure = Closure(kind=kind, reach=reach, run=3, **more)
    prompts = prompts_of([f"w{token} w{token + 3}" for token in range(1, 4)])
    return record(pool, prompts, sampling=sampling, closure=closure, max_new_tokens=budget, out=out)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return ModelPool.load(written(tmp_path_factory.mktemp("small"), members=("mid", "target")))


@pytest.mark.parametrize(("kind", "reach"), [("monotone", 5), ("full", 3)])
def test_every_context_at_every_depth_is_as_defined(small, tmp_path, kind, reach):
    trace = recorded(small, tmp_path / "a.trace", kind=kind, reach=reach)
    assert trace.meta.features.model == "feature"
    assert trace.meta.features.depths == reach
    rng, num_looked = np.random.default_rng(0), 0
    for request in trace.requests:
        trie, above = request.trie, []  # the tokens of every node
        for node, parent in enumerate(trie.parent.tolist()):
            above.append([*request.prompt] if parent < 0 else [*above[parent], int(trie.token[node])])
        for node in {*trie.trunk.tolist(), *rng.choice(trie.num_nodes, 24).tolist()}:
            for depth in range(1, reach + 1):
                if depth > max(1, trie.depth[node]):
                    assert trie.features.next_token[depth - 2, node] == -1
                    continue
                logits = says(small, above[node], len(above[node]) - depth)
                log_probs = torch.log_softmax(logits, -1)
                row = trie if depth == 1 else trie.features
                at = (trace.meta.model_names.index("feature") if depth == 1 else depth - 2, node)
                entropy = float(torch.special.entr(log_probs.exp()).sum())
                assert row.next_token[at] == int(logits.argmax())
                assert row.next_log_prob[at] == pytest.approx(float(log_probs.max()), abs=2e-3)
                assert row.entropy[at] == pytest.approx(entropy, abs=2e-3)
                for child in np.flatnonzero(trie.parent == node):
                    given = row.own_log_prob[at[0], child]
                    assert given == pytest.approx(max(float(log_probs[trie.token[child]]), -63.999), abs=2e-3)
                num_looked += depth > 1
    assert num_looked > 100


def test_a_token_whose_id_is_not_known_has_no_signal(small, tmp_path):
    """After a step back to the trunk the context is recorded, but what was drafted beyond the record is not."""
    tables = TrieTables(recorded(small, tmp_path / "a.trace"))
    world = tables.world(synthetic_cost(tables.pool.names), seed=0, strict=False)
    (session, *_), level = list(world.sessions((True,) * 3)), tables.pool.level("feature")
    world.open(session)
    session.num_judged, session.drafters, session.judges = session.num_prompt - 1, [level], [level]
    token, child = (getattr(tables.of(session.request_id), name)[level][0] for name in ("next_token", "child"))
    for session.tokens, session.places, known in (([token], [child], True), ([UNKNOWN], [-1], False)):
        assert (world.signal(session, 0) != NO_SIGNAL) == known


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=str)
def test_a_recording_is_read_as_it_was_written_and_a_broken_view_is_refused(small, tmp_path, sampling):
    trace = recorded(small, tmp_path / "a.trace", sampling=sampling)
    read = read_trace(tmp_path / "a.trace")
    assert read.meta == trace.meta
    for one, other in zip(trace.requests, read.requests, strict=True):
        for name in ("next_token", "next_log_prob", "top_log_prob", "gap", "entropy", "own_log_prob", "tvd"):
            assert np.array_equal(getattr(one.trie.features, name), getattr(other.trie.features, name)), name
    write_trace(read, tmp_path / "b.trace")
    for name in ("meta.json", "nodes.parquet", "requests.parquet"):
        assert (tmp_path / "a.trace" / name).read_bytes() == (tmp_path / "b.trace" / name).read_bytes()
    for name, value, complaint in (
        ("next_token", 40, r"feature@2.next_token: must lie in \[0, 40\)"),
        ("next_token", -1, r"feature@2.next_token: must lie in \[0, 40\)"),
        ("entropy", 1e9, "feature@2.entropy"),
        ("gap", 1e-9, "feature@2.gap: must be a multiple of"),
    ):
        array = getattr(trace.requests[0].trie.features, name)
        kept, array[0, -1] = array[0, -1], value
        with pytest.raises(TraceFormatError, match=complaint):
            write_trace(trace, tmp_path / "b.trace")
        array[0, -1] = kept


def test_what_cannot_be_right_of_a_recording_is_refused_by_name(small, tmp_path):
    trace = recorded(small, tmp_path / "a.trace", reach=6)
    (tmp_path / "w.jsonl").write_text('{"arrives_s": 0.5, "prompt_tokens": 4, "output_tokens": 4}\n', encoding="utf-8")
    trees = (TreeClosure(model="mid", shape="2x1"),)
    load = {"workload": tmp_path / "w.jsonl", "cluster": "h100"}
    ahead = "sees ahead, which rounds beside feature do not allow"
    for call, told in (
        (lambda: recorded(small, tmp_path / "b.trace", reach=2, trees=trees), "`trees` do not go with feature"),
        (lambda: trace.shifted({"feature": 0.1}, seed=0), "`shift_acceptance` does not go with feature"),
        (lambda: compare(trace, policies=["oracle-window"], cost="h100"), ahead),
        (lambda: compare(trace, policies=["oracle-chain"], cost="h100"), ahead),
        (
            lambda: compare(trace, policies=["feature:2/target"], cost="h100", prefix_cache=16),
            "`prefix_cache` does not",
        ),
        (lambda: compare_under_load(trace, "plain", **load), "must not be of a member that reads the target's states"),
    ):
        with pytest.raises(ArgumentError, match=told):
            call()
