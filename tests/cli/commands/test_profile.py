"""`paceline profile`: a check of a profile ends with what it found, and takes no options that it would ignore."""

import json

import pytest
from paceline.base.files import processor
from paceline.runtime.pools.pool import ModelPool
from paceline.traces.profile import write_profile

from ...profiles.profiles import made_profile
from ...tiny_models import tiny_pool_of_four
from ..command_line import paceline, refused


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """A file to keep a profile of the tiny pool in; called with what is made up of it."""
    pool = tiny_pool_of_four()
    monkeypatch.setattr(ModelPool, "load", staticmethod(lambda path, **_: pool))
    runs = pool.forward_names("auto")

    def keep(**changes):
        made = made_profile(names=tuple(runs), processor=processor(), **changes)
        parameters = {member.name: member.num_parameters for member in pool.members}
        members = tuple(
            member.model_copy(update={"forward": runs[member.name], "parameters": parameters[member.name]})
            for member in made.meta.members
        )
        path = tmp_path / "kept.profile"
        write_profile(type(made)(meta=made.meta.model_copy(update={"members": members}), shapes=made.shapes), path)
        return path

    return keep


def test_a_check_exits_1_where_a_profile_no_longer_fits(kept):
    fits = paceline("profile", "--check", kept(drift=99.0))
    assert (fits.code, "the profile fits: forwards take " in fits.out) == (0, True)
    unfit = paceline("profile", "--check", kept(drift=0.0), "--json", "-")  # its seconds are made up
    found = json.loads(unfit.out)
    assert (unfit.code, found["fits"]) == (1, False)
    assert found["members"].keys() == {"draft", "mid", "slim", "target"}
    assert {"ratio", "limit", "fits"} == found["members"]["target"].keys()


def test_a_check_refuses_a_profile_of_other_threads(kept):
    line = refused("profile", "--check", kept(threads=2))
    assert line == "the profile does not fit these models: it was measured with 2 threads, torch has 1; profile anew"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--check", "--repeats", 4), "--repeats has no part in --check"),
        (("--check", "--out", "a.profile"), "--out has no part in --check"),
        (("--check", "nowhere.profile"), "nowhere.profile: profile: must be a file, got 'nothing there'"),
        (("a.profile",), "FILE goes with --check, got 'a.profile'; --out names the file to write"),
    ],
)
def test_what_a_check_refuses(options, says):
    assert refused("profile", *options).startswith(says)
