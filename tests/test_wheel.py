"""The wheel holds every folder with code and the data that ships, nothing else, and runs without the source tree."""

import importlib.util
import json
import os
import shutil
import site
import sys
import sysconfig
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from .cli.command_line import run

ROOT = Path(__file__).parents[1]
DATA = ("pools", "recordings")
BESIDE_CODE = (".html", ".pyi", ".toml", ".mplstyle", ".typed")
OUTSIDE = ("tests", "benchmarks", "examples", "docs", "laboratory", "build", "dist")
UNFINISHED = (".part", ".work")


def is_left_out(folder, names):
    """What no build needs: hidden and unfinished files, caches, and folders outside the package."""
    outside = OUTSIDE if Path(folder) == ROOT else ()
    return [name for name in names if is_hidden(name) or name in outside or name.endswith(".egg-info")]


def is_hidden(name):
    """As git ignores it: of an environment, of a cache, unfinished, or a policy that a user put into the checkout."""
    of_a_user = name.startswith("my_") and name.endswith(".py")
    return of_a_user or name.startswith(".") or name == "__pycache__" or name.endswith(UNFINISHED)


def built(source, folder):
    """The wheel of a copy of `source`, so that nothing a former build left behind can slip in; not deflated."""
    shutil.copytree(source, folder / "source", ignore=is_left_out)
    isolation = [] if importlib.util.find_spec("setuptools") is None else ["--no-isolation"]
    build = [sys.executable, "-m", "build", "--wheel", "-C--build-option=--compression=stored", *isolation]
    run([*build, "--outdir", folder, "."], folder / "source")
    (wheel,) = folder.glob("*.whl")
    return wheel


def names_in(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def names(wheel):
    return names_in(wheel)


def tracked(folder, pattern):
    """Files below the root that belong to the package, by their path inside it; an environment is not entered."""
    top = ROOT / folder
    inner = [path for path in top.iterdir() if path.is_dir() and not is_hidden(path.name) and path.name not in OUTSIDE]
    for file in sorted([*top.glob(pattern), *(file for path in inner for file in path.rglob(pattern))]):
        path = file.relative_to(ROOT)
        if file.is_file() and not any(is_hidden(part) for part in path.parts):
            yield path


def test_every_module_is_in(names):
    packages = {path.parent for path in tracked(".", "__init__.py")}
    assert Path("traces/importers") in packages
    modules = {path for path in tracked(".", "*.py") if path.parent in packages}
    assert {f"paceline/{module.as_posix()}" for module in modules} == {name for name in names if name.endswith(".py")}


def test_data_that_ships_is_in(names):
    wanted = {f"paceline/{path.as_posix()}" for folder in DATA for path in tracked(folder, "*")}
    code = {path.parent for path in tracked(".", "__init__.py")}
    beside = {path for path in tracked(".", "*") if path.parent in code and path.suffix in BESIDE_CODE}
    wanted |= {f"paceline/{path.as_posix()}" for path in beside - {Path("pyproject.toml")}}
    assert wanted <= names
    inside = {name for name in names if ".dist-info/" not in name and not name.endswith(".py")}
    assert inside == wanted


def test_nothing_else_is_in(names):
    tops = {PurePosixPath(name).parts[0] for name in names}
    assert tops == {"paceline", *(top for top in tops if top.endswith(".dist-info"))}
    folders = {PurePosixPath(name).parts[1] for name in names if name.startswith("paceline/")}
    assert not folders & set(OUTSIDE)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    entry_points = [name for name in names if name.endswith("entry_points.txt")]
    assert len(entry_points) == 1


def test_the_wheel_of_the_laboratory_has_its_modules_and_their_files(tmp_path):
    laboratory = ROOT / "laboratory"
    names = {name for name in names_in(built(laboratory, tmp_path)) if ".dist-info/" not in name}
    files = {path.relative_to(laboratory) for path in laboratory.rglob("*") if path.suffix in (".py", ".toml")}
    wanted = {path.as_posix() for path in files - {Path("pyproject.toml")} if path.parts[0] != "build"}
    assert names == {f"paceline_laboratory/{path}" for path in wanted}


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Runs the installed package: no start-up files of this environment, where an editable install would step in."""
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    run([*pip, "--disable-pip-version-check", "--target", target, wheel], target)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    paths = sysconfig.get_paths()
    packages = dict.fromkeys([paths["purelib"], paths["platlib"], *site.getsitepackages()])

    def paceline(*words):
        path = os.pathsep.join([str(target), *packages])
        return run([sys.executable, "-S", *words], elsewhere, PYTHONPATH=path)

    paceline.target, paceline.folder = target, elsewhere
    return paceline


def test_the_installed_package_runs(installed):
    where = installed("-c", "import paceline; print(paceline.__file__)").strip()
    assert Path(where).is_relative_to(installed.target)
    made = installed("-m", "paceline", "trace", "make", "t.trace", "--requests", "2", "--tokens", "8")
    assert made.startswith("t.trace: synthetic")
    told = installed("-m", "paceline", "compare", "--trace", "t.trace", "--json", "-")
    assert len(json.loads(told)["policies"]) == 5
    shipped = installed("-m", "paceline", "compare", "--policy", "plain")
    assert "trace pico" in shipped
    assert "SYNTHETIC" not in shipped


# Rooms and studies that run real models; all other modules have to do without it, but one without gymnasium.
STUDIES = ("agree", "decode", "pools", "profile", "profile_check", "record", "validate", "validate_under_load")
REAL_MODELS = {f"paceline.studies.{name}" for name in STUDIES}
EXTRA = ("torch", "transformers", "tokenizers", "safetensors", "scipy", "gymnasium", "fastapi", "uvicorn")
IMPORT_ALL = f"""
import importlib, pkgutil, sys, paceline
sys.modules.update(dict.fromkeys({EXTRA}))
for found in pkgutil.walk_packages(paceline.__path__, "paceline.", onerror=repr):
    if found.name != "paceline.__main__":
        try:
            print(importlib.import_module(found.name).__file__)
        except ModuleNotFoundError as error:
            print("needs", error.name, found.name)
"""


def test_without_torch_everything_but_what_runs_real_models_can_be_imported(installed):
    lines = installed("-c", IMPORT_ALL).splitlines()
    refused = [line.split() for line in lines if line.startswith("needs ")]
    assert len(refused) > 20
    for _, missing, name in refused:
        assert missing.startswith(EXTRA)
        if missing == "gymnasium":
            assert name == "paceline.sim.gym"
        else:
            assert name.startswith(("paceline.runtime", "paceline.server")) or name in REAL_MODELS
    files = [line for line in lines if not line.startswith("needs ")]
    assert len(files) > 50
    assert all(file.startswith(str(installed.target)) for file in files)
