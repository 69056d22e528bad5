"""A package of one's own policy or router, ready to install: code, entry point, test and README."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path
from string import Template
from typing import Any

from ..base.errors import ArgumentError, known_are
from ..base.files import whole_folder
from ..base.toml import TomlFileError, read_toml
from ..policies.by_name import policy_names
from ..reports.tables import Printed
from ..sim.serving.routers import own_routers

TEMPLATES = Path(__file__).with_name("plugins.toml")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_IMPORTS = re.compile(r"^from \S+ import (.+)$", re.MULTILINE)
MOST_LETTERS = 40
# What other packages cannot register, and what to do instead.
ELSEWHERE = {
    "importer": "write rounds as JSON of one of the formats of `trace import` (docs/importing.md)",
    "cost": "write its seconds as FILE.json and give it as --cost (docs/costs.md)",
    "workload": "write its requests as a file of one of the formats of --workload (docs/workloads.md)",
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NewPlugin(Printed):
    """A package that was written."""

    kind: str
    name: str  # that it registers
    folder: str
    files: tuple[str, ...]  # below the folder

    def lines(self) -> Sequence[str]:
        """What was written, and what to type next."""
        use = (
            f"paceline compare --policy {self.name}"
            if self.kind == "policy"
            else f'name = "{self.name}" below [router] of a cluster file'
        )
        return [
            f"{self.folder}: {', '.join(self.files)}",
            f"pip install --editable {self.folder}; pytest {self.folder}; then {use}",
        ]

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {"kind": self.kind, "name": self.name, "folder": self.folder, "files": list(self.files)}


def new_plugin(kind: str, name: str, out: str | Path | None = None) -> NewPlugin:
    """Write a package that registers a policy or a router under a name.

    Args:
        kind: "policy" or "router".
        name: lower-case letters, digits and single hyphens; not one that is taken.
        out: new folder; None: `paceline-NAME` here.

    Raises:
        ArgumentError: a kind that cannot be registered, or a name that will not do.
        ValueError: a folder that is there.
    """
    templates: Mapping[str, Mapping[str, str]] = read_toml(TEMPLATES, "templates", TomlFileError)
    if kind in ELSEWHERE:
        raise ArgumentError(f"KIND must be one of {', '.join(templates)}, got {kind}: instead {ELSEWHERE[kind]}")
    if kind not in templates:
        raise ArgumentError(f"KIND {kind!r} is not known; {known_are(kind, templates)}")
    if not _NAME.fullmatch(name) or len(name) > MOST_LETTERS:
        rule = f"must be lower-case letters, digits and single hyphens, {MOST_LETTERS} at most, as in my-{kind}"
        raise ArgumentError(f"NAME {rule}, got {name!r}")
    if name in (policy_names() if kind == "policy" else own_routers()):
        raise ArgumentError(f"NAME must be a new one, there is a {kind} {name}")
    made = "".join(part.capitalize() for part in name.split("-"))
    needed = {one for text in templates[kind].values() for names in _IMPORTS.findall(text) for one in names.split(", ")}
    if iskeyword(made) or made in needed:
        raise ArgumentError(f"NAME must be another one, got {name!r}: the class {made} would hide what its code needs")
    package = f"paceline_{name.replace('-', '_')}"
    words = {
        "name": name,
        "project": f"paceline-{name}",
        "package": package,
        "Class": made,
    }
    folder = Path(f"paceline-{name}") if out is None else Path(out)
    if folder.exists():
        raise ValueError(f"{folder}: exists already; a package is never overwritten")
    files = {
        Template(path).substitute(words): Template(text.lstrip("\n")).substitute(words)
        for path, text in templates[kind].items()
    }
    with whole_folder(folder) as part:
        for path, text in files.items():
            (part / path).parent.mkdir(exist_ok=True)
            (part / path).write_text(text, encoding="utf-8")
    return NewPlugin(kind=kind, name=name, folder=str(folder), files=tuple(files))
