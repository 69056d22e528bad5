"""How far simulated seconds are from measured ones, cell by cell, and the cost of following the simulator.

A cell is a policy, a number of requests at a time and a tag.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean, median

from ..runs.log import RunLog
from .summary import summarise_run
from .tables import Grid, table


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell in both worlds."""

    policy: str
    batch: int  # requests at a time
    tag: str  # of the requests
    simulated_s: float  # from the first admission to the last token
    runs_s: tuple[float, ...]  # the same of real models, each measured run, > 0; at least one
    # relative error of the mean time per output token after the first; None where no request has two
    tpot_error: float | None
    forwards_error: float  # the forwards' contribution to the error of total seconds, as a share of measured ones
    beside_error: float  # the contribution of everything else
    equal: bool  # whether both worlds took the same steps
    runs_equal: bool  # whether all measured runs took the same steps
    forced: bool = False  # whether acceptance came from a recording and not from the models

    @property
    def measured_s(self) -> float:
        """Median of the measured runs."""
        return median(self.runs_s)

    @property
    def spread(self) -> float:
        """Half the range of the measured runs as a share of their median."""
        return (max(self.runs_s) - min(self.runs_s)) / 2 / self.measured_s

    @property
    def error(self) -> float:
        """Relative error of total seconds; the error of tokens per second has the opposite sign."""
        return self.simulated_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BestPolicy:
    """Which policy is best for a batch and a tag, and the cost of following the simulator."""

    # batch, tag: of the cells compared
    batch: int
    tag: str
    simulated: str  # the policies with the fewest simulated seconds, with commas between
    measured: str  # the policy with the fewest measured seconds
    same: bool  # whether the second is among the first
    # how much longer the simulator's choice took than the best, as a share; of those that tie the mean
    regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationVerdict:
    """The verdict over all cells."""

    # median_error, worst_error: of total seconds, absolute
    median_error: float
    worst_error: float
    same_choice: float  # share of batches and tags whose best policy is the same in both worlds
    # mean_regret, worst_regret: of following the simulator
    mean_regret: float
    worst_regret: float
    equal: float  # share of cells with equal steps


def total_s(log: RunLog) -> float:
    """Seconds of a run, from the first admission to the last token."""
    return float(log.requests["finished_at_s"].max() - log.requests["admitted_at_s"].min())


def middle_runs(runs: Sequence[RunLog]) -> Sequence[RunLog]:
    """The run of the median of total seconds; of an even number the two whose mean it is."""
    return sorted(runs, key=total_s)[(len(runs) - 1) // 2 : len(runs) // 2 + 1]


def tpot_error_of(simulated: RunLog, measured: Sequence[RunLog]) -> float | None:
    """Relative error of the mean time per output token, of runs their mean; None where no request has two tokens."""
    ours, *theirs = (summarise_run(log).tpot_s.mean for log in (simulated, *measured))
    return ours / fmean(theirs) - 1 if any(theirs) else None


def choices(cells: Sequence[Cell]) -> list[BestPolicy]:
    """The best policy of each batch and tag, in the order of the cells."""

    def place(cell: Cell) -> tuple[int, str]:
        return cell.batch, cell.tag

    order = list(dict.fromkeys(map(place, cells)))
    found = []
    for (batch, tag), group in groupby(sorted(cells, key=lambda cell: order.index(place(cell))), key=place):
        among = list(group)
        least_s = min(cell.simulated_s for cell in among)
        ours = [cell for cell in among if cell.simulated_s == least_s]
        theirs = min(among, key=lambda cell: cell.measured_s)
        found.append(
            BestPolicy(
                batch=batch,
                tag=tag,
                simulated=", ".join(cell.policy for cell in ours),
                measured=theirs.policy,
                same=theirs in ours,
                regret=fmean(cell.measured_s for cell in ours) / theirs.measured_s - 1,
            )
        )
    return found


def verdict(cells: Sequence[Cell]) -> ValidationVerdict:
    """Over all cells; raises ValueError for none."""
    if not cells:
        raise ValueError("cells must be one or more, got none")
    return _verdict(cells, choices(cells))


def repeatability(cells: Sequence[Cell]) -> ValidationVerdict | None:
    """`verdict` on measured runs against each other, in place of the simulator; None for one run.

    Each run in turn replaces the simulator, and the median of the others is the measurement; of two runs, each is
    compared with the other. So errors are taken over every cell and run, choices over every batch, tag and run, and
    `equal` is the share of cells in which all runs took the same steps. There is at least one cell, and all have as
    many runs.
    """
    num_runs = len(cells[0].runs_s)
    if num_runs == 1:
        return None
    held_out = [[_predicted(cell, run) for cell in cells] for run in range(num_runs)]
    return _verdict([cell for told in held_out for cell in told], [one for told in held_out for one in choices(told)])


def _predicted(cell: Cell, run: int) -> Cell:
    """A cell with one of the measured runs in the simulator's place, and the other runs."""
    others = (*cell.runs_s[:run], *cell.runs_s[run + 1 :])
    return replace(cell, simulated_s=cell.runs_s[run], runs_s=others, equal=cell.runs_equal)


def _verdict(cells: Sequence[Cell], picked: Sequence[BestPolicy]) -> ValidationVerdict:
    errors = [abs(cell.error) for cell in cells]
    regrets = [choice.regret for choice in picked]
    return ValidationVerdict(
        median_error=median(errors),
        worst_error=max(errors),
        same_choice=sum(choice.same for choice in picked) / len(picked),
        mean_regret=sum(regrets) / len(regrets),
        worst_regret=max(regrets),
        equal=sum(cell.equal for cell in cells) / len(cells),
    )


def cells_table(cells: Sequence[Cell], *, title: str) -> Grid:
    """A row for each policy, batch and tag."""
    return table([_cell_row(cell) for cell in cells], texts=("tag",), title=title)


def choices_table(choices: Sequence[BestPolicy]) -> Grid:
    """A row for each batch and tag."""
    rows = [
        {
            "tag": choice.tag,
            "batch": f"{choice.batch}",
            "simulated best": choice.simulated,
            "measured best": choice.measured,
            "regret": f"{choice.regret:.1%}",
        }
        for choice in choices
    ]
    return table(rows, texts=("tag", "simulated best", "measured best"))


def _cell_row(cell: Cell) -> dict[str, str]:
    return {
        "tag": cell.tag,
        "batch": f"{cell.batch}",
        "policy": cell.policy,
        "simulated s": f"{cell.simulated_s:.3f}",
        "measured s": f"{cell.measured_s:.3f}",
        "error": f"{cell.error:+.1%}",
        "of forwards": f"{cell.forwards_error:+.1%}",
        "of the rest": f"{cell.beside_error:+.1%}",
        "TPOT error": "" if cell.tpot_error is None else f"{cell.tpot_error:+.1%}",
        "spread": f"{cell.spread:.1%}",
        "steps": "equal" if cell.equal else "differ",
    }
