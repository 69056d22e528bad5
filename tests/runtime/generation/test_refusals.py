"""What the drop-in does not honour it refuses, by name and in a line."""

import copy

import paceline
import pytest
import torch
from paceline.base.errors import ArgumentError
from paceline.runtime.distances import NonFiniteLogitsError
from paceline.runtime.forward import CACHE_ARGUMENTS, find_cache_argument
from paceline.runtime.generate import read_sampling
from paceline.runtime.state import KVMemoryError
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    GenerationConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedTokenizerFast,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ... import word_models
from ..conftest import noisy, random_llama
from ..pools import head_pools
from ..pools.making import VALUES
from ..tiny_decoders import tiny_decoder
from ..tokenizers.trained_tokenizers import byte_level
from .chained_models import PAD, Listener, Models, batch, letters

GIVEN = {"max_new_tokens": 4, "pad_token_id": PAD}


@pytest.fixture(scope="module")
def models() -> Models:
    return Models(11)


class Refusing(torch.nn.Module):
    """A stand-in for any processor or criterion of a user."""

    def __call__(self, ids, scores):
        return scores


def divided(pool):
    """Makes no policy; its error has two lines."""
    raise ZeroDivisionError(f"{len(pool.names)}\nby nothing")


def processors(*each):
    return {"logits_processor": LogitsProcessorList(each)}


CACHE = find_cache_argument(LlamaForCausalLM)
OWN_CACHES = r"must be left out, as paceline keeps its own caches \(kv_cache says which kind\), got"
DRAWN = {"do_sample": True}
STOPS = {"target_tokenizer": letters()}
FOR_TWO = "must be a list of 2, one per assistant model, got"
WHOLE = "kv_limit_bytes must be a whole number >= 1, got"
ONLY_WARPERS = "logits_processor must be none but temperature, top_k and top_p"

GREEDY_OPTIONS = """
num_beams dola_layers assistant_early_exit output_scores output_logits output_attentions
output_hidden_states max_time repetition_penalty encoder_repetition_penalty no_repeat_ngram_size
encoder_no_repeat_ngram_size bad_words_ids sequence_bias forced_bos_token_id forced_eos_token_id remove_invalid_values
exponential_decay_length_penalty suppress_tokens begin_suppress_tokens guidance_scale renormalize_logits
watermarking_config
"""
# With two assistants; the first word of each rule is the option that it names.
REFUSED = [
    ("min_length or min_new_tokens", {"min_length": 20, "max_length": 30, "max_new_tokens": None}),
    ("min_length or min_new_tokens must", {"min_new_tokens": 2}),
    ("prefix_allowed_tokens_fn", {"prefix_allowed_tokens_fn": lambda row, ids: [1, 2]}),
    ("cache_implementation", {"cache_implementation": "static"}),
    ("penalty_alpha", {"penalty_alpha": 0.6, "top_k": 4}),
    *((option, {option: VALUES[option]}) for option in GREEDY_OPTIONS.split()),
    *(
        (option, {option: VALUES[option], **DRAWN})
        for option in ("min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
    ),
    ("logits_processor", processors(Refusing())),
    ("logits_processor .* got TemperatureLogitsWarper", processors(TemperatureLogitsWarper(0.5))),
    ("repetition_penalty .*RepetitionPenaltyLogitsProcessor", processors(RepetitionPenaltyLogitsProcessor(1.5))),
    (
        "stopping_criteria must be stop strings at most, got Refusing",
        {"stopping_criteria": StoppingCriteriaList([Refusing()])},
    ),
    (f"{CACHE} {OWN_CACHES} DynamicCache$", {CACHE: DynamicCache()}),
    (f"{CACHE} {OWN_CACHES} DynamicCache", {"past_key_values": DynamicCache()}),
    ("policy must be a text", {"policy": 3}),
    ("policy must have decide and learn, got object", {"policy": lambda pool: object()}),
    ("unknown policy 'best'", {"policy": "best"}),
    ("kv_cache must be one of slots, mask, got 'paged'$", {"kv_cache": "paged"}),
    ("kv_cache must be one of slots, mask, got DynamicCache$", {"kv_cache": DynamicCache()}),
    (
        r"policy object: called with the pool it raised TypeError: object\(\) takes no arguments$",
        {"policy": object},
    ),
    ("policy divided: called with the pool it raised ZeroDivisionError", {"policy": divided}),
    (f"{WHOLE} 0$", {"kv_limit_bytes": 0}),
    (f"{WHOLE} '1'$", {"kv_limit_bytes": "1"}),
    (f"{WHOLE} nan$", {"kv_limit_bytes": float("nan")}),
    (f"{WHOLE} True$", {"kv_limit_bytes": True}),
    (f"{WHOLE} 1500000.0$", {"kv_limit_bytes": 1.5e6}),
    ("stop_strings must be a text or a list of texts, got 5$", {"stop_strings": 5, **STOPS}),
    ("stop_strings must be a text or a list of texts, got a list with 5$", {"stop_strings": ["a", 5], **STOPS}),
    (r"stop_strings must not be empty, got \['e', ''\]", {"stop_strings": ["e", ""], **STOPS}),
    ("stop_strings need target_tokenizer, .* got NoneType", {"stop_strings": ["e"], "tokenizer": letters()}),
    (".*more than one row need eos_token_id", {"stop_strings": ["e"], "eos_token_id": None, **STOPS}),
    ("streamer must be for a batch of 1, got a batch of 4", {"streamer": Listener()}),
    (r"`top_p` must be in \(0, 1\], got 0.0$", {"top_p": 0.0, **DRAWN}),
    (r"`temperature` must be >= 0.001 and finite, got 1e-05", {"temperature": 1e-5, **DRAWN}),
    ("sampling needs do_sample=True, got 'coupled'", {"sampling": "coupled"}),
    ("sampling must be rejection or coupled, got 'beam'", {"sampling": "beam", **DRAWN}),
    (ONLY_WARPERS, DRAWN | processors(TopPLogitsWarper(0.9), TopKLogitsWarper(5))),
    (ONLY_WARPERS, DRAWN | processors(TopKLogitsWarper(5, filter_value=-10.0))),
    (ONLY_WARPERS, DRAWN | processors(TopPLogitsWarper(0.9, min_tokens_to_keep=3))),
    (".*num_return_sequences", {"num_return_sequences": 2}),
    ("num_return_sequences must be a whole number >= 1, got 0$", {"num_return_sequences": 0, **DRAWN}),
    ("num_return_sequences must be a whole number >= 1, got -1$", {"num_return_sequences": -1, **DRAWN}),
    ("on_log must be a function that takes the run log, got 5$", {"on_log": 5}),
    ("prompt and answer must fit into the 256 positions of assistant0, got 257", {"max_new_tokens": 240}),
    ("assistant_models must be models of transformers, got str", {"assistant_models": ["gpt2"]}),
    ("assistant_models must be a list of models, got LlamaForCausalLM", {"assistant_models": random_llama(1)}),
    (f"assistant_names {FOR_TWO} a list of 1$", {"assistant_names": ["a"]}),
    (f"assistant_names {FOR_TWO} int$", {"assistant_names": 5}),
    (f"assistant_tokenizers {FOR_TWO} a list of 1$", {"assistant_tokenizers": [letters()]}),
    (f"assistant_tokenizers {FOR_TWO} TokenizersBackend$", {"assistant_tokenizers": letters()}),
    (r"assistant_names must be letters, .* got 'a/b'", {"assistant_names": ["a/b", "c"]}),
    ("assistant_names must be letters, .* got 'target'", {"assistant_names": ["a", "target"]}),
    ("pool member names must be unique, got a, a", {"assistant_names": ["a", "a"]}),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("rule", "options"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_not_honoured_is_named(models, rule, options):
    with pytest.raises(ValueError, match=f"^{rule}") as caught:
        models.chained(batch(), **(GIVEN | options))
    assert "\n" not in str(caught.value) or rule == ".*num_return_sequences"


LAYERS, LOOKUP = "skip_layers must be a list of layers of the model, .*, got", {"prompt_lookup_num_tokens": 5}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"prompt_lookup_num_tokens": 0}, "prompt_lookup_num_tokens must be a whole number >= 1, got 0"),
        ({"prompt_lookup_num_tokens": 2.5}, "prompt_lookup_num_tokens must be a whole number >= 1, got 2.5"),
        (LOOKUP | {"max_matching_ngram_size": 0}, "max_matching_ngram_size must be a whole number >= 1, got 0"),
        ({"skip_layers": []}, f"{LAYERS} an empty list"),
        ({"skip_layers": "2"}, f"{LAYERS} '2'"),
        ({"skip_layers": 2}, f"{LAYERS} 2"),
        ({"skip_layers": [1.5]}, f"{LAYERS} a list with 1.5"),
        ({"skip_layers": [True]}, f"{LAYERS} a list with True"),
        ({"skip_layers": {"a": 1}}, f"{LAYERS} 1"),
        ({"skip_layers": [3]}, r"skip_layers of slim: must be different layers of 0..2, got \(3,\)"),
        ({"skip_layers": [1, 1]}, r"skip_layers of slim: must be different layers of 0..2, got \(1, 1\)"),
        ({"skip_layers": [0, 1, 2]}, "skip_layers of slim: must leave at least one of 3 layers"),
        ({"skip_layers": {"target": [1]}}, "names of skip_layers must be .* and not 'target', got 'target'"),
        ({"skip_layers": {"a b": [1]}}, "names of skip_layers must be letters, .*, got 'a b'"),
        (LOOKUP | {"skip_layers": {"ngram": [1]}}, "pool member names must be unique, got ngram, ngram, target"),
        ({"policy": "ngram:4/target"}, "policy 'ngram:4/target': .*unknown model 'ngram'; this pool has target"),
        ({"policy": "slim:4/target"}, "unknown model 'slim'; this pool has target"),
        ({"assistant_models": 5}, "assistant_models must be a list of models, got int"),
    ],
)  # fmt: skip
def test_and_without_assistants(models, options, told):
    with pytest.raises(ValueError, match=told):
        Models(target=models.target).chained(batch(), **(GIVEN | options))


def with_module(model):
    """Other weights than stock ones, as of an adapter."""
    model.model.layers[1].mlp.up_proj = torch.nn.Sequential(model.model.layers[1].mlp.up_proj)


def quantised(model):
    model.config.quantization_config = {"quant_method": "gptq"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (with_module, "skip_layers of slim: a submodel needs the stock weights of LlamaForCausalLM"),
        (quantised, "quantization_config must be absent"),
    ],
)
def test_targets_that_will_not_do(models, change, told):
    target = copy.deepcopy(models.target)
    change(target)
    with pytest.raises(ValueError, match=told):
        Models(target=target).chained(batch(), **GIVEN, skip_layers=[2])


def test_assistants_that_will_not_do(models):
    eager = tiny_decoder("llama", torch.float32, vocab_size=32, attn_implementation="eager")
    for assistant, told in [
        (random_llama(1, vocab_size=40), r"the target's vocabulary size \(32\), or target_tokenizer must"),
        (random_llama(1, num_layers=4), "assistant0 must not have more parameters than the target"),
        (random_llama(1).train(), r"assistant0 must be in evaluation mode \(call its eval\(\)\)"),
        (eager, "assistant0 must be loaded with attn_implementation='sdpa', got 'eager'"),
    ]:
        with pytest.raises(ValueError, match=told):
            models.chained(batch(), **GIVEN, assistant_models=[assistant])


def test_foreign_assistants_that_will_not_do():
    target, other, larger = (PreTrainedTokenizerFast(tokenizer_object=byte_level(size)) for size in (400, 300, 420))
    models = Models(target=random_llama(7, vocab_size=400))
    small, deeper, short = (
        random_llama(8, vocab_size=size, num_layers=n) for size, n in ((300, 1), (300, 2), (290, 1))
    )
    models.assistants = [small, noisy(models.target, 0.02, seed=3)]
    given = GIVEN | {"target_tokenizer": target, "assistant_tokenizers": [other, None]}
    one = {"assistant_models": [small], "assistant_tokenizers": [other]}
    for changes, told in [
        ({"target_tokenizer": None}, "target must have a tokenizer where assistant0 has a tokenizer of its own"),
        ({"eos_token_id": None}, "the target must have an end-of-sequence token where assistant0"),
        ({"assistant_tokenizers": ["gpt2", None]}, "assistant_tokenizers must be fast tokenizers, got str"),
        (
            {"assistant_models": [small, deeper], "assistant_tokenizers": [other, other]},
            "assistant1 cannot verify and can only stand first",
        ),
        (
            one | {"assistant_models": [short]},
            r"^assistant_tokenizers must not have more tokens than assistant0 \(290\), got 300$",
        ),
        (
            one | {"target_tokenizer": larger},
            r"^target_tokenizer must not have more tokens than target \(400\), got 420$",
        ),
    ]:
        with pytest.raises(ValueError, match=told):
            models.chained(batch(), **(given | changes))


def test_an_assistant_that_transformers_keeps_back(models):
    with pytest.raises(ValueError, match=r"^assistant_model must be given as assistant_models=\[...\]"):
        Models(target=models.target).chained(batch((6,)), **GIVEN, assistant_model=models.assistants[1])


SHAPE = r"^input_ids must be of shape \[B, T\], .*, got "


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"inputs_embeds": torch.zeros(1, 3, 32)}, "inputs_embeds must be left out, .* got a tensor of shape"),
        ({"position_ids": torch.arange(4).expand(2, -1) + 1}, "position_ids must be left out"),
        ({"attention_mask": [1, 1, 1, 0]}, "attention_mask must be 0s for padding on the left, then 1s, got row 1"),
        ({"attention_mask": [1, 0, 1, 1]}, "attention_mask must be 0s for padding on the left, then 1s, got row 1"),
        ({"attention_mask": [0, 0, 0, 0]}, "row 1 of input_ids must hold at least one token"),
        ({"input_ids": torch.ones(0, 4).long()}, rf"{SHAPE}\(0, 4\)$"),
        ({"input_ids": torch.ones(1, 0).long()}, rf"{SHAPE}\(1, 0\)$"),
        ({"input_ids": torch.ones(2, 3, 1).long()}, rf"{SHAPE}\(2, 3, 1\)$"),
    ],
)
def test_inputs_that_are_no_prompts(models, inputs, told):
    if "attention_mask" in inputs:
        inputs = {"attention_mask": torch.tensor([[1, 1, 1, 1], inputs["attention_mask"]])}
    whole = batch((4, 4)) | inputs if inputs.keys() & {"attention_mask", "position_ids"} else inputs
    with pytest.raises(ValueError, match=told):
        models.chained(whole, max_new_tokens=4, pad_token_id=None if "attention_mask" in inputs else PAD)


def called(models, input_ids=None, **inputs):
    """What our function makes of a call that does not come from `generate()`, which itself refuses some before."""
    return paceline.generate(
        models.target, torch.tensor([[1, 2, 3]]) if input_ids is None else input_ids, logits_processor=[],
        stopping_criteria=[MaxLengthCriteria(8)], generation_config=GenerationConfig(),
        assistant_models=models.assistants, **inputs,
    )  # fmt: skip


def filled() -> DynamicCache:
    cache = DynamicCache()
    cache.update(torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8), 0)
    return cache


def test_one_dimension(models):
    with pytest.raises(ValueError, match=r"^input_ids must be of shape \[B, T\], .*, got \(3,\)$"):
        called(models, torch.tensor([1, 2, 3]))


@pytest.mark.parametrize("name", CACHE_ARGUMENTS)
def test_caches_of_both_names(models, name):
    for given, shown in (("slots", "'slots'"), (filled(), "DynamicCache")):
        with pytest.raises(ValueError, match=f"^{name} {OWN_CACHES} {shown}$"):
            called(models, **{name: given})
    empty = DynamicCache()  # as generate() makes one
    assert torch.equal(called(models, **{name: empty}), called(models))
    assert empty.get_seq_length() == 0


@pytest.mark.parametrize("option", [{"on_log": 5}, {"policy": object}, {"kv_limit_bytes": 0}, {"top_p": 0.0}])
def test_no_prompt_is_read_before(models, option):
    """A single token may be, to see what a cache keeps of it."""
    widths = []
    hooks = [
        model.register_forward_hook(lambda *each: widths.append(each[-1].logits.shape[1]))
        for model in models.assistants
    ]
    with pytest.raises(ValueError, match=next(iter(option))):
        models.chained(batch(), **GIVEN, **DRAWN, **option)
    for hook in hooks:
        hook.remove()
    assert set(widths) <= {1}


def test_what_goes_wrong_in_a_run(models):
    with pytest.raises(KVMemoryError, match="the KV limit is 1,000"):
        models.chained(batch(), **GIVEN, kv_limit_bytes=1000)
    broken = copy.deepcopy(models.target)
    broken.lm_head.weight[3] = torch.nan
    with pytest.raises(NonFiniteLogitsError, match="model target, request row 0: "):
        Models(target=broken, assistants=models.assistants).chained(batch(), **GIVEN)


def test_a_warper_that_was_changed():
    half = TopKLogitsWarper(5)
    half.top_k = 2.5
    with pytest.raises(ValueError, match=r"^top_k: .* a valid integer, .*, got 2.5$"):
        read_sampling([half], do_sample=True, mode=None)


@pytest.mark.parametrize("prepared", [True, False])
def test_autocast(models, prepared):
    fast = paceline.prepare(models.target) if prepared else paceline.generate
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match=r"torch\.autocast must be off"):
        models.target.generate(**batch(), **GIVEN, custom_generate=fast)


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
def test_of_prepare(models):
    target, (draft, _) = models.target, models.assistants
    for given, named, told in [
        ([3], {}, "model must be one of transformers, got int"),
        ([target, draft], {}, "assistant_models must be a list of models, got LlamaForCausalLM"),
        ([target, ["draft"]], {}, "assistant_models must be models of transformers, got str"),
        ([target, {"a": draft}], {"assistant_names": ["a"]}, "_names must be left out where assistants have names"),
        ([target, [draft] * 2], {"assistant_names": ["a"] * 2}, "pool member names must be unique, got a, a, target"),
        ([target, {"a b": draft}], {}, "assistant_names must be letters, digits"),
        ([target], {"copy_weights": "no"}, "copy_weights must be True or False, got 'no'"),
    ]:
        with pytest.raises(ValueError, match=told):
            paceline.prepare(*given, **named)
    fast = paceline.prepare(target)
    with pytest.raises(ValueError, match="repetition_penalty must be left out"):
        target.generate(**batch(), repetition_penalty=2.0, custom_generate=fast)
    with pytest.raises(ValueError, match="must be prepared for the model that generates, got LlamaForCausalLM"):
        draft.generate(**batch(), custom_generate=fast)


def test_a_model_that_was_set_to_training_after_it_was_prepared():
    models = Models(31)
    fast = paceline.prepare(models.target)
    models.target.train()
    with pytest.raises(ValueError, match="target must be in evaluation mode"):
        models.target.generate(**batch(), **GIVEN, custom_generate=fast)


def test_of_load_assistants(tmp_path):
    head_pools.written(tmp_path)
    target = AutoModelForCausalLM.from_pretrained(tmp_path / "target")
    flat = word_models.model(1, tied=True, num_layers=2)
    narrow = word_models.model(1, tied=True, num_layers=3, vocab_size=48)
    for given, told in [
        ((tmp_path, target, ["mid"]), r"`names` must be drafters of .*pool.toml \(draft\), got 'mid'"),
        ((tmp_path, flat, None), "`model` must have the num_hidden_layers of the target of "),
        ((tmp_path, narrow, None), "`model` must have the vocab_size of the target of "),
        (("smollm2", "smollm2", None), "`model` must be one of transformers, got str"),
        ((3, "smollm2", None), "`pool` must be a path or a name, got int"),
    ]:
        with pytest.raises(ArgumentError, match=told):
            paceline.load_assistants(*given[:2], names=given[2])
