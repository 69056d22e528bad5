"""Real models under every kind of policy: the text of the target alone, and caches that hold what the session says."""

import copy

import pytest
import torch
from paceline.policies import (
    Commit,
    ConfidenceBelow,
    Divergence,
    Draft,
    EntropyAbove,
    GapBelow,
    Lenience,
    ProductBelow,
    Ratio,
    Typical,
    Verify,
    make_policy,
)
from paceline.policies.chain import Chain
from paceline.policies.loop import Loop
from paceline.policies.session import Session
from paceline.runtime.clock import Clock
from paceline.runtime.decode import decode
from paceline.runtime.loaded_pool import loaded_pool
from paceline.runtime.member_cache import MemberCache
from paceline.runtime.prompts import Prompt
from paceline.runtime.world import NonFiniteLogitsError, TransformersWorld
from paceline.traces.meta import Sampling
from paceline.traces.run_ledger import RunLedger
from transformers import MistralConfig, MistralForCausalLM

GREEDY = Sampling(mode="greedy")
COUPLED = Sampling(mode="coupled", temperature=0.9, seed=5)
NUM_TOKENS = 24
POLICIES = (
    "plain",
    "draft:4/target",
    "draft:2/mid:5/target",
    "draft:1/mid:2/slim:4/target",
    "slim:4/target",
    "draft:3/slim:4/target",
    "ngram",
    "ngram:3/mid:4/target",
    "ngram:2/draft:2/mid:3/target",
    "adaptive",
    "adaptive,start=1,up=3,most=6",
    "confident",
    "confident,below=0.9,draft=mid",
)
STOPS = (ConfidenceBelow(0.5), EntropyAbove(1.0), GapBelow(0.2), ProductBelow(0.3))
PROMPTS = (
    Prompt(request_id="one", text="a"),
    Prompt(request_id="two", text="hello there, how do you do?"),
    Prompt(request_id="three", text="the cat, the cat, the ca"),
    Prompt(request_id="four", text="pace line.\nriders draft"),
)


def decoded(pool, policy, *, sampling=GREEDY, prompts=PROMPTS, batch=1, num_tokens=NUM_TOKENS):
    built = make_policy(policy, loaded_pool(pool)) if isinstance(policy, str) else policy
    outputs, log = decode(
        pool, built, prompts, sampling=sampling, max_new_tokens=num_tokens, name="p", batch=batch, debug=True
    )
    return [list(output.tokens) for output in outputs], log


@pytest.fixture(scope="module")
def generated(tiny_pool):
    """What transformers itself writes, token for token."""
    target = tiny_pool.target.model
    answers = []
    for prompt in PROMPTS:
        ids = torch.tensor([tiny_pool.encode(prompt.text)])
        answer = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            pad_token_id=tiny_pool.eos_token_id,
        )
        answers.append(answer[0, ids.shape[1] :].tolist())
    return answers


@pytest.fixture(scope="module")
def sampled(tiny_pool):
    return decoded(tiny_pool, "plain", sampling=COUPLED)[0]


def test_prompts_end_early_and_at_the_budget(tiny_pool, generated, sampled):
    """Else the tests below would not see either end."""
    lengths = {len(answer) for answer in generated + sampled}
    assert NUM_TOKENS in lengths
    assert min(lengths) < NUM_TOKENS


@pytest.mark.parametrize("policy", POLICIES)
def test_greedy_text_is_what_generate_writes(tiny_pool, generated, policy):
    assert decoded(tiny_pool, policy)[0] == generated


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_coupled_text_does_not_depend_on_the_policy(tiny_pool, sampled, policy):
    assert decoded(tiny_pool, policy, sampling=COUPLED)[0] == sampled


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: type(stop).__name__)
def test_stops_shorten_drafts_and_change_no_text(tiny_pool, generated, stop):
    pool = loaded_pool(tiny_pool)
    answers, log = decoded(tiny_pool, Chain(pool, "draft:6/target", stop=stop))
    _, unstopped = decoded(tiny_pool, Chain(pool, "draft:6/target"))
    assert answers == generated
    assert 0 < log.steps["drafted"].sum() < unstopped.steps["drafted"].sum()


def test_requests_that_take_turns_write_the_same(tiny_pool, generated):
    running = []

    class Watching(Chain):
        def decide(self, seen):
            running.append(seen.load.num_running)
            return super().decide(seen)

    answers, log = decoded(tiny_pool, Watching(loaded_pool(tiny_pool), "draft:2/mid:4/target"), batch=3)
    assert answers == generated
    assert log.ops["num_rows"].max() > 1
    assert max(running) == running[0] == 3


@pytest.mark.parametrize("policy", ["draft:2/mid:5/target", "ngram:2/draft:2/mid:3/target"])
def test_the_log_counts_the_forwards_and_tokens_models_see(tiny_pool, policy):
    fed = {member.name: [] for member in tiny_pool.members}
    hooks = [
        member.model.register_forward_pre_hook(
            lambda _, __, kwargs, name=member.name: fed[name].append(kwargs["input_ids"].shape[1]), with_kwargs=True
        )
        for member in tiny_pool.members
        if member.model is not None
    ]
    _, log = decoded(tiny_pool, policy)
    for hook in hooks:
        hook.remove()
    for level, member in enumerate(tiny_pool.members):
        of_level = log.ops["level"] == level
        assert log.ops["num_forwards"][of_level].sum() == len(fed[member.name])
        assert log.ops["new_tokens"][of_level].sum() == sum(fed[member.name])


class Lossy:
    """Draft, let a lossy verifier judge, now and then commit as is."""

    def __init__(self, rule, *, by):
        self.rule, self.by = rule, by

    def decide(self, seen):
        if not seen.num_pending:
            return Draft("draft", 4)
        if seen.last.num_drafted:
            return Verify(self.by, self.rule)
        return Commit(seen.num_pending) if seen.num_pending % 2 else Verify("target", self.rule)

    def learn(self, outcome):
        pass


@pytest.mark.parametrize("by", ["mid", "target"])
@pytest.mark.parametrize(
    "rule", [Ratio(0.3), Typical(0.3, 0.3), Lenience(0.3), Divergence(0.4)], ids=lambda rule: type(rule).__name__
)
def test_lossy_rules_accept_more_and_fill_the_budget(tiny_pool, rule, by):
    answers, log = decoded(tiny_pool, Lossy(rule, by=by))
    for answer in answers:
        assert len(answer) == NUM_TOKENS or answer[-1] == tiny_pool.eos_token_id
    _, exact = decoded(tiny_pool, "draft:4/target" if by == "target" else "draft:4/mid:1/target")
    assert accepted_share(log) > accepted_share(exact)


def accepted_share(log):
    judged = log.steps["judged"] > 0
    return log.steps["accepted"][judged].sum() / log.steps["judged"][judged].sum()


@pytest.mark.parametrize("rule", [Ratio(1.0), Lenience(1.0)])
def test_the_strictest_lossy_rule_is_exact(tiny_pool, generated, rule):
    class Strict(Lossy):
        def decide(self, seen):
            return Verify("target", self.rule) if seen.num_pending else Draft("mid", 5)

    assert decoded(tiny_pool, Strict(rule, by="target"))[0] == generated


def test_outputs_carry_text_and_the_log_says_where_it_is_from(tiny_pool):
    outputs, log = decode(
        tiny_pool,
        make_policy("plain", loaded_pool(tiny_pool)),
        PROMPTS[:1],
        sampling=COUPLED,
        max_new_tokens=8,
        name="plain",
    )
    assert outputs[0].request_id == "one"
    assert outputs[0].text == tiny_pool.decode(list(outputs[0].tokens))
    assert log.meta["world"] == "runtime"
    assert log.meta["sampling"] == {"mode": "coupled", "temperature": 0.9, "seed": 5}
    assert (log.ops["duration_s"] > 0).all()
    assert (log.steps["end_s"][1:] >= log.steps["end_s"][:-1]).all()


def test_not_a_number_is_a_named_error(tiny_pool):
    broken = copy.deepcopy(tiny_pool.member("mid").model)
    broken.lm_head.weight[3] = torch.nan
    members = tuple(
        copy.copy(member) if member.name != "mid" else replaced(member, broken) for member in tiny_pool.members
    )
    pool = type(tiny_pool)(**{**as_fields(tiny_pool), "members": members})
    with pytest.raises(NonFiniteLogitsError, match=r"model mid, request one: .* output position 0 "):
        decoded(pool, "draft:2/mid:5/target")


def as_fields(record):
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def replaced(member, model):
    return type(member)(**{**as_fields(member), "model": model})


def test_input_that_cannot_be_decoded_is_refused(tiny_pool):
    with pytest.raises(ValueError, match="ids must be unique, got 'one' twice"):
        decoded(tiny_pool, "plain", prompts=[PROMPTS[0], PROMPTS[0]])
    with pytest.raises(ValueError, match="request one: prompt of 1 tokens and max_new_tokens 96 must fit"):
        decoded(tiny_pool, "plain", num_tokens=96)
    with pytest.raises(ValueError, match="batch must be >= 1, got 0"):
        decoded(tiny_pool, "plain", batch=0)


class TestMemberCache:
    def test_rolling_back_forgets_what_was_fed(self, tiny_pool):
        model = tiny_pool.target.model
        cache, clean = MemberCache(model), MemberCache(model)
        cache.forward([1, 2, 3, 4, 5], num_logits=1)
        cache.roll_back(2)
        assert (cache.tokens, cache.num_slots) == ([1, 2], 2)
        again = cache.forward([7, 8], num_logits=2)
        assert torch.allclose(again, clean.forward([1, 2, 7, 8], num_logits=2), atol=1e-5)
        cache.roll_back(0)
        assert cache.num_slots == 0

    def test_it_cannot_roll_forward(self, tiny_pool):
        cache = MemberCache(tiny_pool.target.model)
        with pytest.raises(ValueError, match="num_tokens must be <= 0, what the cache holds, got 1"):
            cache.roll_back(1)

    def test_layers_that_forget_are_refused(self):
        config = MistralConfig(
            vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
            num_key_value_heads=1, head_dim=8, sliding_window=4, layer_types=["sliding_attention"],
        )  # fmt: skip
        with pytest.raises(ValueError, match="needs full_attention layers, got sliding_attention"):
            MemberCache(MistralForCausalLM(config))


def test_debug_mode_sees_a_cache_that_holds_another_text(tiny_pool):
    class Tampering(TransformersWorld):
        def execute(self, op):
            results = super().execute(op)
            self._states["two"].caches[op.level].tokens[3] = 1
            return results

    world = Tampering(pool=tiny_pool, sampling=GREEDY, clock=Clock(), debug=True)
    with pytest.raises(AssertionError, match="two: level 4 holds another text"):
        run_through(world, tiny_pool)


def run_through(world, pool):
    """Plain decoding of the second prompt in a world of the test's own."""
    members, ledger = loaded_pool(pool), RunLedger()
    loop = Loop(pool=members, policy=make_policy("plain", members), name="plain", world=world, ledger=ledger)
    prompt = tuple(pool.encode(PROMPTS[1].text))
    ledger.note_admitted("two", tag="", num_prompt=len(prompt), arrived_at_s=0.0, now_s=0.0)
    loop.admit(Session(pool=members, request_id="two", tag="", prompt=prompt, budget=8, eos=pool.eos_token_id))
    while (op := loop.next_op(0.0)) is not None:
        loop.finish(op, world.execute(op), start_s=0.0, now_s=0.0)
