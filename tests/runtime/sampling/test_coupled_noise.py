import hashlib

import numpy as np
import pytest
from paceline.runtime.coupled_noise import RequestNoise, _portable_log, gumbel, gumbel_rows
from scipy import stats

GOLDEN = "0dca7f803826fd4b1437b5ec5d1154f6f56a34a007648b415d12c241564184f3"


def test_golden_values():
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


def test_depends_on_seed_request_and_position_only():
    base = gumbel(1, "a", 5, 64)
    assert np.array_equal(base, gumbel(1, "a", 5, 64))
    assert np.array_equal(base, gumbel(1, "a", 5, 128)[:64])
    for other in (gumbel(2, "a", 5, 64), gumbel(1, "b", 5, 64), gumbel(1, "a", 6, 64)):
        assert not np.intersect1d(base, other).size


def test_seed_and_request_are_told_apart():
    assert not np.array_equal(gumbel(1, "1", 0, 8), gumbel(11, "", 0, 8))


def test_a_negative_position_is_refused():
    with pytest.raises(ValueError, match="position must be >= 0, got -1"):
        gumbel(0, "a", -1, 8)


def test_is_gumbel_distributed():
    noise = np.concatenate([gumbel(3, "a", position, 1000) for position in range(50)])
    assert np.isfinite(noise).all()
    assert stats.kstest(noise, stats.gumbel_r.cdf).pvalue > 0.01


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_argmax_draws_from_the_softmax(temperature):
    """Chi-square over 20,000 positions; a wrong noise (halved, or normal) fails by far."""
    logits = np.array([1.0, 0.2, -0.7, 0.0, 0.9], dtype=np.float32)
    draws = [int(np.argmax(logits / temperature + gumbel(17, "chi", position, 5))) for position in range(20_000)]
    weights = np.exp(logits.astype(np.float64) / temperature)
    expected = weights / weights.sum() * len(draws)
    assert stats.chisquare(np.bincount(draws, minlength=5), expected).pvalue > 0.01


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
