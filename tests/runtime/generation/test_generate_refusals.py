"""What the drop-in does not honour it refuses, by name and in a line."""

import copy

import paceline
import pytest
import torch
from paceline.runtime.distances import NonFiniteLogitsError
from paceline.runtime.forward import CACHE_ARGUMENTS, find_cache_argument
from transformers import (
    DynamicCache,
    GenerationConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedTokenizerFast,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
)

from ..conftest import random_llama
from ..tokenizers.trained_tokenizers import byte_level
from .chained_models import PAD, Models, batch, letters


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


def called(models, input_ids=None, **inputs):
    """What our function makes of a call that does not come from `generate()`."""
    return paceline.generate(
        models.target,
        torch.tensor([[1, 2, 3]]) if input_ids is None else input_ids,
        logits_processor=[],
        stopping_criteria=[MaxLengthCriteria(8)],
        generation_config=GenerationConfig(),
        assistant_models=models.assistants,
        **inputs,
    )


def filled() -> DynamicCache:
    cache = DynamicCache()
    cache.update(torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8), 0)
    return cache


CACHE = find_cache_argument(LlamaForCausalLM)
OWN_CACHES = r"must be left out, as paceline keeps its own caches \(kv_cache says which kind\), got"

REFUSED = {
    "num_beams": {"num_beams": 2},
    "penalty_alpha": {"penalty_alpha": 0.6, "top_k": 4},
    "dola_layers": {"dola_layers": "high"},
    "assistant_early_exit": {"assistant_early_exit": 1},
    "cache_implementation": {"cache_implementation": "static"},
    "output_scores": {"output_scores": True, "return_dict_in_generate": True},
    "output_logits": {"output_logits": True, "return_dict_in_generate": True},
    "output_attentions": {"output_attentions": True, "return_dict_in_generate": True},
    "output_hidden_states": {"output_hidden_states": True, "return_dict_in_generate": True},
    "max_time": {"max_time": 5.0},
    "repetition_penalty": {"repetition_penalty": 1.2},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.2},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[3]]},
    "sequence_bias": {"sequence_bias": [[[3], 2.0]]},
    "min_length or min_new_tokens": {"min_length": 20, "max_length": 30, "max_new_tokens": None},
    "min_length or min_new_tokens must": {"min_new_tokens": 2},
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": lambda row, ids: [1, 2]},
    "forced_bos_token_id": {"forced_bos_token_id": 1},
    "forced_eos_token_id": {"forced_eos_token_id": 1},
    "remove_invalid_values": {"remove_invalid_values": True},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (1, 1.1)},
    "suppress_tokens": {"suppress_tokens": [1]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [1]},
    "guidance_scale": {"guidance_scale": 1.5},
    "renormalize_logits": {"renormalize_logits": True},
    "min_p": {"min_p": 0.1, "do_sample": True},
    "top_h": {"top_h": 0.4, "do_sample": True},
    "typical_p": {"typical_p": 0.9, "do_sample": True},
    "epsilon_cutoff": {"epsilon_cutoff": 0.01, "do_sample": True},
    "eta_cutoff": {"eta_cutoff": 0.01, "do_sample": True},
    "watermarking_config": {"watermarking_config": {"bias": 2.0}},
    "logits_processor": {"logits_processor": LogitsProcessorList([Refusing()])},
    "logits_processor .* got TemperatureLogitsWarper": {
        "logits_processor": LogitsProcessorList([TemperatureLogitsWarper(0.5)])
    },
    "repetition_penalty .*RepetitionPenaltyLogitsProcessor": {
        "logits_processor": LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.5)])
    },
    "stopping_criteria must be stop strings at most, got Refusing": {
        "stopping_criteria": StoppingCriteriaList([Refusing()])
    },
    f"{CACHE} {OWN_CACHES} DynamicCache$": {CACHE: DynamicCache()},
    f"{CACHE} {OWN_CACHES} DynamicCache": {"past_key_values": DynamicCache()},
    "policy must be a text": {"policy": 3},
    "policy must have decide and learn, got object": {"policy": lambda pool: object()},
    "unknown policy 'best'": {"policy": "best"},
    "kv_cache must be one of slots, mask, got 'paged'$": {"kv_cache": "paged"},
    "kv_cache must be one of slots, mask, got DynamicCache$": {"kv_cache": DynamicCache()},
    r"policy object: called with the pool it raised TypeError: object\(\) takes no arguments$": {"policy": object},
    "policy divided: called with the pool it raised ZeroDivisionError": {"policy": divided},
    "kv_limit_bytes must be a whole number >= 1, got 0$": {"kv_limit_bytes": 0},
    "kv_limit_bytes must be a whole number >= 1, got '1'$": {"kv_limit_bytes": "1"},
    "kv_limit_bytes must be a whole number >= 1, got nan$": {"kv_limit_bytes": float("nan")},
    "kv_limit_bytes must be a whole number >= 1, got True$": {"kv_limit_bytes": True},
    "kv_limit_bytes must be a whole number >= 1, got 1500000.0$": {"kv_limit_bytes": 1.5e6},
    "stop_strings must be a text or a list of texts, got 5$": {"stop_strings": 5, "target_tokenizer": letters()},
    "stop_strings must be a text or a list of texts, got a list with 5$": {
        "stop_strings": ["a", 5],
        "target_tokenizer": letters(),
    },
    r"`top_p` must be in \(0, 1\], got 0.0$": {"top_p": 0.0, "do_sample": True},
    "on_log must be a function that takes the run log, got 5$": {"on_log": 5},
    "prompt and answer must fit into the 256 positions of assistant0, got 257": {"max_new_tokens": 240},
    "assistant_models must be models of transformers, got str": {"assistant_models": ["gpt2"]},
    "assistant_names must be a list of 2, one per assistant model, got a list of 1$": {"assistant_names": ["a"]},
    "assistant_names must be a list of 2, one per assistant model, got int$": {"assistant_names": 5},
    "assistant_tokenizers must be a list of 2, one per assistant model, got a list of 1$": {
        "assistant_tokenizers": [letters()]
    },
    "assistant_tokenizers must be a list of 2, .* got TokenizersBackend$": {"assistant_tokenizers": letters()},
    r"assistant_names must be letters, .* got 'a/b'": {"assistant_names": ["a/b", "c"]},
    "assistant_names must be letters, .* got 'target'": {"assistant_names": ["a", "target"]},
    "pool member names must be unique, got a, a": {"assistant_names": ["a", "a"]},
}


class TestRefusals:
    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("rule", REFUSED)
    def test_what_is_not_honoured_is_named(self, models, rule):
        with pytest.raises(ValueError, match=f"^{rule}") as caught:
            models.chained(batch(), **({"max_new_tokens": 4, "pad_token_id": PAD} | REFUSED[rule]))
        assert "\n" not in str(caught.value)

    def test_options_that_change_nothing_are_taken(self, models):
        neutral = {"num_beams": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "use_cache": False}
        stock, ours = models.both(batch(), max_new_tokens=8, pad_token_id=PAD, **neutral)
        assert torch.equal(stock, ours)

    def test_embeddings(self, models):
        with pytest.raises(ValueError, match=r"inputs_embeds must be left out, .* got a tensor of shape"):
            models.chained({"inputs_embeds": torch.zeros(1, 3, 32)}, max_new_tokens=4)

    @pytest.mark.parametrize(
        ("row", "rule"),
        [
            ([1, 1, 1, 0], "attention_mask must be 0s for padding on the left, then 1s, got row 1"),
            ([1, 0, 1, 1], "attention_mask must be 0s for padding on the left, then 1s, got row 1"),
            ([0, 0, 0, 0], "row 1 of input_ids must hold at least one token"),
        ],
    )
    def test_padding_elsewhere(self, models, row, rule):
        inputs = batch((4, 4)) | {"attention_mask": torch.tensor([[1, 1, 1, 1], row])}
        with pytest.raises(ValueError, match=rule):
            models.chained(inputs, max_new_tokens=4, pad_token_id=None)

    @pytest.mark.parametrize("shape", [(0, 4), (1, 0), (2, 3, 1)])
    def test_no_batch_of_prompts(self, models, shape):
        with pytest.raises(ValueError, match=r"^input_ids must be of shape \[B, T\], .*, got ") as caught:
            models.chained({"input_ids": torch.ones(shape, dtype=torch.long)}, max_new_tokens=4, pad_token_id=PAD)
        assert str(caught.value).endswith(f"got {shape}")

    def test_one_dimension(self, models):
        # Called itself: of transformers' generate() it is an IndexError before this is called.
        with pytest.raises(ValueError, match=r"^input_ids must be of shape \[B, T\], .*, got \(3,\)$"):
            called(models, torch.tensor([1, 2, 3]))

    @pytest.mark.parametrize("name", CACHE_ARGUMENTS)
    @pytest.mark.parametrize(("given", "shown"), [("slots", "'slots'"), (filled(), "DynamicCache")])
    def test_caches_of_both_names(self, models, name, given, shown):
        # Called itself: transformers' generate() fails of a text, and of a name that is not its own, before.
        with pytest.raises(ValueError, match=f"^{name} {OWN_CACHES} {shown}$"):
            called(models, **{name: given})

    @pytest.mark.parametrize("name", CACHE_ARGUMENTS)
    def test_the_cache_that_generate_makes_is_left_alone(self, models, name):
        cache = DynamicCache()
        assert torch.equal(called(models, **{name: cache}), called(models))
        assert cache.get_seq_length() == 0

    def test_other_positions(self, models):
        inputs = batch((4, 4)) | {"position_ids": torch.arange(4).expand(2, -1) + 1}
        with pytest.raises(ValueError, match="position_ids must be left out"):
            models.chained(inputs, max_new_tokens=4, pad_token_id=PAD)

    def test_models_that_do_not_fit_together(self, models):
        small, large = models.assistants
        training = copy.deepcopy(small).train()
        eager = copy.deepcopy(small)
        eager.set_attn_implementation("eager")
        wrong = {
            r"assistant0 must have the target's vocabulary size \(32\), or target_tokenizer must": random_llama(
                1, vocab_size=40
            ),
            "assistant0 must not have more parameters than the target": random_llama(1, num_layers=4),
            r"assistant0 must be in evaluation mode \(call its eval\(\)\)": training,
            "assistant0 must be loaded with attn_implementation='sdpa', got 'eager'": eager,
        }
        for rule, assistant in wrong.items():
            with pytest.raises(ValueError, match=rule):
                models.chained(batch(), max_new_tokens=4, pad_token_id=PAD, assistant_models=[assistant])
        with pytest.raises(ValueError, match="assistant_models must be a list of models, got LlamaForCausalLM"):
            models.chained(batch(), max_new_tokens=4, pad_token_id=PAD, assistant_models=large)

    def test_tokenizers_with_more_tokens_than_their_models(self):
        small, large = (PreTrainedTokenizerFast(tokenizer_object=byte_level(size)) for size in (300, 400))
        models = Models(7)
        models.target = random_llama(7, vocab_size=400)
        given = {"max_new_tokens": 4, "pad_token_id": PAD, "target_tokenizer": large, "assistant_tokenizers": [small]}
        models.assistants = [random_llama(8, vocab_size=290, num_layers=1)]
        with pytest.raises(
            ValueError, match=r"^assistant_tokenizers must not have more tokens than assistant0 \(290\), got 300$"
        ):
            models.chained(batch(), **given)
        models.assistants = [random_llama(8, vocab_size=300, num_layers=1)]
        larger = PreTrainedTokenizerFast(tokenizer_object=byte_level(420))
        with pytest.raises(
            ValueError, match=r"^target_tokenizer must not have more tokens than target \(400\), got 420$"
        ):
            models.chained(batch(), **(given | {"target_tokenizer": larger}))

    @pytest.mark.parametrize("option", [{"on_log": 5}, {"policy": object}, {"kv_limit_bytes": 0}, {"top_p": 0.0}])
    def test_no_prompt_is_read_before(self, models, option):
        """A single token may be, to see what a cache keeps of it."""
        widths = []
        hooks = [
            model.register_forward_hook(lambda *each: widths.append(each[-1].logits.shape[1]))
            for model in models.assistants
        ]
        with pytest.raises(ValueError, match=next(iter(option))):
            models.chained(batch(), max_new_tokens=4, pad_token_id=PAD, do_sample=True, **option)
        for hook in hooks:
            hook.remove()
        assert set(widths) <= {1}

    def test_logits_that_are_not_numbers(self, models):
        broken = copy.deepcopy(models.target)
        broken.lm_head.weight[3] = torch.nan
        with pytest.raises(NonFiniteLogitsError, match="model target, request row 0: "):
            broken.generate(
                **batch(), max_new_tokens=4, pad_token_id=PAD, custom_generate=paceline.generate,
                assistant_models=models.assistants,
            )  # fmt: skip
