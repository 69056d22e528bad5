"""The drop-in samples as `generate()` does, from torch's seed, with several answers to each row."""

import pytest
import torch
from paceline.runtime.generate import read_sampling
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ..conftest import ALPHABET
from .chained_models import LENGTHS, PAD, POLICIES, Models, batch


@pytest.fixture(scope="module")
def models() -> Models:
    return Models(11)


SAMPLED = {"max_new_tokens": 16, "pad_token_id": PAD, "do_sample": True}


class TestSampling:
    def sampled(self, models, seed, **options):
        torch.manual_seed(seed)
        return models.chained(batch(), **(SAMPLED | options))

    @pytest.mark.parametrize("mode", [None, "rejection", "coupled"])
    def test_torchs_seed_decides(self, models, mode):
        options = {"sampling": mode, "temperature": 0.9, "top_p": 0.95, "top_k": 20}
        one, again, other = (self.sampled(models, seed, **options) for seed in (1, 1, 2))
        assert torch.equal(one, again)
        assert not torch.equal(one, other)

    def test_coupled_text_does_not_depend_on_the_policy(self, models):
        texts = [self.sampled(models, 3, sampling="coupled", policy=policy) for policy in POLICIES]
        assert all(torch.equal(texts[0], text) for text in texts)

    def test_top_k_of_one_is_greedy(self, models):
        greedy = models.target.generate(**batch(), max_new_tokens=16, pad_token_id=PAD)
        assert torch.equal(self.sampled(models, 0, top_k=1), greedy)

    @pytest.mark.parametrize(
        "options",
        [
            {"temperature": 0.6, "top_k": 8},
            {"temperature": 1.7, "top_p": 0.8, "top_k": 0},
        ],
    )
    def test_the_distribution_is_that_of_generate(self, models, options):
        num_rows = 1500
        prompt = batch((5,), seed=3)["input_ids"]
        torch.manual_seed(4)
        options = SAMPLED | options | {"max_new_tokens": 2}
        ids = models.chained({"input_ids": prompt.expand(num_rows, -1)}, **options, eos_token_id=None)
        exact = self.exact(models.target, prompt, options)
        for place in (0, 1):
            drawn = torch.bincount(ids[:, 5 + place], minlength=len(ALPHABET)) / num_rows
            assert (drawn - exact[place]).abs().sum() / 2 < 0.08
            assert not drawn[exact[place] == 0].any()

    def exact(self, target, prompt, options) -> tuple[Tensor, Tensor]:
        """Distributions of the first and the second token."""
        every = torch.arange(len(ALPHABET))[:, None]
        longer = torch.cat([prompt.expand(len(ALPHABET), -1), every], dim=1)
        scores = torch.cat([target(prompt).logits[:, -1], target(longer).logits[:, -1]])
        warpers = LogitsProcessorList()
        if "temperature" in options:
            warpers.append(TemperatureLogitsWarper(options["temperature"]))
        if options.get("top_k", 50):
            warpers.append(TopKLogitsWarper(options.get("top_k", 50)))
        if "top_p" in options:
            warpers.append(TopPLogitsWarper(options["top_p"]))
        probs = warpers(None, scores).softmax(dim=-1)
        return probs[0], probs[0] @ probs[1:]

    def test_options_that_do_not_fit(self, models):
        with pytest.raises(ValueError, match="sampling needs do_sample=True, got 'coupled'"):
            models.chained(batch(), max_new_tokens=4, sampling="coupled")
        with pytest.raises(ValueError, match="sampling must be rejection or coupled, got 'beam'"):
            self.sampled(models, 0, sampling="beam")
        with pytest.raises(ValueError, match=r"`temperature` must be >= 0.001 and finite, got 1e-05"):
            self.sampled(models, 0, temperature=1e-5)
        half = TopKLogitsWarper(5)
        half.top_k = 2.5
        with pytest.raises(ValueError, match=r"^top_k: .* a valid integer, .*, got 2.5$"):
            read_sampling([half], do_sample=True, mode=None)
        for warpers in (
            [TopPLogitsWarper(0.9), TopKLogitsWarper(5)],
            [TopKLogitsWarper(5, filter_value=-10.0)],
            [TopPLogitsWarper(0.9, min_tokens_to_keep=3)],
        ):
            with pytest.raises(ValueError, match="logits_processor must be none but temperature, top_k and top_p"):
                self.sampled(models, 0, logits_processor=LogitsProcessorList(warpers))


@pytest.mark.parametrize(("num_answers", "return_dict"), [(1, True), (2, False), (5, True)])
def test_the_form_is_that_of_generate(models, num_answers, return_dict):
    options = SAMPLED | {"num_return_sequences": num_answers, "return_dict_in_generate": return_dict}
    torch.manual_seed(2)
    theirs, ours = models.both(batch(), eos_token_id=None, **options)
    if return_dict:
        assert type(ours) is type(theirs)
        theirs, ours = theirs.sequences, ours.sequences
    assert ours.shape == theirs.shape == (len(LENGTHS) * num_answers, max(LENGTHS) + 16)
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
