"""Generators: the rates and variations that their texts ask for, the same from a seed, and nothing but what is said."""

from itertools import pairwise
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.base.files import shipped
from paceline.traces import open_recording
from paceline.traces.workloads import open_workload

S = 10**12
LENGTHS = "prompt=100,output=10"


def gaps_of(text, **more):
    times = [one.arrives_ps for one in open_workload(f"{text},{LENGTHS}", **more)]
    assert times == sorted(times)
    return np.diff([0, *times]) / S


@pytest.mark.parametrize(
    ("text", "cv"),
    [
        ("poisson:rate=4,requests=40000", 1),
        ("gamma:rate=4,cv=2.5,requests=40000", 2.5),
        ("gamma:rate=4,cv=0.3,requests=40000", 0.3),
    ],
)
def test_gaps_have_the_mean_and_the_variation(text, cv):
    gaps = gaps_of(text)
    assert abs(gaps.mean() * 4 - 1) < 5 * cv / sqrt(len(gaps))
    assert abs(gaps.std() / gaps.mean() / cv - 1) < 0.06


@given(st.sampled_from([0.3, 3, 7, 1e6]), st.integers(1, 50))
def test_constant_arrivals_stand_where_they_belong(rate, count):
    times = [one.arrives_ps for one in open_workload(f"constant:rate={rate},requests={count},{LENGTHS}")]
    assert all(abs(at - number * S / rate) <= 0.5 + 1e-9 * at for number, at in enumerate(times))
    assert len(times) == count


def test_a_diurnal_rate_follows_its_sine():
    times = np.cumsum(gaps_of("diurnal:rate=50,depth=0.8,period_s=100,seconds=1000"))
    phase = (times % 100) / 100
    shares = [((phase >= start) & (phase < start + 0.25)).mean() * 4 for start in (0, 0.25, 0.5, 0.75)]
    swing = 0.8 * 2 / np.pi
    assert np.allclose(shares, [1 + swing, 1 + swing, 1 - swing, 1 - swing], atol=0.05)
    assert abs(len(times) / 50_000 - 1) < 0.02


def test_a_flat_diurnal_is_poisson():
    assert abs(gaps_of("diurnal:rate=4,depth=0,requests=20000").std() * 4 - 1) < 0.05


def test_seconds_end_it_and_requests_do():
    found = list(open_workload(f"poisson:rate=4,seconds=50,{LENGTHS}"))
    assert all(one.arrives_ps < 50 * S for one in found)
    assert open_workload(f"poisson:rate=4,seconds=50,{LENGTHS}").about.num_requests is None
    assert list(open_workload(f"poisson:rate=4,seconds=50,requests=7,{LENGTHS}")) == found[:7]
    assert open_workload(f"poisson:rate=4,requests=7,{LENGTHS}", limit=5).about.num_requests == 5


def test_a_seed_gives_the_same_and_lengths_do_not_depend_on_the_process():
    text = "rate=4,requests=200,prompt=1..1000,output=geometric:50"
    draws = [
        list(open_workload(f"{kind}:{text}", seed=seed))
        for kind, seed in (("poisson", 3), ("poisson", 3), ("constant", 3), ("poisson", 4))
    ]
    lengths = [[(one.prompt_tokens, one.output_tokens) for one in draw] for draw in draws]
    assert draws[0] == draws[1]
    assert lengths[0] == lengths[2] != lengths[3]


def test_lengths_have_the_means_they_say():
    text = "constant:rate=1,requests=20000,prompt=lognormal:500:0.7,output=geometric:80"
    found = list(open_workload(text))
    prompts, outputs = (np.array([getattr(one, key) for one in found]) for key in ("prompt_tokens", "output_tokens"))
    assert abs(prompts.mean() / 500 - 1) < 0.03
    assert abs(prompts.std() / prompts.mean() / 0.7 - 1) < 0.06
    assert abs(outputs.mean() / 80 - 1) < 0.03
    assert abs(outputs.std() / outputs.mean() - 1) < 0.05
    assert min(prompts.min(), outputs.min()) >= 1
    assert {one.output_tokens for one in open_workload("constant:rate=1,requests=5,prompt=9,output=geometric:1")} == {1}


def test_lengths_and_tags_are_those_of_a_recording():
    recording = open_recording(shipped("recordings", "pico.trace"))
    known = {(len(one.prompt), len(one.trie.trunk) - 1, one.tag) for one in recording.requests}
    found = list(open_workload("poisson:rate=4,requests=300", lengths_from=recording))
    assert {(one.prompt_tokens, one.output_tokens, one.tag) for one in found} <= known
    tag = recording.requests[0].tag
    tagged = list(open_workload(f"poisson:rate=4,requests=300,tag={tag},output=7", lengths_from=recording))
    assert {one.tag for one in tagged} == {tag}
    assert {one.output_tokens for one in tagged} == {7}
    assert {one.prompt_tokens for one in tagged} <= {prompt for prompt, _, of in known if of == tag}


def test_a_rate_goes_in_the_text_or_beside_it():
    assert [one.arrives_ps for one in open_workload(f"constant:requests=3,{LENGTHS}", rate=2)] == [0, S // 2, S]


def test_bursts_are_no_later_for_being_cut():
    times = [one.arrives_ps for one in open_workload(f"gamma:rate=4,cv=3,requests=50,{LENGTHS}", time_scale=2)]
    plain = [one.arrives_ps for one in open_workload(f"gamma:rate=4,cv=3,requests=50,{LENGTHS}")]
    assert times == [2 * at for at in plain]
    assert all(one <= other for one, other in pairwise(times))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"poisson:rate=0,requests=5,{LENGTHS}", "rate of poisson must be in [1e-9, 1e9], got 0.0"),
        (f"poisson:rate=x,requests=5,{LENGTHS}", "rate of poisson must be a number in [1e-9, 1e9], got 'x'"),
        (f"poisson:rate=-1,requests=5,{LENGTHS}", "rate of poisson must be a number in [1e-9, 1e9], got '-1'"),
        (f"poisson:requests=5,{LENGTHS}", "poisson must have a rate, in its text or as `rate`, got none"),
        (f"poisson:rate=1,{LENGTHS}", "poisson must have requests or seconds, so that it ends, got 'rate=1,"),
        (f"poisson:rate=1,requests=1.5,{LENGTHS}", "requests of poisson must be a whole number, got '1.5'"),
        (f"poisson:rate=1,requests=0,{LENGTHS}", "requests of poisson must be in [1, 10000000], got 0.0"),
        (f"poisson:rate=1,rate=1,requests=5,{LENGTHS}", "poisson must have rate once, got 'rate=1'"),
        (
            f"poisson:rate=1,cv=1,requests=5,{LENGTHS}",
            "poisson must have options that it takes (known are rate, requests, seconds, prompt, ",
        ),
        (
            f"gamma:rate=1,requests=5,{LENGTHS}",
            "gamma must have cv, the coefficient of variation of its gaps, got none",
        ),
        (f"diurnal:rate=1,depth=2,requests=5,{LENGTHS}", "depth of diurnal must be in [0, 1], got 2.0"),
        ("poisson:rate=1,requests=5,prompt=0,output=1", "prompt of poisson must be N, A..B, geometric:MEAN or "),
        ("poisson:rate=1,requests=5,prompt=9..3,output=1", "prompt of poisson must be N, A..B, geometric:MEAN or "),
        (
            "poisson:rate=1,requests=5,prompt=9",
            "output must be in 'poisson:rate=1,requests=5,prompt=9' where no recording",
        ),
        (
            "poison:rate=1",
            "`workload` must be a file, or a generator and a colon (did you mean poisson?), got 'poison:rate=1'",
        ),
        ("poisson:", "poisson must have requests or seconds, so that it ends, got ''"),
    ],
)
def test_texts_that_say_something_else(text, told):
    with pytest.raises(ArgumentError) as error:
        open_workload(text)
    assert str(error.value).startswith(told)


def test_more_that_is_refused():
    recording = open_recording(shipped("recordings", "pico.trace"))
    with pytest.raises(ArgumentError, match="tag must be of the requests of pico, got 'none'"):
        open_workload("poisson:rate=1,requests=5,tag=none", lengths_from=recording)
    with pytest.raises(ArgumentError, match="`rate` must be given once"):
        open_workload(f"poisson:rate=1,requests=5,{LENGTHS}", rate=2)
    with pytest.raises(ArgumentError, match="`zero_tokens` is for files, got 'drop'"):
        open_workload(f"poisson:rate=1,requests=5,{LENGTHS}", zero_tokens="drop")
