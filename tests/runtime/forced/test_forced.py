"""Forced pools are made of their file alone; a forced run takes the steps of a replay and does the work of decoding."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from paceline.base.errors import ArgumentError
from paceline.decoding.rules import Ratio
from paceline.decoding.seen import Start
from paceline.decoding.steps import Draft, Verify
from paceline.runs.agreement import compare_runs
from paceline.runtime import forced as under_test
from paceline.runtime.caches import SlotCache
from paceline.runtime.forced import ForcedPool, forced_recording, forced_run, preset_config, preset_names, sized_shapes
from paceline.runtime.pools.members import describe_model, loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError, is_forced_pool
from paceline.runtime.recording.model_info import model_info
from paceline.sim.contexts import TrieTables
from paceline.sim.simulate import Scenario, simulate
from paceline.studies.agree import synthetic_cost
from paceline.studies.record import record
from paceline.studies.setting import named_policy
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.meta import Sampling
from paceline.traces.shapes import presets
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from ...tiny_models import random_prompts, tiny_pool_of_four
from ..offline import GREEDY, Decides
from .forced_pools import MEMBERS, VOCABULARY, tiny_forced_pool, write_tiny_forced_pool

HEAD = 'name = "f"\ncontext_tokens = 64\n'
SHAPES = {**sized_shapes(), **presets()}

# -- pools


def test_members_are_as_the_file_says(tmp_path):
    pool = tiny_forced_pool(tmp_path)
    assert tuple(member.name for member in pool.members) == MEMBERS
    assert [member.num_layers for member in pool.members] == [0, 1, 2, 3, 4]
    assert (pool.vocab_size, pool.tokenizer) == (VOCABULARY, None)
    assert tiny_forced_pool(tmp_path, extra="vocab_size = 64\n").vocab_size == 64
    file = write_tiny_forced_pool(tmp_path) / "pool.toml"
    file.write_text(file.read_text().replace('.json"\n', '.json"\ndtype = "bfloat16"\n'))
    assert {member.dtype for member in ForcedPool.load(tmp_path).members} == {"none", "bfloat16"}
    assert is_forced_pool(tmp_path)
    with pytest.raises(PoolFileError, match=r"members\[1\].config makes this a forced pool, of random weights, which"):
        ModelPool.load(tmp_path)
    file.write_text(HEAD + 'tokenizer = "t"\n[[members]]\nname = "a"\npath = "a"\n')
    assert not is_forced_pool(tmp_path)


def test_weights_follow_from_the_seed_and_nothing_else_is_drawn(tmp_path):
    state, weights = torch.get_rng_state(), []
    for extra in ("", "", "seed = 7\n"):
        members = tiny_forced_pool(tmp_path, extra=extra).members
        weights.append(torch.cat([each.flatten() for member in members[1:] for each in member.model.parameters()]))
    ours, again, other = weights
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(ours, again)
    assert not torch.equal(ours, other)
    assert ours.isfinite().all()


def test_a_forward_takes_any_token_id(tmp_path):
    forward = tiny_forced_pool(tmp_path).forward(4, "auto", share_weights=True)
    logits = []
    for ids in ([1, 2, VOCABULARY - 1], [VOCABULARY + 1, 3 * VOCABULARY + 2, -1]):
        cache = SlotCache(forward.kv_shape)
        logits.append(forward(torch.tensor(ids), cache.place(["a"], [3]), cache, slice(None)))
    assert torch.equal(*logits)


@pytest.mark.parametrize(
    ("members", "told"),
    [
        (['config = "30M"'], r"members\[0\].config must be a config.json, its folder or a preset \(known are 20M,"),
        (['path = "a"', 'config = "20M"'], r"members\[0\].path must not stand in a forced pool"),
        (['config = "20M"\npath = "a"'], r"exactly one of path, config, submodel_of and ngram, not 2"),
        (['config = "150M"', 'config = "20M"'], r"members\[1\] must stand in order of parameters"),
        (
            ['config = "20M"', 'config = "llama-3-8b"'],
            r"members\[0\] must have the target's vocabulary size \(128256\); `vocab_size` gives .*, got 32000",
        ),
        (['config = "20M"\ndevice = "cuda:77"'], r"members\[0\].device must be a device of this machine"),
        (['config = "llama-3.1-405b"'], r"device cpu must have 1,623,\d{3},\d{3},\d{3} bytes for the weights"),
        (['config = ""'], r"members\[0\].config string should have at least 1 character"),
        (['config = "20M"\ntokenizer = "t"'], r"members\[0\] may have a tokenizer only beside path"),
        (["ngram = { max_match = 3 }"], r"members\[0\] must be the target, a model with a config"),
        ('tokenizer = "t"\n', r"tokenizer is not a known key"),
        ("seed = -1\n", r"seed input should be greater than or equal to 0"),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused_in_one_line(tmp_path, members, told):
    head, members = (members, ['config = "20M"']) if isinstance(members, str) else ("", members)
    listed = "".join(f'[[members]]\nname = "{name}"\n{rest}\n' for name, rest in zip("ab", members, strict=False))
    (tmp_path / "pool.toml").write_text(HEAD + head + listed)
    with pytest.raises(PoolFileError, match=told) as refused:
        ForcedPool.load(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_context_beyond_the_positions_of_a_config_is_refused(tmp_path):
    with pytest.raises(PoolFileError, match="context_tokens must be <= 256, the positions of draft, got 257"):
        tiny_forced_pool(tmp_path, context_tokens=257)


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_has_the_parameters_and_the_cache_of_the_model_it_is_named_for(name):
    """Made with one layer and with two, which say what each of them adds."""
    config, expected = preset_config(name, context_tokens=64), SHAPES[name].info(name)
    assert (config.max_position_embeddings, config.num_hidden_layers) == (64, expected.layers)
    made = []
    for layers in (1, 2):
        config.num_hidden_layers = layers
        with torch.device("meta"):
            model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)
        made.append(describe_model(name, "model", model.to(getattr(torch, SHAPES[name].dtype)), None))
    one, two = made
    assert one.num_parameters + (expected.layers - 1) * (two.num_parameters - one.num_parameters) == expected.parameters
    assert one.kv_bytes_per_token * expected.layers == expected.kv_bytes_per_token
    said = model_info(one)
    assert (said.kv_heads, said.attention_size) == (expected.kv_heads, expected.attention_size)
    assert said.embedding_parameters == expected.embedding_parameters
    if name in sized_shapes():
        assert expected.parameters == pytest.approx(float(name.removesuffix("M")) * 1e6, rel=0.02)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Llama-68m", "llama-68m"),
        ("TinyLlama-1.1B", "tinyllama-1.1b"),
        ("Qwen3-0.6B", "qwen-3-0.6b"),
        ("Llama-3-70B", "llama-3-70b"),
        ("20m", "20M"),
        *((text, None) for text in ("30M", "gemma-3-1b", "mixtral-8x7b", "eagle3", "", "config.json")),
    ],
)
def test_a_preset_is_found_by_what_people_call_it(text, name):
    found = preset_config(text, context_tokens=64)
    if name is None:
        assert found is None
    else:
        assert found.to_dict() == preset_config(name, context_tokens=64).to_dict()


# -- runs


POLICIES = (
    "plain",
    "draft:4/target",
    "draft:3/mid:6/target",
    "draft:2/mid:3/slim:5/target",
    "ngram",
    "suffix,most=6,least=0",
    "adaptive",
    "confident",
    "specrouter",
    "draft:9/mid:18/target",  # beyond the record, with tokens that nobody knows
)


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return tiny_forced_pool(tmp_path_factory.mktemp("pool"))


@pytest.fixture(
    scope="module", params=[GREEDY, Sampling(mode="coupled", temperature=1.0, seed=3)], ids=lambda each: each.mode
)
def recording(request, pool, tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "a.trace"
    prompts = random_prompts(5, seed=4)
    record(tiny_pool_of_four(), prompts, path, sampling=request.param, max_new_tokens=20, costs=False)
    return forced_recording(read_trace(path), pool)


def both(pool, recording, policy, batch, wrapped=lambda policy: policy):
    """(difference, log of the replay, log of the run) of one policy in both worlds, at the same prices."""
    tables, cost, tokens = TrieTables(recording), synthetic_cost(recording.meta.model_names), {}
    in_replay, in_run = (wrapped(named_policy(policy).build(members)) for members in (tables.pool, loaded_pool(pool)))
    replay = simulate(Scenario(tables=tables, cost=cost, batch=batch), in_replay, policy, outputs=tokens)
    decisions = tables.world(cost, seed=0, strict=False)
    sessions = list(decisions.sessions(tables.prefill_before(Start.prefill)))
    asked = {"sampling": recording.meta.sampling, "trace": recording.meta.name, "name": policy, "batch": batch}
    run = forced_run(pool, in_run, sessions, decisions, prices=cost, **asked)
    ran_tokens = {session.request_id: session.emitted for session in sessions}
    difference = compare_runs(replay, run, replayed_tokens=tokens, ran_tokens=ran_tokens).difference
    return difference, replay, run


class Noting:
    """Passes on to a policy, and notes what it is shown and told."""

    def __init__(self, policy):
        self.policy = policy
        self.noted = []

    def decide(self, seen):
        self.noted.append([(token.drafter, *token.signal) for token in seen.pending])
        return self.policy.decide(seen)

    def learn(self, outcome):
        self.noted.append((outcome.num_accepted, outcome.num_emitted, tuple(outcome.tvd)))
        self.policy.learn(outcome)


@pytest.mark.parametrize("index", range(len(POLICIES)), ids=POLICIES)
@pytest.mark.one_in(4)
def test_a_forced_run_takes_the_steps_of_the_replay(pool, recording, index, monkeypatch):
    """Its policy sees what was recorded, and its models run over every token that the replay counts."""
    fed, policies, wrapped = Counter(), [], under_test._AnyToken.__call__

    def counted(self, ids, placement, cache, keep):
        logits = wrapped(self, ids, placement, cache, keep)
        fed[self.kv_shape.num_layers] += len(ids)
        kept = range(len(ids))[keep] if isinstance(keep, slice) else keep
        assert logits.shape == (len(kept), pool.vocab_size)
        return logits

    def noting(policy):
        policies.append(Noting(policy))
        return policies[-1]

    monkeypatch.setattr(under_test._AnyToken, "__call__", counted)
    watched = index in {1, 2}
    difference, replay, run = both(pool, recording, POLICIES[index], (1, 3)[index % 2], *([noting] if watched else []))
    assert difference is None
    assert run.meta["forced"] is True
    assert run.meta["trace"] == recording.meta.name
    assert run.meta["phases"]["forward_s"] > 0
    ops = replay.ops
    expected = {
        member.num_layers: ops["new_tokens"][ops["level"] == level].sum()
        for level, member in enumerate(pool.members)
        if member.model is not None
    }
    assert fed == {layers: count for layers, count in expected.items() if count}
    if watched:
        assert repr(policies[0].noted) == repr(policies[1].noted)  # NaN is not itself


def test_a_lossy_step_is_refused(pool, recording):
    lossy = Decides(lambda seen: Verify("target", Ratio(0.5)) if seen.pending else Draft("draft", 2))
    with pytest.raises(ArgumentError, match="a forced run must be of lossless steps, got Verify"):
        both(pool, recording, "draft:4/target", 1, lambda _: lossy)


def test_a_recording_that_does_not_suit_is_refused(tmp_path, pool, recording):
    fewer = replace(recording, meta=recording.meta.model_copy(update={"models": recording.meta.models[1:]}))
    short = tiny_forced_pool(tmp_path / "short", context_tokens=21)
    other = tiny_forced_pool(tmp_path / "other", lookup="{ max_match = 2 }")
    for asked, of, told in (
        (fewer, pool, r"hold as many models as pool tiny forced has, 4 \(draft"),
        (recording, short, "fit into the context of pool tiny forced, 21 tokens, got"),
        (recording, other, "hold the prompt lookup of pool tiny forced"),
    ):
        with pytest.raises(ArgumentError, match=f"`recording` must {told}"):
            forced_recording(asked, of)
