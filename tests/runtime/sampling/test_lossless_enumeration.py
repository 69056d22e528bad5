"""Rejection sampling end to end, every way chance can go: committed texts follow the target's own distribution.

Real models of four tokens in float64, through loop, caches and processors. Letters: V vocabulary.
"""

from functools import cache, partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from paceline.base.errors import ArgumentError
from paceline.decoding.loop import Loop
from paceline.decoding.prompt_lookup import LookupRule
from paceline.decoding.session import Session
from paceline.policies import Band, ConfidenceBelow, Draft, Ensemble, Policy, Ratio, Typical, Verify, make_policy
from paceline.policies.fixed import Chain, ViaSDLossless
from paceline.policies.lossy import PyramidSD
from paceline.runs.log import RunLedger
from paceline.runtime import rejection_sampling as rejection
from paceline.runtime import sampler
from paceline.runtime.decode import decode
from paceline.runtime.pools.members import LoadedMember, describe_lookup, describe_model, loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import Prompt
from paceline.runtime.rejection_sampling import SeededChance
from paceline.runtime.sampling import truncated
from paceline.runtime.threads import Memory
from paceline.runtime.world import TorchWorld
from paceline.traces.meta import Sampling
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM

from ..offline import logits_after
from .enumerating import outcomes, total_variation

VOCABULARY = 4
EOS = 3
PROMPT = (1, 0, 2, 1)
PLAIN = Sampling(mode="rejection", temperature=1.0, seed=0)
WARM = Sampling(mode="rejection", temperature=1.7, seed=0)
TOP_K = Sampling(mode="rejection", temperature=0.8, seed=0, top_k=2)
TOP_P = Sampling(mode="rejection", temperature=1.3, seed=0, top_p=0.8)
BOTH = Sampling(mode="rejection", temperature=1.3, seed=0, top_k=3, top_p=0.7)


@cache
def small_pool() -> ModelPool:
    """`ngram`, `one`, `two`, `three` and `target`, strangers to each other; token 3 ends a text."""
    names = ("one", "two", "three", "target")
    return ModelPool(
        name="four tokens",
        members=(
            describe_lookup("ngram", LookupRule(max_match=2)),
            *(member(name, seed) for seed, name in enumerate(names)),
        ),
        tokenizer=Tokenizer(models.WordLevel({str(token): token for token in range(VOCABULARY)}, unk_token="0")),
        tokenizer_sha256="0" * 64,
        eos_token_ids=(EOS,),
        context_tokens=16,
    )


def member(name: str, seed: int) -> LoadedMember:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, initializer_range=0.5, eos_token_id=EOS, bos_token_id=None,
        attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).double().eval().requires_grad_(requires_grad=False)
    return describe_model(name, "model", model, None)


class Enumerated:
    """One world for all branches of one policy; a second request may run beside the one that is enumerated."""

    def __init__(self, sampling, make, *, num_tokens, memory=None, beside=False):
        self.pool = small_pool()
        self.members = loaded_pool(self.pool)
        self.make, self.num_tokens, self.beside = make, num_tokens, beside
        self.chances = {}
        given = {"sampling": sampling, "memory": memory, "debug": True}
        self.world = TorchWorld(pool=self.pool, **given, make_chance=lambda request_id: self.chances[request_id])

    def text(self, chance):
        """What one way of chance commits."""
        self.chances = {"main": chance, "beside": SeededChance(seed=1, request_id="beside")}
        ledger = RunLedger()
        loop = Loop(pool=self.members, policy=self.make(self.members), name="p", world=self.world, ledger=ledger)
        sessions = [self.admit(loop, ledger, "main", PROMPT)]
        if self.beside:
            sessions.append(self.admit(loop, ledger, "beside", (2, 2)))
        while (op := loop.next_op(0.0)) is not None:
            loop.finish(op, op.run(self.world), start_s=0.0, now_s=0.0)
        assert loop.failed == []
        return tuple(sessions[0].emitted)

    def admit(self, loop, ledger, request_id, prompt):
        ledger.note_admitted(request_id, tag="", num_prompt=len(prompt), arrived_at_s=0.0, now_s=0.0)
        first = {"prefill_before": (False,) * len(self.members.names)}  # so that every token of a text is drafted
        given = {"tag": "", "prompt": prompt, "budget": self.num_tokens, "eos": frozenset({EOS}), **first}
        session = Session(pool=self.members, request_id=request_id, **given)
        loop.admit(session)
        return session


@cache
def alone(sampling, num_tokens):
    """The target's own distribution over texts, by the product rule, without a cache."""
    texts, done = {(): 1.0}, {}
    while texts:
        longer = {}
        for text, prob in texts.items():
            logits = logits_after(small_pool().target.model, [*PROMPT, *text])
            for token, theirs in enumerate(truncated(logits, sampling).softmax(-1).tolist()):
                if theirs > 0:
                    ended = token == EOS or len(text) + 1 == num_tokens
                    (done if ended else longer)[(*text, token)] = prob * theirs
        texts = longer
    return done


def distance(sampling, policy, num_tokens, **options):
    make = policy if callable(policy) else lambda pool: make_policy(policy, pool)
    enumerated = Enumerated(sampling, make, num_tokens=num_tokens, **options)
    return total_variation(outcomes(enumerated.text), alone(sampling, num_tokens))


def test_the_models_disagree():
    """Else there would be nothing to refuse."""
    probs = [truncated(logits_after(member.model, PROMPT), PLAIN).softmax(-1) for member in small_pool().members[1:]]
    for one, other in pairwise(probs):
        assert float((one - other).abs().sum() / 2) > 0.1
    assert probs[0].dtype == torch.float64
    assert 0.05 < float(probs[-1][EOS]) < 0.9
    assert len(alone(PLAIN, 3)) == 3 * 3 * 4 + 3 + 1


CHAINS = (
    ("plain", 3),
    ("one:2/target", 3),
    ("ngram:2/target", 3),
    ("one:1/two:1/target", 2),
    ("one:2/two:1/target", 2),
    ("ngram:2/two:1/target", 2),
    ("ngram:1/one:1/two:1/target", 2),
)


slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize("cache_kind", ["slots", "mask"])
@pytest.mark.parametrize("sampling", [TOP_K, slow(PLAIN)], ids=["two tokens", "all tokens"])
@pytest.mark.parametrize(("policy", "num_tokens"), CHAINS)
def test_chains_write_what_their_target_would(policy, num_tokens, sampling, cache_kind):
    """Two tokens left at every context, so that there are few branches; or all of them."""
    assert distance(sampling, policy, num_tokens, memory=Memory(cache=cache_kind)) < 1e-9


@pytest.mark.parametrize("sampling", [TOP_P, BOTH, WARM], ids=["top_p", "both", "warm"])
@pytest.mark.parametrize(
    "policy",
    ["one:1/target", "ngram:2/target", slow("one:1/two:1/target"), slow("one:2/target"), slow("ngram:2/two:2/target")],
)
def test_truncated_distributions_stay_what_they_are(policy, sampling):
    assert distance(sampling, policy, 2) < 1e-9


def test_four_levels():
    assert distance(TOP_K, "one:1/two:1/three:1/target", 2) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["one:1/two:2/target", "one:1/two:1/three:2/target", "one:2/two:2/three:2/target"])
def test_longer_texts_and_windows(policy):
    assert distance(TOP_K, policy, 3) < 1e-9


def test_a_draft_that_stops_early_changes_nothing():
    stop = ConfidenceBelow(0.6)
    assert distance(TOP_K, lambda pool: Chain(pool, "one:2/target", stop=stop), 3) < 1e-9


class Turns(Policy):
    """Steps by position: larger members write, smaller ones judge, the target judges what several endorse."""

    def __init__(self, steps):
        self._steps = steps
        self._next = 0

    def decide(self, seen):
        for _ in self._steps:
            step = self._steps[self._next % len(self._steps)]
            self._next += 1
            if seen.room > 0 if isinstance(step, Draft) else seen.waiting(step.model) > 0:
                return step
        return Verify("target")


@pytest.mark.parametrize(
    "steps",
    [
        (Draft("one", 1), Draft("two", 1), Verify("target")),
        (Draft("two", 1), Draft("one", 1), Verify("three"), Verify("target")),
        (Draft("one", 1), Draft("three", 1), Verify("two"), Verify("three"), Verify("target")),
        (Draft("ngram", 1), Draft("one", 1), Verify("two"), Verify("target")),
        (Verify("two"), Verify("three"), Verify("target")),
    ],
    ids=lambda steps: "/".join(f"{type(step).__name__[0]}-{step.model}" for step in steps),
)
def test_members_may_take_turns_in_any_order(steps):
    assert distance(TOP_K, lambda _: Turns(steps), 2) < 1e-9


@pytest.mark.parametrize(
    "policy",
    [
        "cs-drafting,draft=one,middle=two,first=1,second=2,inner=1,copy=1",
        "hispec,draft=ngram,middle=three,tokens=1,gather=1",
        "polybasic,most=2,costs=one:1/two:2/three:4/target:9",
        "cas-spec,most=2,costs=one:1/two:2/three:4/target:9",
        "pipespec,draft=one,middle=two,window=1",
        "pearl,draft=one,window=2",
        "suffix,draft=two,window=2,score=0.5,most=2",
        "ngram-model,draft=one,tokens=1,window=2",
        "consensus,voters=one@two,tokens=2",
    ],
)
def test_policies_that_choose_members_write_what_their_target_would(policy):
    assert distance(TOP_K, policy, 2) < 1e-9


def test_three_voters_bend_the_text_and_are_refused():
    """Whether the second one accepts a token decides whether the third judges it."""
    text = "consensus,voters=one@two@three,tokens=2"
    assert distance(TOP_K, text, 2) > 1e-3
    built = make_policy(f"guarded,policy={text.replace(',', '(', 1)})", loaded_pool(small_pool()))
    told = "policy p lets the verdict on a token decide which member judges it next, under greedy and coupled sampling"
    with pytest.raises(ArgumentError, match=f"^{told}, got rejection$"):
        decode(small_pool(), built, [Prompt(request_id="r", text="1")], sampling=TOP_K, max_new_tokens=2, name="p")


@pytest.mark.parametrize("cache_kind", ["slots", "mask"])
def test_company_in_the_batch_changes_nothing(cache_kind):
    assert distance(TOP_K, "one:1/two:1/target", 2, memory=Memory(cache=cache_kind), beside=True) < 1e-9


@pytest.mark.parametrize("cache_kind", ["slots", "mask"])
def test_preemption_changes_nothing(cache_kind):
    """Room for one request at a time: the younger one is recomputed, and asks its chance no question twice."""
    memory = Memory(cache=cache_kind, limit_bytes=3 * 64 * 2 * 4 * 8)
    enumerated = Enumerated(
        TOP_K, lambda pool: make_policy("one:1/two:1/target", pool), num_tokens=2, memory=memory, beside=True
    )
    found = outcomes(enumerated.text)
    assert enumerated.world.manager.num_preempted > 0
    assert total_variation(found, alone(TOP_K, 2)) < 1e-9


MIDDLES = {
    "via-sd-lossless": lambda pool: ViaSDLossless(pool, draft="one", slim="two", tokens=1, escalate=0.6),
    "after lookup": lambda pool: ViaSDLossless(pool, draft="ngram", slim="two", tokens=2, escalate=0.9),
    "pyramid-sd": lambda pool: PyramidSD(pool, draft="one", qualifier="two", tokens=1, gather=1, tau_q=0.2, tau_t=0.0),
    "typical": lambda pool: Turns((Draft("one", 1), Verify("two", Typical(0.4, 0.7)), Verify("target"))),
    "escalating": lambda pool: Turns((Draft("one", 1), Verify("three", Band(0.9, 0.5)), Verify("target"))),
    "ensemble": lambda pool: Turns((Draft("one", 1), Verify("two", Ensemble(0.6)), Verify("target"))),
    "four levels": lambda pool: Turns((Draft("one", 1), Verify("two", Ratio(0.7)), Verify("three"), Verify("target"))),
}


@pytest.mark.parametrize("sampling", [BOTH, slow(WARM)], ids=["some tokens", "all tokens"])
@pytest.mark.parametrize("policy", MIDDLES)
def test_a_lossy_middle_level_leaves_the_target_lossless(policy, sampling):
    """Its verdict depends on the token; the target is told what the tokens that pass it follow."""
    assert distance(sampling, MIDDLES[policy], 2) < 1e-9


@pytest.mark.parametrize("weight", [0.3, 0.8])
@pytest.mark.parametrize("sampling", [BOTH, WARM], ids=["some tokens", "all tokens"])
def test_an_ensemble_writes_its_mixture(weight, sampling):
    """Drafted tokens follow weight x target + (1 - weight) x drafter, the target's own after a kept one the target."""
    drafter, _, _, target = (member.model for member in small_pool().members[1:])

    def laws(text):
        drafts, own = (
            truncated(logits_after(model, [*PROMPT, *text]), sampling).softmax(-1) for model in (drafter, target)
        )
        return drafts.numpy(), own.numpy(), (weight * own + (1 - weight) * drafts).numpy()

    drafts, own, mixed = laws(())
    kept, texts = np.minimum(drafts, mixed), {}
    assert kept.sum() == pytest.approx(1 - weight * abs(own - drafts).sum() / 2)
    for token, prob in enumerate(mixed):
        if token == EOS:
            texts[(token,)] = prob
            continue
        _, after, anew = laws((token,))
        second = kept[token] * after + (prob - kept[token]) * anew
        texts |= {(token, other): each for other, each in enumerate(second)}
    make = partial(make_policy, f"ensemble,draft=one,tokens=1,weight={weight}")
    found = outcomes(Enumerated(sampling, lambda pool: make(pool), num_tokens=2).text)
    assert total_variation(found, {text: prob for text, prob in texts.items() if prob}) < 1e-9


@pytest.mark.parametrize("policy", ["via-sd-lossless", "pyramid-sd", "escalating"])
def test_a_target_that_takes_such_tokens_for_the_middle_levels_is_found(monkeypatch, policy):
    monkeypatch.setattr(sampler, "law_after", lambda view, probs, stays: probs.log())
    assert distance(WARM, MIDDLES[policy], 1) > 1e-3


def test_the_measure_would_see_a_defect(monkeypatch):
    """A verifier whose replacement comes from its own distribution: a known defect of a public implementation."""
    monkeypatch.setattr(rejection, "residual", lambda target_probs, draft_probs, token: target_probs)
    assert distance(TOP_K, "one:1/two:1/target", 2) > 1e-3
