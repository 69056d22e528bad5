"""A drafter from the target's states says, in every chain and batch, what its definition says."""

import pytest
import torch
from paceline.base.errors import ArgumentError
from paceline.decoding.prefixes import PrefixCacheSize
from paceline.decoding.steps import PolicyError
from paceline.runtime.feature_reader import FeatureReader
from paceline.runtime.pools.check import check_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError
from paceline.runtime.threads import Memory
from paceline.studies.decode import decode
from paceline.traces.meta import Sampling

from ...pairs import pairs
from .feature_pools import CHAINS, COUPLED, PROMPTS, READS, SAID, VOCABULARY, WIDTH, says, written

ALL = ("ngram", "mid", "slim", "target")
MEMBER = "[[members]]\nname = "


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return ModelPool.load(written(tmp_path_factory.mktemp("pool"), members=ALL))


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
def test_the_text_is_the_targets_own(pool, targets_own, policy, batch, sampling, cache):
    assert texts(pool, policy, batch=batch, sampling=sampling, memory=Memory(cache=cache)) == targets_own[sampling]


def test_it_says_the_same_fused_and_by_its_modules(pool):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (6,), generator=generator)
    states = torch.randn(6, WIDTH, generator=generator)
    kept = states.clone()
    said = {"modules": [], "fused": []}
    for kind, answers in said.items():
        _, forward = pool.reader(kind, share_weights=True)
        assert forward.name == kind
        cache = forward.slot_cache()
        for start, end in ((0, 1), (1, 4), (4, 6)):
            placement = cache.place(("a",), (end - start,))
            answers.append(forward.after(ids[start:end], states[start:end], placement, cache, slice(None)))
    torch.testing.assert_close(said["fused"], said["modules"], rtol=1e-4, atol=1e-4)
    assert torch.equal(states, kept)


class Said:
    """What the drafter said, and whether that is what its definition says."""

    def __init__(self, pool):
        self.pool, self.depths, self.num_kept = pool, set(), 0

    def check(self, state, context, logits):
        judged = state.session.num_judged
        expected = says(self.pool, context, judged)
        torch.testing.assert_close(logits, expected, rtol=1e-3, atol=2e-4)
        self.depths.add(len(context) - judged)


@pytest.mark.parametrize("batch", [1, 4])
def test_what_is_said_depends_on_the_context_and_on_what_the_target_has_judged(pool, monkeypatch, batch):
    said = Said(pool)
    write, contexts = FeatureReader.write, FeatureReader.contexts

    def written_of(reader, sampler, writings):
        write(reader, sampler, writings)
        for writing in writings:
            text = writing.state.session.tail(0)
            for count, row in enumerate(writing.rows):
                said.check(writing.state, text + writing.tokens[:count], row)

    def contexts_of(reader, states, feeds, counts):
        logits = contexts(reader, states, feeds, counts)
        rows = iter(logits.unbind())
        for state, count in zip(states, counts, strict=True):
            text = state.session.tail(0)
            for left in range(count - 1, -1, -1):
                said.check(state, text[: len(text) - left], next(rows))
        return logits

    monkeypatch.setattr(FeatureReader, "write", written_of)
    monkeypatch.setattr(FeatureReader, "contexts", contexts_of)
    for policy, cache, paired in pairs(CHAINS[:6], ("slots", "mask"), (1, 4)):
        if paired == batch:
            texts(pool, policy, num_tokens=12, batch=batch, memory=Memory(cache=cache))
    assert said.depths >= set(range(1, 8))


def test_a_request_that_lost_its_memory_drafts_as_before(pool):
    """Four requests in memory for fewer: some give up their caches and read anew."""
    alone = texts(pool, "plain")
    found = decode(
        pool, PROMPTS, "feature:2/mid:3/target", max_new_tokens=20, batch=4, quality=False, debug=True,
        memory=Memory(limit_bytes=250_000),
    )  # fmt: skip
    assert {output.request_id: output.tokens for output in found.outputs} == alone


def test_rejection_sampling_runs(pool):
    texts(pool, "feature:3/target", sampling=Sampling(mode="rejection", temperature=0.9, seed=3), batch=2)


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
        ({"keys": READS, "after": READS}, "features_of must not be given for the target"),
        (
            {"keys": READS, "before": f'{MEMBER}"two"\npath = "feature"\n{READS}'},
            "features_of must be given for one member",
        ),
        (
            {"keys": READS, "before": f'{MEMBER}"part"\nsubmodel_of = "feature"\nskip_layers = []\n'},
            "must not be a member that drafts",
        ),
    ],
)
def test_faults_are_one_line(tmp_path, changes, complaint):
    changes = dict(changes)
    before, after = (changes.pop(place, "") for place in ("before", "after"))
    file = written(tmp_path, **changes) / "pool.toml"
    target = f'{MEMBER}"target"'
    file.write_text(file.read_text(encoding="utf-8").replace(target, before + target) + after, encoding="utf-8")
    with pytest.raises(PoolFileError) as caught:
        ModelPool.load(tmp_path)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"memory": Memory(prefixes=PrefixCacheSize(num_blocks=8, block_tokens=4))}, "does not go with feature"),
        ({"start": "draft"}, "must be prefill beside feature"),
        ({"rollouts": "2@4"}, "`rollouts` do not go with feature"),
        ({"forward": "compiled"}, "must not be compiled where feature reads"),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(pool, options, complaint):
    with pytest.raises(ArgumentError, match=complaint):
        decode(pool, PROMPTS, "feature:2/target", max_new_tokens=8, **options)


@pytest.mark.parametrize(("policy", "complaint"), [("pearl", "nobody works ahead beside"), ("tree", "trees are not")])
def test_steps_that_cannot_be_right_are_refused_by_name(pool, policy, complaint):
    with pytest.raises(PolicyError, match=complaint):
        decode(pool, PROMPTS, policy, max_new_tokens=8)


def test_the_vocabulary_is_kept_to(pool, monkeypatch):
    heard = []
    write = FeatureReader.write

    def written_of(reader, sampler, writings):
        write(reader, sampler, writings)
        heard.extend(token for writing in writings for token in writing.tokens)

    monkeypatch.setattr(FeatureReader, "write", written_of)
    texts(pool, "feature:3/target")
    assert set(heard) <= set(SAID) < set(range(VOCABULARY))
