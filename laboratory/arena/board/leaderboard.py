"""All that the leaderboard tells, computed once for the page, the figure and the JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

from ..cell import ArenaCell
from ..played import MARKS
from ..split import Side, Split
from .checks import CellCheck, checks
from .learning import ratios_after
from .losses import worst_cells
from .regret import regrets
from .runs import ORACLES, BoardRuns
from .scores import Score, least, scores

SIDES = (Side.report, Side.tune)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaderboard:
    """The arena in figures.

    Attributes:
        runs: all.
        cells: by side of the split, those that were played.
        scores: by side, by policy; those of the largest mean ratio on `side` first.
        checks: of the reporting cells.
        missing: why each recording that cannot be had is left out, by name.
        gaps: what else is not there, a line each.
    """

    runs: BoardRuns
    cells: Mapping[Side, tuple[ArenaCell, ...]]
    scores: Mapping[Side, Mapping[str, Score]]
    checks: tuple[CellCheck, ...]
    missing: Mapping[str, str]
    gaps: tuple[str, ...]

    @property
    def side(self) -> Side:
        """That is told of where only one is: the reporting side if any of its cells were played."""
        return Side.report if self.cells[Side.report] else Side.tune

    @property
    def policies(self) -> tuple[str, ...]:
        """All that are ranked, best first."""
        return tuple(self.scores[self.side])

    @property
    def lossless(self) -> tuple[str, ...]:
        """Those that write the target's text."""
        return tuple(name for name in self.policies if not self.runs.is_lossy(name))

    @property
    def lossy(self) -> tuple[str, ...]:
        """Those that may write other text."""
        return tuple(name for name in self.policies if self.runs.is_lossy(name))

    def scores_of(self, policy: str) -> tuple[Score, Score, Score]:
        """Of a policy on the side that is told of, on the reporting side and on the tuning side."""
        return self.scores[self.side][policy], self.scores[Side.report][policy], self.scores[Side.tune][policy]

    def curve(self, policy: str, side: Side) -> dict[int, float]:
        """Mean ratio to the best static chain by tokens that were out, over the cells of a side with as many."""
        found = {}
        for tokens in MARKS:
            ratios = ratios_after(self.runs, policy, tokens)
            known = [ratios[cell] for cell in self.cells[side] if cell in ratios]
            if known:
                found[tokens] = mean(known)
        return found

    def regrets(self) -> dict[tuple[str, Side], dict[str, float]]:
        """By oracle that was played and by side, by policy; see `regrets`."""
        policies = (*self.lossless, *ORACLES)
        found = {
            (oracle, side): regrets(self.runs, policies, oracle, self.cells[side])
            for oracle in reversed(ORACLES)  # the one that bounds more policies first
            for side in SIDES
        }
        return {place: by_policy for place, by_policy in found.items() if by_policy}

    def _regrets_json(self) -> dict[str, dict[str, dict[str, float]]]:
        """By oracle, side and policy."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for (oracle, side), by_policy in self.regrets().items():
            found.setdefault(oracle, {})[side.value] = by_policy
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return {
            "cells": {side.value: [str(cell) for cell in cells] for side, cells in self.cells.items()},
            "missing": dict(self.missing),
            "gaps": list(self.gaps),
            "policies": [self._policy_json(policy) for policy in self.policies],
            "checks": [_check_json(check) for check in self.checks],
            "regret": self._regrets_json(),
        }

    def _policy_json(self, policy: str) -> dict[str, Any]:
        return {
            "policy": policy,
            "lossy": self.runs.is_lossy(policy),
            "think_us": self.runs.think_us(policy),
            "same_share": self.runs.same_share(policy),
            **{side.value: self._side_json(self.scores[side][policy], side) for side in SIDES},
        }

    def _side_json(self, score: Score, side: Side) -> dict[str, Any]:
        return {
            "mean": score.mean,
            "least": least(score.ratios)[1],
            "share_won": score.share_won,
            "mean_over_plain": score.mean_over_plain,
            "least_over_plain": least(score.over_plain)[1],
            "least_replayed": least(score.replayed)[1],
            "left_out": score.left_out,
            "after_tokens": self.curve(score.policy, side),
            "worst": {str(cell): ratio for cell, ratio in worst_cells(score.ratios)},
            "ratios": {str(cell): round(ratio, 4) for cell, ratio in score.ratios.items()},
        }


def leaderboard(
    runs: BoardRuns, split: Split, missing: Mapping[str, str], *, gaps: tuple[str, ...] = ()
) -> Leaderboard:
    """Work everything out.

    Args:
        runs: all.
        split: has the recordings of their cells.
        missing: see `Leaderboard`.
        gaps: see `Leaderboard`.

    Raises:
        KeyError: a cell whose recording is on neither side of the split.
    """
    cells = {side: tuple(cell for cell in runs.cells if split.side_of(cell.recording) is side) for side in SIDES}
    first = [score.policy for score in scores(runs, cells[Side.report] or cells[Side.tune])]
    by_side = {side: {score.policy: score for score in scores(runs, cells[side])} for side in SIDES}
    return Leaderboard(
        runs=runs,
        cells=cells,
        scores={side: {policy: by_side[side][policy] for policy in first} for side in SIDES},
        checks=checks(runs, cells[Side.report]),
        missing=missing,
        gaps=gaps,
    )


def _check_json(check: CellCheck) -> dict[str, Any]:
    return {
        "cell": str(check.cell),
        "best_static": check.chain,
        "ratios": check.ratios,
        "other": check.other,
        "after_first_tokens": check.beyond,
        "missed": list(check.missed),
    }
