"""A profile of a tiny pool, measured once for all tests that only need one of here; it takes half a minute."""

import shutil
from contextlib import contextmanager
from time import process_time

import pytest
from paceline.base.files import FOLDER_VARIABLE
from paceline.studies.profile import profile
from paceline.studies.record import record

from .profiled_pool import GRID, POOL, PROMPTS

TIMED = ("profiling.forwards", "profiling.operations", "clock")


@contextmanager
def of_this_process():
    """Seconds are those that processors worked for this process: what else the machine does takes none of them."""
    with pytest.MonkeyPatch.context() as patch:
        for module in TIMED:
            patch.setattr(f"paceline.runtime.{module}.perf_counter", process_time)
        yield


@pytest.fixture(autouse=True)
def _undisturbed():
    with of_this_process():
        yield


@pytest.fixture(scope="session")
def measured(tmp_path_factory):
    """(folder with `a.trace` and the profile of here, what was profiled); the machine of a test is never quiet."""
    folder = tmp_path_factory.mktemp("measured")
    record(POOL, PROMPTS, folder / "a.trace", max_new_tokens=16, costs=False)
    with pytest.MonkeyPatch.context() as patch, of_this_process():
        patch.setenv(FOLDER_VARIABLE, str(folder))
        return folder, profile(POOL, PROMPTS, grid=GRID, repeats=3, most_drift=9.0)


@pytest.fixture(scope="module")
def profiled_folder(measured, tmp_path_factory):
    """A copy of that folder for a module, where its `here` is found; and what was profiled."""
    folder, profiled = measured
    own = shutil.copytree(folder, tmp_path_factory.mktemp("own") / "folder")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(own))
        yield own, profiled
