"""Finished runs, kept in lines of JSON: a run of the arena that is cut short goes on from them.

One file for each recording, which is only ever added to. A line says what its run was made of (the recording, the
ladder's seconds, the code of the policy and of the simulator, as hashes): a result is that of a run which is asked for
only where all of these are the same.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...progress import tell
from .cell import ArenaCell
from .played import Outcome, outcome_from_json, outcome_to_json

RESULTS = "results"
PARTS = ("recording", "ladder", "simulator", "policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRun:
    """A run that is asked for.

    Attributes:
        cell, policy, seed: as of `Played`.
        made_of: a hash of each of `PARTS`.
    """

    cell: ArenaCell
    policy: str
    seed: int
    made_of: Mapping[str, str]

    @property
    def place(self) -> tuple[str, str, int]:
        """Where it stands, whatever it is made of."""
        return str(self.cell), self.policy, self.seed


class ArenaStore:
    """The results below a folder. Final.

    Args:
        work: the folder; results stand in `results/RECORDING.jsonl`.
    """

    def __init__(self, work: Path) -> None:
        self._folder = work / RESULTS
        self._known: dict[str, dict[tuple[str, str, int], dict[str, Outcome]]] = {}

    def found(self, run: AskedRun) -> Outcome | None:
        """What came of a run; None where it has to be played. Of two equal runs the later one counts."""
        return self._of(run.cell.recording).get(run.place, {}).get(_key(run.made_of))

    def changed(self, run: AskedRun) -> tuple[str, ...]:
        """Of a run that has to be played anew, which of `PARTS` are others than in the run before; () for a new one."""
        before = self._of(run.cell.recording).get(run.place)
        if not before:
            return ()
        parts = dict(zip(PARTS, list(before)[-1].split(), strict=True))
        return tuple(part for part in PARTS if parts[part] != run.made_of[part])

    def add(self, run: AskedRun, outcome: Outcome) -> None:
        """Keep what came of a run; raises OSError where the file cannot be written."""
        path = self._path(run.cell.recording)
        path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"made_of": dict(run.made_of), **outcome_to_json(outcome)}) + "\n"
        with path.open("ab") as file:
            if file.tell() and not _ends_in_line(path):  # somebody was cut off in a line, which is lost
                line = f"\n{line}"
            file.write(line.encode())
        self._of(run.cell.recording).setdefault(run.place, {})[_key(run.made_of)] = outcome

    def _of(self, recording: str) -> dict[tuple[str, str, int], dict[str, Outcome]]:
        if recording not in self._known:
            self._known[recording] = _read(self._path(recording))
        return self._known[recording]

    def _path(self, recording: str) -> Path:
        return self._folder / f"{recording}.jsonl"


def anew(store: ArenaStore, runs: Iterable[AskedRun]) -> dict[str, int]:
    """How many of the runs are to be played again since a part of them changed, by part."""
    return dict(Counter(part for run in runs for part in store.changed(run)))


def _read(path: Path) -> dict[tuple[str, str, int], dict[str, Outcome]]:
    """The results of a file by place and by what they are made of, the latest last."""
    found: dict[tuple[str, str, int], dict[str, Outcome]] = {}
    lost = 0
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            content = json.loads(line)
            key, outcome = _key(content.pop("made_of")), outcome_from_json(content)
        except (ValueError, KeyError, TypeError, AttributeError):
            lost += bool(line)
            continue
        of_place = found.setdefault((str(outcome.cell), outcome.policy, outcome.seed), {})
        of_place.pop(key, None)
        of_place[key] = outcome
    if lost:
        tell(f"{path}: {lost} lines are no results; their runs are played anew")
    return found


def _key(made_of: Mapping[str, str]) -> str:
    return " ".join(made_of[part] for part in PARTS)


def _ends_in_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
