"""What a profile has measured so far, kept as it comes, so that one that was interrupted goes on where it was.

A file of JSON lines that only grows: first what is measured and under what, then a line for each group of shapes.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...strict_json import decode_json
from ...whole_files import write_whole

# Member, rows, new tokens of each, tokens held by each.
ShapeKey = tuple[str, int, int, int]
Group = tuple[int, int]


class Journal:
    """Seconds by round and group of shapes; mutated by `note` and `forget`.

    It is a memory and no promise: a file that cannot be read is begun anew, and one that cannot be written is left.

    Args:
        path: of the file.
        about: what is measured and under what; a file about anything else is begun anew.
        resume: go on with what is there; False begins anew.

    Attributes:
        begun_at: when the first group that is known was measured; None where nothing is known.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], *, resume: bool = True) -> None:
        self._path = path
        self._about = json.loads(json.dumps(about))  # as it will be read
        self._known: dict[tuple[int, Group], dict[ShapeKey, float]] = {}
        self._can_grow = False
        self.begun_at: datetime | None = None
        if resume:
            self._read()

    def __len__(self) -> int:
        """Groups that are known, over all rounds."""
        return len(self._known)

    def known(self, number: int, group: Group) -> dict[ShapeKey, float] | None:
        """Seconds of a group's shapes in a round; None where they were not measured."""
        return self._known.get((number, group))

    def note(self, number: int, group: Group, seconds: Mapping[ShapeKey, float]) -> None:
        """Keep what a group took in a round."""
        self._known[number, group] = dict(seconds)
        with suppress(OSError):
            if self._can_grow:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(_line_of(number, group, seconds))
            else:
                self._begin()

    def seconds(self) -> dict[ShapeKey, list[float]]:
        """Of each shape that is known, round by round."""
        found: dict[ShapeKey, list[float]] = {}
        for _, known in sorted(self._known.items()):
            for key, value in known.items():
                found.setdefault(key, []).append(value)
        return found

    def forget(self) -> None:
        """Begin anew: nothing is known, and the file is gone."""
        self._known.clear()
        self.begun_at, self._can_grow = None, False
        with suppress(OSError):
            self._path.unlink()

    def _begin(self) -> None:
        """A file of what is known: the first, or one without the line that an interrupt cut short."""
        self.begun_at = self.begun_at or datetime.now(UTC)
        header = json.dumps({"about": self._about, "begun_at": self.begun_at.isoformat()})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = [_line_of(number, group, seconds) for (number, group), seconds in self._known.items()]
        write_whole(self._path, "".join([header + "\n", *lines]))
        self._can_grow = True

    def _read(self) -> None:
        """Take in what is there, up to a line that was cut short."""
        try:
            header, *lines = self._path.read_bytes().split(b"\n")
            first = decode_json(header)
            if first["about"] != self._about:
                return
            begun_at = datetime.fromisoformat(first["begun_at"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        whole = lines[:-1]
        for line in whole:
            try:
                number, group, seconds = _read_line(line)
            except (ValueError, KeyError, TypeError):
                break
            self._known[number, group] = seconds
        self._can_grow = lines[-1:] == [b""] and len(self._known) == len(whole)
        if self._known:
            self.begun_at = begun_at


def _line_of(number: int, group: Group, seconds: Mapping[ShapeKey, float]) -> str:
    shapes = [[*key, value] for key, value in seconds.items()]
    return json.dumps({"round": number, "group": group, "shapes": shapes}) + "\n"


def _read_line(line: bytes) -> tuple[int, Group, dict[ShapeKey, float]]:
    """The round, the group and its seconds; raises ValueError, KeyError or TypeError for what is no such line."""
    found = decode_json(line)
    rows, context = map(int, found["group"])
    seconds = {
        (str(member), int(num_rows), int(new), int(held)): float(value)
        for member, num_rows, new, held, value in found["shapes"]
    }
    return int(found["round"]), (rows, context), seconds
