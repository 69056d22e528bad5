"""Drafters that say a part of the vocabulary, by the embeddings of their target."""

import pytest
import torch
from paceline.runtime.forward_choice import choose_forward
from paceline.runtime.pools.check import check_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError
from paceline.studies.agree import agree
from paceline.traces.meta import Sampling
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from .head_pools import PART, SAID, SHARES, VOCABULARY, WIDTH, written


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", [(LlamaForCausalLM, LlamaConfig), (Qwen2ForCausalLM, Qwen2Config)])
def test_logits_are_those_of_the_targets_head_and_nothing_for_other_tokens(tmp_path, tied, family):
    pool = ModelPool.load(written(tmp_path, tied=tied, family=family))
    draft, target = pool.member("draft").model, pool.target.model
    tokens = torch.arange(12)[None]
    with torch.inference_mode():
        logits = draft(input_ids=tokens, use_cache=False).logits
        expected = target.lm_head(draft.model(input_ids=tokens, use_cache=False).last_hidden_state)
    others = sorted(set(range(VOCABULARY)) - set(SAID))
    torch.testing.assert_close(logits[..., SAID], expected[..., SAID])
    assert (logits[..., others] == -torch.inf).all()
    assert draft.model.embed_tokens is target.model.embed_tokens
    for kind in ("fused", "modules"):  # either is compared with the model itself
        choose_forward(draft, kind=kind, share_weights=True, context_tokens=96)


def test_only_what_a_forward_reads_counts(tmp_path):
    pool = ModelPool.load(written(tmp_path))
    draft = pool.member("draft").model
    layers = sum(weight.numel() for weight in draft.model.layers.parameters()) + WIDTH
    assert pool.member("draft").num_parameters == layers + len(SAID) * WIDTH
    found = check_pool(tmp_path)
    assert found.works
    assert found.members[0].num_parameters == layers + len(SAID) * WIDTH
    assert found.members[0].head_tokens == len(SAID)
    assert found.members[0].weight_bytes == 4 * (layers + len(SAID) * WIDTH)


def test_embeddings_may_be_shared_whole(tmp_path):
    pool = ModelPool.load(written(tmp_path, draft_keys=SHARES))
    assert pool.member("draft").model.lm_head is pool.target.model.lm_head
    assert check_pool(tmp_path).members[0].weight_bytes == 4 * (
        pool.member("draft").num_parameters - VOCABULARY * WIDTH
    )


def test_a_model_with_embeddings_of_its_own_may_say_a_part(tmp_path):
    pool = ModelPool.load(written(tmp_path, draft_keys=PART, has_embeddings=True))
    logits = pool.member("draft").model(input_ids=torch.arange(4)[None]).logits
    assert logits.isfinite().sum().item() == 4 * len(SAID)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"has_embeddings": True}, "embeddings_of must be absent where the weights have embeddings of their own"),
        ({"draft_keys": PART}, "must hold every weight ("),
        ({"hidden_size": 16}, "embeddings_of must be a member of the same hidden size (16), got 'target'"),
        ({"draft_keys": SHARES + PART + 'dtype = "bfloat16"\n'}, "must be a member of the same dtype (bfloat16)"),
        ({"draft_keys": 'embeddings_of = "nobody"\n'}, "embeddings_of must be a member with a path and embeddings of"),
        ({"draft_keys": 'vocabulary = "none.json"\n', "has_embeddings": True}, "must be a file that can be read"),
        ({"draft_keys": SHARES + PART + 'tokenizer = "tokenizer.json"\n'}, "may not have both"),
        ({"said": "{}"}, "vocabulary must be a list of token ids, got an object"),
        ({"said": "[1, 1]"}, "ascending order, each once, got 1 at place 1"),
        ({"said": "[1, 40]"}, "below 40 in ascending order, each once, got 40 at place 1"),
        ({"said": "[1, true]"}, "got True at place 1"),
        ({"said": "[1]"}, "vocabulary must hold 2 to 39 of 40 tokens, got 1"),
        ({"said": "["}, "vocabulary"),
    ],
)
def test_faults_are_one_line(tmp_path, changes, complaint):
    written(tmp_path, **changes)
    with pytest.raises(PoolFileError) as caught:
        ModelPool.load(tmp_path)
    assert complaint in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_target_says_every_token(tmp_path):
    written(tmp_path)
    file = tmp_path / "pool.toml"
    file.write_text(file.read_text(encoding="utf-8") + PART, encoding="utf-8")
    with pytest.raises(PoolFileError, match="vocabulary must not be given for the target"):
        ModelPool.load(tmp_path)


@pytest.mark.parametrize("sampling", [None, Sampling(mode="coupled", temperature=0.7, top_k=20, seed=5)])
def test_both_worlds_take_the_same_steps(tmp_path, sampling):
    pool = written(tmp_path, initializer_range=0.1)
    prompts = [f"w{token}" for token in range(1, 7)]
    found = agree(pool, prompts, ["draft:3/target", "svip,most=6"], sampling=sampling, max_new_tokens=16, batch=2)
    assert found.agree
    assert sum(policy.num_steps for policy in found.policies) > 100


SLIM = '[[members]]\nname = "slim"\nsubmodel_of = "draft"\nskip_layers = []\n'


def with_a_submodel_of_the_draft(folder):
    file = folder / "pool.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('[[members]]\nname = "target"', f'{SLIM}[[members]]\nname = "target"'), "utf-8")
    return folder


def test_a_submodel_shares_what_its_model_shares(tmp_path):
    pool = ModelPool.load(with_a_submodel_of_the_draft(written(tmp_path, draft_keys=SHARES)))
    draft, slim = pool.member("draft").model, pool.member("slim").model
    tokens = torch.arange(6)[None]
    assert torch.equal(slim(input_ids=tokens).logits, draft(input_ids=tokens).logits)
    assert slim.model.embed_tokens.weight is pool.target.model.model.embed_tokens.weight


def test_no_submodel_is_made_of_one_that_says_a_part(tmp_path):
    with pytest.raises(PoolFileError, match="submodel_of must not be a member that says only a part"):
        ModelPool.load(with_a_submodel_of_the_draft(written(tmp_path)))
