"""`model.generate(custom_generate=paceline.generate, ...)` is `generate()`: the same text, or a refusal by name."""

import copy
import pickle
import subprocess
import sys
from collections import Counter
from functools import partial, wraps
from itertools import cycle
from pathlib import Path

import paceline
import pytest
import torch
from paceline.base.errors import install_hint
from paceline.policies import Draft, Member, Policy, Pool, Ratio, Verify
from paceline.policies.fixed import Chain, Confident
from paceline.reports import summarise_run
from paceline.runtime import draft as draft_processor
from paceline.runtime import forward_choice
from paceline.runtime.forward import TOLERANCES
from paceline.runtime.fused import FusedForward
from paceline.runtime.generate import read_sampling
from paceline.traces.meta import Sampling
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    OlmoConfig,
    OlmoForCausalLM,
    PreTrainedTokenizerFast,
    StoppingCriteriaList,
    StopStringCriteria,
    TemperatureLogitsWarper,
    TextIteratorStreamer,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation import EosTokenCriteria, GenerateDecoderOnlyOutput, MaxLengthCriteria

from ..conftest import ALPHABET, EOS, noisy, random_llama
from ..pools import head_pools
from ..pools.window_pools import FAMILIES
from ..tiny_decoders import tiny_decoder
from ..tokenizers.trained_tokenizers import byte_level
from .chained_models import LENGTHS, PAD, POLICIES, Listener, Models, batch, letters

ROOT = Path(__file__).parents[3]
LOOKUP, SLIM = {"prompt_lookup_num_tokens": 5}, {"skip_layers": [2]}
WAYS = {  # without an assistant
    "plain": {},
    "no assistants": {"assistant_models": []},
    "lookup": LOOKUP,
    "lookup of longer matches": LOOKUP | {"max_matching_ngram_size": 4},
    "slim": SLIM,
    "two slims": {"skip_layers": {"half": [1, 2], "most": [2]}, "policy": "half:3/most:5/target"},
    "chain": SLIM | LOOKUP | {"policy": "ngram:4/slim:6/target"},
    "adaptive": SLIM | LOOKUP | {"policy": "adaptive"},
}
SAMPLED = {"max_new_tokens": 16, "pad_token_id": PAD, "do_sample": True}


@pytest.fixture(scope="module")
def models() -> Models:
    return Models(11)


@pytest.fixture(scope="module")
def alone() -> Models:
    return Models(target=random_llama(11))


@pytest.mark.parametrize(("policy", "kv_cache"), [*zip(POLICIES, cycle(["slots", "mask"]), strict=False)])
def test_a_padded_batch_reads_as_generates(models, policy, kv_cache):
    models.same(batch(), ours={"policy": policy, "kv_cache": kv_cache})


@pytest.mark.parametrize(("way", "kv_cache"), [*zip(WAYS, cycle(["slots", "mask", "mask"]), strict=False)])
def test_and_without_assistants(alone, way, kv_cache):
    alone.same(batch(), ours={"kv_cache": kv_cache, **WAYS[way]})


@pytest.mark.parametrize("lengths", [(3,), (5, 5), (1, 2, 30), (8, 1, 1, 6, 2)])
def test_other_models_and_prompts(lengths):
    Models(100 + len(lengths)).same(batch(lengths, seed=1), max_new_tokens=24)


def test_answers_that_end_early_are_filled_up(models):
    inputs = batch((6, 2, 9, 4, 1, 3))
    free = models.target.generate(**inputs, max_new_tokens=16, eos_token_id=None, pad_token_id=PAD)[:, 9:]
    several = [int(free[0, 3]), int(free[1, 7]), int(free[2, 11])]
    ends = (several[0], several, torch.tensor(several), None, -1)
    for eos, pad in zip(ends, (PAD, None, PAD, None, PAD), strict=True):
        models.same(inputs, max_new_tokens=16, eos_token_id=eos, pad_token_id=pad)


@pytest.mark.parametrize("limits", [{"max_new_tokens": 1}, {"max_new_tokens": 2}, {"max_length": 19}, {}])
@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
def test_budgets(models, limits):
    assert torch.equal(*models.both(batch(), pad_token_id=PAD, **limits))


def test_inputs_of_other_forms(models):
    ids = batch((5, 5))["input_ids"]
    models.same({"input_ids": ids}, max_new_tokens=12)
    models.same({"inputs": ids[:1]}, max_new_tokens=12)
    positions = {"position_ids": torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]])}  # those of generate() itself
    models.same(batch((3, 5)) | positions, max_new_tokens=1)
    neutral = {"num_beams": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "use_cache": False}
    models.same(batch(), max_new_tokens=8, **neutral)


def test_a_config_object_and_a_dictionary_back(models):
    config = GenerationConfig(max_new_tokens=9, pad_token_id=PAD, eos_token_id=EOS, return_dict_in_generate=True)
    stock, ours = models.both(batch(), generation_config=config)
    assert isinstance(ours, GenerateDecoderOnlyOutput)
    assert torch.equal(stock.sequences, ours.sequences)


def test_criteria_objects_instead_of_options(models):
    inputs = batch()
    eos = int(models.target.generate(**inputs, max_new_tokens=5, pad_token_id=PAD)[1, -1])
    criteria = StoppingCriteriaList([MaxLengthCriteria(17 + 9), EosTokenCriteria(eos)])
    models.same(inputs, stopping_criteria=criteria, max_new_tokens=30)


COMMON = {
    "vocab_size": len(ALPHABET), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.3,
    "bos_token_id": None, "pad_token_id": None, "eos_token_id": EOS, "attn_implementation": "sdpa",
}  # fmt: skip
OTHERS = {
    "gemma": (GemmaForCausalLM, GemmaConfig, {"head_dim": 8, "tie_word_embeddings": True}),
    "gpt2": (GPT2LMHeadModel, GPT2Config, {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 128}),
    "gpt-neox": (GPTNeoXForCausalLM, GPTNeoXConfig, {}),
    "olmo": (OlmoForCausalLM, OlmoConfig, {}),
}
KNOWN = {"llama": {}, "qwen2": {}, "qwen3": {}, "gemma3 without": {"layer_types": ["full_attention"] * 3}, **FAMILIES}
WITHOUT_SLIMS = ("gpt2", "gpt-neox")


def family(name, dtype=torch.float32):
    """Of three layers or four, with two tokens that end answers."""
    if name in OTHERS:
        model, config, changes = OTHERS[name]
        torch.manual_seed(1)
        made = model(config(**(COMMON | changes))).eval().requires_grad_(requires_grad=False).to(dtype)
    else:
        sizes = {"vocab_size": len(ALPHABET), "num_hidden_layers": 3, **KNOWN[name]}
        made = tiny_decoder(name.split()[0], dtype, seed=1, **sizes)
    made.generation_config.eos_token_id = [7, 19]
    return Models(target=made)


@pytest.mark.parametrize("name", [*KNOWN, *OTHERS])
@pytest.mark.one_in(3)
def test_other_architectures(name):
    """A chain has lookups, a submodel and the target in it."""
    models = family(name)
    if name in WITHOUT_SLIMS:
        with pytest.raises(ValueError, match=r"^skip_layers of slim: a submodel needs layers under model.layers., GPT"):
            models.chained(batch(), max_new_tokens=4, pad_token_id=PAD, **SLIM)
    models.same(batch(), ours=WAYS["lookup" if name in WITHOUT_SLIMS else "chain"])


def test_an_assistant_that_runs_through_its_own_modules():
    target = family("gpt2").target
    models = Models(target=target, assistants=[noisy(target, 0.02, seed=3)])
    models.same(batch(), ours={"policy": "assistant0:4/target"})


@pytest.mark.parametrize(("name", "way"), [("llama", "plain"), ("gemma3", "chain"), ("gpt2", "lookup")])
def test_half_precision_differs_at_near_ties_only(name, way):
    """A forward of another width rounds otherwise: where texts part, both tokens are as good as equal."""
    models, inputs = family(name, torch.bfloat16), batch()
    stock, ours = models.both(inputs, max_new_tokens=20, pad_token_id=PAD, ours=WAYS[way])
    width = min(stock.shape[1], ours.shape[1])
    for row in range(len(stock)):
        parted = (stock[row, :width] != ours[row, :width]).nonzero()
        if not len(parted):
            continue
        at, start = int(parted[0]), int((inputs["attention_mask"][row] == 0).sum())
        with torch.inference_mode():
            logits = models.target(input_ids=stock[row : row + 1, start:at]).logits[0, -1].float()
        gap = abs(float(logits[stock[row, at]] - logits[ours[row, at]]))
        assert gap <= TOLERANCES[torch.bfloat16] * float(logits.abs().max())


@pytest.mark.parametrize("places", [[(0, 5, 6)], [(1, 3, 5), (2, 9, 12)], [(0, 0, 1), (3, 7, 9), (4, 1, 4)]])
def test_stop_strings_end_answers_where_generate_ends_them(models, places):
    inputs, tokenizer = batch((7, 7, 7, 7, 7)), letters()
    options = {"max_new_tokens": 24, "pad_token_id": PAD}
    free = models.target.generate(**inputs, **options)
    rows = ["".join(ALPHABET[token] for token in row) for row in free[:, 7:].tolist()]
    texts = [rows[row][start:end] for row, start, end in places]
    stock = models.target.generate(**inputs, stop_strings=texts, tokenizer=tokenizer, **options)
    ours = models.chained(inputs, stop_strings=texts, target_tokenizer=tokenizer, **options)
    assert torch.equal(stock, ours)
    assert not torch.equal(stock, free)


def test_stop_strings_may_begin_in_the_prompt(models):
    inputs, tokenizer = batch((7,)), letters()
    first = models.target.generate(**inputs, max_new_tokens=1)[0]
    text = "".join(ALPHABET[int(token)] for token in first[-3:])
    ours = models.chained(inputs, stop_strings=[text], target_tokenizer=tokenizer, max_new_tokens=24)
    assert torch.equal(ours[0], first)


def test_stop_strings_as_a_criterion(models):
    criteria = StoppingCriteriaList([StopStringCriteria(letters(), ["e", "th"])])
    models.same(batch((7, 7)), stopping_criteria=criteria, max_new_tokens=24)


def test_a_streamer_hears_what_it_hears_from_generate(models):
    stock, ours = Listener(), Listener()
    models.target.generate(**batch((6,)), max_new_tokens=12, streamer=stock)
    models.chained(batch((6,)), max_new_tokens=12, streamer=ours)
    assert stock.heard == ours.heard
    assert len(ours.heard) > 3
    iterator = TextIteratorStreamer(letters(), skip_prompt=True)
    ids = models.chained(batch((6,)), max_new_tokens=12, streamer=iterator)
    assert "".join(iterator) == "".join(ALPHABET[token] for token in ids[0, 6:].tolist())


def test_short_memory_changes_nothing(models):
    logs = []
    for kv_cache in ("slots", "mask"):
        models.same(batch(), ours={"kv_cache": kv_cache, "kv_limit_bytes": 160_000, "on_log": logs.append})
    assert sum(log.requests["preempted"].sum() for log in logs) > 0


def test_policies_that_are_objects_classes_and_functions(models):
    pool = Pool(tuple(Member(name=name) for name in ("assistant0", "assistant1", "target")))
    for policy in (Chain(pool, "assistant0:2/target"), Confident, partial(Chain, spec="assistant1:3/target")):
        logs = []
        models.same(batch(), max_new_tokens=12, ours={"policy": policy, "on_log": logs.append})
        assert logs[0].meta["policy"] in {"Chain", "Confident"}
        assert logs[0].steps["drafted"].sum() > 0


def test_a_lossy_policy_has_its_way(models):
    class Lenient(Policy):
        def __init__(self, pool):
            self.verify = Verify("target", Ratio(1e-6))

        def decide(self, seen):
            return self.verify if seen.num_pending else Draft("assistant0", 3)

    assert not torch.equal(*models.both(batch(), ours={"policy": Lenient}, max_new_tokens=20, pad_token_id=PAD))


@pytest.fixture(scope="module")
def foreign():
    target, other = (PreTrainedTokenizerFast(tokenizer_object=byte_level(size)) for size in (400, 300))
    models = Models(target=random_llama(7, vocab_size=400))
    models.assistants = [random_llama(8, vocab_size=300, num_layers=1), noisy(models.target, 0.02, seed=3)]
    return models, {"target_tokenizer": target, "assistant_tokenizers": [other, None]}


def test_a_foreign_assistant_drafts_and_the_text_stays(foreign):
    models, tokenizers = foreign
    other = tokenizers["assistant_tokenizers"][0].backend_tokenizer
    other.enable_padding()
    for policy in (None, "assistant0:4/target", "assistant0:3/assistant1:4/target"):
        models.same(batch(), ours={"policy": policy, **tokenizers}, max_new_tokens=16)
    assert other.padding is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_drafters_of_a_pool(tmp_path, dtype):
    head_pools.written(tmp_path)
    target = AutoModelForCausalLM.from_pretrained(tmp_path / "target", dtype=dtype).eval()
    drafters = paceline.load_assistants(tmp_path, target)
    assert list(drafters) == ["draft"]
    assert drafters["draft"].get_input_embeddings() is target.get_input_embeddings()
    assert drafters["draft"].dtype == dtype
    tokens, logs = torch.arange(5, 23).reshape(3, 6), []
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    models = Models(target=target, assistants=[*drafters.values()])
    models.same(inputs, pad_token_id=1, ours={"on_log": logs.append})
    assert logs[0].steps["drafted"].sum() > 0


def log_of(models, **options):
    logs = []
    models.chained(batch(), **({"max_new_tokens": 12, "pad_token_id": PAD} | options), on_log=logs.append)
    return logs[0]


def test_members_and_default_chains(alone, models):
    slims, small = {"half": [1, 2], "most": [2]}, random_llama(3, num_layers=1)
    rows = [
        (alone, {}, "target", "target"),
        (alone, LOOKUP, "ngram target", "ngram:5/target"),
        (alone, SLIM, "slim target", "slim:4/target"),
        (alone, LOOKUP | {"skip_layers": slims}, "ngram half most target", "ngram:5/half:4/most:4/target"),
        (alone, SLIM | {"assistant_models": [small]}, "assistant0 slim target", None),  # by size
        (models, {}, "assistant0 assistant1 target", "assistant0:4/assistant1:4/target"),
        (models, {"assistant_names": ["mid", "draft"], "policy": "draft:2/mid:3/target"}, "draft mid target", None),
    ]
    for given, options, members, chain in rows:
        meta = log_of(given, **options).meta
        assert meta["members"] == members.split()
        assert meta["policy"] == (chain or meta["policy"])


def test_plain_is_one_token_a_forward_and_the_others_are_more(alone):
    assert summarise_run(log_of(alone)).acceptance_length == 1
    assert summarise_run(log_of(alone, **SLIM)).acceptance_length > 1.2


def test_the_lookup_is_that_of_transformers(alone, monkeypatch):
    """Two tokens at most unless the config says more, and the first occurrence."""
    rules, looked_up = [], draft_processor.looked_up

    def noting(context, *, step, room, rule):
        rules.append((rule.min_match, rule.max_match, rule.occurrence, step.tokens))
        return looked_up(context, step=step, room=room, rule=rule)

    monkeypatch.setattr(draft_processor, "looked_up", noting)
    assert log_of(alone, **LOOKUP).steps["drafted"].sum() > 0
    assert {rule[:3] for rule in rules} == {(1, 2, "first")}
    assert max(rule[3] for rule in rules) == 5
    rules.clear()
    log_of(alone, **LOOKUP, max_matching_ngram_size=4)
    assert {rule[:3] for rule in rules} == {(1, 4, "first")}


@pytest.mark.parametrize(("name", "own", "fused"), [("qwen3", 5, 3), ("gemma", 2, 0), ("olmo", 19, 0)])
def test_forwards_before_the_first_token_are_those_that_the_docs_name(name, own, fused, monkeypatch, tmp_path):
    """Of the second call: the first one times ways to run, here with the fused forward as the quicker one."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setattr(forward_choice, "_race_s", lambda forward: float(forward.name != "fused"))
    ran = Counter()

    def counted(kind, method):
        stock = getattr(kind, method)

        @wraps(stock)
        def counting(*given, **named):
            ran[kind] += 1
            return stock(*given, **named)

        monkeypatch.setattr(kind, method, counting)

    models = family(name)
    kind, inputs = type(models.target), {"input_ids": torch.tensor([[3, 4, 5]])}
    models.chained(inputs, max_new_tokens=1)
    counted(kind, "forward")
    counted(FusedForward, "__call__")
    models.chained(inputs, max_new_tokens=1)
    ran[FusedForward if fused else kind] -= 1  # that of the token
    assert (ran[kind], ran[FusedForward]) == (own, fused)


def drawn(models, seed, inputs=None, **options):
    torch.manual_seed(seed)
    return models.chained(batch() if inputs is None else inputs, **(SAMPLED | options))


@pytest.mark.parametrize("mode", [None, "rejection", "coupled"])
def test_torchs_seed_decides_what_is_sampled(models, mode):
    options = {"sampling": mode, "temperature": 0.9, "top_p": 0.95, "top_k": 20}
    one, again, other = (drawn(models, seed, **options) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_coupled_text_does_not_depend_on_the_chain(models, alone):
    one, *others = (drawn(models, 3, sampling="coupled", policy=policy) for policy in POLICIES)
    others += [drawn(alone, 3, sampling="coupled", **way) for way in WAYS.values()]
    assert all(torch.equal(one, text) for text in others)
    one, *others = (drawn(models, 3, sampling="coupled", policy=each, num_return_sequences=3) for each in POLICIES[1:5])
    assert all(torch.equal(one, text) for text in others)


@pytest.mark.parametrize("way", ["lookup", "slim", "chain"])
def test_rejection_sampling_writes_one_text_for_each_chain(alone, way):
    one, again = (drawn(alone, 5, sampling="rejection", **WAYS[way]) for _ in range(2))
    assert torch.equal(one, again)


def test_top_k_of_one_is_greedy(models):
    greedy = models.target.generate(**batch(), max_new_tokens=16, pad_token_id=PAD)
    assert torch.equal(drawn(models, 0, top_k=1), greedy)


def test_sampling_is_read_from_warpers_and_seeded_by_torch():
    temperature, top_k, top_p = TemperatureLogitsWarper(0.6), TopKLogitsWarper(8), TopPLogitsWarper(0.8)
    for warpers, mode, asked in [
        ([temperature, top_k], None, {"mode": "rejection", "temperature": 0.6, "top_k": 8}),
        ([temperature, top_k, top_p], "coupled", {"mode": "coupled", "temperature": 0.6, "top_k": 8, "top_p": 0.8}),
        ([top_p], None, {"mode": "rejection", "temperature": 1.0, "top_p": 0.8}),
    ]:
        torch.manual_seed(4)
        found = read_sampling(warpers, do_sample=True, mode=mode)
        torch.manual_seed(4)
        assert found == Sampling(**asked, seed=int(torch.randint(2**62, ()).item()))
    assert read_sampling([], do_sample=False, mode=None) == Sampling(mode="greedy")


@pytest.mark.parametrize(("num_answers", "return_dict"), [(1, True), (2, False), (5, True)])
def test_the_form_of_several_answers_is_that_of_generate(models, num_answers, return_dict):
    options = SAMPLED | {"num_return_sequences": num_answers, "return_dict_in_generate": return_dict}
    theirs, ours = models.both(batch(), eos_token_id=None, **options)
    assert type(ours) is type(theirs)
    if return_dict:
        theirs, ours = theirs.sequences, ours.sequences
    assert ours.shape == theirs.shape == (len(LENGTHS) * num_answers, max(LENGTHS) + 16)
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours[:, : max(LENGTHS)], batch()["input_ids"].repeat_interleave(num_answers, dim=0))


@pytest.mark.parametrize("sampling", ["rejection", "coupled"])
def test_every_answer_has_chance_of_its_own(models, sampling):
    ids = drawn(models, 1, batch((5,)), num_return_sequences=12, eos_token_id=None, sampling=sampling)
    assert len({tuple(row) for row in ids.tolist()}) == 12


def test_the_first_of_a_batch_of_one_is_the_answer_alone(models):
    one, three = (drawn(models, 3, batch((7,)), num_return_sequences=n, sampling="coupled") for n in (1, 3))
    shortest = min(one.shape[1], three.shape[1])
    assert torch.equal(one[0, :shortest], three[0, :shortest])


def tensors(model):
    return [*model.named_parameters(), *model.named_buffers()]


@pytest.mark.parametrize("way", ["assistants", "prepared", "two slims", "chain"])
def test_models_are_left_as_they_are(models, way):
    """Also where only some weights take gradients, which submodels share; they can be trained afterwards."""
    every = [copy.deepcopy(model) for model in (models.target, *models.assistants)]
    for model in every:
        for index, parameter in enumerate(model.parameters()):
            parameter.requires_grad_(index % 2 == 0)
    target, *assistants = every
    inputs = batch()

    def places():
        held = [each for model in every for each in tensors(model)]
        return [(name, each.data_ptr(), each.stride(), each.requires_grad, each._version) for name, each in held]

    before, values, logits = places(), [copy.deepcopy(each.state_dict()) for each in every], []
    logits = [model(**inputs).logits for model in every]
    options = {"max_new_tokens": 8, "pad_token_id": PAD}
    if way == "prepared":
        target.generate(**inputs, **options, custom_generate=paceline.prepare(target, assistants))
    else:
        given = WAYS.get(way, {"assistant_models": assistants})
        Models(target=target).chained(inputs, **options, **given)
    assert places() == before
    for model, held, said in zip(every, values, logits, strict=True):
        assert all(torch.equal(held[name], each) for name, each in model.state_dict().items())
        assert torch.equal(model(**inputs).logits, said)
        model(**inputs).logits.sum().backward()
        assert not model.training


@pytest.mark.parametrize("copying", [copy.copy, copy.deepcopy, pickle.dumps])
def test_prepared_models_are_not_copied(models, copying):
    fast = paceline.prepare(models.target)
    assert repr(fast) == "models prepared for generate(): target"
    with pytest.raises(TypeError, match="prepared models cannot be copied or pickled"):
        copying(fast)


def test_the_guide_shows_what_the_example_prints():
    printed = (ROOT / "examples" / "transformers_generate.out").read_text(encoding="utf-8")
    assert printed in (ROOT / "docs" / "transformers.md").read_text(encoding="utf-8")


def python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_importing_paceline_imports_no_torch():
    code = "import paceline, sys; print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    assert python(code).stdout == "[]\n"


def test_without_torch_the_extra_is_named():
    run = python("import sys; sys.modules['torch'] = None; import paceline; paceline.generate")
    assert f"paceline.generate runs real models and needs torch: {install_hint('runtime')}" in run.stderr
    with pytest.raises(AttributeError, match="module 'paceline' has no attribute 'generation'"):
        _ = paceline.generation
