"""Models are given their cache by the name that their forward has for it, whatever transformers it was written for."""

import pytest
import torch
from paceline.runtime.forward import ModuleForward, cache_argument
from paceline.runtime.pools.configs import check_supported
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from ..conftest import random_llama


class Older(LlamaForCausalLM):
    """As models were written before transformers 5.24."""

    def forward(
        self, input_ids, position_ids=None, attention_mask=None, past_key_values=None, logits_to_keep=0, **kwargs
    ):
        return self.answer(past_key_values)

    def answer(self, cache):
        self.given = cache
        cache.update(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4), 0)


class Newer(Older):
    """As they are since."""

    def forward(self, input_ids, position_ids=None, attention_mask=None, cache=None, logits_to_keep=0, **kwargs):
        return self.answer(cache)


class Forgetful(LlamaForCausalLM):
    def forward(self, input_ids, position_ids=None, attention_mask=None, logits_to_keep=0, **kwargs):
        raise AssertionError("never run")


CONFIG = LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
NAMES = {Older: "past_key_values", Newer: "cache"}


@pytest.mark.parametrize("kind", NAMES)
def test_the_name_is_that_of_the_forward(kind):
    assert cache_argument(kind(CONFIG)) == NAMES[kind]
    check_supported(CONFIG, kind, context_tokens=64)


@pytest.mark.parametrize("kind", NAMES)
def test_a_forward_is_given_its_cache(kind):
    model = kind(CONFIG).eval()
    assert ModuleForward(model).kv_shape.num_layers == 1
    assert isinstance(model.given, DynamicCache)


def test_models_of_the_installed_transformers_take_it_without_a_warning():
    model, cache = random_llama(11), DynamicCache()
    model(input_ids=torch.tensor([[1, 2, 3]]), **{cache_argument(model): cache})
    assert cache.get_seq_length() == 3


def test_a_forward_without_a_cache():
    with pytest.raises(ValueError, match=r"^model must be one whose forward takes a cache, got Forgetful$"):
        cache_argument(Forgetful(CONFIG))
    with pytest.raises(ValueError, match=r"model_type must be .* \(cache is missing\), got 'llama'"):
        check_supported(CONFIG, Forgetful, context_tokens=64)
