"""Real models under every kind of policy, batch and cache: the text is that of the target alone."""

from itertools import product

import pytest
import torch
from paceline.decoding.rules import Exact
from paceline.policies import (
    Commit,
    ConfidenceBelow,
    Divergence,
    Draft,
    EntropyAbove,
    GapBelow,
    ProductBelow,
    Ratio,
    RefusalAbove,
    Typical,
    Verify,
)
from paceline.policies.fixed import Chain
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.threads import Memory
from paceline.traces.meta import Sampling

from .offline import COUPLED, GREEDY, NUM_TOKENS, PROMPTS, REJECTION, Decides, Offline, trunk

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
TWO_LEVELS = "draft:2/mid:4/target"
REFUSAL = RefusalAbove(chance=0.6, bias=-0.5, prob=3.0, root_entropy=-0.3, gap=1.0, place=0.5)
STOPS = (ConfidenceBelow(0.5), EntropyAbove(1.0), GapBelow(0.2), ProductBelow(0.3), REFUSAL)
# Batch, cache, forward.
SETTINGS = tuple(product((1, 3, 5), ("slots", "mask"), ("fused", "modules")))
TRUNCATED = Sampling(mode="coupled", temperature=1.2, seed=5, top_k=9, top_p=0.9)


@pytest.fixture(scope="module")
def texts(tiny_pool):
    """By mode; greedy ones are what transformers itself writes, token for token."""
    written, target, eos = [], tiny_pool.target.model, tiny_pool.eos_token_ids[0]
    for prompt in PROMPTS:
        ids = torch.tensor([tiny_pool.encode(prompt.text)])
        options = {"max_new_tokens": NUM_TOKENS, "do_sample": False, "pad_token_id": eos}
        answer = target.generate(ids, attention_mask=torch.ones_like(ids), **options)
        written.append(answer[0, ids.shape[1] :].tolist())
    found = {"greedy": written, "coupled": [trunk(tiny_pool, prompt, sampling=COUPLED) for prompt in PROMPTS]}
    for answers in found.values():  # else the tests below would not see either end
        assert max(map(len, answers)) == NUM_TOKENS
        assert min(map(len, answers)) < NUM_TOKENS
    return found


def run(pool, policy, setting, **options):
    batch, cache, forward = setting
    return Offline(pool, policy, memory=Memory(cache=cache), forward=forward, **options).run(batch=batch)


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=lambda sampling: sampling.mode)
@pytest.mark.parametrize("index", range(len(POLICIES)), ids=POLICIES)
@pytest.mark.one_in(5)
def test_policy_batch_cache_and_forward_change_no_text(tiny_pool, texts, index, sampling):
    """Windows of several levels bring ragged feeds, members that wait for others, and requests at different levels."""
    setting = SETTINGS[(5 if sampling is GREEDY else -1) * index % len(SETTINGS)]
    done = run(tiny_pool, POLICIES[index], setting, sampling=sampling)
    assert done.texts == texts[sampling.mode]
    assert done.log.ops["num_rows"].max() == setting[0]


def test_sampled_text_is_the_same_in_any_company(tiny_pool):
    plain = Offline(tiny_pool, "plain", sampling=TRUNCATED).run().texts
    alone = Offline(tiny_pool, TWO_LEVELS, sampling=REJECTION).run().texts
    for setting in ((1, "slots", "fused"), (5, "mask", "modules")):
        assert run(tiny_pool, TWO_LEVELS, setting, sampling=TRUNCATED).texts == plain
        assert run(tiny_pool, TWO_LEVELS, setting, sampling=REJECTION).texts == alone
    other = REJECTION.model_copy(update={"seed": 4})
    assert Offline(tiny_pool, TWO_LEVELS, sampling=other).run().texts != alone


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: type(stop).__name__)
def test_stops_shorten_drafts_and_change_no_text(tiny_pool, texts, stop):
    unstopped = Offline(tiny_pool, "draft:6/target").run(batch=4)
    for batch in (1, 4):
        stopped = Offline(tiny_pool, Chain(loaded_pool(tiny_pool), "draft:6/target", stop=stop)).run(batch=batch)
        assert stopped.texts == texts["greedy"]
        assert 0 < stopped.log.steps["drafted"].sum() < unstopped.log.steps["drafted"].sum()


def test_policies_see_how_many_run_and_wait(tiny_pool):
    loads, chain = [], Chain(loaded_pool(tiny_pool), TWO_LEVELS)

    def decide(seen):
        loads.append((seen.load.num_running, seen.load.num_waiting))
        return chain.decide(seen)

    Offline(tiny_pool, Decides(decide)).run(batch=3)
    assert loads[0] == (3, 2)
    assert max(loads)[0] == 3
    assert loads[-1][1] == 0


class Counted:
    """Passes on to a forward, and notes the tokens it is fed."""

    def __init__(self, forward, counts):
        self._forward, self._counts = forward, counts
        self.kv_shape, self.slot_cache = forward.kv_shape, forward.slot_cache

    def __call__(self, ids, placement, cache, keep):
        self._counts.append(len(ids))
        return self._forward(ids, placement, cache, keep)


@pytest.mark.parametrize(
    ("policy", "forward", "batch"),
    [
        ("draft:2/mid:5/target", "fused", 3),
        ("draft:2/mid:5/target", "modules", 1),
        ("ngram:2/draft:2/mid:3/target", "fused", 3),
        ("ngram:2/draft:2/mid:3/target", "modules", 1),
        ("ngram:2/draft:2/mid:3/target", "modules", 3),
    ],
)
def test_the_log_counts_the_forwards_and_tokens_models_see(tiny_pool, policy, batch, forward):
    """Of the target's modules also by a hook of torch, where nothing of ours stands between; it sees padding, too."""
    offline, hooked = Offline(tiny_pool, policy, forward=forward), []
    fed = {level: [] for level in range(len(tiny_pool.members))}
    forwards = offline.world._forwards
    for level, model_forward in list(forwards.items()):
        forwards[level] = Counted(model_forward, fed[level])
    hook = tiny_pool.target.model.register_forward_pre_hook(
        lambda _, __, given: hooked.append(given["input_ids"].numel()), with_kwargs=True
    )
    log = offline.run(batch=batch).log
    hook.remove()
    for level, counts in fed.items():
        of_level = log.ops["level"] == level
        assert log.ops["num_forwards"][of_level].sum() == len(counts)
        assert log.ops["new_tokens"][of_level].sum() == sum(counts)
    if (forward, batch) == ("modules", 1):
        assert hooked == fed[offline.members.target_level]


def lossy(rules, by="target"):
    """Draft, let a lossy verifier judge, now and then commit as is; the rule may differ from request to request."""

    def decide(seen):
        rule = rules.get(seen.request_id) or rules["all"]
        if not seen.num_pending:
            return Draft("draft", 4)
        if seen.last.num_drafted:
            return Verify(by, rule)
        return Commit(seen.num_pending) if seen.num_pending % 2 else Verify("target", rule)

    return Decides(decide)


RULES = (Ratio(0.3), Typical(0.3, 0.3), Ratio(0.6), Divergence(0.4))


def accepted_share(log):
    judged = log.steps["judged"] > 0
    return log.steps["accepted"][judged].sum() / log.steps["judged"][judged].sum()


@pytest.mark.parametrize(("by", "chain"), [("mid", "draft:4/mid:1/target"), ("target", "draft:4/target")])
def test_lossy_rules_accept_more_and_fill_the_budget(tiny_pool, by, chain):
    exact = accepted_share(Offline(tiny_pool, chain).run(batch=5).log)
    for rule in RULES:
        done = Offline(tiny_pool, lossy({"all": rule}, by)).run(batch=5)
        assert all(len(text) == NUM_TOKENS or text[-1] == tiny_pool.eos_token_ids[0] for text in done.texts)
        assert accepted_share(done.log) > exact


@pytest.mark.parametrize(
    ("sampling", "cache"), [(GREEDY, "slots"), (COUPLED, "mask"), (REJECTION, "slots"), (REJECTION, "mask")], ids=str
)
def test_every_row_of_a_batch_is_judged_by_its_own_rule(tiny_pool, sampling, cache):
    rules = dict(zip((prompt.request_id for prompt in PROMPTS), (*RULES, Exact()), strict=True))
    together = run(tiny_pool, lossy(rules), (5, cache, "auto"), sampling=sampling)
    assert together.log.ops["num_rows"][together.log.ops["kind"] == 1].max() == 5
    for prompt, text in zip(PROMPTS, together.texts, strict=True):
        assert Offline(tiny_pool, lossy(rules), (prompt,), sampling=sampling).run().texts == [text]


def test_the_strictest_lossy_rule_is_exact(tiny_pool, texts):
    strict = Decides(lambda seen: Verify("target", Ratio(1.0)) if seen.num_pending else Draft("mid", 5))
    assert Offline(tiny_pool, strict).run(batch=2).texts == texts["greedy"]
