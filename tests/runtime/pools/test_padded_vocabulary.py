"""Members whose tables are padded differently: a pool writes what its target's `generate()` writes.

The target is not trained, so that it writes rows that no token has, which no other member may draft.
"""

from itertools import cycle
from pathlib import Path

import numpy as np
import paceline
import pytest
import torch
from paceline.policies import make_policy
from paceline.runtime.decode import decode
from paceline.runtime.pools.check import check_pool
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError
from paceline.runtime.prompts import Prompt
from paceline.runtime.recording.recorder import record
from paceline.sim import Scenario, TrieTables, simulate
from paceline.sim.recorded import recorded_pool
from paceline.studies.agree import agree
from paceline.studies.record import tree_of
from paceline.traces.contexts.store import read_trace
from paceline.traces.meta import Closure, Sampling
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from ...unit_cost import UnitCost
from ..conftest import ALPHABET, random_llama
from ..features import feature_pools

NUM_TOKENS = 24
GREEDY = Sampling(mode="greedy")
TOKENS = len(ALPHABET)
TARGET_ROWS = TOKENS + 8
PROMPTS = tuple(
    Prompt(request_id=f"r{row}", text=text)
    for row, text in enumerate(("a", "hello there", "the cat, the ca", "we go!"))
)
HEAD = 'name = "padded"\ntokenizer = "tokenizer.json"\ncontext_tokens = 64\n'
MEMBER = '[[members]]\nname = "{0}"\npath = "{0}"\n'
# Tables that are smaller than the target's, larger, as large, and without any padding.
TABLES = [(TOKENS, TOKENS + 4), (TOKENS + 16, TOKENS), (TOKENS + 2, TARGET_ROWS)]
POLICIES = ("plain", "draft:4/target", "draft:3/mid:5/target", "slim:3/target", "ngram:3/draft:2/target")
# The last has a branch for every row of the target, of which members say only those of tokens.
TREES = ("tree,shape=3x2x1,through=mid", "tree-dynamic,draft=mid,beams=3,depth=4,tokens=8", f"tree,shape={TARGET_ROWS}")
COUPLED = Sampling(mode="coupled", temperature=0.7, seed=3)
SAMPLINGS = pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=lambda sampling: sampling.mode)
# Of pools with a drafter that reads the target's states.
FEATURE_TOKENS, FEATURE_TEXTS = 30, feature_pools.PROMPTS[:3]
CHAINS = ("feature:4/target", "feature:2/mid:3/target")


def like(model, num_rows: int):
    """The same weights with a table of another size."""
    other = random_llama(0, num_layers=len(model.model.layers), vocab_size=num_rows)
    held, shared = other.state_dict(), min(num_rows, TARGET_ROWS)
    for name, weight in model.state_dict().items():
        if weight.shape[:1] == (TARGET_ROWS,):
            held[name][:shared] = weight[:shared]
        else:
            held[name].copy_(weight)
    return other


@pytest.fixture(scope="module")
def target():
    return random_llama(11, vocab_size=TARGET_ROWS)


@pytest.fixture(scope="module", params=TABLES, ids=str)
def folder(request, tmp_path_factory, tiny_pool, target) -> Path:
    folder = tmp_path_factory.mktemp("padded")
    tiny_pool.tokenizer.save(str(folder / "tokenizer.json"))
    target.save_pretrained(folder / "target")
    draft_rows, mid_rows = request.param
    slim = random_llama(11, num_layers=1, vocab_size=TARGET_ROWS)
    held = {name: weight for name, weight in target.state_dict().items() if name in slim.state_dict()}
    slim.load_state_dict(held)
    like(slim, draft_rows).save_pretrained(folder / "draft")
    two = random_llama(11, num_layers=2, vocab_size=TARGET_ROWS)
    two.load_state_dict({name: weight for name, weight in target.state_dict().items() if name in two.state_dict()})
    like(two, mid_rows).save_pretrained(folder / "mid")
    members = '[[members]]\nname = "ngram"\nngram = { max_match = 3 }\n' + MEMBER.format("draft") + MEMBER.format("mid")
    slim_entry = '[[members]]\nname = "slim"\nsubmodel_of = "target"\nskip_layers = [2]\n'
    text = HEAD + members + slim_entry + MEMBER.format("target")
    (folder / "pool.toml").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def pool(folder) -> ModelPool:
    assert check_pool(folder).works
    return ModelPool.load(folder)


@pytest.fixture(scope="module")
def wanted(folder, pool) -> list[list[int]]:
    """What `generate()` writes."""
    model = AutoModelForCausalLM.from_pretrained(folder / "target", dtype=torch.float32)
    answers = []
    for prompt in PROMPTS:
        ids = torch.tensor([pool.encode(prompt.text)])
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False)
        answers.append(made[0, ids.shape[1] :].tolist())
    return answers


def ran(pool: ModelPool, policy: str, sampling: Sampling = GREEDY, forward="modules", batch=2) -> list[list[int]]:
    built = make_policy(policy, loaded_pool(pool))
    outputs, _ = decode(
        pool, built, PROMPTS, sampling=sampling, max_new_tokens=NUM_TOKENS, name=policy, batch=batch, forward=forward
    )
    assert not [output.error for output in outputs if output.error]
    return [list(output.tokens) for output in outputs]


def test_the_target_writes_rows_without_a_token(wanted):
    assert any(token >= TOKENS for answer in wanted for token in answer)


@pytest.mark.parametrize(
    ("policy", "forward"), [*zip(POLICIES + TREES, cycle(["modules", "fused", "fused"]), strict=False)]
)
def test_texts_are_those_of_generate(pool, wanted, policy, forward):
    assert ran(pool, policy, forward=forward) == wanted


def test_coupled_texts_are_the_targets(pool):
    alone = ran(pool, "plain", COUPLED)
    for policy in POLICIES[1:] + TREES:
        assert ran(pool, policy, COUPLED) == alone


@SAMPLINGS
def test_both_worlds_take_the_same_steps(pool, sampling):
    found = agree(pool, PROMPTS[:3], POLICIES + TREES, sampling=sampling, max_new_tokens=8, batch=2)
    assert found.agree, [(one.policy, one.difference) for one in found.policies if one.difference]
    for one in found.policies:
        assert one.left is None
        assert one.num_steps > 3


def test_trees_have_no_branch_of_a_row_without_a_token(pool, tmp_path):
    trees = tuple(tree_of(text) for text in (f"draft:{TARGET_ROWS}", "mid:3x2x1"))
    record(
        pool, PROMPTS[:2], sampling=COUPLED, closure=Closure(kind="monotone", reach=3, run=2, trees=trees),
        max_new_tokens=8, out=tmp_path / "p.trace",
    )  # fmt: skip
    for request in read_trace(tmp_path / "p.trace").requests:
        branches = request.trie.ranks.rank >= 0
        assert (np.broadcast_to(request.trie.token, branches.shape)[branches] < TOKENS).all()
        # Every token is a branch of `draft` somewhere on the trunk.
        assert set(request.trie.token[branches[0]].tolist()) == set(range(TOKENS))


def test_a_recording_replays_what_runs_and_drafts_only_tokens(pool, tmp_path):
    record(
        pool, PROMPTS, sampling=GREEDY, closure=Closure(kind="monotone", reach=6, run=4), max_new_tokens=NUM_TOKENS,
        out=tmp_path / "p.trace",
    )  # fmt: skip
    trace = read_trace(tmp_path / "p.trace")
    assert trace.meta.vocab_size == TARGET_ROWS
    for request in trace.requests:
        assert (request.trie.next_token[:-1] < TOKENS).all()
    members = recorded_pool(trace)
    for policy in ("plain", "draft:4/target", "draft:3/mid:5/target"):
        tokens: dict[str, list[int]] = {}
        simulate(
            Scenario(tables=TrieTables(trace), cost=UnitCost()), make_policy(policy, members), policy, outputs=tokens
        )
        assert [tokens[prompt.request_id] for prompt in PROMPTS] == ran(pool, policy)


def test_rejection_sampling_keeps_the_targets_distribution(folder, pool):
    """The first token of many draws, under a draft that cannot say a part of what the target writes."""
    model = AutoModelForCausalLM.from_pretrained(folder / "target", dtype=torch.float32)
    ids = torch.tensor([pool.encode("hello there")])
    probs = model(ids).logits[0, -1].softmax(-1)
    many = tuple(Prompt(request_id=f"r{row}", text="hello there") for row in range(600))
    built = make_policy("draft:2/target", loaded_pool(pool))
    sampling = Sampling(mode="rejection", temperature=1.0, seed=5)
    outputs, _ = decode(pool, built, many, sampling=sampling, max_new_tokens=2, name="c", batch=100, forward="modules")
    counts = torch.zeros(TARGET_ROWS)
    for output in outputs:
        counts[output.tokens[0]] += 1
    assert counts[TOKENS:].sum() > 0
    # A mean of 600 draws lies within 5 of its own spreads.
    spread = (probs * (1 - probs) / 600).sqrt()
    assert ((counts / 600 - probs).abs() <= 5 * spread + 1 / 600).all()
    inside, share = counts[:TOKENS].sum() / 600, probs[:TOKENS].sum()
    assert abs(inside - share) <= 5 * (share * (1 - share) / 600).sqrt()


@pytest.fixture(scope="module", params=[FEATURE_TOKENS, FEATURE_TOKENS + 4, feature_pools.VOCABULARY])
def states_pool(request, tmp_path_factory) -> ModelPool:
    """Two members with tables of so many rows, one of which reads the target's states."""
    return ModelPool.load(
        feature_pools.written(
            tmp_path_factory.mktemp("states"), members=("mid", "target"), keys=feature_pools.READS,
            tokens=FEATURE_TOKENS, rows=request.param,
        )
    )  # fmt: skip


@SAMPLINGS
def test_a_drafter_that_reads_states_says_only_tokens(states_pool, tmp_path, sampling):
    asked = {"sampling": sampling, "max_new_tokens": 12}
    prompts = tuple(Prompt(request_id=f"r{row}", text=text) for row, text in enumerate(FEATURE_TEXTS))
    record(states_pool, prompts, closure=Closure(kind="monotone", reach=5, run=2), out=tmp_path / "p.trace", **asked)
    requests = read_trace(tmp_path / "p.trace").requests
    assert any((request.trie.next_token[-1] >= FEATURE_TOKENS).any() for request in requests)
    for request in requests:
        assert (request.trie.next_token[:-1] < FEATURE_TOKENS).all()
    found = agree(states_pool, prompts, CHAINS, recording=tmp_path / "p.trace", batch=2, **asked)
    assert found.agree, [(one.policy, one.difference) for one in found.policies if one.difference]
    assert all(one.left is None for one in found.policies)


def test_generate_with_a_tokenizer_that_says_what_is_padding(target, tiny_pool):
    small = like(target, TOKENS)
    ids = torch.tensor([tiny_pool.tokenizer.encode("hello there").ids])
    asked = {"max_new_tokens": NUM_TOKENS, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny_pool.tokenizer)
    ours = target.generate(
        ids, custom_generate=paceline.generate, assistant_models=[small], target_tokenizer=tokenizer, **asked
    )
    assert torch.equal(ours, target.generate(ids, **asked))
    assert small.config.vocab_size == TOKENS
    with pytest.raises(
        ValueError, match=r"assistant0 must have the target's vocabulary size .*target_tokenizer must say"
    ):
        target.generate(ids, custom_generate=paceline.generate, assistant_models=[small], **asked)
    with pytest.raises(ValueError, match=rf"a row for each of the {TOKENS} tokens of target_tokenizer"):
        target.generate(
            ids, custom_generate=paceline.generate, assistant_models=[like(target, TOKENS - 1)],
            target_tokenizer=tokenizer, **asked,
        )  # fmt: skip


def test_a_table_with_fewer_rows_than_tokens_is_refused(folder, tmp_path, target):
    short = like(target, TOKENS - 1)
    short.save_pretrained(tmp_path / "draft")
    for name in ("tokenizer.json", "target"):
        (tmp_path / name).symlink_to(folder / name)
    (tmp_path / "pool.toml").write_text(HEAD + MEMBER.format("draft") + MEMBER.format("target"))
    told = rf"members\[0\] must have a row for each of the {TOKENS} tokens of the pool's tokenizer, or a `tokenizer`"
    with pytest.raises(PoolFileError, match=told):
        ModelPool.load(tmp_path)
