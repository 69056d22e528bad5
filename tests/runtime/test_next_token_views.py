import numpy as np
import pytest
import torch
from paceline.runtime.coupled_noise import RequestNoise
from paceline.runtime.recording.views import entropies, scores, total_variation, view
from paceline.runtime.state import signals
from paceline.traces.contexts.columns import ENTROPIES, LOG_PROBS, UNITS
from paceline.traces.meta import Sampling
from scipy.special import log_softmax
from scipy.stats import entropy

from .offline import GREEDY

COUPLED = Sampling(mode="coupled", temperature=0.7, seed=5)
LOGITS = [torch.randn(40, 17, generator=torch.Generator().manual_seed(seed)) * 3 for seed in (4, 5, 6)]
NOISE = RequestNoise(seed=5, request_id="a", vocab_size=17).rows(range(40))


@pytest.mark.parametrize(("sampling", "noise"), [(GREEDY, None), (COUPLED, NOISE)])
def test_equals_float64_formulas(sampling, noise):
    seen = view(LOGITS, sampling=sampling, noise=noise)
    plain = np.stack([model.numpy().astype(np.float64) for model in LOGITS]) / (sampling.temperature or 1.0)
    chosen = (plain if noise is None else plain + noise).argmax(axis=-1)
    log_probs = log_softmax(plain, axis=-1)
    probs = np.exp(log_probs)
    best = np.sort(probs, axis=-1)
    assert np.array_equal(seen.next_token, chosen)
    assert np.allclose(seen.next_log_prob, np.take_along_axis(log_probs, chosen[..., None], -1)[..., 0], atol=1e-5)
    assert np.allclose(seen.top_log_prob, log_probs.max(axis=-1), atol=1e-5)
    assert np.allclose(seen.gap, best[..., -1] - best[..., -2], atol=1e-6)
    assert np.allclose(seen.entropy, entropy(probs, axis=-1), atol=1e-5)
    distances = [np.abs(probs[low] - probs[high]).sum(-1) / 2 for low, high in ((0, 1), (0, 2), (1, 2))]
    assert np.allclose(seen.tvd, distances, atol=1e-6)
    assert not seen.near_tie.any()
    assert np.array_equal(seen.next_log_prob, seen.top_log_prob) == (sampling is GREEDY)
    context, token = np.array([0, 7, 7], dtype=np.int32), np.array([3, 0, 16], dtype=np.int32)
    assert np.allclose(seen.log_prob_of(context, token), log_probs[:, context, token], atol=1e-5)


@pytest.mark.parametrize("given", [True, False])
def test_signals_of_a_part_of_the_vocabulary(given):
    said = torch.tensor([2, 3, 5, 11, 16])
    logits = torch.full((40, 17), -torch.inf)
    logits[:, said] = LOGITS[0][:, said]
    tokens = said[torch.arange(40) % len(said)]
    found = signals(logits, tokens.tolist(), said if given else None)
    probs = logits[:, said].double().softmax(dim=-1).numpy()
    best = np.sort(probs, axis=-1)
    own = probs[np.arange(40), np.arange(40) % len(said)]
    assert np.allclose(np.log([each.prob for each in found]), np.log(own), atol=LOG_PROBS.step)
    assert np.allclose([each.entropy for each in found], entropy(probs, axis=-1), atol=ENTROPIES.step)
    assert np.allclose([each.gap for each in found], best[:, -1] - best[:, -2], atol=UNITS.step)


def test_the_entropy_of_one_distribution_is_that_among_many():
    """A rule sees one, a recording was made of many."""
    log_probs = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 4096))).float().log_softmax(dim=-1)
    probs = log_probs.softmax(dim=-1)
    each = [entropies(*both) for both in zip(probs, log_probs, strict=True)]
    assert torch.equal(torch.stack(each), entropies(probs, log_probs))


def test_ties_go_to_the_first_token_and_are_counted():
    logits = torch.tensor([[0.0, 2.0, 2.0], [0.0, 2.0, 2.0 + 5e-5], [0.0, 2.0, 2.0 + 5e-4]])
    seen = view([logits], sampling=GREEDY, noise=None)
    assert seen.next_token.tolist() == [[1, 2, 2]]
    assert seen.near_tie.tolist() == [[True, True, False]]
    assert seen.tvd.shape == (0, 3)
    # Beside noise, that decides what a near tie is.
    for noise, tie in (([[0.0, 0.0, 1.0]], False), ([[0.0, 0.0, 0.0]], True)):
        assert view([logits[:1]], sampling=COUPLED, noise=np.array(noise, np.float32)).near_tie.all() == tie


def test_sure_opposite_and_half_precision_models_stay_in_range():
    sure = torch.tensor([[300.0, 0.0, -300.0]])
    seen = view([sure, sure.flip(-1)], sampling=GREEDY, noise=None)
    assert (seen.tvd.tolist(), seen.gap.tolist()) == ([[1.0]], [[1.0], [1.0]])
    assert seen.entropy.tolist() == seen.next_log_prob.tolist() == [[0.0], [0.0]]
    half = view([model.to(torch.bfloat16) for model in LOGITS], sampling=GREEDY, noise=None)
    assert half.log_probs.dtype == torch.float32
    probs = torch.softmax(LOGITS[0], dim=-1)
    assert total_variation(probs, probs).max() == 0


@pytest.mark.parametrize(("sampling", "noise"), [(GREEDY, NOISE), (COUPLED, None)])
def test_noise_belongs_to_coupled_sampling(sampling, noise):
    with pytest.raises(ValueError, match=r"sampling takes (a|no) noise"):
        view(LOGITS, sampling=sampling, noise=noise)
    with pytest.raises(ValueError, match=r"sampling takes (a|no) noise"):
        scores(LOGITS[0], sampling, noise)
