import shutil
import signal
import threading

import pytest
from paceline.traces import SyntheticSpec, make_trace, write_trace

from ..sim.tries.small_traces import THREE, with_ngram
from .untrained_pool import write_untrained_pool


@pytest.fixture(autouse=True)
def plain_errors(monkeypatch, tmp_path):
    """Errors as a user sees them, and a folder where nothing else is."""
    monkeypatch.delenv("PACELINE_TRACEBACK", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def signals_put_back():
    """An interrupted command ignores further signals, as its process is about to end; this one is not."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for late in threading.enumerate():
        if isinstance(late, threading.Timer):
            late.join()
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def loaded_pools():
    """The shipped pool, by whether it was loaded with its chat template."""
    return {}


@pytest.fixture
def pool_loaded_once(monkeypatch, loaded_pools):
    """Commands take the shipped pool as the first of the session loaded it, with the forwards chosen for it."""
    from paceline.studies import decode as pools

    load = pools._loaded

    def loaded(pool, threads, devices, chat):
        if pool is not None or threads != 1 or devices:
            return load(pool, threads, devices, chat)
        if chat not in loaded_pools:
            loaded_pools[chat] = load(pool, threads, devices, chat)
        return loaded_pools[chat]

    monkeypatch.setattr(pools, "_loaded", loaded)


@pytest.fixture
def untrained(shared):
    """A pool of untrained models with prompts, which nobody changes; of four layers `slim` leaves one out."""

    def make(path):
        path.mkdir()
        write_untrained_pool(path)

    return shared("untrained", make)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    sizes = {"requests": 3, "tokens": 12, "prompt_tokens": 4, "reach": 8, "run": 5}
    spec = SyntheticSpec(name="small", models=THREE, acceptance=(0.6, 0.8), tags=("math", "code"), **sizes)
    write_trace(with_ngram(make_trace(spec)), folder / "small.trace")
    return folder / "small.trace"


@pytest.fixture
def trace(made_once, tmp_path):
    """A recording of ngram, draft, mid and target that a test may spoil."""
    return shutil.copytree(made_once, tmp_path / "small.trace")
