"""`paceline trace list | inspect | check | make`."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..base.errors import counted
from ..base.files import recording_path, shipped, shipped_names
from ..reports.grid import Column, Grid
from ..reports.recordings import rounds_tables, trace_tables
from ..runtime.pools.pool_file import tokenizer_sha256
from ..traces.contexts.store import write_trace
from ..traces.errors import TraceFormatError
from ..traces.forms import by_form, open_recording
from ..traces.recording import Recording
from ..traces.synthetic import SyntheticSpec, make_trace
from .options import named_recording, numbers, words
from .output import JsonOption, check_json_path, check_new_folder, print_table, show_table, write_json

TraceArgument = Annotated[
    Path, typer.Argument(callback=named_recording, help="A .trace folder, or a shipped one's name.")
]


def list_recordings(
    folder: Annotated[
        Path, typer.Argument(help="Folder whose recordings are listed after those that come with paceline.")
    ] = Path(),
    json: JsonOption = None,
) -> None:
    """The recordings that come with paceline, by the names that `--trace` takes, and those in a folder."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: must be a folder")
    rows = [_listed(name, shipped("recordings", f"{name}.trace")) for name in shipped_names("recordings", ".trace")]
    rows += [_listed(str(path), path) for path in sorted(folder.glob("*.trace")) if path.is_dir()]
    columns = tuple(Column(heading=heading, number=False) for heading in ("trace", "holds", "models"))
    cells = tuple((row["trace"], row["holds"], row["models"]) for row in rows)
    show_table(json, {"recordings": rows}, Grid(columns=columns, rows=cells))


def _listed(name: str, path: Path) -> dict[str, str]:
    """A row of the list; of a folder that is no sound recording it says why."""
    try:
        about = open_recording(path).about
    except TraceFormatError as error:
        return {"trace": name, "holds": f"cannot be read: {error}", "models": ""}
    return {"trace": name, "holds": about.holds, "models": ", ".join((*about.lookups, *about.models))}


def inspect(
    trace: Annotated[
        Path | None,
        typer.Argument(callback=named_recording, help="A .trace folder, or a shipped one's name; default: pico."),
    ] = None,
    json: JsonOption = None,
) -> None:
    """What a recording holds, and by tag: agreement with the target, or rounds of each drafter if it was imported."""
    trace = recording_path(trace)
    check_json_path(json)
    recording = open_recording(trace)
    if json is not None:
        write_json(recording.summary(trace).to_json(), json)
        return
    tables: Iterable[Grid] = by_form(
        recording,
        tries=lambda tries: trace_tables(tries.summary(trace)),
        rounds=lambda rounds: rounds_tables(rounds.summary(trace)),
    )
    for table in tables:
        print_table(table)


def check(
    trace: TraceArgument,
    pool: Annotated[Path | None, typer.Option(help="A pool whose tokenizer the trace must have.")] = None,
) -> None:
    """Validate a recording in full; exit 2 with the first broken rule."""
    recording = open_recording(trace)
    if pool is not None:
        _check_tokenizer(recording, trace, pool)
    recording.summary()  # reads all of it, and whatever is read is checked
    typer.echo(f"{trace}: ok, {recording.about.holds}")


def _check_tokenizer(recording: Recording, path: Path, pool: Path) -> None:
    wanted, found = tokenizer_sha256(pool), recording.about.tokenizer_sha256
    if found != wanted:
        rule = f"must be that of {pool}, {wanted[:12]}"
        raise TraceFormatError(
            path, "tokenizer_sha256", rule, "none, as it was imported" if found is None else found[:12]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticAsked:
    """What a synthetic recording is to be, as it is typed: each field is an option, and one of `SyntheticSpec`."""

    requests: Annotated[int, typer.Option(help="Number of requests.")] = 32
    tokens: Annotated[int, typer.Option(help="Output tokens per request.")] = 128
    prompt_tokens: Annotated[int, typer.Option(help="Prompt tokens per request.")] = 32
    models: Annotated[str, typer.Option(help="Names, smallest first, the target last.")] = "draft,target"
    acceptance: Annotated[str, typer.Option(help="Agreement with the target, one per model below it.")] = "0.8"
    off_trunk: Annotated[
        str | None, typer.Option(help="Agreement with the next larger model off the trunk, one per model below it.")
    ] = None
    depth_decay: Annotated[float, typer.Option(help="Share of off-trunk agreement lost per token.")] = 0.05
    autocorrelation: Annotated[float, typer.Option(help="Lag-1 correlation of agreement, in [0, 1).")] = 0.0
    run_decay: Annotated[
        float, typer.Option(help="Share of agreement lost per token that a model has agreed on since its last miss.")
    ] = 0.0
    confidence: Annotated[
        float, typer.Option(help="The smaller, the more a model's probability tells of agreement.")
    ] = 2.0
    cost_ratios: Annotated[
        str | None, typer.Option(help="Seconds of a forward relative to the target's, one per model below it.")
    ] = None
    target_forward_s: Annotated[
        float, typer.Option("--target-forward-seconds", help="Of one token, by the target.")
    ] = 0.02
    vocab_size: Annotated[int, typer.Option(help="Number of token ids.")] = 32000
    reach: Annotated[int, typer.Option(help="Most tokens off the trunk.")] = 16
    run: Annotated[int, typer.Option(help="Most tokens of a model after a larger one's.")] = 8
    tags: Annotated[str, typer.Option(help="Given to the requests in turn.")] = "synthetic"
    seed: Annotated[int, typer.Option(help="The same seed gives the same trace.")] = 0

    def spec(self, name: str) -> SyntheticSpec:
        """What is asked for, of that name; raises ValueError for what it cannot be."""
        given = asdict(self) | {"models": words("models", self.models)}
        for option in ("acceptance", "off_trunk", "cost_ratios"):
            given[option] = None if given[option] is None else numbers(option, given[option])
        return SyntheticSpec(name=name, **given | {"tags": words("tags", self.tags)})


def make(
    *, out: Annotated[Path, typer.Argument(help="The .trace folder to write.")], recording: SyntheticAsked
) -> None:
    """Write a synthetic recording with the acceptance you ask for; it is labelled synthetic wherever it is shown."""
    check_new_folder("OUT", out, what="a recording")
    spec = recording.spec(out.name.removesuffix(".trace"))
    write_trace(make_trace(spec), out)
    typer.echo(f"{out}: synthetic, {counted(spec.requests, 'request')} of {counted(spec.tokens, 'token')}")
