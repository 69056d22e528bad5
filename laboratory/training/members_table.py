"""The members of a pool, and what their training took, as a card shows them."""

from collections.abc import Mapping

from ...reports.tables import grid
from ...runtime.pools.pool import ModelPool
from ...runtime.timing.forward_seconds import measure_costs
from ..findings.table import markdown_table
from .loop import TrainingRun

TIMED_FORWARDS = 40


def members_table(pool: ModelPool, runs: Mapping[str, TrainingRun], *, of_others: str) -> str:
    """Parameters, seconds of a forward of one token, and training, as Markdown.

    Args:
        pool: whose members with a model are timed.
        runs: what the training of each trained member took.
        of_others: what stands in its place for the others.
    """
    rows = []
    for name, costs in measure_costs(pool, new_tokens=(1,), repeats=TIMED_FORWARDS).items():
        run = runs.get(name)
        rows.append(
            {
                "member": name,
                "parameters": f"{pool.member(name).num_parameters:,}",
                "ms per token": f"{1000 * costs.seconds[0]:.2f}",
                "tokens seen": f"{run.num_tokens:,}" if run else of_others,
                "seconds of training": f"{run.seconds:,.0f}" if run else "-",
            }
        )
    return markdown_table(grid.table(rows))
