"""Files that are refused, a row of JSON each: what they hold, how they are read, and the one line that says why.

A row has the `files` by name, or the text of a `workload`, `told`, and how they are read: `format` and `options` of an
import, or else options of a workload. `python -m tests.traces.refused` writes anew what is told: look at what changes.
"""

import json
import tempfile
from pathlib import Path

import pytest
from paceline.traces.importers import ImportOptions, Load, read_recording
from paceline.traces.workloads import open_workload
from paceline.traces.workloads.arrival import requests_of

SHEETS = tuple(Path(__file__).with_name(name) / "refused.jsonl" for name in ("importers", "workloads"))


def rows_of(sheet):
    """The rows of a sheet, each with a name."""
    rows = [json.loads(line) for line in sheet.read_text(encoding="utf-8").splitlines()]
    return [pytest.param(row, id=f"{row.get('format', '')} {row['told']}"[:80]) for row in rows]


def told(row, folder):
    """The line with which the files of a row are refused; the folder is left out of it."""
    files = row.get("files", {})
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    paths = [folder / name for name in files] or [row["workload"]]
    try:
        if "format" in row:
            made = {"load": lambda load: Load(**load), "token_drafters": frozenset}
            options = {key: made.get(key, lambda value: value)(value) for key, value in row["options"].items()}
            read_recording(row["format"], paths, ImportOptions(**options))
        else:
            for first in open_workload(paths[0], **row.get("options", {})):
                list(requests_of(first))
    except ValueError as error:
        return str(error).replace(f"{folder}/", "")
    return ""


def main():
    for sheet in SHEETS:
        written = []
        for line in sheet.read_text(encoding="utf-8").splitlines():
            with tempfile.TemporaryDirectory() as folder:
                row = json.loads(line)
                written.append(json.dumps(row | {"told": told(row, Path(folder))}))
        sheet.write_text("".join(f"{line}\n" for line in written), encoding="utf-8")


if __name__ == "__main__":
    main()
