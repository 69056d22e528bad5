"""How to install an extra that is missing, in one line that fits this installation and this machine."""

import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
NEEDS_TORCH = "runtime"
# Of that extra, in the order in which a reader knows them; which one an import misses first is chance.
KNOWN_BY = ("torch", "transformers", "tokenizers")
# What drivers of NVIDIA (also below Windows) and AMD leave behind.
GPU_SIGNS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


@contextmanager
def needs_torch(who: str = "this command") -> Iterator[None]:
    """Around the import of modules that run real models: tells in one line what to install where the extra is missing.

    Args:
        who: is told to need it.

    Raises:
        ModuleNotFoundError: the extra is not installed; the message says how.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = __name__.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] == package:
            raise
        missing = next((module for module in KNOWN_BY if find_spec(module) is None), error.name)
        raise ModuleNotFoundError(f"{who} runs real models and needs {missing}: {install_hint(NEEDS_TORCH)}") from error


def install_hint(extra: str) -> str:
    """The command that installs an extra: of the checkout that this is, or of the package that is installed.

    Args:
        extra: of pyproject.toml. Where it brings torch and no GPU is found, the index of its CPU builds is named: on
            Linux the default ones are several gigabytes of CUDA.
    """
    command = f"{_pip()} install {_requirement(extra)}"
    if extra == NEEDS_TORCH and sys.platform == "linux" and not _has_gpu():
        command += f" --extra-index-url {CPU_INDEX}"
    return command


def _pip() -> str:
    """The pip of the Python that runs: another one may come first on the path of a shell."""
    found = shutil.which("pip")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "pip"
    python, here = Path(sys.executable), Path.cwd()
    return f"{shlex.quote(str(python.relative_to(here) if python.is_relative_to(here) else python))} -m pip"


def _requirement(extra: str) -> str:
    if not (ROOT / "pyproject.toml").is_file():
        return f"'paceline[{extra}]'"
    folder = "." if Path.cwd() == ROOT.resolve() else str(ROOT.resolve())
    return f"--editable {shlex.quote(f'{folder}[{extra}]')}"


def _has_gpu() -> bool:
    """Without torch, which is what is missing."""
    return shutil.which("nvidia-smi") is not None or any(Path(sign).exists() for sign in GPU_SIGNS)
