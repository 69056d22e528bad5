"""Finished runs of the arena, kept in lines of JSON so that a run that is cut short goes on from them.

A run is what a policy did in a cell, or why it did nothing. Each recording has a file, which is only ever added to. A
line says what its run was made of (the recording, the ladder's seconds, the code of the policy and of the simulator, as
hashes): a result is that of a run which is asked for only where all of these are the same.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from paceline.base.errors import ArgumentError, check_least, check_within
from paceline.base.terminal import tell
from paceline.policies.spec import PolicySpec

from .cells import ArenaCell

# Output tokens after which seconds are read for learning curves.
MARKS = (100, 1_000, 10_000)
# The policy's name under which the best static chain of a cell in hindsight is kept.
BEST_STATIC = "best-static"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A finished run of one policy in one cell; raises ArgumentError for a number out of range.

    All but `think_us`, a measurement, is the same whenever and wherever the run is repeated, and counts for equality.
    """

    cell: ArenaCell
    policy: str  # as it was named, options with it; `best-static` is the best static chain in hindsight
    seed: int  # 0 is the recorded order of requests, each other another order; >= 0
    tokens: int  # of output, >= 1
    # simulated, > 0: to the end of the run with a batch; with arrivals those in which the device was busy
    seconds: float
    # of those, until 100, 1,000 and 10,000 tokens were out; None where the run is shorter, and under arrivals, where
    # they say little
    seconds_at: tuple[float | None, ...]
    mean_e2e_s: float  # simulated, from a request's arrival to its last token, in the mean, > 0
    # of the decisions, those that the recording holds and nobody modelled, 0 to 1; None under arrivals
    exact_share: float | None
    # how it was played: `walked` in the tables of the recording, `stepped` by the loop, `served` by the engine
    path: str
    chain: str = ""  # of `best-static`, the chain; "" of others
    # whether the policy may write other text than the target's; one that says nothing of itself may not, as long as no
    # token differs
    lossy: bool = False
    # of a lossy policy, output tokens that equal the target's own text at their place, 0 to 1; None of others, where
    # the recording does not know the text, and under arrivals
    same_share: float | None = None
    # of a lossy policy, output tokens that differ from it, or that one of both texts lacks, >= 0; None of others, and
    # under arrivals
    divergences: int | None = None
    # microseconds of this host that the policy thought for a step, in the median; None where nobody asked it step by
    # step
    think_us: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_least("`seed`", self.seed, 0)
        check_least("`tokens`", self.tokens, 1)
        check_within("`seconds`", self.seconds, "(0, inf)")
        check_within("`mean_e2e_s`", self.mean_e2e_s, "(0, inf)")
        if self.exact_share is not None:
            check_within("`exact_share`", self.exact_share, "[0, 1]")
        if len(self.seconds_at) != len(MARKS):
            raise ArgumentError(f"`seconds_at` must have {len(MARKS)} entries, got {len(self.seconds_at)}")

    @property
    def tokens_per_s(self) -> float:
        """Speed: output tokens over seconds."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A policy that a cell has no run of."""

    # as of `Played`
    cell: ArenaCell
    policy: str
    seed: int
    why: str  # what it lacks, or that it is not applicable and why, in one line


Outcome: TypeAlias = Played | LeftOut


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """Plain values for `json.dumps`."""
    return asdict(outcome) | {"cell": str(outcome.cell)}


def outcome_from_json(content: Mapping[str, Any]) -> Outcome:
    """What `outcome_to_json` made values of; raises KeyError, TypeError or ValueError for others."""
    values = dict(content) | {"cell": ArenaCell.parse(content["cell"])}
    if "why" in values:
        return LeftOut(**values)
    return Played(**values | {"seconds_at": tuple(content["seconds_at"])})


RESULTS = "results"
PARTS = ("recording", "ladder", "simulator", "policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRun:
    """A run that is asked for."""

    trace: Path  # folder of the recording
    cell: ArenaCell
    policy: str
    seed: int
    made_of: Mapping[str, str]  # a hash of each of `PARTS`
    given: tuple[tuple[str, str], ...] = ()  # options of the policy besides those that its name says, by name

    @property
    def spec(self) -> PolicySpec:
        """The policy with all its options; raises PolicySpecError for a name that is none."""
        named = PolicySpec.parse(self.policy)
        return replace(named, options={**named.options, **dict(self.given)})

    @property
    def place(self) -> tuple[str, str, int]:
        """Where it stands, whatever it is made of."""
        return str(self.cell), self.policy, self.seed


class ArenaStore:
    """The results below a folder, in `results/RECORDING.jsonl`."""

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


def _read(path: Path) -> dict[tuple[str, str, int], dict[str, Outcome]]:
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
