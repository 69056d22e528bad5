"""Chains with every window of a range, at one or more batches."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Unpack

from pydantic import with_config

from ..arguments import ArgumentError
from ..policies.chain_notation import ChainSpec
from ..policies.chain_ranges import chains_in
from ..reports.side_by_side import SideBySide
from ..reports.sweep import Sweep
from ..sim.cost.base import CostRangeError
from ..traces.recording import Recording
from .comparing.policy_runs import run_policies
from .comparing.scenarios import Scenarios
from .comparing.setting import STRICT, SettingOptions, check_kinds, setting_of
from .named_policies import NamedPolicy, named_policies
from .remarks import remarks_on

MOST_CELLS = 1000


@with_config(STRICT)
class Swept(SettingOptions):
    """Further keywords of `sweep`."""

    batches: Sequence[int]


def sweep(
    recording: Recording | str | Path,
    chains: str | Sequence[str],
    *,
    batches: Sequence[int] = (1,),
    **options: Unpack[SettingOptions],
) -> Sweep:
    """Compare chains with every window of a range.

    Args:
        recording: that is replayed, as `open_recording` returns it, or where it lies.
        chains: with ranges of windows: "draft:1..12/target", "draft:1..9:2/mid:4..8/target".
        batches: requests running at a time, each with every chain; at most 1,000 chains x batches.
        options: as of `compare`, but for `on` and `measured_on`.

    Raises:
        ValueError: an argument that will not do, in one line; no chain with ranges, or too many of them.
        CostRangeError: the cost knows the seconds of no chain at one of the batches.
    """
    check_kinds({**options, "batches": batches}, Swept)
    twice = [batch for batch, count in Counter(batches).items() if count > 1]
    if twice or not batches:
        raise ArgumentError(f"`batches` {twice[0]} is given twice" if twice else "`batches` must hold one, got none")
    if options.get("on") is not None:
        raise ArgumentError("`on` has no part in a sweep, which shows one speed-up a cell and not the range of three")
    setting = setting_of(recording, batches[0], options)
    scenarios = setting.scenarios()
    texts = [chains] if isinstance(chains, str) else chains
    found = chains_in(texts, scenarios.first.tables.pool, most=MOST_CELLS // len(batches))
    policies = named_policies([str(chain) for chain in found])
    meta = setting.meta(scenarios.first)
    comparisons = {
        batch: _compared(scenarios.with_batch(batch), policies, meta, lossless=setting.lossless) for batch in batches
    }
    told = {
        "batch": list(batches),
        "remarks": _once(remark for batch in batches for remark in remarks_on(setting.recording, batch=batch)),
        "cost_notes": _once(note for one in comparisons.values() for note in one.meta["cost_notes"]),
        "left_out": [
            f"batch {batch:,}: {reason}" for batch, one in comparisons.items() for reason in one.meta["left_out"]
        ],
    }
    windows = {str(chain): _windows(chain) for chain in found}
    return Sweep(meta={**meta, **told}, chains=windows, comparisons=comparisons)


def _compared(
    scenarios: Scenarios, policies: Sequence[NamedPolicy], meta: dict[str, Any], *, lossless: bool
) -> SideBySide:
    try:
        runs = run_policies(scenarios, policies, lossless=lossless, partial=True)
        return runs.side_by_side(meta, scenarios.first.cost)
    except CostRangeError as error:
        raise CostRangeError(f"batch {scenarios.first.batch:,}: {error}") from error


def _windows(chain: ChainSpec) -> dict[str, int]:
    return dict(zip(chain.members, chain.windows, strict=False))


def _once(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
