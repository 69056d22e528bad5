"""What is installed is told as it is, and so are caches and profiles of another time."""

import json
from importlib.metadata import version

from paceline.base.files import FOLDER_VARIABLE, processor
from paceline.studies import doctor as module
from paceline.studies.doctor import doctor
from paceline.traces.profile import profiles_folder, write_profile

from ..cli.command_line import done
from ..profiles.profiles import made_profile


def test_what_is_missing_is_told_with_what_installs_it(monkeypatch):
    real = module._version
    monkeypatch.setattr(module, "_version", lambda package: None if package == "matplotlib" else real(package))
    found = {one.name: one for one in doctor().extras}
    assert found["figures"].missing == ("matplotlib",)
    assert "[figures]" in found["figures"].install
    assert found["runtime"].missing == ()
    assert {"numpy", "typer", "pydantic"} <= doctor().versions.keys()
    assert doctor().versions["numpy"] == version("numpy")
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    assert doctor().machine["torch"].endswith(" 1 thread by default")


def test_caches_are_counted(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert next(iter(doctor().lines())).startswith("no caches yet")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "weights").write_bytes(b"0" * 2_000_000)
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "broken.profile").write_text("no Parquet")
    found = doctor()
    assert {one.name: (one.files, one.size_bytes) for one in found.kept} == {
        "models": (1, 2_000_000),
        "profiles": (1, len("no Parquet")),
    }
    (profile,) = found.profiles
    assert profile.changed[0].startswith("cannot be read")


def test_a_profile_of_other_versions_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    profiles_folder().mkdir()
    made = made_profile(processor=processor(), paceline=version("paceline"), transformers=version("transformers"))
    write_profile(made, profiles_folder() / "mine.profile")
    write_profile(made_profile(processor="another"), profiles_folder() / "other.profile")
    (profile,) = doctor().profiles
    assert profile.changed == (f"torch 2, now {version('torch')}",)
    assert profile.pool == "draft, target"


def test_the_command(tmp_path):
    out = tmp_path / "found.json"
    done("doctor", "--json", out)
    assert {"versions", "extras", "plugins", "machine", "kept", "profiles", "folder"} == json.loads(
        out.read_text()
    ).keys()
    assert "This machine" in done("doctor")
