"""The figure of the leaderboard."""

from ...findings.panel import Panel, Series, by_category
from .checks import OTHERS, STATIC
from .leaderboard import Leaderboard
from .scores import least

DRAWN = 6  # policies whose learning is drawn


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
