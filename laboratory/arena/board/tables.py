"""Tables of the leaderboard."""

from collections.abc import Iterator, Mapping
from math import inf

from ...findings.table import Cell, Rows, cell, table
from ..played import MARKS
from ..split import Side
from .checks import LEAST_MEAN, LIMITS, CellCheck
from .leaderboard import Leaderboard
from .losses import loses_at, worst_cells
from .runs import OURS
from .scores import least


def ranking(board: Leaderboard) -> Rows:
    """Lossless policies, the largest mean ratio on the side that is told of first."""
    return table(_told(board), [_ranked(board, policy) for policy in board.lossless])


def _ranked(board: Leaderboard, policy: str) -> list[Cell]:
    score, report, tune = board.scores_of(policy)
    return [
        cell("policy", policy),
        cell("report: mean", report.mean, "", 3),
        cell("tune: mean", tune.mean, "", 3),
        cell("report: least", least(report.ratios)[1], "", 3),
        cell("tune: least", least(tune.ratios)[1], "", 3),
        cell("where", str(least(score.ratios)[0] or "")),
        cell("won", _percent(score.share_won)),
        cell("over plain: mean", score.mean_over_plain, "", 2),
        cell("over plain: least", least(score.over_plain)[1], "", 3),
        cell("least after 1,000 tokens", least(score.learnt)[1], "", 3),
        cell("replayed", _percent(least(score.replayed)[1])),
        cell("thinks", board.runs.think_us(policy), "us", 1),
        cell("left out", report.left_out + tune.left_out),
    ]


def lossy(board: Leaderboard) -> Rows:
    """Policies that may write other text than the target, and how much of it is other text."""
    return table(_told(board), [_lossy(board, policy) for policy in board.lossy])


def _lossy(board: Leaderboard, policy: str) -> list[Cell]:
    score, report, tune = board.scores_of(policy)
    return [
        cell("policy", policy),
        cell("report: mean", report.mean, "", 3),
        cell("tune: mean", tune.mean, "", 3),
        cell("over plain: mean", score.mean_over_plain, "", 2),
        cell("same tokens", _percent(board.runs.same_share(policy))),
        cell("other tokens in 1,000", board.runs.divergences(policy), "", 1),
        cell("replayed", _percent(least(score.replayed)[1])),
        cell("thinks", board.runs.think_us(policy), "us", 1),
        cell("left out", report.left_out + tune.left_out),
    ]


def learning(board: Leaderboard) -> Rows:
    """Mean ratios after some tokens, and at the end."""
    rows = []
    for policy in board.lossless:
        curve = board.curve(policy, board.side)
        after = [cell(f"after {tokens:,}", curve.get(tokens), "", 3) for tokens in MARKS]
        rows.append([cell("policy", policy), *after, cell("at the end", board.scores[board.side][policy].mean, "", 3)])
    return table("", rows)


def losses(board: Leaderboard) -> Rows:
    """Where each lossless policy loses."""
    rows = []
    for policy in board.lossless:
        ratios = board.scores[board.side][policy].ratios
        worst = ", ".join(f"{where} {ratio:.2f}" for where, ratio in worst_cells(ratios))
        rows.append([cell("policy", policy), cell("worst cells", worst), cell("worst in the mean", loses_at(ratios))])
    return table("", rows)


def checked(board: Leaderboard) -> Rows:
    """How many reporting cells SpecRouter passes each check in, and its mean."""
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
        cell("check", check),
        cell("passed", passed),
        cell("of", cells),
        cell("least", worst, "", 3),
        cell("where", where),
    ]


def cell_checks(board: Leaderboard) -> Rows:
    """Every reporting cell, those with misses first."""
    order = sorted(board.checks, key=lambda check: (not check.missed, str(check.cell)))
    return table("", [_cell_check(check) for check in order])


def _cell_check(check: CellCheck) -> list[Cell]:
    figures = [cell(name, check.ratios.get(name), "", 3) for name in LIMITS]
    return [
        cell("cell", str(check.cell)),
        cell("best static chain", check.chain),
        *figures,
        cell("best other", check.other),
        cell("beyond 1,000", check.beyond, "", 3),
        cell("missed", ", ".join(check.missed)),
    ]


def regret(board: Leaderboard) -> Rows:
    """Seconds more than the oracles, of policies and of the other oracle; in the order of the first column."""
    regrets = board.regrets()
    policies = dict.fromkeys(policy for by_policy in regrets.values() for policy in by_policy)
    order = sorted(policies, key=lambda policy: [by_policy.get(policy, inf) for by_policy in regrets.values()])
    rows = [[cell("policy", policy), *_regrets(regrets, policy)] for policy in order]
    return table("seconds more than an oracle", rows)


def _regrets(regrets: Mapping[tuple[str, Side], Mapping[str, float]], policy: str) -> Iterator[Cell]:
    for (oracle, side), by_policy in regrets.items():
        yield cell(f"{oracle}, {side}", _signed(by_policy.get(policy)))


def _told(board: Leaderboard) -> str:
    """Of which side columns are that name none; "" for the reporting one."""
    return "" if board.side is Side.report else f"no cell to report; columns without a side are of side {board.side}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _signed(share: float | None) -> str:
    return "" if share is None else f"{share:+.1%}"
