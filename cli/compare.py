"""`paceline compare`: policies side by side on one recording."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from ..policies.contract import Policy
from ..policies.pool import Pool
from ..policies.registry import make_policy
from ..reports.comparison import Comparison
from ..reports.comparison_table import comparison_table
from ..reports.summary import Summary, summarise_run
from ..reports.tags import TagShares, tag_shares
from ..sim.cost import CostRangeError
from ..sim.recording import check_observed, tables_of
from ..sim.simulate import Scenario, simulate
from ..traces.imported.rounds import RoundsTrace
from ..traces.open_recording import open_recording
from ..traces.run_log import RunLog, new_folder, write_run_log
from ..traces.trie import Trace
from .cost_options import CostOption, ExtrapolateOption, ScaleOption, TensorParallelOption, cost_of, factors_of
from .imported_policies import imported_policies
from .lossless import LosslessOption, admitted
from .output import JsonOption, check_json_path, print_table, progress, write_json
from .regret_options import ByTagOption, RegretOption, further_views, with_oracles
from .scenarios import Scenarios, SeedsOption, ShiftOption, shifts_of
from .shipped import shipped

BASELINE = "plain"


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
    shift_acceptance: ShiftOption = None,
    batch: Annotated[int, typer.Option(help="Requests running at a time.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Of decisions that have to be modelled.")] = 0,
    seeds: SeedsOption = 5,
    decide_seconds: Annotated[float, typer.Option(help="Seconds a policy costs per step.", min=0)] = 0.0,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse what is not recorded.")] = False,
    lossless: LosslessOption = False,
    by_tag: ByTagOption = False,
    regret: RegretOption = False,
    json: JsonOption = None,
    log: Annotated[
        Path | None, typer.Option(help="Write each policy's run log, at the first seed, into this new folder.")
    ] = None,
) -> None:
    """Compare policies on one recording: speed-up over the target alone, acceptance, seconds by model."""
    check_json_path(json)
    recording = open_recording(shipped("recordings", "pico.trace") if trace is None else trace)
    shifts = shifts_of(shift_acceptance)
    price = cost_of(cost, recording, scale=scale, tensor_parallel=tensor_parallel, extrapolate=extrapolate)
    first = Scenario(
        tables=tables_of(recording), cost=price, batch=batch, seed=seed, strict=strict, decide_s=decide_seconds
    )
    scenarios = Scenarios(recording, first, shifts, seeds)
    names = policy or _defaults(recording, first.tables.pool)
    if regret:
        names = with_oracles(names, recording)
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        raise ValueError(f"--policy {twice[0]} is given twice")
    meta = _meta(scenarios, recording, scale=scale, tensor_parallel=tensor_parallel, extrapolate=extrapolate)
    partial = policy is None and isinstance(recording, RoundsTrace)
    comparison, shares = _compare(scenarios, names, meta, log=log, partial=partial, lossless=lossless)
    tables, keys = further_views(comparison, shares, first.tables.pool, baseline=BASELINE, by_tag=by_tag, regret=regret)
    if json is None:
        print_table(comparison_table(comparison))
        for table in tables:
            typer.echo()
            print_table(table)
    else:
        write_json({**comparison.to_json(), **keys}, json)


def default_policies(pool: Pool) -> list[str]:
    """A representative set for any pool: the target alone, chains of two and three levels, and policies that adapt."""
    target = pool.target
    free = [member.name for member in pool.members if member.model_free]
    below = [member.name for member in pool.members[:-1] if not member.model_free]
    names = [BASELINE, *(f"{model}:4/{target}" for model in below)]
    if len(below) > 1:
        names += [f"{below[0]}:3/{model}:6/{target}" for model in below[1:]]
    if free:
        names.append("ngram")
        names += [f"{free[0]}:6/{model}:6/{target}" for model in below[1:2]]
    if below:
        names += ["adaptive", "confident", "specrouter"]
    return names


def _defaults(recording: Trace | RoundsTrace, pool: Pool) -> list[str]:
    if isinstance(recording, RoundsTrace):
        return imported_policies(recording, pool, BASELINE)
    return default_policies(pool)


def _compare(
    scenarios: Scenarios, names: list[str], meta: dict[str, Any], *, log: Path | None, partial: bool, lossless: bool
) -> tuple[Comparison, dict[str, TagShares]]:
    """Run every policy.

    Args:
        scenarios: by seed.
        names: of the policies.
        meta: of the comparison.
        log: folder for run logs.
        partial: leave out policies whose seconds the cost does not know, and say which.
        lossless: refuse lossy policies.

    Returns:
        The comparison, and by policy its run at the first seed by tag, the baseline's too.
    """
    for name in names:
        _made(scenarios.first, name, lossless=lossless)  # a wrong name is told before any run
    runs: dict[str, list[Summary]] = {}
    shares: dict[str, TagShares] = {}
    refused: dict[str, CostRangeError] = {}
    with nullcontext() if log is None else new_folder(log) as folder:
        for index, name in enumerate(progress(names if BASELINE in names else [*names, BASELINE], "replaying")):
            try:
                run_log, runs[name] = _runs(scenarios, name, lossless=lossless)
            except CostRangeError as error:
                if not partial and name in names:
                    raise
                refused[name] = error
                continue
            shares[name] = tag_shares(run_log)
            if folder is not None and name in names:
                write_run_log(run_log, folder / f"{index:02d}-{_file_name(name)}")
    rows = [runs[name] for name in names if name in runs]
    if not rows:
        raise next(iter(refused.values()))
    left_out = [f"{name} is left out: {error}" for name, error in refused.items() if name in names]
    if BASELINE in refused and BASELINE not in names:
        left_out.append(f"no speed-up is known: {refused[BASELINE]}")
    comparison = Comparison(
        meta={**meta, "cost_notes": list(scenarios.first.cost.notes()), "left_out": left_out},
        baseline=runs[BASELINE][0] if BASELINE in runs else None,
        rows=tuple(row[0] for row in rows),
        repeats={row[0].policy: tuple(row[1:]) for row in rows},
    )
    return comparison, shares


def _runs(scenarios: Scenarios, name: str, *, lossless: bool) -> tuple[RunLog, list[Summary]]:
    """The run log at the first seed, and summaries: at further seeds too where chance has a part in the policy."""
    run_log = _run(scenarios.at(0), name, lossless=lossless)
    summaries = [summarise_run(run_log)]
    drafts = any(level.drafted for level in summaries[0].levels)
    if summaries[0].exact_share < 1 or (scenarios.shifted and drafts):
        further = [scenarios.at(index) for index in range(1, scenarios.num_seeds)]
        summaries += [summarise_run(_run(scenario, name, lossless=lossless)) for scenario in further]
    return run_log, summaries


def _run(scenario: Scenario, name: str, *, lossless: bool) -> RunLog:
    """One run of a policy built for it: what a policy learns stays in its run."""
    return simulate(scenario, _made(scenario, name, lossless=lossless), name)


def _made(scenario: Scenario, name: str, *, lossless: bool) -> Policy:
    """A new policy that may run on the recording; raises ValueError if it may not."""
    policy = admitted(make_policy(name, scenario.tables.pool), name, lossless=lossless)
    check_observed(policy, name, scenario.tables)
    return policy


def _meta(
    scenarios: Scenarios,
    recording: Trace | RoundsTrace,
    *,
    scale: list[str] | None,
    tensor_parallel: int,
    extrapolate: bool,
) -> dict[str, Any]:
    first = scenarios.first
    return {
        "trace": recording.meta.name,
        "kind": recording.meta.kind,
        "source": recording.meta.source if isinstance(recording, RoundsTrace) else None,
        "notes": list(recording.meta.notes) if isinstance(recording, RoundsTrace) else [],
        "sampling": None if isinstance(recording, RoundsTrace) else recording.meta.sampling.words,
        "cost": first.cost.name,
        "what_if": {
            "acceptance": scenarios.shifts,
            "scale": factors_of(scale),
            "tensor_parallel": tensor_parallel,
        },
        "extrapolate": extrapolate,
        "batch": first.batch,
        "seed": first.seed,
        "seeds": scenarios.num_seeds,
        "decide_s": first.decide_s,
    }


def _file_name(policy: str) -> str:
    return "".join(char if char.isalnum() or char in "=,.-" else "_" for char in policy)
