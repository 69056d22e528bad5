"""What a call leaves behind: no cache, no world and no tensor, without Python's search for cycles, however often.

Each call of the table runs with that search off. What dies then died because nobody referred to it any more.
"""

import gc
import subprocess
import sys
import weakref
from collections import Counter

import paceline
import pytest
import torch
from paceline.base.names import branches_of
from paceline.decoding.prefix_cache import PrefixCacheSize
from paceline.decoding.rollouts import Rollouts
from paceline.decoding.seen import Start
from paceline.decoding.steps import PolicyError, Verify
from paceline.policies import make_policy
from paceline.runtime.caches import MemberKV
from paceline.runtime.distances import NonFiniteLogitsError
from paceline.runtime.forced import forced_recording, forced_run
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.profiling.probe import ProbedWorld, probe
from paceline.runtime.prompts import Prompt
from paceline.runtime.recording.recorder import record
from paceline.runtime.recording.together import TreeForward
from paceline.runtime.state import KVMemoryError
from paceline.runtime.threads import Memory
from paceline.runtime.timing import plain_step_s
from paceline.runtime.world import TorchWorld
from paceline.sim.contexts import TrieTables
from paceline.studies.agree import agree, synthetic_cost
from paceline.studies.setting import named_policy
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.meta import Closure

from ..tiny_models import random_prompts, tiny_pool_of_four
from . import offline
from .features.feature_pools import written
from .forced.forced_pools import tiny_forced_pool
from .generation.chained_models import PAD, Models, batch
from .offline import COUPLED, GREEDY, REJECTION, Decides

PROMPTS = random_prompts(4, seed=4)
SHARED = Memory(prefixes=PrefixCacheSize(num_blocks=20, block_tokens=4))
FORKED = Rollouts(branches=branches_of("`rollouts`", "1@0/2@4"))
STATES = [Prompt(request_id="r", text="w1 w2 w3")]
BORN = (MemberKV, TorchWorld, TreeForward)


def recorded(out):
    closure = Closure(kind="monotone", reach=3, run=2)
    record(tiny_pool_of_four(), PROMPTS[:2], sampling=GREEDY, closure=closure, max_new_tokens=8, out=out)
    return read_trace(out)


class At:
    """What the calls of the table are made on."""

    def __init__(self, folder):
        self.folder = folder
        self.models = Models(31)
        self.prepared = paceline.prepare(self.models.target, self.models.assistants)
        self.features = ModelPool.load(written(folder / "features", members=("mid", "target")))
        self.forced = tiny_forced_pool(folder / "pool")
        self.recording = forced_recording(recorded(folder / "trace"), self.forced)


@pytest.fixture(scope="module")
def at(tmp_path_factory):
    yield At(tmp_path_factory.mktemp("at"))
    gc.unfreeze()


def forced(at, policy):
    tables, cost = TrieTables(at.recording), synthetic_cost(at.recording.meta.model_names)
    decisions = tables.world(cost, seed=0, strict=False)
    sessions = list(decisions.sessions(tables.prefill_before(Start.prefill)))
    built = named_policy(policy).build(loaded_pool(at.forced))
    forced_run(at.forced, built, sessions, decisions, sampling=GREEDY, trace="t", name=policy, batch=2)


def refusing(pool):
    """A policy that goes wrong in the middle of a run."""
    steps = iter(range(3))

    def decide(seen):
        if next(steps, None) is None:
            raise RuntimeError("boom")
        return Verify(pool.target)

    return Decides(decide)


def generated(models, **options):
    given = {"max_new_tokens": 12, "pad_token_id": PAD, "custom_generate": paceline.generate} | options
    return models.target.generate(**batch(), **given)


def decoded(policy, *, pool=None, prompts=PROMPTS, **options):
    offline.decoded(pool or tiny_pool_of_four(), policy, prompts, num_tokens=12, batch=2, **options)


def broken(models):
    """Logits that are not finite fail a request, and so the call."""
    weight = models.target.lm_head.weight
    kept = weight.clone()
    weight[3] = torch.nan
    try:
        generated(models)
    finally:
        weight.copy_(kept)


def interrupted():
    def on_token(*_):
        raise KeyboardInterrupt

    decoded("draft:4/target", on_token=on_token)


def profiled():
    pool = tiny_pool_of_four()
    world = ProbedWorld(pool=pool, sampling=GREEDY)
    probe(world, make_policy("draft:3/target", loaded_pool(pool)), PROMPTS, name="p", batch=2, max_new_tokens=8)


def raising(error, call):
    with pytest.raises(error):
        call()


CALLS = {
    "generate": lambda at: generated(at.models, assistant_models=at.models.assistants),
    "generate, sampled": lambda at: generated(at.models, skip_layers=[1], do_sample=True),
    "generate, coupled": lambda at: generated(at.models, skip_layers=[1], do_sample=True, sampling="coupled"),
    "generate, mask": lambda at: generated(at.models, kv_cache="mask", prompt_lookup_num_tokens=3),
    "prepared": lambda at: generated(at.models, custom_generate=at.prepared),
    "no room": lambda at: raising(KVMemoryError, lambda: generated(at.models, kv_limit_bytes=3000)),
    "a policy raises": lambda at: raising(PolicyError, lambda: generated(at.models, policy=refusing)),
    "broken logits": lambda at: raising(NonFiniteLogitsError, lambda: broken(at.models)),
    "plain": lambda at: decoded("plain"),
    "three levels": lambda at: decoded("draft:2/mid:4/target", sampling=COUPLED),
    "rejection": lambda at: decoded("draft:2/mid:4/target", sampling=REJECTION),
    "tree": lambda at: decoded("tree"),
    "overlap in threads": lambda at: decoded("pearl,window=2", overlap="threads"),
    "prefix caches": lambda at: decoded("draft:4/target", memory=SHARED),
    "rollouts": lambda at: decoded("draft:4/target", sampling=COUPLED, rollouts=FORKED),
    "states": lambda at: decoded("feature:4/target", pool=at.features, prompts=STATES),
    "caches that are checked": lambda at: decoded("draft:4/target", debug=True),
    "an interrupt": lambda at: interrupted(),
    "forced": lambda at: forced(at, "draft:4/target"),
    "profiled": lambda at: profiled(),
    "a plain step": lambda at: plain_step_s(tiny_pool_of_four(), GREEDY, 3, 20),
    "recorded": lambda at: recorded(at.folder / "a.trace"),
    "agree": lambda at: agree(tiny_pool_of_four(), PROMPTS[:2], ["draft:4/target"], max_new_tokens=8),
}


@pytest.fixture
def born(at, monkeypatch):
    """References to all that is born of the kinds watched; Python's search for cycles is off meanwhile."""
    found = []
    for kind in BORN:
        made = kind.__init__

        def init(self, *args, made=made, **options):
            found.append(weakref.ref(self))
            made(self, *args, **options)

        monkeypatch.setattr(kind, "__init__", init)
    gc.collect()
    gc.freeze()  # so that later searches need not look through what was there before
    gc.disable()
    yield found
    gc.enable()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.one_in(3)
def test_a_call_leaves_nothing_behind(at, born, name):
    CALLS[name](at)
    assert born
    assert Counter(type(left()).__name__ for left in born if left() is not None) == {}
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        tensors = [one for one in gc.garbage if isinstance(one, torch.Tensor)]
        assert [tuple(tensor.shape) for tensor in tensors] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


CALL_FIFTY_TIMES = """
import gc, resource, sys, paceline, torch
from transformers import LlamaConfig, LlamaForCausalLM

gc.disable()
torch.set_num_threads(1)
config = LlamaConfig(
    vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=4, max_position_embeddings=512, bos_token_id=None, eos_token_id=None, pad_token_id=0,
)
model = LlamaForCausalLM(config).eval()
call = paceline.prepare(model, skip_layers=[1]) if sys.argv[1] == "prepared" else paceline.generate
options = {} if sys.argv[1] == "prepared" else {"skip_layers": [1]}
ids = torch.randint(1, 64, (32, 250), generator=torch.Generator().manual_seed(0))
for number in range(50):
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, custom_generate=call, **options)
    if number in (9, 49):
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["prepared", "generate"])
def test_fifty_calls_take_the_memory_of_a_few(how):
    """The caches of one call are 29 MB, so that a few that stay are seen."""
    called = [sys.executable, "-c", CALL_FIFTY_TIMES, how]
    ran = subprocess.run(called, capture_output=True, text=True, check=True, timeout=500)
    after_ten, after_fifty = map(int, ran.stdout.split())
    assert after_fifty <= 1.05 * after_ten
