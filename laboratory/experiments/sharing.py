"""Sharing of prefixes meets speculation: what each makes the other worth, by workload, chain and kind of sharing.

Rollouts that branch, agents that send a growing context, workers on one context, and tool calls with and without the
model between them; forwards as long as those of models of 1, 3 and 8 billion parameters on an A100. What drafts and
verifications come out as is what was recorded. At one seed every chain and every kind of sharing meets the same
requests and the same recorded answers, so their ratios are free of what chance does to all of them.
"""

import tempfile
from pathlib import Path

from ...traces.tries.store import read_trace
from ..findings.finding import ExperimentSetting, Finding
from ..model_runs import models_of
from ..sharing.grid import cells_table, interaction_table, served_load
from ..sharing.loads import LOADS
from ..sharing.on_models import in_both_worlds, models_table, shared_prompts
from ..sharing.sizes import at_batches, at_memories, batch_table, memory_table
from ..sharing.uncached import uncached, uncached_table
from ..sharing.words import answer, panels

SEEDS, FEW_SEEDS = 5, 2


def run(setting: ExperimentSetting) -> Finding:
    """Serve every load in every cell, then with drafts that cache nothing and in other sizes; then run models.

    Raises:
        TraceFormatError: the recording is not one of this pool and its prompts.
        ValueError: a pool with too few prompts.
    """
    trace = read_trace(setting.trace)
    pool, _ = models_of(setting, trace, 1)
    prompts = shared_prompts(setting)
    seeds = range(setting.seed, setting.seed + (SEEDS if setting.limit is None else FEW_SEEDS))
    with tempfile.TemporaryDirectory() as name:
        folder, limit = Path(name), setting.limit
        found = [served_load(load, trace, seeds, limit, folder) for load in LOADS]
        without = uncached(found, trace, seeds, limit, folder)
        batches = at_batches(trace, seeds, limit, folder)
        memories = at_memories(trace, seeds, limit, folder)
    models = in_both_worlds(pool, prompts, trace)
    return Finding(
        question="Does sharing of prefixes make speculation worth more or less, and where?",
        tables=(
            interaction_table(found),
            *map(cells_table, found),
            uncached_table(without),
            batch_table(batches),
            memory_table(memories),
            models_table(models),
        ),
        panels=panels(found, without, batches),
        answer=answer(found, without, batches, models),
    )
