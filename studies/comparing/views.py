"""What a comparison shows beside its table: figures by tag, regret against oracles, and those of another device."""

from collections.abc import Mapping, Sequence

from ...decoding.policy import Policy
from ...decoding.pool import Pool
from ...policies.about import about_of
from ...policies.default_policies import BASELINE
from ...policies.lossless.chain import Chain
from ...policies.lossless.plain import Plain
from ...policies.oracles.choices import OracleChain, OracleWindow
from ...reports.device_range import DeviceRange
from ...reports.regret import REFERENCE, Regret, regret_of
from ...reports.side_by_side import SideBySide
from ...reports.tags import ByTag
from ...sim.cost.what_if.other_device import Reading
from ..named_policies import NamedPolicy, named_policy
from .policy_runs import PolicyRuns, run_policies
from .scenarios import Scenarios
from .setting import Setting

OUTER = (Reading.all, Reading.memory)


def with_oracles(policies: Sequence[NamedPolicy], pool: Pool) -> list[NamedPolicy]:
    """The policies to compare and the oracles that are not among them, whatever their options."""
    built = [policy.build(pool) for policy in policies]
    oracles = {"oracle-window": OracleWindow, REFERENCE: OracleChain}
    missing = [name for name, kind in oracles.items() if not any(isinstance(policy, kind) for policy in built)]
    return [*policies, *map(named_policy, missing)]


def oracles_of(policies: Mapping[str, Policy]) -> tuple[str, ...]:
    """Names of those that see ahead, so that nobody can run them."""
    abouts = {name: about_of(policy) for name, policy in policies.items()}
    return tuple(name for name, about in abouts.items() if about is not None and about.oracle)


def tags_of(runs: PolicyRuns) -> ByTag:
    """The runs at the first seed by tag."""
    return ByTag(baseline=runs.shares.get(BASELINE), policies={name: runs.shares[name] for name in runs.known})


def regret_in(found: SideBySide, runs: PolicyRuns, policies: Mapping[str, Policy]) -> Regret:
    """What each policy loses; against the best of those, tag by tag, that do the same in every round.

    Raises:
        CostRangeError: the oracle was left out, since the cost does not know its seconds.
    """
    names = [row.policy for row in found.rows]
    reference = next(name for name, policy in policies.items() if isinstance(policy, OracleChain))
    if reference in runs.refused:
        raise runs.refused[reference]
    static = [name for name in names if isinstance(policies[name], Chain | Plain)]
    return regret_of(found, tags_of(runs), static=static, reference=reference)


def device_range(setting: Setting, scenarios: Scenarios, policies: Sequence[NamedPolicy]) -> DeviceRange:
    """The policies under the outer readings of what was measured, at the seeds of the comparison.

    Args:
        setting: which asks for another device.
        scenarios: of the comparison.
        policies: that the comparison has figures of.
    """
    assert setting.on is not None
    found: dict[str, SideBySide] = {}
    left_out = []
    for reading in OUTER:
        cost = setting.priced(reading)
        runs = run_policies(scenarios.with_cost(cost), policies, lossless=setting.lossless, partial=True)
        found[reading.value] = runs.side_by_side({}, cost)
        refused = [(name, error) for name, error in runs.refused.items() if name in runs.asked]
        left_out += [f"{name} is left out, {reading.value} scales: {error}" for name, error in refused]
    return DeviceRange(
        measured_on=setting.device_measured_on, device=setting.on, readings=found, left_out=tuple(left_out)
    )
