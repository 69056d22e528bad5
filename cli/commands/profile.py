"""`paceline profile`: what this machine takes for the operations of a pool."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ...arguments import ArgumentError
from ...installing import needs_torch
from ..options import models
from ..options.parsing import whole_numbers
from ..options.recordings import named_recording
from ..output import JsonOption, check_file_path, check_json_path, show

UNFIT = 1  # exit code: a profile no longer fits
_TraceOption = Annotated[
    Path | None,
    typer.Option(callback=named_recording, help="Of a forced pool: the .trace folder that decides what is accepted."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rounds:
    """How often forwards are timed, as it is typed: each field is an option."""

    repeats: Annotated[int, typer.Option(help="Times each shape of a forward is timed.", min=3)] = 3
    most_drift: Annotated[
        float, typer.Option(help="Largest change of seconds while they are measured, as a share; beyond it, refuse.")
    ] = 0.1
    restart: Annotated[
        bool, typer.Option("--restart", help="Do not go on where an interrupted profile of the last hour was.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shapes:
    """The grid of forwards, as it is typed: each field is an option."""

    rows: Annotated[
        str | None, typer.Option(metavar="N,...", help="Rows of the forwards that are timed. Default: 1,2,3,6,12,24.")
    ] = None
    new_tokens: Annotated[
        str | None, typer.Option(metavar="N,...", help="New tokens of each row. Default: 1,2,3,5,7,10,20,40,80,160.")
    ] = None
    context_tokens: Annotated[
        str | None, typer.Option(metavar="N,...", help="Tokens each row holds. Default: 0,60,200,480,1100,2500.")
    ] = None

    def given(self) -> dict[str, tuple[int, ...]]:
        """The axes that were given; raises ValueError for what is no list of whole numbers."""
        texts = {name: text for name, text in asdict(self).items() if text is not None}
        return {name: whole_numbers(f"--{name.replace('_', '-')}", text) for name, text in texts.items()}

    def grid(self) -> Any:  # noqa: ANN401 - of the runtime, which needs torch
        """The grid; raises ArgumentError for axes that do not increase."""
        axes: Any = self.given()
        with needs_torch():
            from ...runtime.profiling.forward_shapes import Grid
        try:
            return Grid(**axes)
        except ValueError as error:
            raise ArgumentError(f"the grid's {error}") from None


def profile(
    *,
    file: Annotated[
        Path | None, typer.Argument(help="Of --check, the .profile file; default: what --cost here uses.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether a profile still fits; exit 1 if it does not.")
    ] = False,
    pool: models.PoolOption = None,
    prompts: Annotated[
        Path | None, typer.Option(help="JSONL; some are decoded to time operations. Default: those beside the pool.")
    ] = None,
    trace: _TraceOption = None,
    out: Annotated[
        Path | None, typer.Option(help="The .profile file to write; default: kept where --cost here finds it.")
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Also time how long this policy takes to decide; repeatable.")
    ] = None,
    shapes: _Shapes,
    rounds: _Rounds,
    sampling: models.GivenSampling,
    threads: models.ThreadsOption = 1,
    debug: models.DebugOption = False,
    json: JsonOption = None,
) -> None:
    """Measure what this machine takes for a pool's operations, for --cost here: forwards by shape, and all besides."""
    mode = sampling.given()
    check_json_path(json, out, prompts, trace, file)
    if check:
        given: dict[str, object] = {"prompts": prompts, "recording": trace, "out": out, "policy": policy}
        unchanged = asdict(_Rounds())
        changed = {name: value != unchanged[name] for name, value in asdict(rounds).items()}
        _refuse_beside_check(given | shapes.given() | changed, sampling=mode is not None)
        _check(pool, file, threads=threads, debug=debug, json=json)
        return
    _check_files(file, out)
    with needs_torch():
        from ...studies.seconds.profile import profile as profile_pool
    options = asdict(rounds) | {"policies": policy or (), "threads": threads, "debug": debug, "grid": shapes.grid()}
    show(json, profile_pool(pool, prompts, recording=trace, out=out, sampling=mode, **options))


def _check_files(file: Path | None, out: Path | None) -> None:
    """Raises ValueError for a FILE without --check, or one that cannot be written."""
    if file is not None:
        raise ValueError(f"FILE goes with --check, got {str(file)!r}; --out names the file to write")
    if out is not None:
        check_file_path("--out", out)


def _refuse_beside_check(values: Mapping[str, object], **changed: bool) -> None:
    """Refuse options that a check would ignore; raises ArgumentError for the first that was given."""
    given = next((name for name, value in {**values, **changed}.items() if value), None)
    if given is not None:
        raise ArgumentError(f"`{given}` has no part in `check`, which measures a few forwards only")


def _check(pool: Path | None, file: Path | None, *, threads: int, debug: bool, json: Path | None) -> None:
    with needs_torch():
        from ...studies.seconds.check_profile import check_profile
    found = check_profile(pool, file, threads=threads, debug=debug)
    show(json, found)
    if not found.fits:
        raise typer.Exit(UNFIT)
