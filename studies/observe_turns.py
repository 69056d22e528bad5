"""What `paceline observe --policy A --policy B` does: measure policies of one server in turns, and each one's gain.

A machine's pace changes from minute to minute. So each turn measures every policy with the same arrivals and prompts,
every other turn in reverse order, and a gain compares runs of one turn. Gains of several turns give its uncertainty.
Letters: P policies, T turns.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import numpy as np

from ..base.errors import ArgumentError, check_within, repeated
from ..base.files import as_file_name
from ..observing.server import Endpoint, model_of
from ..reports.intervals import Interval, geometric_interval
from ..reports.observed import ObservedFigures
from ..reports.tables import Grid, Printed, flat_rows, shown, table
from ..runs.observed import ObservedRun
from ..runtime.prompts import Prompt
from ..traces.workloads import WorkloadOptions
from ..traces.workloads.arrival import MOST_PS
from .observe import Asking, Observed, observe

MOST_TURNS = 100
MOST_APART = 0.25  # from turn to turn; the same limit as for a profile's seconds
LEAST_GAPS = 20  # least gaps for a turn's pace


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ObservedTurns(Printed):
    """Runs of one server under several policies; prints as `paceline observe` with several `--policy` does.

    Attributes:
        policies: P different ones; gains are over the first one.
        turns: T of them, each a run by policy; the last one may lack some after an interrupt.
    """

    policies: tuple[str, ...]
    turns: tuple[Mapping[str, Observed], ...]

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped by Ctrl-C or SIGTERM."""
        return any(run.interrupted for turn in self.turns for run in turn.values())

    @property
    def answered(self) -> tuple[int, int]:
        """(requests that finished, all of them), over all runs."""
        figures = [run.figures for turn in self.turns for run in turn.values()]
        return sum(one.finished for one in figures), sum(one.requests for one in figures)

    def of(self, policy: str) -> list[ObservedFigures]:
        """A policy's figures, turn by turn."""
        return [turn[policy].figures for turn in self.turns if policy in turn]

    def gains(self, policy: str) -> list[float]:
        """By turn, mean E2E under the first policy over that under this one, of requests finished under both."""
        first = self.policies[0]
        pairs = [(turn[first].run, turn[policy].run) for turn in self.turns if {first, policy} <= turn.keys()]
        return [gain for pair in pairs if (gain := _gain(*pair)) is not None]

    def gain(self, policy: str) -> Interval | None:
        """Geometric mean over turns and its 95% interval, by Student's t over logarithms; None with one turn."""
        gains = self.gains(policy)
        return geometric_interval(gains) if len(gains) > 1 else None

    @property
    def apart(self) -> float | None:
        """How much the machine's pace varied from turn to turn, the most of all policies; None: unknown.

        A turn's pace is the median gap between chunks at the most common number of running requests, since each turn
        has its own arrivals. The variation is the interquartile range of turns over their median.
        """
        runs = [[turn[policy].run for turn in self.turns if policy in turn] for policy in self.policies]
        return max((found for own in runs if (found := _apart(own)) is not None), default=None)

    def tables(self) -> Sequence[Grid]:
        return [table(map(self._row, self.policies), texts=("95%", "gains of turns"), title="observed in turns")]

    def lines(self) -> Sequence[str]:
        first = self.policies[0]
        lines = [
            f"gain: mean E2E under {first} over that under the policy, same requests; 95%: interval over turns",
            *(line for policy in self.policies[1:] if (line := self._verdict(policy))),
        ]
        apart = self.apart
        if apart is None:
            lines.append("too few turns or tokens to tell how much the machine's pace changes: more of either would")
        elif apart > MOST_APART:
            lines.append(
                f"too busy a machine: its pace differed by {apart:.0%} from turn to turn. These gains mean "
                "little; end what else runs, and measure again"
            )
        else:
            lines.append(f"quiet enough: from turn to turn the machine's pace differed by {apart:.0%}")
        if self.interrupted:
            lines.append("partial, interrupted")
        return lines

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/observing.md)."""
        rows = [
            {
                "policy": policy,
                "gain": None if (gain := self.gain(policy)) is None else asdict(gain),
                "gains": self.gains(policy),
                "turns": [figures.to_json() for figures in self.of(policy)],
            }
            for policy in self.policies
        ]
        return {"policies": rows, "pace_apart": self.apart, "interrupted": self.interrupted}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each run, turn by turn."""
        return flat_rows(
            [
                {"policy": policy, "turn": number, **run.figures.to_json()}
                for number, turn in enumerate(self.turns, start=1)
                for policy, run in turn.items()
            ]
        )

    def _row(self, policy: str) -> dict[str, str]:
        is_first, figures = policy == self.policies[0], self.of(policy)
        means = {}
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            found = [spread.mean for one in figures if (spread := getattr(one, name)) is not None]
            means[f"{name[:-2].upper()}, ms"] = shown(1e3 * fmean(found) if found else None, ",.1f", unknown="unknown")
        gain = None if is_first else self.gain(policy)
        return {
            "policy": policy,
            "finished": f"{sum(one.finished for one in figures):,} of {sum(one.requests for one in figures):,}",
            **means,
            "gain": "" if gain is None else f"{gain.mean:.2f}x",
            "95%": "" if gain is None else f"{gain.low:.2f} to {gain.high:.2f}",
            "gains of turns": "" if is_first else ", ".join(f"{one:.2f}" for one in self.gains(policy)),
        }

    def _verdict(self, policy: str) -> str:
        gain, first = self.gain(policy), self.policies[0]
        if gain is None:
            return ""
        if gain.low > 1:
            return f"{policy} is faster than {first}"
        if gain.high < 1:
            return f"{policy} is slower than {first}"
        return f"{policy} cannot be told apart from {first} in these turns"


def _apart(runs: Sequence[ObservedRun]) -> float | None:
    gaps = [_gaps(run) for run in runs]
    counted = Counter(beside for own in gaps for beside, _ in own)
    if not counted:
        return None
    mostly = max(counted, key=lambda beside: counted[beside])
    alike = [[gap for beside, gap in own if beside == mostly] for own in gaps]
    paces = [median(own) for own in alike if len(own) >= LEAST_GAPS]
    if len(paces) < 2:
        return None
    low, _, high = quantiles(paces, method="inclusive")
    return (high - low) / median(paces)


def _gaps(run: ObservedRun) -> list[tuple[int, int]]:
    """(other requests running at some time within it, length in picoseconds) of each gap between chunks."""
    sent = np.array([one.sent_at_ps for one in run.requests])
    ended = np.array([one.ended_at_ps or MOST_PS for one in run.requests])
    return [
        (int(np.count_nonzero((sent < end) & (ended > begin))) - 1, end - begin)
        for one in run.finished
        for begin, end in pairwise(one.outputs_at_ps)
    ]


def _gain(ours: ObservedRun, theirs: ObservedRun) -> float | None:
    """Mean E2E of ours over theirs, of requests that finished in both; None if there are none."""
    took = [
        {one.request_id: one.ended_at_ps - one.sent_at_ps for one in run.finished if one.ended_at_ps is not None}
        for run in (ours, theirs)
    ]
    both = took[0].keys() & took[1].keys()
    return sum(took[0][name] for name in both) / sum(took[1][name] for name in both) if both else None


def observe_in_turns(
    url: str,
    workload: str | Path,
    prompts: str | Path | Sequence[Prompt | str],
    *,
    policies: Sequence[str],
    turns: int = 3,
    asking: Asking | None = None,
    options: WorkloadOptions | None = None,
    concurrency: int | None = None,
    out: str | Path | None = None,
) -> ObservedTurns:
    """Measure policies of `paceline serve` in turns; turn t sends what `observe` sends with the seed of `options` + t.

    There are two `policies` or more, of which each request names one in its field `policy`, and 1 to 100 `turns`. `out`
    is a new folder; it gets a run, POLICY-TURN, as of `observe`, after each run. The rest is as for `observe`.

    Raises:
        ValueError: as `observe`, before anything is sent for a policy that the server lacks, else at the first run that
            cannot be measured; earlier ones are kept.
    """
    asked, changes = asking or Asking(), options or WorkloadOptions()
    if len(policies) < 2 or repeated(policies):
        raise ArgumentError(f"`policies` must be two or more, unlike each other, got {', '.join(policies) or 'none'}")
    if twice := repeated(map(as_file_name, policies)):
        raise ArgumentError(f"`policies` must differ in more than signs, got {twice[0]} twice")
    check_within("`turns`", turns, f"[1, {MOST_TURNS}]")
    if out is not None and Path(out).exists():
        raise ArgumentError(f"`out` must name a new folder, got {str(out)!r}")
    model_of(Endpoint(url, api_key=asked.api_key, timeout_s=asked.timeout_s), asked.model, policies=policies)
    measured: list[dict[str, Observed]] = []
    for turn in range(turns):
        measured.append({})
        for place, policy in enumerate(policies if turn % 2 == 0 else policies[::-1], start=1):
            number = f"run {turn * len(policies) + place} of {turns * len(policies)}"
            found = observe(
                url,
                workload,
                prompts,
                asking=asked,
                options=replace(changes, seed=changes.seed + turn),
                policy=policy,
                concurrency=concurrency,
                stage=f"observing {policy}, {number}",
            )
            if out is not None:
                Path(out).mkdir(parents=True, exist_ok=True)
                found.write(Path(out) / f"{as_file_name(policy)}-{turn + 1}")
            measured[-1][policy] = found
            if found.interrupted:
                break
        if any(found.interrupted for found in measured[-1].values()):
            break
    return ObservedTurns(policies=tuple(policies), turns=tuple(measured))
