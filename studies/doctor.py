"""What is installed, what this machine can do, what paceline keeps here, and which profiles still fit.

Nothing is measured and nothing is changed: `paceline profile --check` measures.
"""

import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..base.errors import counted, install_hint, told
from ..base.files import kept_folder, num_processors, processor
from ..reports.tables import Grid, Printed, facts, table
from ..traces.errors import TraceFormatError
from ..traces.profile import profiles_here
from .plugins import KINDS

# A requirement in metadata: its name, and its extra.
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)[^;]*(?:;.*extra\s*==\s*['\"]([\w-]+)['\"])?")
# Flags in /proc/cpuinfo of processors that multiply 16-bit numbers in hardware.
_BF16 = ("amx_bf16", "avx512_bf16", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """An extra of the package."""

    name: str
    missing: tuple[str, ...]  # packages
    install: str  # the command; "" if nothing is missing


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFiles:
    """A folder or file of the caches."""

    name: str
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptProfile:
    """A profile of this machine."""

    file: str
    pool: str  # its members; "" if the file cannot be read
    measured_at: str  # ISO 8601; "" if the file cannot be read
    changed: tuple[str, ...]  # what has changed since it was measured, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlugin:
    """What another package registers."""

    kind: str  # of `studies.plugins.KINDS`
    name: str
    unusable: str  # why; "" if it can be used


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Diagnosis(Printed):
    """The state of an installation; prints as `paceline doctor` does."""

    versions: Mapping[str, str]  # of this package, of Python, and of what it needs
    extras: tuple[Extra, ...]
    plugins: tuple[FoundPlugin, ...]
    machine: Mapping[str, str]  # its hardware, in words
    folder: str  # of the caches
    kept: tuple[KeptFiles, ...]
    profiles: tuple[KeptProfile, ...]  # the newest, which `--cost here` takes, first

    def tables(self) -> Sequence[Grid]:
        extras = [
            {"extra": one.name, "missing": ", ".join(one.missing) or "nothing", "to install": one.install}
            for one in self.extras
        ]
        kept = [
            {"kept": one.name, "files": f"{one.files:,}", "MB": f"{one.size_bytes / 1e6:,.1f}"} for one in self.kept
        ]
        found = [facts("Versions", self.versions), facts("This machine", self.machine)]
        found.append(table(extras, texts=("missing", "to install"), title="Extras"))
        if self.plugins:
            plugins = [
                {"plug-in": one.name, "kind": one.kind, "can be used": one.unusable or "yes"} for one in self.plugins
            ]
            found.append(table(plugins, texts=("kind", "can be used"), title="Plug-ins of other packages"))
        if kept:
            found.append(table(kept, title=f"Caches in {self.folder}"))
        if self.profiles:
            rows = [
                {
                    "profile": one.file,
                    "of": one.pool,
                    "measured": one.measured_at,
                    "changed since": "; ".join(one.changed) or "nothing",
                }
                for one in self.profiles
            ]
            found.append(table(rows, texts=("of", "measured", "changed since"), title="Profiles of this machine"))
        return found

    def lines(self) -> Sequence[str]:
        empty = [] if self.kept else [f"no caches yet in {self.folder}"]
        if not self.profiles:
            return [*empty, "no profile of this machine: paceline profile measures one, for --cost here"]
        return [
            *empty,
            "paceline profile --check FILE measures some of a profile again, and says whether it still fits",
        ]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each extra."""
        return [{"extra": one.name, "missing": list(one.missing), "install": one.install} for one in self.extras]


def doctor() -> Diagnosis:
    """Inspect the installation; see `Diagnosis`."""
    needed, extras = _requirements()
    names = {"paceline": version("paceline"), "python": f"{platform.python_version()} ({sys.executable})"}
    return Diagnosis(
        versions=names | {name: _version(name) or "NOT INSTALLED" for name in needed},
        extras=tuple(
            Extra(name=name, missing=missing, install=install_hint(name) if missing else "")
            for name, packages in extras.items()
            for missing in [tuple(package for package in packages if _version(package) is None)]
        ),
        plugins=tuple(
            FoundPlugin(kind=kind, name=name, unusable=str(found) if isinstance(found, ValueError) else "")
            for kind, of in KINDS.items()
            for name, found in of.of_packages().items()
        ),
        machine=_machine(),
        folder=str(kept_folder()),
        kept=_kept(kept_folder()),
        profiles=_profiles(),
    )


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Packages that are needed, and those of each extra."""
    needed, extras = list[str](), dict[str, list[str]]()
    for line in requires("paceline") or ():
        found = _REQUIREMENT.match(line)
        assert found is not None, line
        if found[2] is None:
            needed.append(found[1])
        else:
            extras.setdefault(found[2], []).append(found[1])
    return needed, extras


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _machine() -> dict[str, str]:
    return {
        "system": platform.platform(),
        "processor": processor(),
        "cores": f"{num_processors()} for this process, {os.cpu_count()} in all",
        "memory": _memory(),
        "bf16 on the processor": _bf16(),
        **_torch(),
    }


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:,.1f} GB"
    except (AttributeError, ValueError, OSError):
        return "unknown"


def _bf16() -> str:
    listing = Path("/proc/cpuinfo")
    if not listing.is_file():
        return "unknown"
    flags = set(listing.read_text(encoding="utf-8", errors="replace").split())
    return ", ".join(flag for flag in _BF16 if flag in flags) or "none"


def _torch() -> dict[str, str]:
    if find_spec("torch") is None:
        return {"torch": "not installed: real models cannot run here, simulations can"}
    try:
        import torch  # noqa: PLC0415 - an optional dependency at its one door
    except (ImportError, OSError) as error:
        return {"torch": f"cannot be imported: {told(error)}"}
    found = {"torch": f"{torch.__version__}, {counted(torch.get_num_threads(), 'thread')} by default"}
    if not torch.cuda.is_available():
        return found | {
            "CUDA": f"none; torch was built {'for CUDA ' + torch.version.cuda if torch.version.cuda else 'without it'}"
        }
    for place in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(place)
        bf16 = "bf16" if torch.cuda.is_bf16_supported() else "no bf16"
        found[f"cuda:{place}"] = f"{about.name}, {about.total_memory / 1e9:,.1f} GB, {bf16}"
    return found


def _kept(folder: Path) -> tuple[KeptFiles, ...]:
    if not folder.is_dir():
        return ()
    found = []
    for part in sorted(folder.iterdir()):
        files = [part] if part.is_file() else [file for file in part.rglob("*") if file.is_file()]
        found.append(KeptFiles(name=part.name, files=len(files), size_bytes=sum(file.stat().st_size for file in files)))
    return tuple(found)


def _profiles() -> tuple[KeptProfile, ...]:
    now = {"torch": _version("torch"), "transformers": _version("transformers"), "paceline": _version("paceline")}
    found = []
    for path, meta in profiles_here(processor()):
        if isinstance(meta, TraceFormatError):
            found.append(KeptProfile(file=str(path), pool="", measured_at="", changed=(f"cannot be read: {meta}",)))
            continue
        then = {"torch": meta.torch, "transformers": meta.transformers, "paceline": meta.paceline}
        changed = tuple(
            f"{name} {was}, now {now[name] or 'not installed'}" for name, was in then.items() if was != now[name]
        )
        measured = meta.measured_at.astimezone(UTC).isoformat(timespec="minutes")
        pool = ", ".join(member.name for member in meta.members)
        found.append(KeptProfile(file=str(path), pool=pool, measured_at=measured, changed=changed))
    return tuple(found)
