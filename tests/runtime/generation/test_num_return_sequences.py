"""Several answers to each row, in the form of `generate()`."""

import pytest
import torch
from transformers import GenerationConfig

from .chained_models import LENGTHS, PAD, Models, batch

SAMPLED = {"max_new_tokens": 12, "pad_token_id": PAD, "do_sample": True}


@pytest.fixture(scope="module")
def models() -> Models:
    return Models(11)


@pytest.mark.parametrize("num_answers", [1, 2, 5])
@pytest.mark.parametrize("return_dict", [False, True])
def test_the_form_is_that_of_generate(models, num_answers, return_dict):
    options = SAMPLED | {"num_return_sequences": num_answers, "return_dict_in_generate": return_dict}
    torch.manual_seed(2)
    theirs, ours = models.both(batch(), eos_token_id=None, **options)
    if return_dict:
        assert type(ours) is type(theirs)
        theirs, ours = theirs.sequences, ours.sequences
    assert ours.shape == theirs.shape == (len(LENGTHS) * num_answers, max(LENGTHS) + 12)
    assert ours.dtype == theirs.dtype
    prompts = batch()["input_ids"].repeat_interleave(num_answers, dim=0)
    assert torch.equal(ours[:, : max(LENGTHS)], prompts)


@pytest.mark.parametrize("sampling", ["rejection", "coupled"])
def test_every_answer_has_chance_of_its_own(models, sampling):
    torch.manual_seed(1)
    ids = models.chained(batch((5,)), **SAMPLED, num_return_sequences=12, eos_token_id=None, sampling=sampling)
    assert len({tuple(row) for row in ids.tolist()}) == 12


def test_answers_do_not_depend_on_the_chain(models):
    texts = []
    for policy in ("plain", "assistant0:4/target", "assistant0:2/assistant1:5/target"):
        torch.manual_seed(3)
        options = {"num_return_sequences": 3, "sampling": "coupled", "policy": policy}
        texts.append(models.chained(batch(), **SAMPLED, **options))
    assert all(torch.equal(texts[0], text) for text in texts)


def test_the_first_of_a_batch_of_one_is_the_answer_alone(models):
    texts = []
    for num_answers in (1, 3):
        torch.manual_seed(3)
        texts.append(models.chained(batch((7,)), **SAMPLED, num_return_sequences=num_answers, sampling="coupled"))
    shortest = min(text.shape[1] for text in texts)
    assert torch.equal(texts[0][0, :shortest], texts[1][0, :shortest])


def test_greedy_and_wrong_numbers_are_refused(models):
    options = {"max_new_tokens": 4, "pad_token_id": PAD}
    for call in (models.chained, lambda inputs, **given: models.target.generate(**inputs, **given)):
        with pytest.raises(ValueError, match=r"num_return_sequences"):
            call(batch(), **options, num_return_sequences=2)
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=rf"^num_return_sequences must be a whole number >= 1, got {wrong}$"):
            models.chained(batch(), **options, num_return_sequences=wrong, do_sample=True)
    greedy = GenerationConfig(max_new_tokens=4, pad_token_id=PAD, num_return_sequences=1)
    assert models.chained(batch(), generation_config=greedy).shape[0] == len(LENGTHS)
