"""docs/leaderboard.md, written from what was just played."""

from collections.abc import Iterator, Sequence

from ....counted import counted
from ...findings.table import Rows, markdown_table
from ..cell import PARTS, ArenaCell
from ..played import BEST_STATIC
from ..split import Side
from . import tables
from .leaderboard import SIDES, Leaderboard
from .regret import LADDERS, oracle_cells
from .scores import least

INTRO = """\
# Leaderboard

Policies of the [arena](arena.md), which says what cells are, what the figures mean and how to add a policy.
`make arena` plays whatever is new and writes this page; nothing here is typed by hand.

A **ratio** is a policy's speed over that of the best static chain of the cell in hindsight, found by search and not
charged for it. Means over cells are arithmetic. Constants were settled on the tuning cells; the reporting cells are of
recordings that nothing was settled on.
"""
RANKING = """\
Columns without a side are of the reporting cells. `where`: the cell of the least ratio. `won`: cells in which no
lossless policy is faster. `left out`: cells that a policy has no run in, of both sides; its means, and its share of
cells won, are of the others. `replayed`: share of the decisions that recordings hold, in the cell that has least of
them; the rest was modelled. `thinks`: microseconds of this host for a step, `decide` and `learn`, the median over runs;
empty where a policy is not asked step by step.
"""
LOSSY = "They may write other text than the target, so that their speed is no match for that of the others.\n"
LEARNING = """\
Mean over the reporting cells with as many tokens that are not under arrivals: seconds of the best static chain until so
many tokens were out, over the policy's.
"""
CHECKS = """\
What SpecRouter is held to on the reporting cells that it has runs in. `of static` applies to cells of 5,000 tokens and
more; `others` is the fastest other policy of the cell that is lossless. `beyond 1,000` is the ratio to the best static
chain after the first 1,000 tokens: where it passes and the cell is missed, the start is what was lost.
"""
REGRET = """\
Seconds that a policy takes more than an [oracle](oracles.md), as a share of the oracle's, in the mean over
{count}: one request at a time, {ladders},
recordings of every continuation, the recorded order. An oracle plans each answer from the recording: `oracle-chain`
among chains of up to three members, `oracle-window` among windows of the smallest model alone, so that policies with
more to choose from may be faster.
"""


def leaderboard_page(board: Leaderboard, figure: str) -> str:
    """The whole page.

    Args:
        board: what it tells.
        figure: as seen from the page.
    """
    return "\n".join(_parts(board, figure))


def _parts(board: Leaderboard, figure: str) -> Iterator[str]:
    yield INTRO
    yield _cells(board)
    yield from _section("Ranking", RANKING, tables.ranking(board))
    yield f"![Learning, SpecRouter by cell, and all policies]({figure})\n"
    if board.lossy:
        yield from _section("Lossy policies", LOSSY, tables.lossy(board))
    yield from _section("Learning", LEARNING, tables.learning(board))
    yield from _section("Where each one loses", "On the reporting cells.\n", tables.losses(board))
    if board.checks:
        yield from _section("What SpecRouter is held to", CHECKS, tables.checked(board), tables.cell_checks(board))
    if board.regrets():
        sides = ((side, oracle_cells(board.cells[side])) for side in SIDES)
        count = " and ".join(f"{counted(len(cells), 'cell')} of side {side}" for side, cells in sides if cells)
        ladders = f"ladders {' and '.join(f'`{name}`' for name in LADDERS)}"
        told = REGRET.format(count=count, ladders=ladders)
        yield from _section("Regret", told, tables.regret(board))


def _section(title: str, told: str, *rows: Rows) -> Iterator[str]:
    yield f"## {title}\n"
    yield told
    yield from (f"{markdown_table(one.grid())}\n" for one in rows)


def _cells(board: Leaderboard) -> str:
    lines = [f"- {side}: {_counted(board.cells[side])}" for side in (Side.report, Side.tune)]
    lines += [f"- recording `{name}` is left out: {why}" for name, why in board.missing.items()]
    lines += [f"- {gap}" for gap in board.gaps]
    where, share = least(board.runs.replayed(BEST_STATIC))
    if share is not None:
        lines.append(
            f"- decisions of the best static chains: at least {share:.1%} are replayed, not modelled ({where})"
        )
    return "\n".join([*lines, ""])


def _counted(cells: Sequence[ArenaCell]) -> str:
    named = [counted(len({getattr(cell, part) for cell in cells}), part) for part in PARTS]
    return f"{counted(len(cells), 'cell')} of {', '.join(named)}"
