"""What tests of the laboratory share: the folder, the errors and the recording that commands are tried in."""

from functools import lru_cache

import pytest
from paceline_laboratory.arena import run as arena_run
from paceline_laboratory.arena.play import play
from paceline_laboratory.training import texts

from ..cli.conftest import made_once, plain_errors, trace

__all__ = ["made_once", "plain_errors", "trace"]


@pytest.fixture(scope="session", autouse=True)
def some_of_the_stdlib_read_once():
    """Reading the standard library takes ten seconds and gives the same texts every time."""
    every = texts._module_files
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "_module_files", lambda root: list(every(root))[::8])
        patch.setattr(texts, "read_stdlib", lru_cache(texts.read_stdlib))
        yield


@pytest.fixture
def lacking(monkeypatch):
    """Every recording lacks what `two-level` needs."""

    def lacks(stage, cell, spec, seed):
        if spec.name == "two-level":
            raise ValueError("it needs what is not there")
        return play(stage, cell, spec, seed)

    monkeypatch.setattr(arena_run, "play", lacks)
