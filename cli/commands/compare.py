"""`paceline compare`: policies side by side on one recording."""

from functools import partial
from pathlib import Path

from ...studies.compare import compare as compare_policies
from ...studies.open_recording import open_recording
from ...studies.sweep import sweep as sweep_chains
from ..options import comparison as options
from ..options.parsing import batches
from ..output import JsonOption, check_json_path, show


def compare(
    *,
    trace: options.TraceOption = None,
    policy: options.PoliciesOption = None,
    setting: options.ComparisonAsked,
    detail: options.DetailOption = False,
    by_tag: options.ByTagOption = False,
    regret: options.RegretOption = False,
    sweep: options.SweepOption = None,
    json: JsonOption = None,
    log: options.LogOption = None,
) -> None:
    """Compare policies on one recording: speed-up over the target alone, acceptance, seconds by model."""
    check_json_path(json, log, *([] if setting.cost is None else [Path(setting.cost)]))
    sizes = batches(setting.batch)
    under = setting.setting()
    if sweep:
        _refuse_beside_sweep(policy=policy, detail=detail, by_tag=by_tag, regret=regret, on=setting.on, log=log)
        chains = sweep_chains(open_recording(trace), sweep, batches=sizes, **under)
        show(json, chains)
        return
    if len(sizes) > 1:
        raise ValueError(f"--batch takes several numbers with --sweep only, got {setting.batch!r}")
    recording = open_recording(trace)
    found = compare_policies(recording, policy, batch=sizes[0], by_tag=by_tag, regret=regret, log=log, **under)
    show(json, found, partial(found.tables, detail=detail))


def _refuse_beside_sweep(**values: object) -> None:
    """Refuse options that a sweep would ignore; raises ValueError for the first that was given."""
    given = next((name for name, value in values.items() if value), None)
    if given is not None:
        option = f"--{given.replace('_', '-')}"
        raise ValueError(f"{option} has no part in --sweep; compare the chains that it finds best with --policy")
