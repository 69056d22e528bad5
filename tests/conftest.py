"""What all tests stand on: choices made by measuring go to a folder of their own, not to the user's.

A property is tried on 12 examples, the same each time, so that no run fails by chance; where HYPOTHESIS_PROFILE is
`many`, as in `make slow`, it is tried on 200 that chance draws. Only a test whose single example is dear, and the
fuzzing of importers, has a number of its own.
"""

import fcntl
import gc
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from paceline.base.files import FOLDER_VARIABLE
from paceline.runtime.pools.published import SMOLLM2_135M, fetched, fetched_folder

# No test depends on how quick the machine is.
SLOW_MACHINE = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("few", max_examples=12, derandomize=True, **SLOW_MACHINE)
settings.register_profile("many", max_examples=200, derandomize=False, **SLOW_MACHINE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "few"))
if settings.default.derandomize:
    # Else some examples hold numbers and words of the modules that happen to be imported, so that they depend on which
    # tests ran before.
    providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Imports leave no garbage, and looking for some takes a seventh of their time; tests leave little."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(7000, 10, 10)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked `one_in(k)` every k-th case runs each time, and the others are slow."""
    counts: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("one_in")
        if mark is not None:
            name = item.nodeid.partition("[")[0]
            if counts[name] % mark.args[0]:
                item.add_marker("slow")
            counts[name] += 1


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Whatever a test and its fixtures draw without a seed of their own is the same each time."""
    random.seed(0)
    for name, seed in (("numpy.random", "seed"), ("torch", "manual_seed")):
        if found := sys.modules.get(name):
            getattr(found, seed)(0)


def pytest_configure(config: pytest.Config) -> None:
    if (cache := getattr(config, "cache", None)) is None:  # `-p no:cacheprovider`
        passing = TemporaryDirectory(prefix="paceline-tests-")
        config.add_cleanup(passing.cleanup)
    folder = passing.name if cache is None else cache.mkdir("paceline")
    os.environ.setdefault(FOLDER_VARIABLE, str(folder))


@pytest.fixture(scope="module")
def smollm2_weights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The real model is fetched, to the folder that PACELINE_CACHE names or else to the user's; if not, skips."""
    with pytest.MonkeyPatch.context() as patch:
        if fetched(SMOLLM2_135M.hub_id) is None:
            patch.delenv(FOLDER_VARIABLE)
            users = fetched_folder(SMOLLM2_135M.hub_id)
            if fetched(SMOLLM2_135M.hub_id) is None:
                pytest.skip(f"no weights in {users}: paceline pool fetch smollm2")
            patch.setenv(FOLDER_VARIABLE, str(tmp_path_factory.mktemp("paceline")))
            link = fetched_folder(SMOLLM2_135M.hub_id)
            link.parent.mkdir()
            link.symlink_to(users)
        yield


# How often the runtime times what it chooses by: no test reads those seconds, and what is chosen changes no text.
TIMED = {
    **{"timing.REPEATS": 1, "forward_choice._RACES": 1, "prefixed_kv._RACES": 1},
    **{"products._LEAST_REPEATS": 1, "products._MOST_REPEATS": 1, "slim.SPELLS": 3, "slim.REPEATS": 1},
}


@pytest.fixture(scope="session", autouse=True)
def _timed_a_few_times():
    """In the modules that tests imported: a test without torch imports none of these."""
    with pytest.MonkeyPatch.context() as patch:
        for what, times in TIMED.items():
            module, _, name = what.partition(".")
            if found := sys.modules.get(f"paceline.runtime.{module}"):
                patch.setattr(found, name, times)
        yield


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """Makes a file or a folder once for all processes of a session: `shared(name, make)` is its path.

    `make` writes the path that it is given; whoever comes while it does waits. Nobody may change what it made.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"

    def made(name, make):
        folder.mkdir(exist_ok=True)
        with (folder / f"{name}.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / name).exists():
                part = folder / f"part-{os.getpid()}-{name}"
                make(part)
                part.rename(folder / name)
        return folder / name

    return made
