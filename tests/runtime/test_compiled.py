"""A forward compiled for a few fixed shapes gives the logits of the stock model, and the text of the modules.

What does not depend on the compiler runs uncompiled (`force_eager`): the padding, the cache, what is nobody's.
"""

import copy
import shutil
from dataclasses import replace

import pytest
import torch
from paceline.decoding.prefix_cache import PrefixCacheSize
from paceline.policies import ConfidenceBelow
from paceline.policies.fixed import Chain
from paceline.runtime import compiled as under_test
from paceline.runtime.caches import SLOT_STEP, SlotCache
from paceline.runtime.compiled import ROW_TOKENS, CompiledForward
from paceline.runtime.forward_choice import choose_forward
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.threads import Memory
from paceline.traces.meta import Sampling
from transformers import GPT2Config, GPT2LMHeadModel

from .conftest import noisy
from .offline import COUPLED, GREEDY, PROMPTS, REJECTION, Offline, in_double, with_models
from .test_forward import RELATIVE, worst_difference
from .tiny_decoders import CONTEXT, MODULES_ONLY, VOCABULARY, RaggedTexts, remembered, tiny_decoder

STEPS = ("drafted", "judged", "accepted", "emitted")
COLUMNS = ("level", "kind", "num_rows", "num_forwards", "new_tokens")


class Counting:
    """A backend that counts what torch hands it, and runs it as it is."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph.forward


@pytest.fixture
def uncompiled():
    with torch.compiler.set_stance("force_eager"):
        yield


def compiled(model, backend="eager"):
    return choose_forward(model, kind="compiled", share_weights=False, context_tokens=CONTEXT, backend=backend)


def gpt2():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=4, n_positions=CONTEXT))
    return model.eval().requires_grad_(requires_grad=False).double()


@pytest.mark.parametrize(
    ("make", "backend"),
    [
        (lambda: tiny_decoder(num_hidden_layers=1), "aot_eager"),
        (lambda: tiny_decoder("gemma2"), "eager"),
        (lambda: tiny_decoder("qwen3-window"), "eager"),
        (gpt2, "eager"),
    ],
    ids=["llama", "gemma2", "qwen3-window", "gpt2"],
)
@pytest.mark.one_in(4)
def test_it_compiles_whole_and_gives_the_logits_of_the_stock_model(make, backend):
    """`fullgraph` raises at a break; what is chosen is compared with the modules at once."""
    model = make()
    forward = compiled(model, backend)
    assert forward.name == "compiled"
    texts = {"a": [1, 2, 3, 4, 5], "b": [6, 7, 8]}
    for name, logits in RaggedTexts(forward, forward.slot_cache()).feed(texts).items():
        # The eager attention of Gemma 2 takes its softmax in float32, whatever the weights are.
        assert torch.allclose(logits, remembered(model)(texts[name]), atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="inductor needs a C compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_the_backend_of_torch_gives_the_logits_of_the_stock_model():
    model = tiny_decoder(dtype=torch.float32, num_hidden_layers=1)
    forward = choose_forward(model, kind="compiled", share_weights=False, context_tokens=CONTEXT)
    found = RaggedTexts(forward, forward.slot_cache()).feed({"a": [1, 2, 3], "b": [4]})
    assert torch.allclose(found["a"], remembered(model)([1, 2, 3]), atol=1e-3)


@pytest.mark.parametrize("dtype", RELATIVE)
@pytest.mark.parametrize("family", ["llama-biased", *MODULES_ONLY])
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.one_in(3)
def test_padding_changes_no_logits(family, dtype):
    model = tiny_decoder(family, dtype)
    forward = compiled(model)
    assert worst_difference(remembered(model), forward, forward.slot_cache()) < max(1e-6, RELATIVE[dtype])


def decoded(pool, seed, kind="compiled"):
    sampling = Sampling(mode="coupled", temperature=0.7, seed=seed)
    options = {"sampling": sampling, "num_tokens": 10, "forward": kind, "debug": False}
    return Offline(pool, "draft:4/target", PROMPTS[:1], **options).run().texts


@pytest.mark.slow
def test_a_second_decode_compiles_nothing(tiny_pool, monkeypatch):
    """Shapes are all that is compiled for: no seed, no cache, no request."""
    counting = Counting()
    monkeypatch.setattr(under_test, "OWN_BACKEND", {"backend": counting})
    draft = tiny_pool.member("draft")
    target = replace(draft, name="target", model=noisy(draft.model, 0.1, seed=4))
    pool = in_double(replace(tiny_pool, members=(draft, target)))
    first = decoded(pool, 0)
    made = counting.graphs
    assert 0 < made <= 2 * (3 + len(ROW_TOKENS))  # of two members: what is checked, and one row
    others = [decoded(pool, seed) for seed in range(1, 5)]
    assert decoded(pool, 0) == first
    assert counting.graphs == made
    assert [first, *others[:2]] == [decoded(pool, seed, "modules") for seed in range(3)]


@torch._dynamo.config.patch(recompile_limit=2)
@pytest.mark.slow
def test_only_new_shapes_are_compiled_and_more_than_torch_compiles_by_default():
    counting, model = Counting(), tiny_decoder(num_hidden_layers=1)
    stock, forward = remembered(model), compiled(model, counting)
    ragged = RaggedTexts(forward, forward.slot_cache())
    assert ragged.feed({"a": [3]})["a"].isfinite().all()
    assert counting.graphs == 4
    ragged.feed({"a": [2, 3, 4], "b": [5, 6, 7]})
    made = counting.graphs
    for _ in range(3):
        ragged.roll_back("a", 2)
        ragged.roll_back("b", 1)
        ragged.feed({"a": [8, 9, 10], "b": [11]})
    assert counting.graphs == made
    ragged.feed({"a": [8] * 9})  # the first one of so many tokens
    assert counting.graphs == made + 1
    # Prompts and caches of another kind run as the modules do.
    prompt = list(range(ROW_TOKENS[-1] + 1))
    for cache in (forward.slot_cache(), SlotCache(forward.kv_shape)):
        assert torch.allclose(RaggedTexts(forward, cache).feed({"a": prompt})["a"], stock(prompt))
    assert torch.allclose(RaggedTexts(forward, cache).feed({"b": [3, 4]})["b"], stock([3, 4]))
    assert counting.graphs == made + 1


def assert_same(found, modules):
    """Text, failures, steps and counts."""
    assert set(found.world.forward_names.values()) == {"compiled"}
    assert {name: str(error) for name, error in found.failed.items()} == {
        name: str(error) for name, error in modules.failed.items()
    }
    assert found.texts == modules.texts
    for table, names in (("ops", COLUMNS), ("steps", STEPS)):
        for name in names:
            assert getattr(found.log, table)[name].tolist() == getattr(modules.log, table)[name].tolist(), name


def both(pool, policy, batch, **options):
    """(compiled, modules); `debug` compares every cache with its session at every step."""
    return [
        Offline(pool, policy(pool) if callable(policy) else policy, forward=kind, **options).run(batch=batch)
        for kind in ("compiled", "modules")
    ]


def stopped(pool):
    return Chain(loaded_pool(pool), "draft:6/target", stop=ConfidenceBelow(0.5))


@pytest.mark.parametrize(
    ("policy", "sampling", "batch"),
    [
        ("plain", COUPLED, 3),
        ("draft:1/mid:2/slim:4/target", COUPLED, 1),
        ("ngram:3/mid:4/target", Sampling(mode="coupled", temperature=1.2, seed=5, top_k=9, top_p=0.9), 5),
        ("draft:4/target", REJECTION, 3),
        ("tree", GREEDY, 3),
        ("adaptive", GREEDY, 1),
        (stopped, GREEDY, 4),
    ],
)
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.one_in(3)
def test_text_steps_and_counts_are_those_of_the_modules(tiny_pool, policy, sampling, batch):
    found, modules = both(in_double(tiny_pool), policy, batch, sampling=sampling)
    assert found.failed == {}
    assert_same(found, modules)


@pytest.mark.usefixtures("uncompiled")
def test_a_limit_of_memory_counts_and_preempts(tiny_pool):
    found = Offline(tiny_pool, "draft:4/target", forward="compiled", memory=Memory(limit_bytes=250_000)).run(batch=5)
    assert found.failed == {}
    assert found.texts == Offline(tiny_pool, "draft:4/target", forward="modules").run(batch=5).texts
    assert found.world.manager.held_bytes <= 250_000
    assert found.world.manager.num_preempted


@pytest.mark.parametrize(("policy", "name"), [("draft:3/target", "draft"), ("plain", "target")])
@pytest.mark.usefixtures("uncompiled")
def test_broken_logits_fail_their_request_alone(tiny_pool, policy, name):
    """A member whose logits are not finite after one token: a request that meets it fails, in either way."""
    pool = in_double(tiny_pool)
    broken = copy.deepcopy(pool.member(name).model)
    broken.model.embed_tokens.weight[7] = torch.nan
    found, modules = both(with_models(pool, **{name: broken}), policy, 3)
    assert found.failed
    assert_same(found, modules)


@pytest.mark.usefixtures("uncompiled")
def test_tokens_of_nobody_harm_nobody():
    """What is missing to a shape is token 0; here its embedding is broken."""
    model = tiny_decoder()
    forward = CompiledForward(model, context_tokens=CONTEXT)
    model.model.embed_tokens.weight[0] = torch.nan
    ragged = RaggedTexts(forward, forward.slot_cache())
    ragged.feed({"a": [1, 2, 3], "b": [4, 5]})
    for new in [{"b": [6, 7, 8]}] * 3 + [{"a": [9] * 16}] * 3 + [{"a": [9] * 10, "b": [3]}]:
        assert all(logits.isfinite().all() for logits in ragged.feed(new).values())


def test_what_stands_in_slots_that_are_nobodys_is_read_by_nobody():
    """Broken weights may leave NaN there; where a cache has grown, these slots are somebody's."""
    cache = CompiledForward(tiny_decoder(), context_tokens=CONTEXT).slot_cache()
    cache.place(["a", "b"], [2 * SLOT_STEP, 5])
    cache.roll_back("a", 3)
    cache.truncate()
    cache._kv[:, :, -SLOT_STEP:] = torch.nan
    cache.place(["a", "b"], [SLOT_STEP, 1])
    assert cache._kv[:, :, :-SLOT_STEP].isfinite().all()


def test_memory_is_the_same_inside_inference_mode_and_outside():
    """Of another kind it would be compiled for once more, and could not be changed outside."""
    with torch.inference_mode():
        cache = CompiledForward(tiny_decoder(), context_tokens=CONTEXT).slot_cache()
        cache.place(["a"], [2])
    assert not cache.keys_values.is_inference()
    cache.free("a")
    cache.place(["b"], [2])


def never(graph, inputs):
    raise RuntimeError("no C++ compiler\nwith details")


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"forward": "compiled", "memory": Memory(cache="mask")}, "`cache` must be slots with `forward` compiled, got"),
        ({"forward": "graphs"}, "got 'graphs'; compiled is in its place"),
        (
            {"forward": "compiled", "memory": Memory(prefixes=PrefixCacheSize(num_blocks=8, block_tokens=4))},
            "`forward` must not be compiled with `prefix_cache`, got compiled for draft",
        ),
    ],
)
def test_what_cannot_be_is_refused(tiny_pool, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        Offline(tiny_pool, "plain", **options)


def test_a_machine_that_cannot_compile_is_told():
    with pytest.raises(ValueError, match=r"`forward` must not be compiled for this model here: .*no C"):
        compiled(tiny_decoder(num_hidden_layers=1), never)


# torch's compiler warns of itself: of scripts that are deprecated, and of number formats.
@pytest.mark.filterwarnings("default")
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_graphs_of_cuda_give_the_text_of_the_modules(tiny_pool):
    pool = with_models(tiny_pool, **{member.name: member.model.cuda() for member in tiny_pool.members if member.model})
    runs = [Offline(pool, "draft:4/target", forward=kind).run(batch=3) for kind in ("modules", "compiled", "compiled")]
    assert runs[0].texts == runs[1].texts == runs[2].texts
