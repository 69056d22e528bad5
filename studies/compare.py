"""The main job: policies side by side on one recording."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from pydantic import with_config

from ..arguments import ArgumentError
from ..policies.about import may_work_ahead
from ..reports.comparison import Comparison
from ..traces.recording import Recording
from .comparing.policy_runs import run_policies
from .comparing.setting import STRICT, SharingOptions, check_kinds, setting_of
from .comparing.views import device_range, oracles_of, regret_in, tags_of, with_oracles
from .named_policies import PoliciesGiven, named_policies


@with_config(STRICT)
class Asked(SharingOptions):
    """Further keywords of `compare`."""

    batch: int
    by_tag: bool
    regret: bool
    devices: str | Mapping[str, str] | None


def compare(
    recording: Recording | str | Path,
    policies: PoliciesGiven | None = None,
    *,
    batch: int = 1,
    by_tag: bool = False,
    regret: bool = False,
    log: str | Path | None = None,
    devices: str | Mapping[str, str] | None = None,
    **options: Unpack[SharingOptions],
) -> Comparison:
    """Compare policies on one recording: speed-up over the target alone, acceptance, seconds by model.

    Args:
        recording: that is replayed, as `open_recording` returns it, or where it lies.
        policies: one or several: texts ("draft:4/target", "adaptive,most=12", "file.py:Class"), specs, classes, or
            functions that make a policy for a pool; by name where names are to be yours. None: a representative set.
        batch: requests running at a time.
        by_tag: also the speed-up of each tag's own requests.
        regret: also the oracles, and what each policy loses against the best chain of every round.
        log: new folder for each policy's run log at the first seed.
        devices: where members run that a policy lets work at the same time; see `Setting`.
        options: `cost`, `scale`, `tensor_parallel`, `extrapolate`, `models`, `on`, `measured_on`,
            `shift_acceptance`, `seed`, `seeds`, `start`, `decide_s`, `strict`, `lossless`, `prefix_cache`,
            `block_tokens`; see `Setting`.

    Raises:
        ValueError: an argument or a policy that will not do, in one line.
        CostRangeError: seconds that the cost does not know.
        PolicyError: a policy that broke the contract.
    """
    check_kinds({**options, "batch": batch, "by_tag": by_tag, "regret": regret, "devices": devices}, Asked)
    setting = replace(setting_of(recording, batch, options), devices=devices)
    scenarios = setting.scenarios()
    pool = scenarios.first.tables.pool
    asked = named_policies(scenarios.first.tables.default_policies if policies is None else policies)
    if devices is not None and not any(may_work_ahead(policy.build(pool)) for policy in asked):
        names = " nor ".join(policy.name for policy in asked)
        raise ArgumentError(f"`devices` is for policies that work ahead, such as pearl, got {devices!r} for {names}")
    if regret:
        asked = with_oracles(asked, pool)
    meta = setting.meta(scenarios.first)
    partial = policies is None and not setting.recording.about.all_defaults
    runs = run_policies(
        scenarios, asked, lossless=setting.lossless, partial=partial, log=None if log is None else Path(log)
    )
    made = {policy.name: policy.build(pool) for policy in asked}
    found = runs.side_by_side(meta, scenarios.first.cost)
    known = [policy for policy in asked if policy.name in runs.known]
    return Comparison(
        runs=found,
        oracles=oracles_of(made),
        by_tag=tags_of(runs) if by_tag else None,
        regret=regret_in(found, runs, made) if regret else None,
        on_device=None if setting.on is None else device_range(setting, scenarios, known),
    )
