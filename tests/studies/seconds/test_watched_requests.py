"""What is decoded for a profile: a forced pool's is chosen as its recording was, which nothing may contradict."""

import pytest
from paceline.base.errors import ArgumentError
from paceline.studies.profile import watched_requests
from paceline.studies.record import record
from paceline.traces.meta import Sampling

from ...cli.command_line import refused
from ...runtime.forced.forced_pools import tiny_forced_pool, write_tiny_forced_pool
from ...tiny_models import random_prompts, tiny_pool_of_four

COUPLED = Sampling(mode="coupled", temperature=0.5, seed=1)
GREEDY = Sampling(mode="greedy")


@pytest.fixture(scope="module", params=[GREEDY, COUPLED], ids=lambda mode: mode.mode)
def recorded(request, tmp_path_factory):
    """(sampling, recording's path)."""
    path = tmp_path_factory.mktemp("watched") / "a.trace"
    record(tiny_pool_of_four(), random_prompts(2), path, sampling=request.param, max_new_tokens=4, costs=False)
    return request.param, path


def test_a_forced_pool_samples_as_its_recording_did_and_no_other_way(recorded, tmp_path):
    sampling, path = recorded
    models = tiny_forced_pool(tmp_path / "forced")
    for given in (None, sampling):
        assert watched_requests(models, models, None, path, given).sampling == sampling
    others = {GREEDY, COUPLED, COUPLED.model_copy(update={"seed": 2})} - {sampling}
    for given in others:
        told = f"`sampling` must be that of the recording, {sampling.words_with_seed}, got {given.words_with_seed}"
        with pytest.raises(ArgumentError, match=told):
            watched_requests(models, models, None, path, given)


TYPED = {
    GREEDY: ("--sampling", "greedy"),
    COUPLED: ("--sampling", "coupled", "--temperature", 0.5, "--seed", 1),
}


def test_what_was_typed_is_told_from_what_nobody_asked_for(recorded, tmp_path):
    sampling, path = recorded
    (other,) = TYPED.keys() - {sampling}
    line = refused("profile", "--pool", write_tiny_forced_pool(tmp_path / "forced"), "--trace", path, *TYPED[other])
    told = f"--sampling must be that of the recording, {sampling.words_with_seed}, got {other.words_with_seed}"
    assert line == told
