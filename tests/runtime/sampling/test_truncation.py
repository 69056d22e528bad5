"""Truncation equals transformers' warpers, and what is left out harms nothing after it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.runtime.recording.views import scores, view
from paceline.runtime.sampling import RequestNoise, probabilities, truncated
from paceline.traces.contexts.columns import ENTROPIES, LOG_PROBS, UNITS
from paceline.traces.meta import Sampling
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

ROWS, VOCABULARY = 3, 9
LOGITS = st.one_of(st.integers(-3, 3).map(float), st.floats(-50, 50, width=32))


def coupled(**named):
    return Sampling(**{"mode": "coupled", "temperature": 1.0, "seed": 0, **named})


def warped(logits, sampling):
    """What `generate()` samples from."""
    wanted = [TemperatureLogitsWarper(sampling.temperature)]
    if sampling.top_k is not None:
        wanted.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p is not None and sampling.top_p < 1.0:
        wanted.append(TopPLogitsWarper(sampling.top_p))
    for warper in wanted:
        logits = warper(None, logits)
    return logits


@given(
    st.lists(LOGITS, min_size=ROWS * VOCABULARY, max_size=ROWS * VOCABULARY),
    st.floats(0.01, 5.0),
    st.none() | st.integers(1, VOCABULARY + 2),
    st.none() | st.sampled_from([1e-9, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0]) | st.floats(1e-6, 1.0),
)
def test_equals_the_warpers_of_transformers(values, temperature, top_k, top_p):
    logits = torch.tensor(values).reshape(ROWS, VOCABULARY)
    sampling = coupled(temperature=temperature, top_k=top_k, top_p=top_p)
    kept = truncated(logits, sampling)
    assert torch.equal(kept, warped(logits, sampling))
    assert kept.isfinite().any(dim=-1).all()
    assert torch.equal(truncated(logits[1], sampling), kept[1])
    assert torch.equal(truncated(logits[:, None], sampling)[:, 0], kept)


@pytest.mark.parametrize("mode", ["coupled", "rejection"])
def test_both_sampling_modes_truncate_alike(mode):
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    kept = truncated(logits, coupled(mode=mode, top_k=20, top_p=0.8))
    assert torch.equal(kept, truncated(logits, coupled(top_k=20, top_p=0.8)))
    assert 0 < kept.isfinite().sum() < 4 * 20


def test_greedy_takes_the_logits_as_they_are():
    logits = torch.randn(4, 5, dtype=torch.bfloat16)
    assert torch.equal(truncated(logits, Sampling(mode="greedy")), logits.float())


OUT = -torch.inf


@pytest.mark.parametrize(
    ("given", "options", "kept"),
    [
        ([3.0, 1.0, 2.0, 2.0], {"top_k": 2}, [3.0, OUT, 2.0, 2.0]),  # ties with the last one stay
        ([3.0, 1.0, 2.0], {"top_p": 1e-12}, [3.0, OUT, OUT]),  # the most probable stays
        ([0.0, -200.0], {"top_p": 1.0}, [0.0, -200.0]),  # what underflows stays, too
        ([3.0, 1.0, 2.0], {"top_k": 1, "top_p": 0.5}, [3.0, OUT, OUT]),
    ],
)
def test_edges(given, options, kept):
    logits = torch.tensor(given)
    assert truncated(logits, coupled(**options)).tolist() == kept
    assert logits.tolist() == given, "not written to"


@pytest.mark.parametrize(("top_k", "top_p"), [(3, None), (None, 0.6), (5, 0.9), (1, None)])
def test_views_are_of_the_truncated_distributions(top_k, top_p):
    sampling = coupled(temperature=0.7, top_k=top_k, top_p=top_p)
    generator = torch.Generator().manual_seed(1)
    logits = [torch.randn(12, 17, generator=generator) * 2 for _ in range(2)]
    noise = RequestNoise(seed=0, request_id="a", vocab_size=17).rows(range(12))
    seen = view(logits, sampling=sampling, noise=noise)
    probs = np.stack([probabilities(truncated(model, sampling)).numpy() for model in logits])
    chosen = np.take_along_axis(probs, seen.next_token[..., None], -1)[..., 0]
    assert (chosen > 0).all()
    assert np.allclose(np.exp(seen.next_log_prob), chosen, atol=1e-6)
    assert np.allclose(seen.tvd[0], np.abs(probs[0] - probs[1]).sum(-1) / 2, atol=1e-6)
    assert np.allclose(seen.entropy, torch.special.entr(torch.from_numpy(probs)).sum(-1), atol=1e-5)
    assert np.array_equal(seen.next_token[0], scores(logits[0], sampling, noise).argmax(-1))
    if top_k == 1:
        assert not seen.near_tie.any()
    for grid, values in ((LOG_PROBS, seen.top_log_prob), (ENTROPIES, seen.entropy), (UNITS, seen.gap)):
        assert np.isfinite(grid.round(values)).all()


def test_a_token_left_out_is_recorded_as_the_least_probable():
    logits = torch.tensor([[3.0, 1.0, 2.0]])
    seen = view([logits], sampling=coupled(top_k=1), noise=np.zeros((1, 3), dtype=np.float32))
    left_out = seen.log_prob_of(np.array([0], dtype=np.int32), np.array([1], dtype=np.int32))
    assert left_out.tolist() == [[-np.inf]]
    assert LOG_PROBS.round(left_out).tolist() == [[-65535 / 1024]]


def test_a_sampled_token_is_one_of_those_kept():
    """Coupled noise over a truncated distribution draws from it."""
    logits, sampling = torch.tensor([[1.0, 0.5, 0.0, -0.5]]), coupled(top_k=2)
    noise = RequestNoise(seed=0, request_id="a", vocab_size=4).rows(range(5000))
    written = scores(logits.expand(5000, 4), sampling, noise).argmax(-1).bincount(minlength=4)
    expected = probabilities(truncated(logits[0], sampling))
    assert written[2:].sum() == 0
    assert abs(float(written[0]) / 5000 - float(expected[0])) < 0.03


def test_rejection_sampling_has_no_scores():
    with pytest.raises(ValueError, match="scores choose a token if sampling is greedy or coupled, got rejection"):
        scores(torch.zeros(1, 4), coupled(mode="rejection"), None)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize(("top_k", "top_p"), [(None, None), (2, None), (None, 0.5), (2, 0.5)])
def test_broken_logits_stay_visible(broken, top_k, top_p):
    """Whoever looks at the largest score sees that the row is broken; the others are not harmed."""
    logits = torch.tensor([[1.0, broken, 0.0, 2.0], [1.0, 3.0, 0.0, 2.0]])
    best = truncated(logits, coupled(top_k=top_k, top_p=top_p)).amax(dim=-1)
    assert best.isfinite().tolist() == [False, True]
