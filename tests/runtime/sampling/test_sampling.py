"""Truncation as transformers', noise and chance by their seeds, and what a recording keeps of distributions."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.runtime.coupled_noise import RequestNoise, _portable_log, gumbel, gumbel_rows
from paceline.runtime.recording.views import scores, view
from paceline.runtime.rejection_sampling import SeededChance
from paceline.runtime.sampling import probabilities, truncated
from paceline.traces.contexts.columns import ENTROPIES, LOG_PROBS, UNITS
from paceline.traces.meta import Sampling
from scipy import stats
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


def test_both_sampling_modes_truncate_alike_and_greedy_not_at_all():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    kept = truncated(logits, coupled(mode="rejection", top_k=20, top_p=0.8))
    assert torch.equal(kept, truncated(logits, coupled(top_k=20, top_p=0.8)))
    assert 0 < kept.isfinite().sum() < 4 * 20
    assert torch.equal(truncated(logits.bfloat16(), Sampling(mode="greedy")), logits.bfloat16().float())


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
    with pytest.raises(ValueError, match="scores choose a token if sampling is greedy or coupled, got rejection"):
        scores(torch.zeros(1, 4), coupled(mode="rejection"), None)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize(("top_k", "top_p"), [(None, None), (2, None), (None, 0.5), (2, 0.5)])
def test_broken_logits_stay_visible(broken, top_k, top_p):
    """Whoever looks at the largest score sees that the row is broken; the others are not harmed."""
    logits = torch.tensor([[1.0, broken, 0.0, 2.0], [1.0, 3.0, 0.0, 2.0]])
    best = truncated(logits, coupled(top_k=top_k, top_p=top_p)).amax(dim=-1)
    assert best.isfinite().tolist() == [False, True]


GOLDEN = "0dca7f803826fd4b1437b5ec5d1154f6f56a34a007648b415d12c241564184f3"


def test_golden_values_of_noise():
    assert gumbel(7, "q-1", 3, 6).tolist() == [
        -1.271220088005066,
        2.674663543701172,
        -0.20025943219661713,
        -0.3210006058216095,
        0.40712684392929077,
        -0.04542571306228638,
    ]
    many = np.stack([gumbel(0, f"request {number}", number, 1000) for number in range(50)])
    assert hashlib.sha256(many.astype("<f4").tobytes()).hexdigest() == GOLDEN


def test_noise_depends_on_seed_request_and_position_only():
    base = gumbel(1, "a", 5, 64)
    assert np.array_equal(base, gumbel(1, "a", 5, 64))
    assert np.array_equal(base, gumbel(1, "a", 5, 128)[:64])
    for other in (gumbel(2, "a", 5, 64), gumbel(1, "b", 5, 64), gumbel(1, "a", 6, 64)):
        assert not np.intersect1d(base, other).size
    assert not np.array_equal(gumbel(1, "1", 0, 8), gumbel(11, "", 0, 8))
    with pytest.raises(ValueError, match="position must be >= 0, got -1"):
        gumbel(0, "a", -1, 8)


def test_argmax_draws_from_the_softmax():
    """Chi-square over 20,000 positions; a wrong noise (halved, or normal) fails by far."""
    logits = np.array([1.0, 0.2, -0.7, 0.0, 0.9], dtype=np.float32)
    noise = gumbel_rows(17, "chi", range(20_000), 5)
    for temperature in (0.5, 1.0):
        weights = np.exp(logits.astype(np.float64) / temperature)
        counts = np.bincount((logits / temperature + noise).argmax(-1), minlength=5)
        assert stats.chisquare(counts, weights / weights.sum() * 20_000).pvalue > 0.01


def test_the_logarithm_is_exact_to_the_last_bits():
    values = np.concatenate([np.random.default_rng(0).random(100_000), [2.0**-53, 1 - 2.0**-53, 1.0, 36.74]])
    assert np.allclose(_portable_log(values), np.log(values), rtol=1e-14, atol=0)


def logs_number_by_number(values):
    """The logarithm as it is defined: by `frexp`, and the series one array operation at a time."""
    mantissa, exponent = np.frexp(values)
    low = mantissa < 0.7071067811865476
    mantissa, exponent = np.where(low, mantissa * 2.0, mantissa), exponent - low
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    series = np.full_like(ratio, 2.0 / 21)
    for term in reversed(range(10)):
        series = series * (ratio * ratio) + 2.0 / (2 * term + 1)
    return exponent * 0.6931471805599453 + ratio * series


def test_tiles_and_blocks_give_the_bits_of_the_definition():
    edges = np.array([0.7071067811865476, 0.7071067811865475, 1.4142135623730951, 1.414213562373095, 2.0**-1022])
    values = np.concatenate([np.random.default_rng(0).random(100_000) + 2.0**-60, 2.0 ** np.arange(-60, 60), edges])
    assert np.array_equal(_portable_log(values), logs_number_by_number(values))
    for vocab_size in (1, 6, 1000, 16_383, 16_384, 16_385, 128_256):
        for position in (0, 1, 4096):
            key = int.from_bytes(hashlib.sha256(b"7\0q-1").digest()[:16], "little")
            raw = np.random.Philox(key=key, counter=position << 64).random_raw(vocab_size)
            uniform = ((raw >> 12).astype(np.float64) + 0.5) * 2.0**-52
            expected = (-logs_number_by_number(-logs_number_by_number(uniform))).astype(np.float32)
            assert np.array_equal(gumbel(7, "q-1", position, vocab_size), expected)
            others = [position + 3, position, position + 1]
            assert np.array_equal(gumbel_rows(7, "q-1", others, vocab_size)[1], expected)


def test_request_noise_keeps_what_it_drew():
    noise = RequestNoise(seed=7, request_id="q-1", vocab_size=6)
    rows = noise.rows([3, 0, 3])
    assert rows.shape == (3, 6)
    assert rows.dtype == np.float32
    assert np.array_equal(rows[0], gumbel(7, "q-1", 3, 6))
    assert np.array_equal(rows[0], rows[2])
    assert np.array_equal(rows[1], gumbel(7, "q-1", 0, 6))
    assert noise.at(3) is noise.at(3)


@pytest.mark.parametrize("vocab_size", [6, 2000, 20_000])
def test_a_request_holds_what_may_still_be_asked_for(vocab_size):
    """Through a long text, of which five positions are in flight: never more than those and 64 KiB."""
    noise = RequestNoise(seed=1, request_id="a", vocab_size=vocab_size)
    for committed in range(0, 300, 3):
        noise.drop_before(committed)
        rows = noise.rows(range(committed, committed + 5))
        assert noise.held_bytes <= rows.nbytes + 64 * 1024
        for row, position in zip(rows, range(committed, committed + 5), strict=True):
            assert np.array_equal(row, gumbel(1, "a", position, vocab_size))
    assert np.array_equal(noise.at(0), gumbel(1, "a", 0, vocab_size))


PROBS = torch.tensor([0.0, 0.1, 0.25, 0.0, 0.6, 0.05, 0.0], dtype=torch.float64)
EVEN = torch.full((1000,), 1e-3, dtype=torch.float64)


def draws(count=20, **named):
    chance = SeededChance(**{"seed": 7, "request_id": "q", **named})
    return [chance.draw(EVEN) for _ in range(count)]


def test_golden_values_of_chance():
    chance = SeededChance(seed=7, request_id="q-1")
    told = [chance.draw(EVEN), chance.accepts(0.5), chance.draw(EVEN), chance.accepts(0.5), chance.draw(EVEN)]
    assert told == [902, False, 668, False, 698]


def test_chance_depends_on_seed_and_request_only():
    assert draws() == draws()
    assert draws() != draws(seed=8)
    assert draws() != draws(request_id="r")
    assert draws(seed=1, request_id="1") != draws(seed=11, request_id="")


def test_the_stream_is_not_that_of_the_coupled_noise():
    chance = SeededChance(seed=7, request_id="q")
    uniform = np.array([chance.draw(torch.ones(2**16, dtype=torch.float64)) for _ in range(200)]) / 2**16
    noise = gumbel(7, "q", 0, 200).astype(np.float64)
    assert np.abs(np.exp(-np.exp(-noise)) - uniform).max() > 0.1


def test_draws_follow_the_probabilities():
    chance = SeededChance(seed=3, request_id="chi")
    counts = np.bincount([chance.draw(PROBS) for _ in range(20_000)], minlength=len(PROBS))
    possible = PROBS.numpy() > 0
    assert not counts[~possible].any()
    assert stats.chisquare(counts[possible], PROBS.numpy()[possible] * counts.sum()).pvalue > 0.01
    for prob in (0.02, 0.5, 0.9):
        chance = SeededChance(seed=3, request_id="chi")
        accepted = sum(chance.accepts(prob) for _ in range(20_000))
        assert stats.binomtest(accepted, 20_000, prob).pvalue > 0.01
    assert all(chance.accepts(1.0) for _ in range(1000))
    assert not any(chance.accepts(0.0) for _ in range(1000))


@given(
    st.lists(st.sampled_from([0.0, 1e-300, 1e-17, 0.1, 0.3, 1.0]), min_size=1, max_size=9).filter(any), st.integers()
)
def test_never_draws_the_impossible(weights, seed):
    probs = torch.tensor(weights, dtype=torch.float64)
    chance = SeededChance(seed=seed, request_id="a")
    assert all(probs[chance.draw(probs)] > 0 for _ in range(20))


@pytest.mark.parametrize("number", [0, 2**64 - 1], ids=["lowest", "highest"])
def test_the_ends_of_the_stream_point_at_possible_tokens(number):
    """Both uniform extremes, over distributions with impossible tokens at both ends."""
    chance = SeededChance(seed=0, request_id="a")
    chance._generator = type("Stuck", (), {"random_raw": lambda self: number})()
    for total in (0.3, 0.5, 1.0, 1.0 + 2**-52, 1.5, 3.0):
        probs = torch.tensor([0.0, total / 2, total / 2, 0.0], dtype=torch.float64)
        assert chance.draw(probs) == (1 if number == 0 else 2)


@pytest.mark.parametrize("probs", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_what_is_no_distribution_is_refused(probs):
    with pytest.raises(ValueError, match="probs must add up to a positive number"):
        SeededChance(seed=0, request_id="a").draw(torch.tensor(probs, dtype=torch.float64))
