"""Choices that were made on this machine before by measuring, kept in a file of its own."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from ...counted import counted
from ...machine import kept_folder, processor
from ...strict_json import read_json
from ...whole_files import write_whole


class KnownChoices:
    """Names of what was quickest, by what was chosen for; mutated by `note`, which writes them down.

    It is a memory and no promise: a file that cannot be read is measured anew, and one that cannot be written is left.

    Args:
        path: of the file; None remembers in this object alone.
        machine: what the choices hold for: processor, threads, version of torch.
    """

    def __init__(self, path: Path | None, machine: str = "") -> None:
        self._path = path
        self._machine = machine
        self._known = {} if path is None else _read(path).get(machine, {})

    def get(self, what: str, count: int) -> list[str]:
        """The `count` names chosen for something; none if nobody chose so many."""
        known = self._known.get(what, [])
        return known if len(known) == count else []

    def note(self, what: str, names: Sequence[str]) -> None:
        """Remember the names chosen for something."""
        self._known[what] = list(names)
        if self._path is None:
            return
        # What others wrote meanwhile stays.
        found = _read(self._path)
        found[self._machine] = found.get(self._machine, {}) | self._known
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(found, indent=1, sort_keys=True))


def _read(path: Path) -> dict[str, dict[str, list[str]]]:
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict) or not all(_are_choices(choices) for choices in found.values()):
        return {}
    return found


def _are_choices(choices: object) -> bool:
    return isinstance(choices, dict) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in choices.values()
    )


def choices_of_this_machine() -> KnownChoices:
    """What was chosen here before with as many threads and the same torch."""
    machine = f"{processor()}, {counted(torch.get_num_threads(), 'thread')}, torch {torch.__version__}"
    return KnownChoices(kept_folder() / "choices.json", machine)
