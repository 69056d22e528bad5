"""A cache whose tokens are written into room that is there holds what transformers' own holds."""

import pytest
import torch
from paceline_laboratory.training.training import ROOM, GrowingLayer, write_texts
from transformers.cache_utils import DynamicLayer

from ...runtime.conftest import random_llama


def test_it_holds_what_transformers_own_holds():
    torch.manual_seed(0)
    ours, theirs = GrowingLayer(), DynamicLayer()
    num_texts = 5
    for step, length in enumerate((1, ROOM - 1, ROOM + 5, 1, 1, 60, 1)):
        keys, values = torch.randn(num_texts, 2, length, 4), torch.randn(num_texts, 2, length, 4)
        for own, other in zip(ours.update(keys, values), theirs.update(keys, values), strict=True):
            assert torch.equal(own, other)
        if step in (1, 3):
            kept = torch.tensor([0, 2, 3][: num_texts - 1])
            ours.batch_select_indices(kept)
            theirs.batch_select_indices(kept)
            num_texts = len(kept)
        if step == 4:
            ours.batch_repeat_interleave(2)
            theirs.batch_repeat_interleave(2)
            num_texts *= 2
        assert ours.get_seq_length() == theirs.get_seq_length()


def test_each_text_has_its_own_temperature():
    model = random_llama(3)
    prompts = [[5, 6, 7], [8], [9, 4]]
    greedy = write_texts(model, prompts, num_tokens=20, temperature=0.0, seed=0)
    mixed = write_texts(model, prompts, num_tokens=20, temperature=[0.0, 5.0, 0.0], seed=0)
    assert (mixed[0], mixed[2]) == (greedy[0], greedy[2])
    assert mixed[1] != greedy[1]
    with pytest.raises(ValueError, match="temperature must be one for each of 3 prompts, got 2"):
        write_texts(model, prompts, num_tokens=2, temperature=[0.0, 1.0], seed=0)
