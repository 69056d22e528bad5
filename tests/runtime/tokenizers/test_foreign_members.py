"""A pool member with a tokenizer of its own drafts; it neither verifies nor is recorded."""

import json
from pathlib import Path

import pytest
import torch
from paceline.decoding.legal_steps import check_step
from paceline.decoding.session import Session
from paceline.policies import Draft, Member, Pool, Verify
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError
from paceline.runtime.prompts import Prompt
from paceline.runtime.recording.recorder import record
from paceline.traces import Closure, Sampling
from transformers import LlamaConfig, LlamaForCausalLM

from .trained_tokenizers import byte_level, lower_casing, unigram

HEAD = 'name = "p"\ntokenizer = "tokenizer.json"\ncontext_tokens = 64\n'
GUEST = '[[members]]\nname = "guest"\npath = "guest"\ntokenizer = "guest/tokenizer.json"\n'
SLIM_GUEST = '[[members]]\nname = "slim"\nsubmodel_of = "guest"\nskip_layers = [1]\n'
DRAFT = '[[members]]\nname = "draft"\npath = "draft"\n'
TARGET = '[[members]]\nname = "target"\npath = "target"\n'


def save_model(folder: Path, vocab_size: int, *, width: int, eos: int | list[int]) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=64, eos_token_id=eos, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    built = tmp_path_factory.mktemp("foreign")
    guest = unigram()
    size = guest.get_vocab_size()
    save_model(built / "guest", size, width=8, eos=[guest.token_to_id("</s>"), 5])
    save_model(built / "draft", 600, width=16, eos=0)
    save_model(built / "target", 600, width=32, eos=0)
    byte_level(600).save(str(built / "tokenizer.json"))
    guest.save(str(built / "guest" / "tokenizer.json"))
    return built


def load(folder: Path, toml: str) -> ModelPool:
    (folder / "pool.toml").write_text(toml, encoding="utf-8")
    return ModelPool.load(folder)


def load_error(folder: Path, toml: str) -> str:
    with pytest.raises(PoolFileError) as caught:
        load(folder, toml)
    message = str(caught.value)
    assert "\n" not in message
    return message.partition("pool.toml: ")[2]


def test_a_member_has_its_tokenizer_and_so_have_its_submodels(folder):
    pool = load(folder, HEAD + SLIM_GUEST + GUEST + DRAFT + TARGET)
    assert [member.tokenizer is not None for member in pool.members] == [True, True, False, False]
    assert [member.drafts_only for member in loaded_pool(pool).members] == [True, True, False, False]
    assert pool.member("guest").eos_token_ids == (unigram().token_to_id("</s>"), 5)
    assert pool.member("draft").eos_token_ids == (0,)


def test_a_pool_aligns_its_member(folder):
    alignment = load(folder, HEAD + GUEST + TARGET).alignment("guest")
    context = byte_level(600).encode("the fox").ids
    before, text = (alignment.to_other(byte_level(600).encode(text).ids) for text in ("the fox", "the fox keeps"))
    draft = [*text[len(before) :], 5, 9]
    assert text[: len(before)] == before
    assert alignment.drafted(context, draft) == [*byte_level(600).encode(" keeps").ids, 0]


def test_only_a_foreign_member_is_aligned(folder):
    with pytest.raises(ValueError, match="must have a tokenizer of its own, got 'draft'"):
        load(folder, HEAD + DRAFT + TARGET).alignment("draft")


@pytest.mark.parametrize(
    ("members", "told"),
    [
        (
            GUEST.replace('tokenizer = "guest/tokenizer.json"\n', "") + TARGET,
            "must have a row for each of the 600 tokens of the pool's tokenizer, or a `tokenizer` of its own",
        ),
        (
            DRAFT + 'tokenizer = "large.json"\n' + TARGET,
            "[0].tokenizer must not have more tokens than draft (600), got ",
        ),
        (
            DRAFT + 'tokenizer = "lower.json"\n' + TARGET,
            "[0].tokenizer cannot be aligned (tokenizer of the drafting member must give text",
        ),
        (DRAFT + 'tokenizer = "lower.json"\n' + TARGET, "for 'The Quick BROWN Fox'"),
        (DRAFT + 'tokenizer = "gone.json"\n' + TARGET, "members[0].tokenizer must be an existing file"),
        (DRAFT + TARGET + 'tokenizer = "tokenizer.json"\n', "[1].tokenizer must not be given for the target"),
        (
            SLIM_GUEST + 'tokenizer = "tokenizer.json"\n' + GUEST + TARGET,
            "members[0] may have a tokenizer only beside path",
        ),
    ],
)
def test_faults_in_the_file_are_named(folder, members, told):
    byte_level(1000).save(str(folder / "large.json"))
    lower_casing().save(str(folder / "lower.json"))
    assert told in load_error(folder, HEAD + members)


def test_a_tokenizer_file_cannot_cut_or_fill_texts(folder):
    content = json.loads(byte_level(600).to_str())
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (folder / "cutting.json").write_text(json.dumps(content), encoding="utf-8")
    pool = load(folder, HEAD.replace("tokenizer.json", "cutting.json") + TARGET)
    assert pool.decode(pool.encode("the fox keeps a line of riders")) == "the fox keeps a line of riders"


def test_a_foreign_member_drafts_but_cannot_verify():
    pool = Pool((Member(name="guest", drafts_only=True), Member(name="target")))
    session = Session(pool=pool, request_id="r", tag="", prompt=(1,), budget=9, eos=frozenset())
    assert check_step(session, Draft("guest", 2)) == 0
    with pytest.raises(ValueError, match="guest only drafts and cannot verify: it has a tokenizer of its own"):
        check_step(session, Verify("guest"))
    with pytest.raises(ValueError, match=r"\(the target\) must be able to verify, got guest"):
        Pool((Member(name="guest", drafts_only=True),))


def test_a_pool_with_a_foreign_member_is_not_recorded(folder, tmp_path):
    pool, prompts = load(folder, HEAD + GUEST + TARGET), (Prompt(request_id="r", tag="", text="the fox"),)
    closure = Closure(kind="monotone", reach=2, run=2)
    with pytest.raises(ValueError, match="a pool to record must share one tokenizer, got member 'guest' with its own"):
        record(pool, prompts, sampling=Sampling(mode="greedy"), closure=closure, max_new_tokens=4, out=tmp_path / "t")
    assert not list(tmp_path.iterdir())
