"""`paceline compare --sweep`: chains with every window of a range, at one or more batches."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..cli.output import print_table, say, write_json
from ..policies.chain_notation import ChainSpec
from ..policies.chain_ranges import chains_in
from ..reports.comparison import Comparison
from ..reports.sweep import Sweep, sweep_lines, sweep_table
from ..sim.cost import CostRangeError
from ..traces.rounds.recording import RoundsRecording
from ..traces.tries.recording import TrieRecording
from .comparing import comparison_of
from .default_policies import BASELINE
from .policy_runs import run_policies
from .remarks import remarks_on
from .scenarios import Scenarios

MOST_CELLS = 1000
MOST_BATCH = 1_000_000

SweepOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CHAIN",
        help=f"Chains with ranges of windows, draft:1..12/target or draft:1..9:2/mid:4..8/target, instead of policies; "
        f"repeatable, {MOST_CELLS:,} chains x batches at most.",
    ),
]
BatchOption = Annotated[
    str, typer.Option(metavar="N", help="Requests running at a time; of a sweep also several, as in 1,4,16.")
]


def batches_of(text: str, sweep: Sequence[str] | None) -> tuple[int, ...]:
    """The batches of `--batch`, one if nothing is swept; raises ValueError."""
    parts = text.split(",")
    for part in parts:
        if not (part.isascii() and part.isdecimal() and len(part) <= 7 and 1 <= int(part) <= MOST_BATCH):
            raise ValueError(f"--batch must be a whole number from 1 to {MOST_BATCH:,}, got {part!r}")
    batches = tuple(int(part) for part in parts)
    if len(batches) > 1 and not sweep:
        raise ValueError(f"--batch takes several numbers with --sweep only, got {text!r}")
    twice = [batch for index, batch in enumerate(batches) if batch in batches[:index]]
    if twice:
        raise ValueError(f"--batch {twice[0]} is given twice")
    return batches


def refuse_beside_sweep(options: Mapping[str, object]) -> None:
    """Refuse options that a sweep would ignore; raises ValueError for the first that was given."""
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        raise ValueError(f"{given} has no part in --sweep; compare the chains that it finds best with --policy")


def swept(
    texts: Sequence[str],
    scenarios: Scenarios,
    batches: Sequence[int],
    recording: TrieRecording | RoundsRecording,
    meta: Mapping[str, Any],
    *,
    lossless: bool,
) -> Sweep:
    """Every chain at every batch.

    Args:
        texts: as `--sweep` was given.
        scenarios: at the first of the batches.
        batches: requests running at a time.
        recording: that is replayed.
        meta: of a comparison at the first of the batches.
        lossless: whether only lossless policies were asked for.

    Raises:
        ValueError: a text that is no chain with ranges, too many cells, or a policy that may not run.
        CostRangeError: the cost knows the seconds of no chain at one of the batches.
    """
    chains = chains_in(texts, scenarios.first.tables.pool, most=MOST_CELLS // len(batches))
    names = [str(chain) for chain in chains]
    comparisons = {
        batch: _compared(scenarios.with_batch(batch), names, meta, batch, lossless=lossless) for batch in batches
    }
    notes = [note for comparison in comparisons.values() for note in comparison.meta["cost_notes"]]
    left_out = [
        f"batch {batch:,}: {reason}"
        for batch, comparison in comparisons.items()
        for reason in comparison.meta["left_out"]
    ]
    remarks = [remark for batch in batches for remark in remarks_on(recording, batch=batch)]
    return Sweep(
        meta={
            **meta,
            "batch": list(batches),
            "remarks": list(dict.fromkeys(remarks)),
            "cost_notes": list(dict.fromkeys(notes)),
            "left_out": left_out,
        },
        chains={str(chain): _windows(chain) for chain in chains},
        comparisons=comparisons,
    )


def _compared(
    scenarios: Scenarios, names: Sequence[str], meta: Mapping[str, Any], batch: int, *, lossless: bool
) -> Comparison:
    try:
        runs = run_policies(scenarios, names, baseline=BASELINE, log=None, partial=True, lossless=lossless)
        return comparison_of(runs, names, meta, scenarios.first.cost)
    except CostRangeError as error:
        raise CostRangeError(f"batch {batch:,}: {error}") from error


def _windows(chain: ChainSpec) -> dict[str, int]:
    return dict(zip(chain.members, chain.windows, strict=False))


def show_sweep(sweep: Sweep, json: Path | None) -> None:
    """Print the grid and a line in words for each batch, or write JSON."""
    if json is not None:
        write_json(sweep.to_json(), json)
        return
    print_table(sweep_table(sweep))
    for line in sweep_lines(sweep):
        say(line)
