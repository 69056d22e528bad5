"""A drafter with another tokenizer in a chain: the text stays the target's, and what aligns is accepted."""

import copy
from dataclasses import replace

import pytest
import torch
from paceline.decoding.seen import Start
from paceline.policies import PolicyError, Verify, make_policy
from paceline.runtime.decode import decode
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.prompts import Prompt
from paceline.traces.meta import Sampling
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ...pairs import pairs
from ..conftest import ALPHABET, EOS, member, random_llama

GREEDY = Sampling(mode="greedy")
SAMPLINGS = (GREEDY, Sampling(mode="coupled", temperature=0.9, seed=5))
PROMPTS = tuple(
    Prompt(request_id=text, text=text) for text in ("hello there", "a", "the cat, the cat", "pace line.\nriders draft")
)
NUM_TOKENS = 24
SHIFT = 7


def decoded(pool, policy, *, prompts=PROMPTS, sampling=GREEDY, batch=1, start=Start.prefill):
    built = make_policy(policy, loaded_pool(pool)) if isinstance(policy, str) else policy
    outputs, log = decode(
        pool, built, prompts, sampling=sampling, max_new_tokens=NUM_TOKENS, name="p", batch=batch, start=start,
        debug=True,
    )  # fmt: skip
    return [output.tokens for output in outputs], log


def letters(order):
    tokenizer = Tokenizer(models.WordLevel({letter: index for index, letter in enumerate(order)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


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
    foreign = replace(member("draft", "model", model), tokenizer=letters(sorted(ALPHABET, key=number.__getitem__)))
    return with_foreign(tiny_pool, foreign)


@pytest.fixture(scope="module")
def trained_pool(tiny_pool):
    """A byte-level drafter trained here, whose tokens are several letters each."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = ["the cat sat on the mat, the dog ran", "hello there riders draft in a pace line"] * 20
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    model = random_llama(3, num_layers=1, vocab_size=tokenizer.get_vocab_size())
    model.generation_config.eos_token_id = 0
    return with_foreign(tiny_pool, replace(member("draft", "model", model), tokenizer=tokenizer))


@pytest.mark.parametrize(
    ("pool", "policy", "sampling", "batch"),
    pairs(("shifted_pool", "trained_pool"), ("draft:4/target", "draft:2/mid:4/target"), SAMPLINGS, (1, 3)),
)
def test_the_text_is_the_targets(request, tiny_pool, pool, policy, sampling, batch):
    expected, _ = decoded(tiny_pool, "plain", sampling=sampling)
    assert decoded(request.getfixturevalue(pool), policy, sampling=sampling, batch=batch)[0] == expected


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


def test_it_drafts_whole_tokens_of_the_target(trained_pool):
    _, log = decoded(trained_pool, "draft:3/target")
    assert log.steps["drafted"].sum() > 0


@pytest.mark.parametrize("batch", [1, 3])
def test_without_a_text_to_read_it_drafts_nothing(shifted_pool, batch):
    """Special tokens stand for no text, and the member's tokenizer puts nothing in front of one."""
    tokenizer = letters(ALPHABET)
    tokenizer.add_special_tokens(["\n"])
    pool = replace(shifted_pool, tokenizer=tokenizer)
    prompts = tuple(Prompt(request_id=repr(text), text=text) for text in ("\n", "hello there", "\n\n"))
    assert [pool.alignment("draft").to_other(pool.encode(prompt.text)) for prompt in prompts[::2]] == [[], []]
    expected, _ = decoded(pool, "plain", prompts=prompts)
    tokens, log = decoded(pool, "draft:4/target", prompts=prompts, batch=batch, start=Start.draft)
    assert tokens == expected
    rounds = log.rounds()
    assert sorted(rounds["drafted"][rounds["round"] == 0]) == [0, 0, 4]
    assert log.steps["accepted"].sum() > 0


def test_it_cannot_judge(shifted_pool):
    class Wrong:
        def decide(self, seen):
            return Verify("draft")

        def learn(self, outcome):
            pass

    with pytest.raises(PolicyError, match=r"draft .*cannot verify"):
        decoded(shifted_pool, Wrong())


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
