import pytest

from .world import make_world


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("bad") / "world"
    return folder, make_world(folder)


@pytest.fixture(scope="session")
def world(made):
    """The folder that every case starts from; never changed."""
    return made[0]


@pytest.fixture(scope="session")
def logs(made):
    """Files of every foreign format, relative to the world."""
    return made[1]


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Where a case runs: the current folder."""
    monkeypatch.delenv("PACELINE_TRACEBACK", raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
