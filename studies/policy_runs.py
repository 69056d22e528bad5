"""Runs of several policies on one recording, at every seed that says something new."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from ..cli.options.lossless import admitted
from ..decoding.contract import Policy
from ..policies.spec import make_policy
from ..progress import Progress
from ..reports.summary import Summary, summarise_run
from ..reports.tags import TagShares, tag_shares
from ..runs.log import RunLog, new_folder, write_run_log
from ..sim.cost import CostRangeError
from ..sim.recording import check_observed
from ..sim.simulate import Scenario, simulate
from .scenarios import Scenarios


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRuns:
    """What came of the policies, by name.

    Attributes:
        summaries: at least one run, the first seed's first; without the policies that were refused.
        shares: the run at the first seed by tag.
        refused: policies whose seconds the cost does not know, and why.
    """

    summaries: Mapping[str, Sequence[Summary]]
    shares: Mapping[str, TagShares]
    refused: Mapping[str, CostRangeError]


def run_policies(
    scenarios: Scenarios, names: Sequence[str], *, baseline: str, log: Path | None, partial: bool, lossless: bool
) -> PolicyRuns:
    """Run every policy, and the baseline if it is not among them.

    Args:
        scenarios: by seed.
        names: of the policies; a wrong one is told before any run.
        baseline: the policy that is run in any case, and may be refused if it is not in `names`.
        log: new folder for run logs of `names` at the first seed, or None.
        partial: whether policies of `names` may be refused too.
        lossless: whether only lossless policies were asked for.

    Raises:
        ValueError: a policy that may not run on the recording.
        CostRangeError: seconds that the cost does not know, of a policy that may not be refused.
    """
    for name in names:
        _made(scenarios.first, name, lossless=lossless)
    summaries: dict[str, list[Summary]] = {}
    shares: dict[str, TagShares] = {}
    refused: dict[str, CostRangeError] = {}
    asked = list(names) if baseline in names else [*names, baseline]
    progress = Progress("replaying", len(asked), unit="policies")
    with nullcontext() if log is None else new_folder(log) as folder, progress:
        for index, name in enumerate(asked):
            progress.advance_to(index, name)
            try:
                run_log, summaries[name] = _runs(scenarios, name, progress, lossless=lossless)
            except CostRangeError as error:
                if not partial and name in names:
                    raise
                refused[name] = error
                continue
            shares[name] = tag_shares(run_log)
            if folder is not None and name in names:
                write_run_log(run_log, folder / f"{index:02d}-{_file_name(name)}")
    return PolicyRuns(summaries=summaries, shares=shares, refused=refused)


def _runs(scenarios: Scenarios, name: str, progress: Progress, *, lossless: bool) -> tuple[RunLog, list[Summary]]:
    """The run log at the first seed, and summaries: at further seeds too where chance has a part in the policy."""
    run_log = _run(scenarios.at(0), name, lossless=lossless)
    summaries = [summarise_run(run_log)]
    drafts = any(level.drafted for level in summaries[0].levels)
    if summaries[0].exact_share < 1 or (scenarios.shifted and drafts):
        for index in range(1, scenarios.num_seeds):
            progress.note(f"{name}, seed {index + 1} of {scenarios.num_seeds}")
            summaries.append(summarise_run(_run(scenarios.at(index), name, lossless=lossless)))
    return run_log, summaries


def _run(scenario: Scenario, name: str, *, lossless: bool) -> RunLog:
    """One run of a policy built for it: what a policy learns stays in its run."""
    return simulate(scenario, _made(scenario, name, lossless=lossless), name)


def _made(scenario: Scenario, name: str, *, lossless: bool) -> Policy:
    """A new policy that may run on the recording; raises ValueError if it may not."""
    policy = admitted(make_policy(name, scenario.tables.pool), name, lossless=lossless)
    check_observed(policy, name, scenario.tables)
    return policy


def _file_name(policy: str) -> str:
    return "".join(char if char.isalnum() or char in "=,.-" else "_" for char in policy)
