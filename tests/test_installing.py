"""The command that installs what is missing fits the checkout or the wheel, and the machine."""

import shutil
import sys
from pathlib import Path

import pytest
from paceline.base import errors as installing
from paceline.base.errors import LABORATORY, install_hint

EXTRAS = ("runtime", "figures", "search")
INDEX = " --extra-index-url https://download.pytorch.org/whl/cpu"


@pytest.fixture
def checkout(monkeypatch, tmp_path):
    """A folder that reads as this package's checkout, on Linux without a GPU, with its Python's pip on the path."""
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.setattr(installing, "ROOT", tmp_path)
    monkeypatch.setattr(installing, "GPU_SIGNS", ())
    monkeypatch.setattr(sys, "platform", "linux")
    put_on_path(monkeypatch, pip=str(Path(sys.executable).with_name("pip")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put_on_path(monkeypatch, **programs):
    monkeypatch.setattr(shutil, "which", programs.get)


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_checkout_is_installed_from_its_folder(checkout, monkeypatch, extra):
    end = INDEX if extra == "runtime" else ""
    assert install_hint(extra) == f"pip install --editable '.[{extra}]'{end}"
    (checkout / "a folder").mkdir()
    monkeypatch.chdir(checkout / "a folder")
    assert install_hint(extra) == f"pip install --editable '{checkout}[{extra}]'{end}"


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_wheel_is_installed_by_name(checkout, extra):
    (checkout / "pyproject.toml").unlink()
    assert install_hint(extra) == f"pip install 'paceline[{extra}]'" + (INDEX if extra == "runtime" else "")


def test_the_laboratory_is_a_folder_of_the_checkout(checkout, monkeypatch):
    assert install_hint(LABORATORY) == f"pip install --editable ./laboratory{INDEX}"
    monkeypatch.chdir(checkout.parent)
    assert install_hint(LABORATORY) == f"pip install --editable {checkout}/laboratory{INDEX}"
    (checkout / "pyproject.toml").unlink()
    assert install_hint(LABORATORY) == f"pip install --editable ./laboratory{INDEX}"


def test_a_machine_with_a_gpu_takes_the_builds_for_it(checkout, monkeypatch):
    with monkeypatch.context() as nvidia:
        put_on_path(nvidia, **{"pip": str(Path(sys.executable).with_name("pip")), "nvidia-smi": "/usr/bin/nvidia-smi"})
        assert install_hint("runtime") == "pip install --editable '.[runtime]'"
    monkeypatch.setattr(installing, "GPU_SIGNS", (str(checkout),))
    assert install_hint("runtime") == "pip install --editable '.[runtime]'"


def test_elsewhere_than_on_linux_builds_are_for_the_cpu(checkout, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert install_hint("runtime") == "pip install --editable '.[runtime]'"


@pytest.mark.parametrize("found", [None, "/usr/bin/pip"])
def test_pip_is_that_of_the_python_that_runs(checkout, monkeypatch, found):
    put_on_path(monkeypatch, pip=found)
    monkeypatch.setattr(sys, "executable", str(checkout / ".venv" / "bin" / "python"))
    assert install_hint("search") == ".venv/bin/python -m pip install --editable '.[search]'"
    monkeypatch.setattr(sys, "executable", "/opt/my python")
    assert install_hint("search") == "'/opt/my python' -m pip install --editable '.[search]'"
