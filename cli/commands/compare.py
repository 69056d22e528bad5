"""`paceline compare`: policies side by side on one recording."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ...decoding.pool import Pool
from ...reports.conclusion import conclusion
from ...reports.tables.comparison import comparison_table
from ...reports.tables.detail import detail_tables
from ...reports.tables.grid import Grid
from ...reports.tables.quality import quality_table
from ...sim.cost import CostModel, OnDevice
from ...sim.recording import tables_of
from ...sim.simulate import Scenario
from ...studies.comparing import comparison_of, meta_of
from ...studies.default_policies import BASELINE, default_policies
from ...studies.imported_policies import imported_policies
from ...studies.policy_runs import run_policies
from ...studies.scenarios import Scenarios, SeedsOption, ShiftOption, shifts_of
from ...studies.shipped import shipped
from ...studies.sweep import BatchOption, SweepOption, batches_of, refuse_beside_sweep, show_sweep, swept
from ...traces.open_recording import open_recording
from ...traces.rounds.recording import RoundsRecording
from ...traces.tries.recording import TrieRecording
from ..options.cost import CostOption, ExtrapolateOption, ScaleOption, TensorParallelOption, cost_of
from ..options.lossless import LosslessOption
from ..options.model_shapes import ModelsOption, with_models
from ..options.on_device import MeasuredOnOption, OnOption, device_views, on_device
from ..options.regret import ByTagOption, RegretOption, further_views, is_oracle, with_oracles
from ..options.start import StartOption
from ..output import JsonOption, check_json_path, print_table, say, write_json

DetailOption = Annotated[
    bool, typer.Option("--detail", help="Also what the first table leaves out: further figures, and by member.")
]


def compare(
    trace: Annotated[Path | None, typer.Option(help="A .trace folder; default: the shipped recording.")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="NAME, NAME,key=value,..., a chain (draft:4/target), file.py:Class or package.module:Class."),
    ] = None,
    cost: CostOption = None,
    scale: ScaleOption = None,
    tensor_parallel: TensorParallelOption = 1,
    extrapolate: ExtrapolateOption = False,
    models: ModelsOption = None,
    on: OnOption = None,
    measured_on: MeasuredOnOption = None,
    shift_acceptance: ShiftOption = None,
    batch: BatchOption = "1",
    seed: Annotated[int, typer.Option(help="Of decisions that have to be modelled.")] = 0,
    seeds: SeedsOption = 5,
    start: StartOption = None,
    decide_seconds: Annotated[float, typer.Option(help="Seconds a policy costs per step.", min=0)] = 0.0,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse what is not recorded.")] = False,
    lossless: LosslessOption = False,
    detail: DetailOption = False,
    by_tag: ByTagOption = False,
    regret: RegretOption = False,
    sweep: SweepOption = None,
    json: JsonOption = None,
    log: Annotated[
        Path | None, typer.Option(help="Write each policy's run log, at the first seed, into this new folder.")
    ] = None,
) -> None:
    """Compare policies on one recording: speed-up over the target alone, acceptance, seconds by model."""
    check_json_path(json, log, *([] if cost is None else [Path(cost)]))
    batches = batches_of(batch, sweep)
    if sweep:
        beside = {
            "--policy": policy,
            "--detail": detail,
            "--by-tag": by_tag,
            "--regret": regret,
            "--on": on,
            "--log": log,
        }
        refuse_beside_sweep(beside)
    recording = with_models(open_recording(shipped("recordings", "pico.trace") if trace is None else trace), models)
    shifts = shifts_of(shift_acceptance)
    elsewhere = on_device(on, measured_on)

    def cost_at(device: OnDevice | None) -> CostModel:
        return cost_of(
            cost,
            recording,
            scale=scale,
            tensor_parallel=tensor_parallel,
            extrapolate=extrapolate,
            on=device,
            shapes_given=bool(models),
        )

    price = cost_at(elsewhere)
    first = Scenario(
        tables=tables_of(recording),
        cost=price,
        batch=batches[0],
        seed=seed,
        strict=strict,
        decide_s=decide_seconds,
        start=start,
    )
    scenarios = Scenarios(recording, first, shifts, seeds)
    meta = meta_of(scenarios, recording, scale=scale, tensor_parallel=tensor_parallel, extrapolate=extrapolate)
    if sweep:
        show_sweep(swept(sweep, scenarios, batches, recording, meta, lossless=lossless), json)
        return
    names = _names(policy, recording, first.tables.pool, regret=regret)
    partial = policy is None and isinstance(recording, RoundsRecording)
    runs = run_policies(scenarios, names, baseline=BASELINE, log=log, partial=partial, lossless=lossless)
    comparison = comparison_of(runs, names, meta, price)
    pool = first.tables.pool
    tables, keys = further_views(comparison, runs.shares, pool, baseline=BASELINE, by_tag=by_tag, regret=regret)
    known = [row.policy for row in comparison.rows]
    ranges, more = device_views(elsewhere, recording, scenarios, known, cost_at, baseline=BASELINE, lossless=lossless)
    if json is not None:
        write_json({**comparison.to_json(), **keys, **more}, json)
        return
    quality = quality_table(comparison.ranked())
    first_tables = [comparison_table(comparison), *([] if quality is None else [quality])]
    _print([*first_tables, *(detail_tables(comparison) if detail else ()), *ranges, *tables])
    say(conclusion(comparison, ruled_out=[name for name in names if is_oracle(name, pool)]))


def _names(
    given: list[str] | None, recording: TrieRecording | RoundsRecording, pool: Pool, *, regret: bool
) -> list[str]:
    """The policies asked for, or the recording's defaults; raises ValueError for one that is given twice."""
    names = given or _defaults(recording, pool)
    if regret:
        names = with_oracles(names)
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        raise ValueError(f"--policy {twice[0]} is given twice")
    return names


def _defaults(recording: TrieRecording | RoundsRecording, pool: Pool) -> list[str]:
    if isinstance(recording, RoundsRecording):
        return imported_policies(recording, pool, BASELINE)
    names = default_policies(pool)
    # Not for `agree`, whose recording would have to be as deep as the longest chain it may ever choose.
    return [*names, "specrouter"] if pool.target_level > 0 else names


def _print(tables: Sequence[Grid]) -> None:
    """Tables with a line between them."""
    for index, table in enumerate(tables):
        if index:
            typer.echo()
        print_table(table)
