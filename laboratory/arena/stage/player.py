"""Plays what an arena asks for, run by run, and tells what lacks something from what fails."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from ....decoding.contract import UnavailableStepError
from ....policies.spec import PolicySpec
from ....traces.errors import TraceFormatError
from ....traces.forms import open_recording
from ..cell import ArenaCell
from ..play import play
from ..played import BEST_STATIC, LeftOut, Outcome, Played
from ..statics.of_cells import CellStatics
from .recording_stage import RecordingStage


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOf:
    """A run to be played.

    Attributes:
        trace: folder of the recording.
        cell, policy, seed: as of `Played`.
        given: options of the policy besides those that its name says, by name.
    """

    trace: Path
    cell: ArenaCell
    policy: str
    seed: int
    given: tuple[tuple[str, str], ...] = ()

    @property
    def spec(self) -> PolicySpec:
        """The policy with all its options; raises PolicySpecError for a name that is none."""
        named = PolicySpec.parse(self.policy)
        return replace(named, options={**named.options, **dict(self.given)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A run that ended in an error which is nobody's input.

    Attributes:
        cell, policy, seed: as of `Played`.
        error: in one line.
    """

    cell: ArenaCell
    policy: str
    seed: int
    error: str

    def __str__(self) -> str:
        return f"failed: {self.policy} in {self.cell}, seed {self.seed}: {self.error}"


Came: TypeAlias = Outcome | Failed


class Player:
    """Plays runs, and keeps the recording of the latest for the next. Final."""

    def __init__(self) -> None:
        self._trace: Path | None = None
        self._kept: tuple[RecordingStage, CellStatics] | None = None

    def outcome(self, run: RunOf) -> Came:
        """What came of a run; nothing is raised, so that one run does not lose the others."""
        try:
            return self._play(run)
        except TraceFormatError as error:
            said = _line(error)
        except UnavailableStepError as error:
            why = f"not applicable: {_line(error.reason)}"
            return LeftOut(cell=run.cell, policy=run.policy, seed=run.seed, why=why)
        except ValueError as error:  # of a policy's own errors the loop makes a PolicyError
            return LeftOut(cell=run.cell, policy=run.policy, seed=run.seed, why=_line(error))
        except Exception as error:  # noqa: BLE001 - a policy may raise anything, and is told with its run
            said = f"{type(error).__name__}: {_line(error)}"
        return Failed(cell=run.cell, policy=run.policy, seed=run.seed, error=said)

    def _play(self, run: RunOf) -> Played:
        stage, statics = self._on(run.trace)
        if run.policy == BEST_STATIC:
            return statics.best(run.cell, run.seed)
        return play(stage, run.cell, run.spec, run.seed)

    def _on(self, trace: Path) -> tuple[RecordingStage, CellStatics]:
        if self._kept is None or trace != self._trace:
            self._kept = None  # two are not to be held at once
            stage = RecordingStage(open_recording(trace))
            self._trace, self._kept = trace, (stage, CellStatics(stage))
        return self._kept


def _line(error: BaseException | str) -> str:
    return " ".join(str(error).split())
