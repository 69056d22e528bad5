"""`paceline compare`: policies side by side on one recording."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from ..policies.pool import Pool
from ..policies.registry import make_policy
from ..reports.comparison import Comparison
from ..reports.comparison_table import comparison_table
from ..reports.summary import Summary, summarise_run
from ..sim.costs import make_cost
from ..sim.recorded_pool import recorded_pool
from ..sim.simulate import Scenario, simulate
from ..sim.tables import TraceTables
from ..traces.meta import TraceMeta
from ..traces.run_log import new_folder, write_run_log
from ..traces.store import read_trace
from .output import JsonOption, check_json_path, print_table, progress, write_json
from .shipped import shipped

BASELINE = "plain"


def compare(
    trace: Annotated[Path | None, typer.Option(help="A .trace folder; default: the shipped recording.")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="NAME, NAME,key=value,..., a chain (draft:4/target), file.py:Class or package.module:Class."),
    ] = None,
    cost: Annotated[
        str | None, typer.Option(help="cpu (measured with the recording), a100, h100, h200, rtx4090, or FILE.json.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Requests running at a time.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Of decisions that have to be modelled.")] = 0,
    decide_seconds: Annotated[float, typer.Option(help="Seconds a policy costs per step.", min=0)] = 0.0,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse contexts outside the recording.")] = False,
    json: JsonOption = None,
    log: Annotated[Path | None, typer.Option(help="Write each policy's run log into this new folder.")] = None,
) -> None:
    """Compare policies on one recording: speed-up over the target alone, acceptance, seconds by model."""
    check_json_path(json)
    recording = read_trace(shipped("recordings", "pico.trace") if trace is None else trace)
    meta = recording.meta
    pool = recorded_pool(meta)
    scenario = Scenario(
        tables=TraceTables(recording),
        cost=make_cost(cost or _default_cost(meta), meta),
        batch=batch,
        seed=seed,
        strict=strict,
        decide_s=decide_seconds,
    )
    names = policy or default_policies(pool)
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        raise ValueError(f"--policy {twice[0]} is given twice")
    comparison = _compare(scenario, pool, names, log)
    if json is None:
        print_table(comparison_table(comparison))
    else:
        write_json(comparison.to_json(), json)


def default_policies(pool: Pool) -> list[str]:
    """A representative set for any pool: the target alone, two-level and three-level chains, and every other policy."""
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
        names += ["adaptive", "confident"]
    return names


def _default_cost(meta: TraceMeta) -> str:
    """What was measured with the recording, else a device every roofline knows."""
    return next(iter(sorted(meta.costs)), "h100")


def _compare(scenario: Scenario, pool: Pool, names: list[str], log: Path | None) -> Comparison:
    policies = [make_policy(name, pool) for name in names]
    summaries: dict[str, Summary] = {}
    wanted = list(zip(names, policies, strict=True))
    if BASELINE not in names:
        wanted.append((BASELINE, make_policy(BASELINE, pool)))
    with nullcontext() if log is None else new_folder(log) as folder:
        for index, (name, policy) in enumerate(progress(wanted, "replaying")):
            run_log = simulate(scenario, policy, name)
            summaries[name] = summarise_run(run_log)
            if folder is not None and name in names:
                write_run_log(run_log, folder / f"{index:02d}-{_file_name(name)}")
    return Comparison(meta=_meta(scenario), baseline=summaries[BASELINE], rows=tuple(summaries[name] for name in names))


def _meta(scenario: Scenario) -> dict[str, Any]:
    meta = scenario.tables.trace.meta
    return {
        "trace": meta.name,
        "kind": meta.kind,
        "sampling": meta.sampling.words,
        "cost": scenario.cost.name,
        "batch": scenario.batch,
        "seed": scenario.seed,
        "decide_s": scenario.decide_s,
    }


def _file_name(policy: str) -> str:
    return "".join(char if char.isalnum() or char in "=,.-" else "_" for char in policy)
