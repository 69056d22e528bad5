"""`paceline compare`: policies side by side on one recording."""

from collections.abc import Sequence
from pathlib import Path

from ...reports.tables.grid import Grid
from ...reports.tables.printed import Printed
from ...studies.compare import compare as compare_policies
from ...studies.comparing.setting import SettingOptions
from ...studies.open_recording import open_recording
from ...studies.sweep import sweep as sweep_chains
from ..errors import with_options
from ..options import comparison as options
from ..options.parsing import batches, named_numbers
from ..output import JsonOption, check_json_path, print_result, write_json


def compare(
    trace: options.TraceOption = None,
    policy: options.PoliciesOption = None,
    cost: options.CostOption = None,
    scale: options.ScaleOption = None,
    tensor_parallel: options.TensorParallelOption = 1,
    extrapolate: options.ExtrapolateOption = False,
    models: options.ModelsOption = None,
    on: options.OnOption = None,
    measured_on: options.MeasuredOnOption = None,
    shift_acceptance: options.ShiftOption = None,
    batch: options.BatchOption = "1",
    seed: options.SeedOption = 0,
    seeds: options.SeedsOption = 5,
    start: options.StartOption = None,
    decide_seconds: options.DecideSecondsOption = 0.0,
    strict: options.StrictOption = False,
    lossless: options.LosslessOption = False,
    detail: options.DetailOption = False,
    by_tag: options.ByTagOption = False,
    regret: options.RegretOption = False,
    sweep: options.SweepOption = None,
    json: JsonOption = None,
    log: options.LogOption = None,
) -> None:
    """Compare policies on one recording: speed-up over the target alone, acceptance, seconds by model."""
    check_json_path(json, log, *([] if cost is None else [Path(cost)]))
    sizes = batches(batch)
    setting: SettingOptions = {
        "cost": cost,
        "scale": named_numbers("--scale", "FACTOR", scale),
        "tensor_parallel": tensor_parallel,
        "extrapolate": extrapolate,
        "models": models,
        "on": on,
        "measured_on": measured_on,
        "shift_acceptance": named_numbers("--shift-acceptance", "DELTA", shift_acceptance),
        "seed": seed,
        "seeds": seeds,
        "start": start,
        "decide_s": decide_seconds,
        "strict": strict,
        "lossless": lossless,
    }
    if sweep:
        _refuse_beside_sweep(policy=policy, detail=detail, by_tag=by_tag, regret=regret, on=on, log=log)
        chains = sweep_chains(open_recording(trace), sweep, batches=sizes, **setting)
        _show(chains, chains.tables(), json)
        return
    if len(sizes) > 1:
        raise ValueError(f"--batch takes several numbers with --sweep only, got {batch!r}")
    recording = open_recording(trace)
    found = compare_policies(recording, policy, batch=sizes[0], by_tag=by_tag, regret=regret, log=log, **setting)
    _show(found, found.tables(detail=detail), json)


def _refuse_beside_sweep(**values: object) -> None:
    """Refuse options that a sweep would ignore; raises ValueError for the first that was given."""
    given = next((name for name, value in values.items() if value), None)
    if given is not None:
        option = f"--{given.replace('_', '-')}"
        raise ValueError(f"{option} has no part in --sweep; compare the chains that it finds best with --policy")


def _show(found: Printed, tables: Sequence[Grid], json: Path | None) -> None:
    """Print tables and what is to say of them, or write JSON; remarks name options, as errors do."""
    if json is None:
        print_result(tables, found.lines())
        return
    content = found.to_json()
    for part in (content["meta"], content.get("on", {})):
        for remarks in {"remarks", "cost_notes", "left_out"} & part.keys():
            part[remarks] = [with_options(remark) for remark in part[remarks]]
    write_json(content, json)
