"""One policy in one cell at one seed."""

from dataclasses import dataclass

import numpy as np

from ...decoding.policy import Policy
from ...policies.about import About, about_of, decides_by_pending, runs_target_alone
from ...policies.spec import PolicySpec
from ...reports.summary import summarise_run
from ...runs.log import RunLog
from ...runs.text_quality import UNKNOWN_COUNT
from ...sim.replay_tables import check_observed
from ...sim.simulate import Scenario, simulate
from .cell import ArenaCell
from .loads import Load, load
from .played import MARKS, Played
from .stage.recording_stage import RecordingStage
from .stage.served import served
from .stage.thinking import ThinkingTimed

WALKED, STEPPED, SERVED = "walked", "stepped", "served"


def play(stage: RecordingStage, cell: ArenaCell, policy: PolicySpec, seed: int) -> Played:
    """Play a policy.

    Args:
        stage: the cell's recording.
        cell: where.
        policy: built anew.
        seed: 0 for the recorded order of requests, each other number for another order; of what has to be modelled,
            and of arrivals.

    Raises:
        PolicyError: the policy broke the contract.
        ValueError: it cannot be built for the recording's pool, needs what the recording does not hold, or asks what
            the cost does not know; names the policy.
    """
    at, tables = load(cell.load), stage.tables(seed)
    built = policy.build(tables.pool)
    check_observed(built, policy.label, tables)
    run = _Run(stage, cell, policy.label, seed)
    return run.arriving(built, at.share) if at.share is not None else run.in_batches(built, at)


@dataclass(frozen=True, slots=True)
class _Run:
    stage: RecordingStage
    cell: ArenaCell
    name: str
    seed: int

    def in_batches(self, policy: Policy, at: Load) -> Played:
        assert at.batch is not None
        tables, cost = self.stage.tables(self.seed), self.stage.cost(self.cell.ladder)
        scenario = Scenario(tables=tables, cost=cost, batch=at.batch, seed=self.seed)
        about, asked = about_of(policy), _timed(policy)
        log = simulate(scenario, asked or policy, self.name)
        summary = summarise_run(log)
        same_share, divergences = _quality(log)
        lossy = _is_lossy(about) or (about is None and divergences > 0)
        return Played(
            cell=self.cell,
            policy=self.name,
            seed=self.seed,
            tokens=summary.output_tokens,
            seconds=summary.duration_s,
            seconds_at=seconds_at(log),
            mean_e2e_s=summary.e2e_s.mean,
            exact_share=summary.exact_share,
            path=STEPPED if asked or tables.trace.about.drafts_only or (about is not None and about.oracle) else WALKED,
            lossy=lossy,
            same_share=same_share if lossy else None,
            divergences=divergences if lossy else None,
            think_us=asked.think_us if asked else None,
        )

    def arriving(self, policy: Policy, share: float) -> Played:
        cost, asked = self.stage.cost(self.cell.ladder), _timed(policy)
        tokens_per_s = share * self.stage.capacity_per_s(self.cell.ladder)
        found = served(
            self.stage.tables(self.seed), cost, asked or policy, self.name, tokens_per_s=tokens_per_s, seed=self.seed
        )
        return Played(
            cell=self.cell,
            policy=self.name,
            seed=self.seed,
            tokens=found.tokens,
            seconds=found.busy_s,
            seconds_at=(None,) * len(MARKS),
            mean_e2e_s=found.mean_e2e_s,
            exact_share=None,
            path=SERVED,
            lossy=_is_lossy(about_of(policy)),
            think_us=asked.think_us if asked else None,
        )


def seconds_at(log: RunLog) -> tuple[float | None, ...]:
    """Seconds until so many tokens of a run were out, for each of `MARKS`; None where it has fewer."""
    order = np.argsort(log.steps["end_s"], kind="stable")
    out = np.cumsum(log.steps["emitted"][order])
    places = np.searchsorted(out, MARKS)
    ends_s = log.steps["end_s"][order]
    return tuple(float(ends_s[place]) if place < len(out) else None for place in places)


def _timed(policy: Policy) -> ThinkingTimed | None:
    """With a clock; None for an oracle, and for a policy that need not be asked step by step."""
    about = about_of(policy)
    if decides_by_pending(policy) or runs_target_alone(policy) or (about is not None and about.oracle):
        return None
    return ThinkingTimed(policy)


def _is_lossy(about: About | None) -> bool:
    return about is not None and not about.lossless


def _quality(log: RunLog) -> tuple[float | None, int]:
    """(share of tokens that are the target's own, None where nobody knows; tokens that differ)."""
    divergences = int(log.requests["divergent_tokens"].sum())
    same = log.requests["same_tokens"]
    if (same == UNKNOWN_COUNT).any():
        return None, divergences
    return float(same.sum() / log.requests["emitted_tokens"].sum()), divergences
