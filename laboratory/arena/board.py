"""The leaderboard, computed once for the page (docs/leaderboard.md), the figure and the JSON.

A **ratio** of a cell is the mean over its seeds of one policy's figure by another's at the same seed, mostly the best
static chain's; a mean over cells is arithmetic. **Regret** is how much longer policies take than oracles, which plan
each answer from the recording. Planning takes half a minute for a cell, so oracles play only one request at a time at
two ladders, in the recorded order, on recordings of every continuation.

The checks of SpecRouter in every reporting cell: at least 0.97 of the best static chain in cells of 5,000 tokens and
more, never more than 1% below the target alone, never more than 2% below any other general policy, and at least 0.93 of
the best static chain after 1,000 tokens.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import itemgetter
from pathlib import Path
from statistics import mean, median
from typing import Any

from paceline.base.errors import counted
from paceline.base.files import whole_file
from paceline.reports.figure import check_figure, write_figure
from paceline.reports.panels import Panel, Series, by_category
from paceline.reports.tables import at_least, shown

from ..findings import Cell, Rows, markdown_table, table, table_cell
from .cells import ArenaCell, Side, Split
from .play import BEST_STATIC, MARKS, Played

WORST = 3  # cells that are named


def worst_cells(ratios: Mapping[ArenaCell, float]) -> list[tuple[ArenaCell, float]]:
    """The cells with the least ratios, least first."""
    return sorted(ratios.items(), key=lambda item: item[1])[:WORST]


def loses_at(ratios: Mapping[ArenaCell, float]) -> str:
    """The recording, ladder and load of the least mean ratio, each with it; without a kind that has only one."""
    named = []
    for part in ArenaCell._fields:
        groups: dict[str, list[float]] = {}
        for cell, ratio in ratios.items():
            groups.setdefault(getattr(cell, part), []).append(ratio)
        if len(groups) > 1:
            least_mean, name = min(((mean(group), name) for name, group in groups.items()), key=itemgetter(0))
            named.append(f"{part} {name} ({least_mean:.2f})")
    return ", ".join(named)


TARGET_ALONE = "plain"
OURS = "specrouter"
ORACLES = ("oracle-window", "oracle-chain")
Ratios = Mapping[ArenaCell, float]


class BoardRuns:
    """Finished runs, including `best-static` and `plain`, with which others are compared.

    `cells` are those in which the best static chain was played, in the order of the runs.
    """

    def __init__(self, played: Iterable[Played]) -> None:
        self._runs: dict[str, dict[tuple[ArenaCell, int], Played]] = {}
        for run in played:
            self._runs.setdefault(run.policy, {})[run.cell, run.seed] = run
        self.cells = tuple(dict.fromkeys(cell for cell, _ in self._runs.get(BEST_STATIC, {})))

    @property
    def policies(self) -> tuple[str, ...]:
        """Ranked policies: without the best static chain and oracles."""
        return tuple(name for name in self._runs if name != BEST_STATIC and name.partition(",")[0] not in ORACLES)

    @property
    def lossless(self) -> tuple[str, ...]:
        """Ranked policies that write the target's own text."""
        return tuple(name for name in self.policies if not self.is_lossy(name))

    def is_lossy(self, policy: str) -> bool:
        """Whether a policy may write other text than the target."""
        return any(run.lossy for run in self._runs[policy].values())

    def of(self, policy: str, cell: ArenaCell) -> tuple[Played, ...]:
        """The runs of a policy in a cell, by seed; empty if it was left out."""
        return tuple(run for (where, _), run in self._runs.get(policy, {}).items() if where == cell)

    def ratios(self, policy: str, other: str = BEST_STATIC) -> Ratios:
        """Its tokens a second over another's, by cell that has both."""
        return self.compared(policy, other, lambda ours, theirs: ours.tokens_per_s / theirs.tokens_per_s)

    def compared(self, policy: str, other: str, ratio: Callable[[Played, Played], float | None]) -> Ratios:
        """The mean over seeds of a figure of two runs, by cell that has both and a figure that is not None."""
        theirs = self._runs.get(other, {})
        found: dict[ArenaCell, list[float]] = {}
        for place, run in self._runs.get(policy, {}).items():
            figure = ratio(run, theirs[place]) if place in theirs else None
            if figure is not None:
                found.setdefault(place[0], []).append(figure)
        return {cell: mean(figures) for cell, figures in found.items()}

    def replayed(self, policy: str) -> Ratios:
        """Least share over seeds of its decisions that the recording holds, by cell with that figure."""
        found: dict[ArenaCell, float] = {}
        for (cell, _), run in self._runs.get(policy, {}).items():
            if run.exact_share is not None:
                found[cell] = min(run.exact_share, found.get(cell, 1.0))
        return found

    def think_us(self, policy: str) -> float | None:
        """Microseconds of a decision, the median over its runs; None if none was timed."""
        known = [run.think_us for run in self._runs[policy].values() if run.think_us is not None]
        return median(known) if known else None

    def same_share(self, policy: str) -> float | None:
        """Share of its tokens that are the target's own, the mean over runs with that figure; None without any."""
        known = [run.same_share for run in self._runs[policy].values() if run.same_share is not None]
        return mean(known) if known else None

    def divergences(self, policy: str) -> float:
        """Tokens in a thousand that differ from the target's text, over all runs that count them."""
        counted = [run for run in self._runs[policy].values() if run.divergences is not None]
        return 1e3 * sum(run.divergences or 0 for run in counted) / max(sum(run.tokens for run in counted), 1)


LADDERS, LOAD = ("even", "steep"), "batch-1"
IMPORTED = ("specbench", "hsd")


def oracle_cells(cells: Iterable[ArenaCell]) -> tuple[ArenaCell, ...]:
    """The cells in which oracles are played."""
    return tuple(
        cell for cell in cells if cell.ladder in LADDERS and cell.load == LOAD and cell.recording not in IMPORTED
    )


def regrets(runs: BoardRuns, policies: Sequence[str], oracle: str, cells: Collection[ArenaCell]) -> dict[str, float]:
    """By policy, its extra seconds over an oracle as a share of the oracle's, mean over cells.

    A policy without a run in any cell of the oracle is left out.
    """
    found = {}
    for policy in policies:
        over = runs.compared(policy, oracle, lambda ours, best: ours.seconds / ours.tokens * best.tokens / best.seconds)
        known = [ratio for cell, ratio in over.items() if cell in cells]
        if known:
            found[policy] = mean(known) - 1
    return found


LEARNT = 1_000  # tokens after which a policy should have learned its cell


def ratios_after(runs: BoardRuns, policy: str, tokens: int) -> Ratios:
    """Seconds of the best static chain for its first `tokens`, one of `MARKS`, over the policy's, by cell."""
    mark = MARKS.index(tokens)

    def ratio(ours: Played, static: Played) -> float | None:
        our_s, static_s = ours.seconds_at[mark], static.seconds_at[mark]
        return None if our_s is None or static_s is None else static_s / our_s

    return runs.compared(policy, BEST_STATIC, ratio)


def ratios_beyond(runs: BoardRuns, policy: str) -> Ratios:
    """Seconds of the best static chain after its first `LEARNT` tokens over the policy's, by cell that has more."""
    mark = MARKS.index(LEARNT)

    def ratio(ours: Played, static: Played) -> float | None:
        our_s, static_s = ours.seconds_at[mark], static.seconds_at[mark]
        if our_s is None or static_s is None or ours.seconds <= our_s or static.seconds <= static_s:
            return None
        rest, static_rest = ours.seconds - our_s, static.seconds - static_s
        return static_rest / rest

    return runs.compared(policy, BEST_STATIC, ratio)


LONG = 5_000  # least tokens of a cell for the first check
STATIC, PLAIN, OTHERS, EARLY = "0.97 of static", "0.99 of plain", "0.98 of others", f"0.93 after {LEARNT:,}"
LIMITS = {STATIC: 0.97, PLAIN: 0.99, OTHERS: 0.98, EARLY: 0.93}
LEAST_MEAN = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class CellCheck:
    """The checks of one cell."""

    cell: ArenaCell
    chain: str  # the best static one, at the recorded order of requests
    ratios: dict[str, float]  # by check that applies to the cell; a check without a figure does not apply
    other: str  # the fastest other general policy, "" without one
    beyond: float | None  # ratio to the best static chain after the first 1,000 tokens; None if unknown

    @property
    def missed(self) -> tuple[str, ...]:
        """The checks whose limit it misses."""
        return tuple(check for check, ratio in self.ratios.items() if ratio < LIMITS[check])

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        beyond = {"after_first_tokens": self.beyond, "missed": list(self.missed)}
        return {"cell": str(self.cell), "best_static": self.chain, "ratios": self.ratios, "other": self.other, **beyond}


def checks(runs: BoardRuns, cells: Iterable[ArenaCell]) -> tuple[CellCheck, ...]:
    """The checks of all cells with a run of SpecRouter."""
    static, plain = runs.ratios(OURS), runs.ratios(OURS, TARGET_ALONE)
    early, beyond = ratios_after(runs, OURS, LEARNT), ratios_beyond(runs, OURS)
    general = [name for name in runs.lossless if name != TARGET_ALONE and name.partition(",")[0] != OURS]
    others = {name: runs.ratios(name) for name in general}
    found = []
    for cell in cells:
        if cell not in static:
            continue
        best = runs.of(BEST_STATIC, cell)[0]
        name, theirs = max(
            ((name, ratios[cell]) for name, ratios in others.items() if cell in ratios),
            key=lambda item: item[1],
            default=("", None),
        )
        figures = {
            STATIC: static[cell] if best.tokens >= LONG else None,
            PLAIN: plain.get(cell),
            OTHERS: static[cell] / theirs if theirs else None,
            EARLY: early.get(cell),
        }
        found.append(
            CellCheck(
                cell=cell,
                chain=best.chain,
                ratios={check: figure for check, figure in figures.items() if figure is not None},
                other=name,
                beyond=beyond.get(cell),
            )
        )
    return tuple(found)


EVEN = 1e-9  # speeds that differ by less are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of one policy over some cells; each ratio is above 0."""

    policy: str  # as it was named
    ratios: dict[ArenaCell, float]  # to the best static chain, by cell
    over_plain: dict[ArenaCell, float]  # to the target alone, by cell
    # to the best static chain after `LEARNT` tokens, by cell with as many and without arrivals
    learnt: dict[ArenaCell, float]
    replayed: dict[ArenaCell, float]  # share of decisions that recordings hold, by cell without arrivals
    won: int  # cells in which no lossless policy is faster
    left_out: int  # cells without a run of it
    lossy: bool  # whether it may write other text than the target

    @property
    def mean(self) -> float | None:
        """Mean ratio to the best static chain; None without a cell."""
        return mean(self.ratios.values()) if self.ratios else None

    @property
    def share_won(self) -> float | None:
        """Share of its cells that it won; None without a cell."""
        return self.won / len(self.ratios) if self.ratios else None

    @property
    def mean_over_plain(self) -> float | None:
        """Mean ratio to the target alone; None without a cell."""
        return mean(self.over_plain.values()) if self.over_plain else None


def least(ratios: Ratios) -> tuple[ArenaCell | None, float | None]:
    """(the cell with the least ratio, the ratio)."""
    return min(ratios.items(), key=lambda item: item[1], default=(None, None))


def scores(runs: BoardRuns, cells: Collection[ArenaCell]) -> tuple[Score, ...]:
    """Scores of every ranked policy over some cells, the largest mean ratio first; those without a cell last."""
    fastest = _fastest(runs, cells)
    found = [_score(runs, policy, cells, fastest) for policy in runs.policies]
    return tuple(sorted(found, key=lambda score: -(score.mean or 0.0)))


def _score(runs: BoardRuns, policy: str, cells: Collection[ArenaCell], fastest: dict[ArenaCell, float]) -> Score:
    ratios = _within(runs.ratios(policy), cells)
    return Score(
        policy=policy,
        ratios=ratios,
        over_plain=_within(runs.ratios(policy, TARGET_ALONE), cells),
        learnt=_within(ratios_after(runs, policy, LEARNT), cells),
        replayed=_within(runs.replayed(policy), cells),
        won=sum(ratio >= fastest.get(cell, 0.0) * (1 - EVEN) for cell, ratio in ratios.items()),
        left_out=len(set(cells) - set(ratios)),
        lossy=runs.is_lossy(policy),
    )


def _fastest(runs: BoardRuns, cells: Iterable[ArenaCell]) -> dict[ArenaCell, float]:
    found: dict[ArenaCell, float] = {}
    for policy in runs.lossless:
        for cell, ratio in _within(runs.ratios(policy), cells).items():
            found[cell] = max(ratio, found.get(cell, 0.0))
    return found


def _within(ratios: Ratios, cells: Iterable[ArenaCell]) -> dict[ArenaCell, float]:
    return {cell: ratios[cell] for cell in cells if cell in ratios}


SIDES = (Side.report, Side.tune)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaderboard:
    """The arena in figures."""

    runs: BoardRuns
    cells: Mapping[Side, tuple[ArenaCell, ...]]  # by side of the split, the cells played
    scores: Mapping[Side, Mapping[str, Score]]  # by side, by policy; those of the largest mean ratio on `side` first
    checks: tuple[CellCheck, ...]  # of the reporting cells
    missing: Mapping[str, str]  # why each unavailable recording is left out, by name
    gaps: tuple[str, ...]  # what else is missing, a line each

    @property
    def side(self) -> Side:
        """The side that is shown where only one is: the reporting side if any of its cells were played."""
        return Side.report if self.cells[Side.report] else Side.tune

    @property
    def policies(self) -> tuple[str, ...]:
        """All ranked policies, best first."""
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
        """A policy's scores on the shown side, on the reporting side and on the tuning side."""
        return self.scores[self.side][policy], self.scores[Side.report][policy], self.scores[Side.tune][policy]

    def curve(self, policy: str, side: Side) -> dict[int, float]:
        """Mean ratio to the best static chain by number of output tokens, over the cells of a side with as many."""
        found = {}
        for tokens in MARKS:
            ratios = ratios_after(self.runs, policy, tokens)
            known = [ratios[cell] for cell in self.cells[side] if cell in ratios]
            if known:
                found[tokens] = mean(known)
        return found

    def regrets(self) -> dict[tuple[str, Side], dict[str, float]]:
        """By oracle played and side, then by policy; see `regrets`."""
        policies = (*self.lossless, *ORACLES)
        found = {
            (oracle, side): regrets(self.runs, policies, oracle, self.cells[side])
            for oracle in reversed(ORACLES)  # the one that bounds more policies first
            for side in SIDES
        }
        return {place: by_policy for place, by_policy in found.items() if by_policy}

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        regret: dict[str, dict[str, dict[str, float]]] = {}
        for (oracle, side), by_policy in self.regrets().items():
            regret.setdefault(oracle, {})[side.value] = by_policy
        return {
            "cells": {side.value: [str(cell) for cell in cells] for side, cells in self.cells.items()},
            "missing": dict(self.missing),
            "gaps": list(self.gaps),
            "policies": [self._policy_json(policy) for policy in self.policies],
            "checks": [check.to_json() for check in self.checks],
            "regret": regret,
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
    """Compute everything; raises KeyError for a cell whose recording is on neither side of the split."""
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


DRAWN = 6  # policies whose learning curves are drawn


def panels(board: Leaderboard) -> tuple[Panel, ...]:
    """Learning curves, SpecRouter cell by cell, and all lossless policies."""
    by_cell = _by_cell(board)
    return (*_learning(board), *((by_cell,) if by_cell else ()), _policies(board))


def _learning(board: Leaderboard) -> tuple[Panel, ...]:
    curves = {policy: board.curve(policy, board.side) for policy in board.lossless[:DRAWN]}
    series = tuple(
        Series(name=policy, x=tuple(map(float, curve)), y=tuple(curve.values()))
        for policy, curve in curves.items()
        if curve
    )
    if not series:
        return ()
    title = "Learning: ratio to the best static chain"
    return (Panel(title=title, x_label="tokens that are out", y_label="mean ratio", series=series, log_x=True),)


def _by_cell(board: Leaderboard) -> Panel | None:
    known = {name: sorted(one.ratios[name] for one in board.checks if name in one.ratios) for name in (STATIC, OTHERS)}
    names = {STATIC: "SpecRouter over best static", OTHERS: "SpecRouter over best other policy"}
    series = tuple(
        Series(name=names[name], x=tuple(map(float, range(1, len(ratios) + 1))), y=tuple(ratios))
        for name, ratios in known.items()
        if ratios
    )
    if not series:
        return None
    return Panel(title="SpecRouter, reporting cells from worst", x_label="cell", y_label="ratio", series=series)


def _policies(board: Leaderboard) -> Panel:
    ranked = [policy for policy in board.lossless if board.scores[board.side][policy].ratios]
    report = [board.scores[board.side][policy] for policy in ranked]
    figures = {
        "mean, reporting cells": [score.mean or 0.0 for score in report],
        "least, reporting cells": [least(score.ratios)[1] or 0.0 for score in report],
    }
    title = "All lossless policies, over the best static chain"
    return by_category(title, "ratio", ranked, figures, kind="scatter")


def ranking(board: Leaderboard) -> Rows:
    """Lossless policies, the largest mean ratio on the shown side first."""
    return table(_told(board), [_ranked(board, policy) for policy in board.lossless])


def _ranked(board: Leaderboard, policy: str) -> list[Cell]:
    score, report, tune = board.scores_of(policy)
    return [
        table_cell("policy", policy),
        table_cell("report: mean", report.mean, "", 3),
        table_cell("tune: mean", tune.mean, "", 3),
        table_cell("report: least", least(report.ratios)[1], "", 3),
        table_cell("tune: least", least(tune.ratios)[1], "", 3),
        table_cell("where", str(least(score.ratios)[0] or "")),
        table_cell("won", shown(score.share_won, ".1%")),
        table_cell("over plain: mean", score.mean_over_plain, "", 2),
        table_cell("over plain: least", least(score.over_plain)[1], "", 3),
        table_cell("least after 1,000 tokens", least(score.learnt)[1], "", 3),
        table_cell("replayed", shown(least(score.replayed)[1], ".1%")),
        table_cell("thinks", board.runs.think_us(policy), "us", 1),
        table_cell("left out", report.left_out + tune.left_out),
    ]


def lossy(board: Leaderboard) -> Rows:
    """Policies that may write other text than the target, and how much of it differs."""
    return table(_told(board), [_lossy(board, policy) for policy in board.lossy])


def _lossy(board: Leaderboard, policy: str) -> list[Cell]:
    score, report, tune = board.scores_of(policy)
    return [
        table_cell("policy", policy),
        table_cell("report: mean", report.mean, "", 3),
        table_cell("tune: mean", tune.mean, "", 3),
        table_cell("over plain: mean", score.mean_over_plain, "", 2),
        table_cell("same tokens", shown(board.runs.same_share(policy), ".1%")),
        table_cell("other tokens in 1,000", board.runs.divergences(policy), "", 1),
        table_cell("replayed", shown(least(score.replayed)[1], ".1%")),
        table_cell("thinks", board.runs.think_us(policy), "us", 1),
        table_cell("left out", report.left_out + tune.left_out),
    ]


def learning(board: Leaderboard) -> Rows:
    """Mean ratios after some tokens, and at the end."""
    rows = []
    for policy in board.lossless:
        curve = board.curve(policy, board.side)
        after = [table_cell(f"after {tokens:,}", curve.get(tokens), "", 3) for tokens in MARKS]
        end = board.scores[board.side][policy].mean
        rows.append([table_cell("policy", policy), *after, table_cell("at the end", end, "", 3)])
    return table("", rows)


def losses(board: Leaderboard) -> Rows:
    """The worst cells of each lossless policy."""
    rows = []
    for policy in board.lossless:
        ratios = board.scores[board.side][policy].ratios
        worst = ", ".join(f"{where} {ratio:.2f}" for where, ratio in worst_cells(ratios))
        told = {"policy": policy, "worst cells": worst, "worst in the mean": loses_at(ratios)}
        rows.append([table_cell(name, text) for name, text in told.items()])
    return table("", rows)


def checked(board: Leaderboard) -> Rows:
    """By check, the number of reporting cells that SpecRouter passes, and its mean."""
    rows = []
    for check, limit in LIMITS.items():
        ratios = {one.cell: one.ratios[check] for one in board.checks if check in one.ratios}
        where, worst = least(ratios)
        passed = sum(ratio >= limit for ratio in ratios.values())
        rows.append(_check_row(f"at least {check}", passed, len(ratios), worst, str(where or "")))
    means = board.scores[Side.report][OURS].mean if OURS in board.policies else None
    rows.append(_check_row(f"at least {LEAST_MEAN} in the mean", int((means or 0) >= LEAST_MEAN), 1, means, "the mean"))
    return table("", rows)


def _check_row(check: str, passed: int, cells: int, worst: float | None, where: str) -> list[Cell]:
    return [
        table_cell("check", check),
        table_cell("passed", passed),
        table_cell("of", cells),
        table_cell("least", worst, "", 3),
        table_cell("where", where),
    ]


def cell_checks(board: Leaderboard) -> Rows:
    """Every reporting cell, those with misses first."""
    order = sorted(board.checks, key=lambda check: (not check.missed, str(check.cell)))
    return table("", [_cell_check(check) for check in order])


def _cell_check(check: CellCheck) -> list[Cell]:
    figures = [table_cell(name, check.ratios.get(name), "", 3) for name in LIMITS]
    return [
        table_cell("cell", str(check.cell)),
        table_cell("best static chain", check.chain),
        *figures,
        table_cell("best other", check.other),
        table_cell("beyond 1,000", check.beyond, "", 3),
        table_cell("missed", ", ".join(check.missed)),
    ]


def regret(board: Leaderboard) -> Rows:
    """Seconds more than the oracles, of policies and of the other oracle; in the order of the first column."""
    regrets = board.regrets()
    policies = dict.fromkeys(policy for by_policy in regrets.values() for policy in by_policy)
    order = sorted(policies, key=lambda policy: [by_policy.get(policy, inf) for by_policy in regrets.values()])
    rows = [
        [
            table_cell("policy", policy),
            *(table_cell(f"{oracle}, {side}", shown(of.get(policy), "+.1%")) for (oracle, side), of in regrets.items()),
        ]
        for policy in order
    ]
    return table("seconds more than an oracle", rows)


def _told(board: Leaderboard) -> str:
    """The side of columns that do not name one, in words; "" for the reporting side."""
    return "" if board.side is Side.report else f"no cell to report; columns without a side are of side {board.side}"


INTRO = """\
# Leaderboard

Policies of the [arena](arena.md), which says what cells and figures are. `make arena` writes this page.

A **ratio** is a policy's speed over that of the best static chain of the cell in hindsight, whose search is not
charged. Means over cells are arithmetic. Constants were settled on the tuning cells, not on the reporting cells. All
members share one device, so that [working ahead](policies.md#working-ahead) gains nothing there.
"""
RANKING = """\
Columns without a side are of the reporting cells. `where`: the cell of the least ratio. `won`: cells in which no
lossless policy is faster. `left out`: cells without a run, of both sides; means and `won` are of the others.
`replayed`: the least share of decisions that recordings hold. `thinks`: microseconds of this host for `decide` and
`learn` of a step, the median over runs; empty where a policy is not asked step by step.
"""
LOSSY = "They may write other text than the target, so their speed does not compare with that of the others.\n"
LEARNING = """\
Seconds of the best static chain until N tokens were out, over the policy's: the mean over the reporting cells that have
as many tokens, without those under arrivals.
"""
CHECKS = """\
SpecRouter's aims on the reporting cells. `of static` applies to cells of 5,000 tokens and more; `others` is the fastest
other lossless policy of the cell. `beyond 1,000` is the ratio to the best static chain after the first 1,000 tokens:
where it passes and the cell is missed, the start was lost.
"""
REGRET = """\
Seconds that a policy takes more than an [oracle](checks.md#oracles-and-regret), as a share of the oracle's, in the
mean over {count}: one request at a time, {ladders},
recordings of every continuation, the recorded order. An oracle plans each answer from the recording: `oracle-chain`
among chains of up to three members, `oracle-window` among windows of the smallest model alone, so that policies with
more to choose from may be faster.
"""


def leaderboard_page(board: Leaderboard, figure: str) -> str:
    """The whole page; `figure` is its path relative to the page."""
    return "\n".join(_parts(board, figure))


def _parts(board: Leaderboard, figure: str) -> Iterator[str]:
    yield INTRO
    yield _cells(board)
    yield from _section("Ranking", RANKING, ranking(board))
    yield f"![Learning, SpecRouter by cell, and all policies]({figure})\n"
    if board.lossy:
        yield from _section("Lossy policies", LOSSY, lossy(board))
    yield from _section("Learning", LEARNING, learning(board))
    yield from _section("Where each one loses", "On the reporting cells.\n", losses(board))
    if board.checks:
        yield from _section("What SpecRouter is held to", CHECKS, checked(board), cell_checks(board))
    if board.regrets():
        sides = ((side, oracle_cells(board.cells[side])) for side in SIDES)
        count = " and ".join(f"{counted(len(cells), 'cell')} of side {side}" for side, cells in sides if cells)
        ladders = f"ladders {' and '.join(f'`{name}`' for name in LADDERS)}"
        told = REGRET.format(count=count, ladders=ladders)
        yield from _section("Regret", told, regret(board))


def _section(title: str, told: str, *rows: Rows) -> Iterator[str]:
    yield f"## {title}\n"
    yield told
    yield from (f"{markdown_table(one.grid())}\n" for one in rows)


def _cells(board: Leaderboard) -> str:
    lines = []
    for side in SIDES:
        cells = board.cells[side]
        parts = [counted(len({getattr(cell, part) for cell in cells}), part) for part in ArenaCell._fields]
        lines.append(f"- {side}: {counted(len(cells), 'cell')} of {', '.join(parts)}")
    lines += [f"- recording `{name}` is left out: {why}" for name, why in board.missing.items()]
    lines += [f"- {gap}" for gap in board.gaps]
    where, share = least(board.runs.replayed(BEST_STATIC))
    if share is not None:
        lines.append(f"- decisions of the best static chains: {at_least(share)} are replayed, not modelled ({where})")
    return "\n".join([*lines, ""])


FIGURES = "figures"  # folder beside the page


def check_page(page: Path) -> tuple[Path, ...]:
    """Reject, before a long run, a page that `write_leaderboard` could not write; returns the files that it writes.

    Raises:
        ValueError: a page that does not end in .md or is a folder, or whose folders are missing or are files.
        ModuleNotFoundError: the extra for figures is not installed.
    """
    if page.suffix != ".md":
        raise ValueError(f"--page must end in .md, got {str(page)!r}")
    if not page.absolute().parent.is_dir():
        raise ValueError(f"--page must be in a folder that exists, got {str(page)!r}")
    figure = _figure(page)
    if page.is_dir() or (figure.parent.exists() and not figure.parent.is_dir()):
        raise ValueError(f"--page must be a file beside which {FIGURES} is a folder or nothing, got {str(page)!r}")
    check_figure(figure)
    return page, figure, figure.with_suffix(".json")


def write_leaderboard(board: Leaderboard, page: Path) -> None:
    """Write `NAME.md`, `figures/NAME.svg` and `figures/NAME.json`; each appears whole or not at all."""
    figure = _figure(page)
    figure.parent.mkdir(exist_ok=True)
    write_figure(panels(board), figure)
    with whole_file(figure.with_suffix(".json")) as part:
        part.write_text(json.dumps(board.to_json(), indent=1) + "\n", encoding="utf-8")
    with whole_file(page) as part:
        part.write_text(leaderboard_page(board, f"{FIGURES}/{figure.name}"), encoding="utf-8")


def _figure(page: Path) -> Path:
    return page.parent / FIGURES / f"{page.stem}.svg"
