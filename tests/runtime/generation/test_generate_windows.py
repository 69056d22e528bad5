"""`custom_generate=paceline.generate` on models with sliding windows gives the text of `generate()`, or says no."""

import copy

import paceline
import pytest
import torch
from paceline.runtime.pools.submodels import make_submodel

from ..pools.window_pools import FAMILIES
from ..tiny_decoders import tiny_decoder


@pytest.mark.parametrize("family", FAMILIES)
def test_the_text_of_generate(family):
    model = tiny_decoder(family, torch.float32, seed=1, vocab_size=32, num_hidden_layers=3, **FAMILIES[family])
    model.generation_config.eos_token_id = [7, 19]
    model.generation_config.pad_token_id = 0
    ids = torch.tensor([[1, 5, 9, 2, 6, 11, 30, 4], [3, 3, 14, 15, 9, 2, 6, 5]])
    asked = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 20, "do_sample": False}
    wanted = copy.deepcopy(model).generate(**asked)
    found = model.generate(
        **asked,
        custom_generate=paceline.generate,
        assistant_models=[make_submodel(model, (1,))],
        policy="assistant0:4/target",
    )
    assert found.tolist() == wanted.tolist()


def test_what_is_not_supported_is_refused():
    model = tiny_decoder("llama", torch.float32)
    model.config.quantization_config = {"quant_method": "gptq"}
    ids = torch.tensor([[1, 2, 3]])
    with pytest.raises(ValueError, match="quantization_config must be absent"):
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=4,
            do_sample=False,
            custom_generate=paceline.generate,
            assistant_models=[tiny_decoder("llama", torch.float32)],
        )
