"""Packages that `plugin new` writes install, pass their own tests, and are found by name."""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tomllib

import pytest
from paceline.studies.plugins import ELSEWHERE, TEMPLATES, new_plugin

from ..cli.command_line import done, refused

KINDS = tuple(tomllib.loads(TEMPLATES.read_text()))
# The first setuptools that builds wheels by itself; an older one needs a place of its own to build in.
BUILDS = (70, 1)


def run(*command, folder, **environment):
    given = {"cwd": folder, "env": {**os.environ, **environment}, "capture_output": True, "text": True}
    ran = subprocess.run(list(map(str, command)), check=False, **given)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return ran.stdout


def has_own_builder():
    if importlib.util.find_spec("setuptools") is None:
        return False
    version = importlib.metadata.version("setuptools").split(".")
    return tuple(map(int, version[:2])) >= BUILDS


@pytest.mark.parametrize(
    "kind", [kind if kind == "policy" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_a_new_package_installs_and_passes_its_own_test(kind, tmp_path):
    """In a folder of installed packages that holds nothing else; paceline and pytest are those that run here."""
    name = f"my-{kind}"
    done("plugin", "new", kind, name, "--out", tmp_path / "mine")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check")
    isolation = ("--no-build-isolation",) if has_own_builder() else ()
    run(*pip, *isolation, "--target", tmp_path / "site", tmp_path / "mine", folder=tmp_path)
    installed = {"PYTHONPATH": str(tmp_path / "site")}
    passed = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "mine", folder=tmp_path, **installed)
    assert " passed" in passed
    if kind == "policy":
        checked = run(sys.executable, "-m", "paceline", "policy", "check", name, folder=tmp_path, **installed)
        assert "keeps the contract" in checked


def test_packages_are_never_overwritten(tmp_path):
    made = new_plugin("policy", "mine", tmp_path / "mine")
    assert sorted(made.files) == sorted(
        str(path.relative_to(tmp_path / "mine")) for path in (tmp_path / "mine").rglob("*") if path.is_file()
    )
    with pytest.raises(ValueError, match="exists already; a package is never overwritten"):
        new_plugin("router", "mine", tmp_path / "mine")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("policy", "adaptive"), "NAME must be a new one, there is a policy adaptive"),
        (("router", "round-robin"), "NAME must be a new one, there is a router round-robin"),
        (("policy", "draft"), "NAME must be another one, got 'draft': the class Draft would hide what its code needs"),
        (("policy", "none"), "NAME must be another one, got 'none': the class None would hide what its code needs"),
        (("policy", "My_x"), "NAME must be lower-case letters, digits and single hyphens"),
        (("polcy", "mine"), "KIND 'polcy' is not known; did you mean policy?"),
        *(((kind, "mine"), f"KIND must be one of policy, router, got {kind}: instead ") for kind in ELSEWHERE),
    ],
)
def test_what_will_not_do(words, told, tmp_path):
    assert told in refused("plugin", "new", *words, "--out", tmp_path / "mine")
    assert not list(tmp_path.iterdir())
