"""Forced pools: what is written is what is read, and what is decoded for a profile is chosen as its recording was."""

import json

import pytest
from paceline.base.errors import ArgumentError
from paceline.runtime.forced import ForcedPool, shapes_of
from paceline.runtime.pools.pool_file import PoolFileError, read_forced_pool_file
from paceline.studies.pools import write_forced_pool
from paceline.studies.profile import watched_requests
from paceline.studies.record import record
from paceline.traces.meta import Sampling

from ..cli.command_line import refused
from ..runtime.forced.forced_pools import tiny_forced_pool, write_tiny_forced_pool
from ..tiny_models import random_prompts, tiny_pool_of_four


def test_what_is_written_is_what_is_read(tmp_path):
    made = write_forced_pool(
        ["ngram", "draft=20M", "mid=150M", "slim=target-9", "target=600M"],
        tmp_path / "sizes",
        dtype="bfloat16",
        context_tokens=512,
        vocab_size=1000,
        seed=3,
    )
    file, content = read_forced_pool_file(tmp_path / "sizes")
    assert (file, content) == (made.file, made.content)
    assert [member.name for member in shapes_of(file, content)] == ["ngram", "draft", "mid", "slim", "target"]
    assert [(member.num_layers, member.dtype) for member in made.members[2:]] == [
        (18, "bfloat16"),
        (11, "bfloat16"),
        (20, "bfloat16"),
    ]
    assert (content.name, content.context_tokens, content.vocab_size, content.seed) == ("sizes", 512, 1000, 3)
    assert made.to_json()["forced"] is True
    assert "forced pool sizes" in repr(made)


def test_a_config_is_found_from_wherever_the_pool_lies(tmp_path, monkeypatch):
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    (tmp_path / "my.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    made = write_forced_pool(["draft=my.json", "20M"], "a/pool", vocab_size=32000)
    assert made.members[0].num_layers == 2
    monkeypatch.chdir("/")
    assert shapes_of(*read_forced_pool_file(tmp_path / "a" / "pool"))[0].num_layers == 2


@pytest.mark.parametrize(
    ("members", "told"),
    [
        (["draft="], "`members` must be SHAPE or NAME=SHAPE, got 'draft='"),
        (["20M", "20M"], "`members` must have names of their own, got 20M, 20M"),
        (["slim=target-20", "target=600M"], "`members` slim must leave out 1 to 19 layers of target, got 20"),
        (["30M"], r"members\[0\].config must be a config.json, its folder or a preset"),
        (["a b=20M"], r"members\[0\].name string should match pattern"),
    ],
)
def test_members_that_make_no_pool_are_refused_and_nothing_is_written(tmp_path, members, told):
    with pytest.raises(ValueError, match=told):
        write_forced_pool(members, tmp_path / "pool")
    assert not list(tmp_path.iterdir())


def test_a_pool_file_is_never_replaced(tmp_path):
    write_forced_pool(["20M"], tmp_path)
    before = (tmp_path / "pool.toml").read_bytes()
    with pytest.raises(ArgumentError, match=r"`out` must not hold a pool.toml already"):
        write_forced_pool(["150M"], tmp_path)
    assert (tmp_path / "pool.toml").read_bytes() == before


def test_a_device_that_is_not_there_is_told_when_the_pool_is_loaded(tmp_path):
    """The file may be written on another machine than the one that runs it."""
    write_forced_pool(["20M"], tmp_path, device="cuda:77")
    with pytest.raises(PoolFileError, match=r"members\[0\].device must be a device of this machine"):
        ForcedPool.load(tmp_path)


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
