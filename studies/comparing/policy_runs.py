"""Runs of several policies on one recording, at every seed that says something new."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...decoding.policy import Policy
from ...policies.about import check_tags
from ...policies.default_policies import BASELINE
from ...progress import Progress
from ...reports.side_by_side import SideBySide
from ...reports.summary import Summary, summarise_run
from ...reports.tags import TagShares, tag_shares
from ...runs.log import RunLog, new_folder, write_run_log
from ...sim.cost.base import CostModel, CostRangeError
from ...sim.replay_tables import ReplayTables, check_observed
from ...sim.simulate import Scenario, simulate
from ..named_policies import NamedPolicy, named_policy
from .scenarios import Scenarios


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRuns:
    """What came of the policies, by name.

    Attributes:
        asked: names of the policies, in the order asked.
        summaries: at least one run, the first seed's first; without the policies that were refused.
        shares: the run at the first seed by tag.
        refused: policies whose seconds the cost does not know, and why.
    """

    asked: Sequence[str]
    summaries: Mapping[str, Sequence[Summary]]
    shares: Mapping[str, TagShares]
    refused: Mapping[str, CostRangeError]

    @property
    def known(self) -> list[str]:
        """Names of the policies asked for that were not refused; raises the first refusal if there is none."""
        known = [name for name in self.asked if name in self.summaries]
        if not known:
            raise next(iter(self.refused.values()))
        return known

    def side_by_side(self, meta: Mapping[str, Any], cost: CostModel) -> SideBySide:
        """Those that were not refused, at all seeds they were run at; raises the first refusal if there is none.

        Args:
            meta: what is to be said of the scenario.
            cost: they were run under, which has more to say after it.
        """
        left_out = [f"{name} is left out: {error}" for name, error in self.refused.items() if name in self.asked]
        if BASELINE in self.refused and BASELINE not in self.asked:
            left_out.append(f"no speed-up is known: {self.refused[BASELINE]}")
        rows = [self.summaries[name] for name in self.known]
        return SideBySide(
            meta={**meta, "cost_notes": list(cost.notes()), "left_out": left_out},
            baseline=self.summaries[BASELINE][0] if BASELINE in self.summaries else None,
            rows=tuple(row[0] for row in rows),
            repeats={row[0].policy: tuple(row[1:]) for row in rows},
        )


def run_policies(
    scenarios: Scenarios,
    policies: Sequence[NamedPolicy],
    *,
    lossless: bool,
    partial: bool = False,
    log: Path | None = None,
) -> PolicyRuns:
    """Run every policy, and the target alone if it is not among them; that one may be refused then.

    Args:
        scenarios: by seed.
        policies: a wrong one is told before any run.
        lossless: whether only lossless policies were asked for.
        partial: whether policies may be refused too.
        log: new folder for run logs of `policies` at the first seed, or None.

    Raises:
        ValueError: a policy that may not run on the recording.
        CostRangeError: seconds that the cost does not know, of a policy that may not be refused.
    """
    for policy in policies:
        built(scenarios.first.tables, policy, lossless=lossless)
    summaries: dict[str, list[Summary]] = {}
    shares: dict[str, TagShares] = {}
    refused: dict[str, CostRangeError] = {}
    asked = [policy.name for policy in policies]
    everyone = list(policies) if BASELINE in asked else [*policies, named_policy(BASELINE)]
    progress = Progress("replaying", len(everyone), unit="policies")
    with nullcontext() if log is None else new_folder(log) as folder, progress:
        for index, policy in enumerate(everyone):
            progress.advance_to(index, policy.name)
            kept = None
            if folder is not None and policy.name in asked:
                kept = folder / f"{index:02d}-{_file_name(policy.name)}"
            try:
                summaries[policy.name], shares[policy.name] = _runs(
                    scenarios, policy, progress, lossless=lossless, kept=kept
                )
            except CostRangeError as error:
                if not partial and policy.name in asked:
                    raise
                refused[policy.name] = error
    return PolicyRuns(asked=asked, summaries=summaries, shares=shares, refused=refused)


def built(tables: ReplayTables, policy: NamedPolicy, *, lossless: bool) -> Policy:
    """The policy, made for a run on a recording; raises ValueError if it may not run there."""
    made = policy.admitted(tables.pool, lossless=lossless)
    check_observed(made, policy.name, tables)
    recording = tables.trace
    tags = (request.tag for request in recording.requests)
    check_tags(made, policy.name, tags, f"recording {recording.about.name}")
    return made


def _runs(
    scenarios: Scenarios, policy: NamedPolicy, progress: Progress, *, lossless: bool, kept: Path | None
) -> tuple[list[Summary], TagShares]:
    """Summaries, at further seeds too where chance has a part in the policy, and the run at the first seed by tag.

    Its log is written to the folder `kept`, if one is given, and let go before another run begins: logs are long.
    """
    first, shares = _first_run(scenarios.at(0), policy, lossless=lossless, kept=kept)
    summaries = [first]
    drafts = any(level.drafted for level in first.levels)
    if first.exact_share < 1 or (scenarios.shifted and drafts):
        for index in range(1, scenarios.num_seeds):
            progress.note(f"{policy.name}, seed {index + 1} of {scenarios.num_seeds}")
            summaries.append(summarise_run(_run(scenarios.at(index), policy, lossless=lossless)))
    return summaries, shares


def _first_run(
    scenario: Scenario, policy: NamedPolicy, *, lossless: bool, kept: Path | None
) -> tuple[Summary, TagShares]:
    log = _run(scenario, policy, lossless=lossless)
    if kept is not None:
        write_run_log(log, kept)
    return summarise_run(log), tag_shares(log)


def _run(scenario: Scenario, policy: NamedPolicy, *, lossless: bool) -> RunLog:
    """One run of a policy built for it: what a policy learns stays in its run."""
    return simulate(scenario, built(scenario.tables, policy, lossless=lossless), policy.name)


def _file_name(policy: str) -> str:
    return "".join(char if char.isalnum() or char in "=,.-" else "_" for char in policy)
