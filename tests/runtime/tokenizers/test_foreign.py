"""A member with a tokenizer of its own drafts: the text stays the target's, and it neither verifies nor is recorded."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from paceline.decoding.legal_steps import Policy, check_step
from paceline.decoding.seen import Start
from paceline.decoding.session import Session
from paceline.policies import Draft, Member, PolicyError, Pool, Verify, make_policy
from paceline.runtime.pools.members import describe_model, loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError
from paceline.runtime.recording.recorder import record
from paceline.traces.meta import Closure, Sampling

from ...pairs import pairs
from .. import offline
from ..conftest import ALPHABET, EOS, letters, random_llama
from ..pools.making import GREEDY, asked, at, slim
from .trained_tokenizers import byte_level, lower_casing, unigram

SAMPLINGS = (GREEDY, Sampling(mode="coupled", temperature=0.9, seed=5))
PROMPTS = asked("hello there", "a", "the cat, the cat", "pace line.\nriders draft")
SHIFT = 7


def decoded(pool, policy, *, prompts=PROMPTS, **options):
    outputs, log = offline.decoded(pool, policy, prompts, num_tokens=24, debug=True, **options)
    return [output.tokens for output in outputs], log


def with_foreign(pool, draft):
    """The pool with `draft` in place of its own."""
    return replace(pool, members=tuple(draft if each.name == "draft" else each for each in pool.members))


@pytest.fixture(scope="module")
def shifted_pool(tiny_pool):
    """The draft itself, with its letters under other numbers: it drafts the same text in other tokens."""
    model = copy.deepcopy(tiny_pool.member("draft").model)
    number = {letter: (index + SHIFT) % len(ALPHABET) for index, letter in enumerate(ALPHABET)}
    order = torch.tensor([ALPHABET.index(letter) for letter in sorted(ALPHABET, key=number.__getitem__)])
    for weight in (model.model.embed_tokens.weight, model.lm_head.weight):
        weight.copy_(weight[order].clone())
    model.generation_config.eos_token_id = number[ALPHABET[EOS]]
    foreign = describe_model("draft", "model", model, letters(sorted(ALPHABET, key=number.__getitem__)))
    return with_foreign(tiny_pool, foreign)


@pytest.fixture(scope="module")
def trained_pool(tiny_pool):
    """A byte-level drafter, whose tokens are several letters each."""
    tokenizer = byte_level(300)
    model = random_llama(3, num_layers=1, vocab_size=tokenizer.get_vocab_size())
    model.generation_config.eos_token_id = 0
    return with_foreign(tiny_pool, describe_model("draft", "model", model, tokenizer))


@pytest.mark.parametrize(
    ("pool", "policy", "sampling", "batch"),
    pairs(("shifted_pool", "trained_pool"), ("draft:4/target", "draft:2/mid:4/target"), SAMPLINGS, (1, 3)),
)
def test_the_text_is_the_targets(request, tiny_pool, pool, policy, sampling, batch):
    expected, _ = decoded(tiny_pool, "plain", sampling=sampling)
    found, log = decoded(request.getfixturevalue(pool), policy, sampling=sampling, batch=batch)
    assert found == expected
    assert log.steps["drafted"].sum() > 0


def test_a_draft_of_the_same_text_is_accepted_alike(tiny_pool, shifted_pool):
    _, native = decoded(tiny_pool, "draft:4/target")
    _, foreign = decoded(shifted_pool, "draft:4/target")
    for column in ("drafted", "judged", "accepted", "emitted"):
        assert foreign.steps[column].tolist() == native.steps[column].tolist()


def test_rejection_sampling_takes_the_drafts_as_certain_tokens(shifted_pool):
    sampling = Sampling(mode="rejection", temperature=0.9, seed=5)
    texts, log = decoded(shifted_pool, "draft:4/target", sampling=sampling, batch=2)
    assert log.steps["accepted"].sum() > 0
    assert texts == decoded(shifted_pool, "draft:4/target", sampling=sampling, batch=2)[0]


@pytest.mark.parametrize("batch", [1, 3])
def test_without_a_text_to_read_it_drafts_nothing(shifted_pool, batch):
    """Special tokens stand for no text, and the member's tokenizer puts nothing in front of one."""
    tokenizer = letters(ALPHABET)
    tokenizer.add_special_tokens(["\n"])
    pool = replace(shifted_pool, tokenizer=tokenizer)
    prompts = asked("\n", "hello there", "\n\n")
    assert [pool.alignment("draft").to_other(pool.encode(prompt.text)) for prompt in prompts[::2]] == [[], []]
    expected, _ = decoded(pool, "plain", prompts=prompts)
    tokens, log = decoded(pool, "draft:4/target", prompts=prompts, batch=batch, start=Start.draft)
    assert tokens == expected
    rounds = log.rounds()
    assert sorted(rounds["drafted"][rounds["round"] == 0]) == [0, 0, 4]
    assert log.steps["accepted"].sum() > 0


def test_it_cannot_judge(shifted_pool):
    class Wrong(Policy):
        def decide(self, seen):
            return Verify("draft")

    with pytest.raises(PolicyError, match=r"draft .*cannot verify"):
        decoded(shifted_pool, Wrong())
    pool = Pool((Member(name="guest", drafts_only=True), Member(name="target")))
    session = Session(pool=pool, request_id="r", tag="", prompt=(1,), budget=9, eos=frozenset())
    assert check_step(session, Draft("guest", 2)) == 0
    with pytest.raises(ValueError, match="guest only drafts and cannot verify: it has a tokenizer of its own"):
        check_step(session, Verify("guest"))
    with pytest.raises(ValueError, match=r"\(the target\) must be able to verify, got guest"):
        Pool((Member(name="guest", drafts_only=True),))


def test_signals_are_unknown(shifted_pool):
    """Its probabilities are over other tokens."""
    seen_probs = []

    class Looking(type(make_policy("draft:2/target", loaded_pool(shifted_pool)))):
        def decide(self, seen):
            seen_probs.extend(token.signal.prob for token in seen.pending)
            return super().decide(seen)

    decoded(shifted_pool, Looking(loaded_pool(shifted_pool), "draft:2/target"))
    assert seen_probs
    assert all(prob != prob for prob in seen_probs)


HEAD = 'name = "p"\ntokenizer = "tokenizer.json"\ncontext_tokens = 64\n'
OWN = 'tokenizer = "{}"\n'
GUEST = at("guest") + OWN.format("guest/tokenizer.json")
SLIM_GUEST = slim("slim", 1).replace("target", "guest")
DRAFT, TARGET = at("draft"), at("target")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    built = tmp_path_factory.mktemp("foreign")
    guest = unigram()
    for name, size, num_layers, eos in (
        ("guest", guest.get_vocab_size(), 2, [guest.token_to_id("</s>"), 5]),
        ("draft", 600, 3, 0),
        ("target", 600, 4, 0),
    ):
        model = random_llama(0, num_layers=num_layers, vocab_size=size)
        model.generation_config.eos_token_id = eos
        model.save_pretrained(built / name)
    guest.save(str(built / "guest" / "tokenizer.json"))
    content = json.loads(byte_level(600).to_str())
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (built / "cutting.json").write_text(json.dumps(content), encoding="utf-8")
    for name, tokenizer in (("tokenizer", byte_level(600)), ("large", byte_level(1000)), ("lower", lower_casing())):
        tokenizer.save(str(built / f"{name}.json"))
    return built


def load(folder, toml: str) -> ModelPool:
    (folder / "pool.toml").write_text(toml, encoding="utf-8")
    return ModelPool.load(folder)


def test_a_member_has_its_tokenizer_and_so_have_its_submodels(folder):
    pool = load(folder, HEAD + SLIM_GUEST + GUEST + DRAFT + TARGET)
    assert [each.tokenizer is not None for each in pool.members] == [True, True, False, False]
    assert [each.drafts_only for each in loaded_pool(pool).members] == [True, True, False, False]
    assert pool.member("guest").eos_token_ids == (unigram().token_to_id("</s>"), 5)
    assert pool.member("draft").eos_token_ids == (0,)
    alignment = pool.alignment("guest")
    before, text = (alignment.to_other(byte_level(600).encode(text).ids) for text in ("the fox", "the fox keeps"))
    assert text[: len(before)] == before
    draft = [*text[len(before) :], 5, 9]
    assert alignment.drafted(byte_level(600).encode("the fox").ids, draft) == [*byte_level(600).encode(" keeps").ids, 0]
    with pytest.raises(ValueError, match="must have a tokenizer of its own, got 'draft'"):
        pool.alignment("draft")


@pytest.mark.parametrize(
    ("members", "told"),
    [
        (
            at("guest") + TARGET,
            "must have a row for each of the 600 tokens of the pool's tokenizer, or a `tokenizer` of its own",
        ),
        (DRAFT + OWN.format("large.json") + TARGET, "[0].tokenizer must not have more tokens than draft (600), got "),
        (
            DRAFT + OWN.format("lower.json") + TARGET,
            "[0].tokenizer cannot be aligned (tokenizer of the drafting member must give text",
        ),
        (DRAFT + OWN.format("gone.json") + TARGET, "members[0].tokenizer must be an existing file"),
        (DRAFT + TARGET + OWN.format("tokenizer.json"), "[1].tokenizer must not be given for the target"),
        (
            SLIM_GUEST + OWN.format("tokenizer.json") + GUEST + TARGET,
            "members[0] may have a tokenizer only beside path",
        ),
    ],
)
def test_faults_in_the_file_are_named(folder, members, told):
    with pytest.raises(PoolFileError) as caught:
        load(folder, HEAD + members)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "lower" not in members or "for 'The Quick BROWN Fox'" in str(caught.value)


def test_a_tokenizer_file_cannot_cut_or_fill_texts(folder):
    pool = load(folder, HEAD.replace("tokenizer.json", "cutting.json") + TARGET)
    assert pool.decode(pool.encode("the fox keeps a line of riders")) == "the fox keeps a line of riders"


def test_a_pool_with_a_foreign_member_is_not_recorded(folder, tmp_path):
    pool, closure = load(folder, HEAD + GUEST + TARGET), Closure(kind="monotone", reach=2, run=2)
    with pytest.raises(ValueError, match="a pool to record must share one tokenizer, got member 'guest' with its own"):
        record(pool, asked("the fox"), sampling=GREEDY, closure=closure, max_new_tokens=4, out=tmp_path / "t")
    assert not list(tmp_path.iterdir())
