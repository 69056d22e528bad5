"""What a `Sampling` may say, and what a recording may say of it."""

import json

import pytest
from paceline.traces.contexts.meta import TrieMeta
from paceline.traces.meta import Sampling

OPTIONS = {"temperature": 0.8, "seed": 1}
MODEL = {"name": "t", "parameters": 1, "layers": 1, "hidden_size": 1, "kv_bytes_per_token": 1, "dtype": "float32"}


def meta(sampling):
    closure = {"kind": "monotone", "reach": 1, "run": 1}
    return {
        "name": "x",
        "kind": "recorded",
        "models": [MODEL],
        "vocab_size": 4,
        "sampling": sampling,
        "closure": closure,
    }


@pytest.mark.parametrize("mode", ["coupled", "rejection"])
def test_sampling_takes_all_options(mode):
    sampling = Sampling(mode=mode, **OPTIONS, top_p=1.0, top_k=1)
    assert Sampling.model_validate_json(sampling.model_dump_json()) == sampling
    assert Sampling(mode=mode, **OPTIONS).top_p is None


BAD = [
    *[({"top_p": given}, rf"`top_p` must be in \(0, 1\], got {given}") for given in (1.5, 0.0, -0.1, float("nan"))],
    *[({"top_k": given}, f"`top_k` must be >= 1, got {given}") for given in (0, -3)],
    *[({"temperature": given}, "temperature") for given in (-1.0, 0.0)],
    *[({name: None}, "sampling has a temperature and a seed") for name in ("temperature", "seed")],
]


@pytest.mark.parametrize(("named", "told"), BAD)
def test_sampling_that_cannot_be(named, told):
    for mode in ("coupled", "rejection"):
        with pytest.raises(ValueError, match=told):
            Sampling(mode=mode, **{**OPTIONS, **named})


@pytest.mark.parametrize("named", [{"top_p": 0.9}, {"top_k": 3}, OPTIONS, {"seed": 1}])
def test_greedy_takes_none(named):
    with pytest.raises(ValueError, match="greedy has neither"):
        Sampling(mode="greedy", **named)


def test_a_recording_keeps_its_sampling_and_one_from_before_truncation_still_loads():
    sampling = {"mode": "coupled", **OPTIONS, "top_p": 0.9, "top_k": 40}
    kept = TrieMeta.model_validate(meta(sampling))
    assert TrieMeta.model_validate_json(kept.model_dump_json()).sampling.model_dump() == sampling
    old = TrieMeta.model_validate_json(json.dumps(meta({"mode": "coupled", **OPTIONS})))
    assert old.sampling == Sampling(mode="coupled", **OPTIONS)
    with pytest.raises(ValueError, match="a recording is greedy or coupled; rejection sampling draws again"):
        TrieMeta.model_validate(meta({"mode": "rejection", **OPTIONS}))
