"""The drop-in samples as `generate()` does, from torch's seed."""

import pytest
import torch
from paceline.runtime.generate import read_sampling
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from ..conftest import ALPHABET
from .chained_models import PAD, POLICIES, Models, batch


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
