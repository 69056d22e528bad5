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

from .offline import COUPLED, GREEDY, NUM_TOKENS, PROMPTS, Offline, trunk

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
REFUSAL = RefusalAbove(chance=0.6, bias=-0.5, prob=3.0, root_entropy=-0.3, gap=1.0, place=0.5)
STOPS = (ConfidenceBelow(0.5), EntropyAbove(1.0), GapBelow(0.2), ProductBelow(0.3), REFUSAL)
# Batch, cache, forward.
SETTINGS = tuple(product((1, 3, 5), ("slots", "mask"), ("fused", "modules")))
TRUNCATED = Sampling(mode="coupled", temperature=1.2, seed=5, top_k=9, top_p=0.9)


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
            pad_token_id=tiny_pool.eos_token_ids[0],
        )
        answers.append(answer[0, ids.shape[1] :].tolist())
    return answers


@pytest.fixture(scope="module")
def sampled(tiny_pool):
    return [trunk(tiny_pool, prompt, sampling=COUPLED) for prompt in PROMPTS]


def run(pool, policy, setting, **options):
    batch, cache, forward = setting
    return Offline(pool, policy, memory=Memory(cache=cache), forward=forward, **options).run(batch=batch)


def test_prompts_end_early_and_at_the_budget(generated, sampled):
    """Else the tests below would not see either end."""
    for answers in (generated, sampled):
        assert max(map(len, answers)) == NUM_TOKENS
        assert min(map(len, answers)) < NUM_TOKENS


@pytest.mark.parametrize("index", range(len(POLICIES)), ids=POLICIES)
def test_greedy_text_is_what_generate_writes(tiny_pool, generated, index):
    assert run(tiny_pool, POLICIES[index], SETTINGS[5 * index % len(SETTINGS)]).texts == generated


@pytest.mark.parametrize("setting", SETTINGS[4:], ids=str)
def test_batch_cache_and_forward_change_no_text(tiny_pool, generated, setting):
    """Windows of two levels bring ragged feeds, members that wait for others, and requests at different levels."""
    done = run(tiny_pool, "draft:2/mid:4/target", setting)
    assert done.texts == generated
    assert done.log.ops["num_rows"].max() == setting[0]


@pytest.mark.parametrize("index", range(len(POLICIES)), ids=POLICIES)
def test_coupled_text_does_not_depend_on_the_policy(tiny_pool, sampled, index):
    assert run(tiny_pool, POLICIES[index], SETTINGS[-index % len(SETTINGS)], sampling=COUPLED).texts == sampled


@pytest.mark.parametrize("setting", [(1, "slots", "fused"), (5, "mask", "modules")], ids=str)
def test_truncated_coupled_text_does_not_depend_on_policy_batch_or_cache(tiny_pool, setting):
    plain = Offline(tiny_pool, "plain", sampling=TRUNCATED).run().texts
    assert run(tiny_pool, "draft:2/mid:4/target", setting, sampling=TRUNCATED).texts == plain


@pytest.mark.parametrize("batch", [1, 3])
def test_rejection_sampling_gives_a_request_the_same_text_in_any_company(tiny_pool, batch):
    sampling = Sampling(mode="rejection", temperature=0.9, seed=3)
    alone = Offline(tiny_pool, "draft:2/mid:4/target", sampling=sampling).run().texts
    other = Sampling(mode="rejection", temperature=0.9, seed=4)
    assert run(tiny_pool, "draft:2/mid:4/target", (batch, "mask", "modules"), sampling=sampling).texts == alone
    assert Offline(tiny_pool, "draft:2/mid:4/target", sampling=other).run().texts != alone


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: type(stop).__name__)
def test_stops_shorten_drafts_and_change_no_text(tiny_pool, generated, stop, batch):
    pool = loaded_pool(tiny_pool)
    stopped = Offline(tiny_pool, Chain(pool, "draft:6/target", stop=stop)).run(batch=batch)
    unstopped = Offline(tiny_pool, "draft:6/target").run(batch=batch)
    assert stopped.texts == generated
    assert 0 < stopped.log.steps["drafted"].sum() < unstopped.log.steps["drafted"].sum()


def test_requests_that_take_turns_share_forwards(tiny_pool, generated):
    running, waiting = [], []

    class Watching(Chain):
        def decide(self, seen):
            running.append(seen.load.num_running)
            waiting.append(seen.load.num_waiting)
            return super().decide(seen)

    done = Offline(tiny_pool, Watching(loaded_pool(tiny_pool), "draft:2/mid:4/target")).run(batch=3)
    assert done.texts == generated
    assert max(running) == running[0] == 3
    assert (waiting[0], waiting[-1]) == (2, 0)


@pytest.mark.parametrize("forward", ["fused", "modules"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("policy", ["draft:2/mid:5/target", "ngram:2/draft:2/mid:3/target"])
def test_the_log_counts_the_forwards_and_tokens_models_see(tiny_pool, policy, batch, forward):
    offline = Offline(tiny_pool, policy, forward=forward)
    fed = {level: [] for level in range(len(tiny_pool.members))}
    forwards = offline.world._forwards
    for level, model_forward in list(forwards.items()):
        forwards[level] = Counted(model_forward, fed[level])
    log = offline.run(batch=batch).log
    for level, counts in fed.items():
        of_level = log.ops["level"] == level
        assert log.ops["num_forwards"][of_level].sum() == len(counts)
        assert log.ops["new_tokens"][of_level].sum() == sum(counts)


class Counted:
    """Passes on to a forward, and notes the tokens it is fed."""

    def __init__(self, forward, counts):
        self._forward, self._counts = forward, counts
        self.kv_shape, self.slot_cache = forward.kv_shape, forward.slot_cache

    def __call__(self, ids, placement, cache, keep):
        self._counts.append(len(ids))
        return self._forward(ids, placement, cache, keep)


def test_modules_see_each_token_once_per_forward(tiny_pool):
    """The same count where nothing of ours stands between: hooks of torch on the target."""
    offline = Offline(tiny_pool, "draft:3/target", forward="modules")
    seen = []
    hook = tiny_pool.target.model.register_forward_pre_hook(
        lambda _, __, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    log = offline.run().log
    hook.remove()
    by_target = log.ops["level"] == loaded_pool(tiny_pool).target_level
    assert (len(seen), sum(seen)) == (by_target.sum(), log.ops["new_tokens"][by_target].sum())


class Lossy:
    """Draft, let a lossy verifier judge, now and then commit as is; the rule may differ from request to request."""

    def __init__(self, rules, *, by):
        self.rules, self.by = rules, by

    def decide(self, seen):
        rule = self.rules.get(seen.request_id) or self.rules["all"]
        if not seen.num_pending:
            return Draft("draft", 4)
        if seen.last.num_drafted:
            return Verify(self.by, rule)
        return Commit(seen.num_pending) if seen.num_pending % 2 else Verify("target", rule)

    def learn(self, outcome):
        pass


RULES = (Ratio(0.3), Typical(0.3, 0.3), Ratio(0.6), Divergence(0.4))


@pytest.mark.parametrize("by", ["mid", "target"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_lossy_rules_accept_more_and_fill_the_budget(tiny_pool, rule, by):
    done = Offline(tiny_pool, Lossy({"all": rule}, by=by)).run(batch=5)
    for answer in done.texts:
        assert len(answer) == NUM_TOKENS or answer[-1] == tiny_pool.eos_token_ids[0]
    exact = Offline(tiny_pool, "draft:4/target" if by == "target" else "draft:4/mid:1/target").run(batch=5)
    assert accepted_share(done.log) > accepted_share(exact.log)


def accepted_share(log):
    judged = log.steps["judged"] > 0
    return log.steps["accepted"][judged].sum() / log.steps["judged"][judged].sum()


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED, Sampling(mode="rejection", temperature=0.8, seed=2)], ids=str)
@pytest.mark.parametrize("cache", ["slots", "mask"])
def test_every_row_of_a_batch_is_judged_by_its_own_rule(tiny_pool, sampling, cache):
    rules = dict(zip((prompt.request_id for prompt in PROMPTS), (*RULES, Exact()), strict=True))
    together = run(tiny_pool, Lossy(rules, by="target"), (5, cache, "auto"), sampling=sampling)
    mixed = together.log.ops["num_rows"][together.log.ops["kind"] == 1]
    assert mixed.max() == 5
    for prompt, text in zip(PROMPTS, together.texts, strict=True):
        alone = Offline(tiny_pool, Lossy(rules, by="target"), (prompt,), sampling=sampling).run()
        assert alone.texts == [text]


def test_the_strictest_lossy_rule_is_exact(tiny_pool, generated):
    class Strict(Lossy):
        def decide(self, seen):
            return Verify("target", Ratio(1.0)) if seen.num_pending else Draft("mid", 5)

    assert Offline(tiny_pool, Strict({}, by="target")).run(batch=2).texts == generated


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cache": "pages"}, "`cache` must be one of slots, mask, got 'pages'"),
        ({"limit_bytes": 0}, "`limit_bytes` must be >= 1, got 0"),
        ({"dead_share": 0.0}, r"`dead_share` must be in \(0, 1\], got 0.0"),
        ({"dead_share": 1.5}, r"`dead_share` must be in \(0, 1\], got 1.5"),
    ],
)
def test_memory_of_no_known_kind_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Memory(**wrong)
