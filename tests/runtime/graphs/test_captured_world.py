"""Draft loops and verifications captured whole: the text, the steps and the counts are those of forward by forward."""

import gc
from itertools import product

import pytest
import torch
from paceline.policies import ConfidenceBelow, EntropyAbove, GapBelow, ProductBelow, RefusalAbove
from paceline.policies.fixed import Chain
from paceline.runtime import forward_choice
from paceline.runtime.forward_choice import ForwardKind
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.threads import Memory
from paceline.traces.meta import Sampling

from ...pairs import pairs
from ..offline import COUPLED, GREEDY, PROMPTS, Offline, in_double, with_models
from .counting import Counting

POLICIES = ("plain", "draft:4/target", "draft:2/mid:5/target", "draft:1/mid:2/slim:4/target", "ngram:3/mid:4/target")
TRUNCATED = Sampling(mode="coupled", temperature=1.2, seed=5, top_k=9, top_p=0.9)
REJECTION = Sampling(mode="rejection", temperature=0.9, seed=3)
REFUSAL = RefusalAbove(chance=0.6, bias=-0.5, prob=3.0, root_entropy=-0.3, gap=1.0, place=0.5)
STOPS = (ConfidenceBelow(0.5), EntropyAbove(1.0), GapBelow(0.2), ProductBelow(0.3), REFUSAL)
COLUMNS = ("level", "kind", "num_rows", "num_forwards", "new_tokens")
STEPS = ("drafted", "judged", "accepted", "emitted")


@pytest.fixture(scope="module")
def pool(tiny_pool):
    return in_double(tiny_pool)


@pytest.fixture(autouse=True, scope="module")
def captures():
    """Every member's capture, which stands in for CUDA graphs; a pool makes its forwards once."""
    made = []

    def capture_on(device):
        made.append(Counting())
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forward_choice, "capture_on", capture_on)
        yield made


def num_replays(captures):
    return sum(capture.replays for capture in captures)


def same_as_modules(pool, policy, *, batch, debug=True, **options):
    """Runs both ways, and returns the captured run; `debug` compares every cache with its session at every step."""
    modules = Offline(pool, policy(), forward="modules", debug=debug, **options).run(batch=batch)
    graphs = Offline(pool, policy(), forward="graphs", debug=debug, **options).run(batch=batch)
    assert graphs.failed == modules.failed == {}
    assert graphs.texts == modules.texts
    for name in COLUMNS:
        assert graphs.log.ops[name].tolist() == modules.log.ops[name].tolist(), name
    for name in STEPS:
        assert graphs.log.steps[name].tolist() == modules.log.steps[name].tolist(), name
    return graphs


@pytest.mark.parametrize(
    ("policy", "sampling", "batch"), pairs(POLICIES, (GREEDY, COUPLED, TRUNCATED, REJECTION), (1, 3, 5))
)
def test_text_steps_and_counts_are_those_of_the_modules(pool, captures, policy, batch, sampling):
    before = num_replays(captures)
    same_as_modules(pool, lambda: policy, batch=batch, sampling=sampling)
    assert num_replays(captures) > before


@pytest.mark.parametrize(("stop", "batch"), [*product(STOPS, (1, 4))], ids=str)
def test_stop_rules_end_captured_drafts_where_they_end_others(pool, stop, batch):
    same_as_modules(pool, lambda: Chain(loaded_pool(pool), "draft:6/target", stop=stop), batch=batch)


@pytest.mark.parametrize("policy", ["adaptive", "confident", "cascade"])
def test_policies_that_look_see_the_same(pool, policy):
    same_as_modules(pool, lambda: policy, batch=1)


def test_a_draft_is_one_replay_and_so_is_a_verification(pool, captures):
    short = [prompt for prompt in PROMPTS if len(prompt.text) < 8]
    gc.collect()  # caches of other tests
    first = Offline(pool, "draft:4/target", short, forward="graphs", debug=False).run(batch=2)
    first.world.manager.caches.clear()
    before, made = num_replays(captures), sum(capture.captures for capture in captures)
    done = Offline(pool, "draft:4/target", short, forward="graphs", debug=False).run(batch=2)
    assert num_replays(captures) - before == len(done.log.ops["level"])
    assert sum(capture.captures for capture in captures) == made  # the first run captured all there is


@pytest.mark.parametrize(("policy", "most_shapes"), [("plain", 0), ("draft:4/target", 20)])
def test_a_hundred_seeds_hold_what_one_does(pool, captures, policy, most_shapes):
    """Captured is what shapes differ in: a plain step has one, a draft its length and how far it may go."""

    def run(seed, forward="graphs"):
        sampling = Sampling(mode="coupled", temperature=0.7, seed=seed)
        options = {"sampling": sampling, "num_tokens": 8, "forward": forward, "debug": False}
        return Offline(pool, policy, PROMPTS[:1], **options).run().texts

    run(0)  # which makes the forwards, if nobody did
    made = sum(capture.captures for capture in captures)
    texts = [run(seed) for seed in range(100)]
    assert sum(capture.captures for capture in captures) <= made + most_shapes
    assert texts[:3] == [run(seed, "modules") for seed in range(3)]
    assert len({str(text) for text in texts}) > 50


def test_a_limit_of_memory_counts_and_preempts(pool):
    memory = Memory(limit_bytes=200_000)
    graphs = Offline(pool, "draft:4/target", forward="graphs", memory=memory).run(batch=5)
    assert graphs.failed == {}
    assert graphs.texts == Offline(pool, "draft:4/target", forward="modules").run(batch=5).texts
    assert graphs.world.manager.held_bytes <= 200_000
    assert graphs.world.manager.num_preempted


@pytest.mark.parametrize("policy", ["draft:3/target", "plain"])
def test_broken_logits_fail_their_request_alone(pool, policy):
    """A member whose logits are not finite after one token: a request that meets it fails, in either way."""
    models = {member.name: member.model for member in pool.members}
    name = "draft" if policy.startswith("draft") else "target"
    model = models[name]
    weight = model.model.embed_tokens.weight.clone()
    weight[7] = torch.nan
    broken = type(model)(model.config).double().eval().requires_grad_(requires_grad=False)
    broken.load_state_dict(model.state_dict() | {"model.embed_tokens.weight": weight})
    changed = with_models(pool, **{name: broken})
    results = [Offline(changed, policy, forward=kind, debug=True).run(batch=3) for kind in ("modules", "graphs")]
    failed = [{name: str(error) for name, error in run.failed.items()} for run in results]
    assert failed[0] == failed[1]
    assert results[0].texts == results[1].texts


def test_graphs_stand_in_the_log_and_want_the_slot_cache(pool):
    graphs = Offline(pool, "draft:2/target", forward="graphs")
    assert set(graphs.world.forward_names.values()) == {"graphs"}
    with pytest.raises(ValueError, match="`cache` must be slots with `forward` graphs, got 'mask'"):
        Offline(pool, "plain", forward="graphs", memory=Memory(cache="mask"))
    kind: ForwardKind = "graphs"
    assert kind in forward_choice.KINDS
