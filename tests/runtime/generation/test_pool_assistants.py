"""Drafters of a pool beside a model that a program loaded itself."""

import paceline
import pytest
import torch
from paceline.base.errors import ArgumentError
from transformers import AutoModelForCausalLM

from ..pools.head_pools import VOCABULARY, model, written


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_chain_of_them_writes_what_generate_writes(tmp_path, dtype):
    written(tmp_path)
    target = AutoModelForCausalLM.from_pretrained(tmp_path / "target", dtype=dtype).eval()
    drafters = paceline.load_assistants(tmp_path, target)
    assert list(drafters) == ["draft"]
    assert drafters["draft"].get_input_embeddings() is target.get_input_embeddings()
    assert drafters["draft"].dtype == dtype
    tokens = torch.arange(5, 23).reshape(3, 6)
    call = {"attention_mask": torch.ones_like(tokens), "max_new_tokens": 20, "pad_token_id": 1}
    logs = []
    ours = target.generate(
        tokens, **call, custom_generate=paceline.generate, assistant_models=[*drafters.values()], on_log=logs.append
    )
    assert torch.equal(ours, target.generate(tokens, **call))
    assert logs[0].steps["drafted"].sum() > 0


def test_what_is_no_drafter_of_this_model_is_refused(tmp_path):
    written(tmp_path)
    target = AutoModelForCausalLM.from_pretrained(tmp_path / "target")
    with pytest.raises(ArgumentError, match=r"`names` must be drafters of .*pool.toml \(draft\), got 'mid'"):
        paceline.load_assistants(tmp_path, target, names=["mid"])
    for size, sizes in (("num_hidden_layers", {"num_layers": 2}), ("vocab_size", {"num_layers": 3, "vocab_size": 48})):
        other = model(1, tied=True, **sizes)
        with pytest.raises(ArgumentError, match=f"`model` must have the {size} of the target of "):
            paceline.load_assistants(tmp_path, other)
    assert target.config.vocab_size == VOCABULARY


def test_arguments_that_are_no_pool_and_no_model():
    with pytest.raises(ArgumentError, match="`model` must be one of transformers, got str"):
        paceline.load_assistants("smollm2", "smollm2")
    with pytest.raises(ArgumentError, match="`pool` must be a path or a name, got int"):
        paceline.load_assistants(3, "smollm2")
