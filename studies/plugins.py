"""A package for a user's policy, router, cost, workload or importer: code, entry point, test and README."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from keyword import iskeyword
from pathlib import Path
from string import Template
from typing import Any

from ..base.by_name import NamedKind
from ..base.errors import ArgumentError, known_are
from ..base.files import whole_folder
from ..base.toml import TomlFileError, read_toml
from ..policies.by_name import POLICIES
from ..reports.tables import Printed
from ..sim.cost.by_name import COSTS
from ..sim.serving.routers import ROUTERS
from ..traces.importers import IMPORTERS
from ..traces.workloads.registered import WORKLOADS

TEMPLATES = Path(__file__).with_name("plugins.toml")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_IMPORTS = re.compile(r"^from \S+ import (.+)$", re.MULTILINE)
MOST_LETTERS = 40
ALL = "all"  # files of every kind
# By the word for `plugin new`.
KINDS: Mapping[str, NamedKind[Any]] = {
    "policy": POLICIES,
    "router": ROUTERS,
    "cost": COSTS,
    "workload": WORKLOADS,
    "importer": IMPORTERS,
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NewPlugin(Printed):
    """A package that was written."""

    kind: str
    name: str  # that it registers
    folder: str
    files: tuple[str, ...]  # below the folder
    use: str  # the command that uses it

    def lines(self) -> Sequence[str]:
        return [
            f"{self.folder}: {', '.join(self.files)}",
            f"cd {self.folder}; pip install --editable .; pytest; then {self.use}",
        ]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def new_plugin(kind: str, name: str, out: str | Path | None = None) -> NewPlugin:
    """Write a package that registers a policy, a router, a cost, a workload or an importer under a name.

    `kind` is one of `KINDS`, `name` of lower-case letters, digits and single hyphens, and not taken; `out` is a new
    folder, `paceline-NAME` here if None. Raises ArgumentError for either of the first two, ValueError if it exists.
    """
    if kind not in KINDS:
        raise ArgumentError(f"KIND {kind!r} is not known; {known_are(kind, KINDS)}")
    if not _NAME.fullmatch(name) or len(name) > MOST_LETTERS:
        rule = f"must be lower-case letters, digits and single hyphens, {MOST_LETTERS} at most, as in my-{kind}"
        raise ArgumentError(f"NAME {rule}, got {name!r}")
    if name in KINDS[kind].names():
        raise ArgumentError(f"NAME must be a new one, {kind} {name} is there already")
    folder = Path(f"paceline-{name}") if out is None else Path(out)
    if folder.exists():
        raise ValueError(f"{folder}: exists already; a package is never overwritten")
    templates: Mapping[str, Any] = read_toml(TEMPLATES, "templates", TomlFileError)
    own, shared = templates[kind], templates[ALL]
    words = _words(kind, name, own)
    files = {
        Template(path).substitute(words): Template(text.lstrip("\n")).substitute(words)
        for path, text in {**shared, **own["files"]}.items()
    }
    with whole_folder(folder) as part:
        for path, text in files.items():
            (part / path).parent.mkdir(exist_ok=True)
            (part / path).write_text(text, encoding="utf-8")
    return NewPlugin(kind=kind, name=name, folder=str(folder), files=tuple(files), use=words["use"])


def _words(kind: str, name: str, own: Mapping[str, Any]) -> dict[str, str]:
    """The substitutions in the templates; raises ArgumentError for a name whose class would hide an import."""
    made = "".join(part.capitalize() for part in name.split("-"))
    imports = [names for text in own["files"].values() for names in _IMPORTS.findall(text)]
    if iskeyword(made) or made in {one for names in imports for one in names.split(", ")}:
        raise ArgumentError(f"NAME must be another one, got {name!r}: the class {made} would hide what its code needs")
    words = {
        "name": name,
        "project": f"paceline-{name}",
        "package": f"paceline_{name.replace('-', '_')}",
        "Class": made,
        "CONSTANT": name.upper().replace("-", "_"),
        "kind": kind,
        "group": KINDS[kind].group,
    }
    return words | {key: Template(own[key]).substitute(words) for key in ("object", "change", "use")}
