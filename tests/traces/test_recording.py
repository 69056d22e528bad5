"""What the two forms of a recording have in common, and what a recording may say of its sampling."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from paceline.base.errors import ArgumentError
from paceline.policies import make_policy
from paceline.sim.recorded import recorded_pool
from paceline.sim.replay_tables import tables_of
from paceline.traces import SyntheticSpec, make_trace, open_recording, write_trace
from paceline.traces.contexts.meta import TrieMeta
from paceline.traces.meta import NearTies, NgramInfo, Sampling
from paceline.traces.opening import by_form
from paceline.traces.shapes import presets

from ..strategies import traces
from .making import trace, write
from .rounds.rounds_strategies import bernoulli_trace, rounds_traces

TRIES = make_trace(SyntheticSpec(requests=2, tokens=8, models=("small", "mid", "big"), acceptance=(0.5, 0.7), reach=3))
ROUNDS = bernoulli_trace(by_start=True, requests=3)


def form(recording):
    return by_form(recording, tries=lambda _: "tries", rounds=lambda _: "rounds")


def check_common(recording):
    about = recording.about
    assert about.target == about.models[-1]
    assert set(recording.known_shapes()) <= set(about.models)
    assert f"{len(recording.requests):,} request" in about.holds
    pool = recorded_pool(recording)
    assert pool.names == (*about.lookups, *about.models)
    assert [member.drafts_only for member in pool.members] == [
        about.drafts_only and name in about.models[:-1] for name in pool.names
    ]
    assert all(make_policy(name, pool) is not None for name in tables_of(recording).default_policies)
    same = recording.shifted({}, seed=0)
    assert (same.about, form(same)) == (about, form(recording))


@given(recording=traces())
def test_tries_say_what_they_are(recording):
    assert form(recording) == "tries"
    assert recording.about.source is recording.about.trust is None
    check_common(recording)


@given(recording=rounds_traces())
def test_rounds_say_what_they_are(recording):
    assert form(recording) == "rounds"
    assert recording.about.sampling is recording.about.tokenizer_sha256 is None
    check_common(recording)


def test_the_form_survives_the_disk(tmp_path):
    write_trace(TRIES, tmp_path / "tries.trace")
    write(ROUNDS, tmp_path / "rounds.trace")
    for recording, name in ((TRIES, "tries"), (ROUNDS, "rounds")):
        found = open_recording(tmp_path / f"{name}.trace")
        assert (found.about, form(found)) == (recording.about, name)


def test_neither_form():
    with pytest.raises(TypeError, match="must hold tries or rounds, got dict"):
        by_form({}, tries=len, rounds=len)


def test_shapes_are_given_to_those_that_hold_none():
    target = ROUNDS.about.target
    shaped = ROUNDS.with_shapes(["llama-3.1-8b"])
    assert shaped.known_shapes()[target].shape.name == target
    assert target not in ROUNDS.known_shapes()
    with pytest.raises(ArgumentError, match=r"must name members of the recording .*, got 'nobody'"):
        ROUNDS.with_shapes(["nobody=llama-3.1-8b"])


def test_shapes_stand_in_place_of_recorded_ones():
    asked = TRIES.with_shapes(["small=llama-3.2-1b", "qwen-3-30b-a3b"])
    assert asked.known_shapes()["small"].shape == presets()["llama-3.2-1b"].info("small")
    assert asked.known_shapes()["big"].shape == presets()["qwen-3-30b-a3b"].info("big")
    assert (asked.meta, asked.requests) == (TRIES.meta, TRIES.requests)
    others = set(TRIES.meta.model_names) - {"small", "big"}
    assert all(asked.known_shapes()[name] == TRIES.known_shapes()[name] for name in others)
    (remark,) = asked.about.remarks
    assert remark.startswith("WHAT IF: shapes of small=llama-3.2-1b, qwen-3-30b-a3b; drafts and")
    assert TRIES.about.remarks == ()
    assert asked.shifted({}, seed=0).known_shapes() == asked.known_shapes()
    with pytest.raises(ArgumentError, match=r"must name members of the recording .*, got 'nobody'"):
        TRIES.with_shapes(["nobody=llama-3.1-8b"])


def test_submodels_follow_the_shape_of_their_model():
    """In either form: of half the layers of big, small is half of those of the model asked for."""
    big, small = (next(one for one in TRIES.meta.models if one.name == name) for name in ("big", "small"))
    half = small.model_copy(update={"layers": 1, "submodel_of": "big"})
    models = (half, big.model_copy(update={"layers": 2}))
    tries = replace(TRIES, meta=TRIES.meta.model_copy(update={"models": models})).with_shapes(["llama-3.1-8b"])
    assert tries.known_shapes()["small"].shape.layers == 16
    assert "small counts as 16 of the 32 layers of big" in tries.about.remarks[-1]
    drafter, target = ROUNDS.meta.model_names[0], ROUNDS.about.target
    named = tuple(
        one.model_copy(update={"name": name, "submodel_of": of})
        for one, name, of in zip(models, (drafter, target), (target, None), strict=True)
    )
    rounds = replace(ROUNDS, meta=ROUNDS.meta.model_copy(update={"models": named})).with_shapes(["llama-3.1-8b"])
    assert rounds.known_shapes()[drafter].shape.layers == 16
    assert f"{drafter} counts as 16 of the 32 layers of {target}" in rounds.about.notes[-1]


def test_lookup_is_a_member_where_it_can_be_replayed():
    with_lookup = TRIES.meta.model_copy(update={"ngram": NgramInfo(name="ngram", max_match=3)})
    assert not TRIES.about.lookups
    assert type(TRIES)(meta=with_lookup, requests=TRIES.requests).about.lookups == {"ngram": with_lookup.ngram}
    assert not ROUNDS.about.lookups, "a log without the ids of its texts"


def test_near_ties_are_some_of_all_tokens():
    assert NearTies(count=5, tokens=5, bound=0.1).words == "5 of 5 trunk tokens (100.0%) at a near tie"
    with pytest.raises(ValueError, match="count must be at most tokens, 5, got 6"):
        NearTies(count=6, tokens=5, bound=0.1)


OPTIONS = {"temperature": 0.8, "seed": 1}


def meta(**sampling):
    return trace().meta.model_dump() | {"sampling": sampling}


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
    kept = TrieMeta.model_validate(meta(**sampling))
    assert TrieMeta.model_validate_json(kept.model_dump_json()).sampling.model_dump() == sampling
    old = TrieMeta.model_validate_json(json.dumps(meta(mode="coupled", **OPTIONS)))
    assert old.sampling == Sampling(mode="coupled", **OPTIONS)
    with pytest.raises(ValueError, match="a recording is greedy or coupled; rejection sampling draws again"):
        TrieMeta.model_validate(meta(mode="rejection", **OPTIONS))
