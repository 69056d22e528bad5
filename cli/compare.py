"""`paceline compare`: policies side by side on one recording."""

from functools import partial
from pathlib import Path

from ..base.errors import ArgumentError
from ..studies.compare import compare as compare_policies
from ..studies.compare import sweep as sweep_chains
from ..studies.setting import open_recording
from .options import BlockTokensOption, PrefixCacheOption, ServedAsked
from .output import JsonOption, check_json_path, show
from .study_options import (
    ByTagOption,
    ComparisonAsked,
    DetailOption,
    LogOption,
    PlacementOption,
    PoliciesOption,
    RegretOption,
    SweepOption,
    TraceOption,
    batches,
)


def compare(
    *,
    trace: TraceOption = None,
    policy: PoliciesOption = None,
    setting: ComparisonAsked,
    detail: DetailOption = False,
    by_tag: ByTagOption = False,
    regret: RegretOption = False,
    sweep: SweepOption = None,
    devices: PlacementOption = None,
    prefix_cache: PrefixCacheOption = None,
    block_tokens: BlockTokensOption = None,
    json: JsonOption = None,
    log: LogOption = None,
    served: ServedAsked,
) -> None:
    """Compare policies on one recording: speed-up over the target alone, acceptance, seconds by model.

    With --workload: policies that serve requests as they arrive, a row for each rate and policy.
    """
    check_json_path(json, log, *([] if setting.cost is None else [Path(setting.cost)]))
    shared = {"prefix_cache": prefix_cache, "block_tokens": block_tokens}
    beside = {**shared, "by_tag": by_tag, "regret": regret, "devices": devices}
    if served.workload is not None:
        _refuse_beside("--workload", **beside, sweep=sweep, batch=setting.batch != "1")
        _under_load(trace, policy, setting, served, detail=detail, json=json, log=log)
        return
    served.refuse_without_workload()
    sizes = batches(setting.batch)
    under = setting.setting()
    if sweep:
        _refuse_beside("--sweep", policy=policy, detail=detail, **beside, on=setting.on, log=log)
        chains = sweep_chains(open_recording(trace), sweep, batches=sizes, **under)
        show(json, chains)
        return
    if len(sizes) > 1:
        raise ValueError(f"--batch takes several numbers with --sweep only, got {setting.batch!r}")
    recording = open_recording(trace)
    found = compare_policies(
        recording, policy, batch=sizes[0], by_tag=by_tag, regret=regret, log=log, devices=devices, **shared, **under
    )
    show(json, found, partial(found.tables, detail=detail))


def _under_load(
    trace: Path | None,
    policies: list[str] | None,
    setting: ComparisonAsked,
    served: ServedAsked,
    *,
    detail: bool,
    json: Path | None,
    log: Path | None,
) -> None:
    # Here: what serves takes about as long to import as all that compares without it.
    from .serving import show_under_load  # noqa: PLC0415

    show_under_load(trace, policies, setting, served, detail=detail, json=json, log=log)


def _refuse_beside(option: str, **values: object) -> None:
    """Refuse options that another one would ignore; raises ArgumentError for the first that was given."""
    given = next((name for name, value in values.items() if value), None)
    if given is not None:
        advice = "; compare the chains that it finds best with `policies`" if option == "--sweep" else ""
        raise ArgumentError(f"`{given}` has no part in {option}{advice}")
