"""From runs of policies to a comparison, and what it says of its scenario."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..cli.options.cost import factors_of
from ..reports.comparison import Comparison
from ..sim.cost import CostModel
from ..traces.rounds.recording import RoundsRecording
from ..traces.rounds.trust import trust
from ..traces.tries.recording import TrieRecording
from .default_policies import BASELINE
from .policy_runs import PolicyRuns
from .remarks import remarks_on
from .scenarios import Scenarios


def comparison_of(runs: PolicyRuns, names: Sequence[str], meta: Mapping[str, Any], cost: CostModel) -> Comparison:
    """The rows of the table; raises the first refusal if there is none."""
    if not any(name in runs.summaries for name in names):
        raise next(iter(runs.refused.values()))
    left_out = [f"{name} is left out: {error}" for name, error in runs.refused.items() if name in names]
    if BASELINE in runs.refused and BASELINE not in names:
        left_out.append(f"no speed-up is known: {runs.refused[BASELINE]}")
    return side_by_side(runs, names, {**meta, "cost_notes": list(cost.notes()), "left_out": left_out})


def side_by_side(runs: PolicyRuns, names: Sequence[str], meta: dict[str, Any]) -> Comparison:
    """Those of `names` that were not refused, at all seeds they were run at."""
    rows = [runs.summaries[name] for name in names if name in runs.summaries]
    return Comparison(
        meta=meta,
        baseline=runs.summaries[BASELINE][0] if BASELINE in runs.summaries else None,
        rows=tuple(row[0] for row in rows),
        repeats={row[0].policy: tuple(row[1:]) for row in rows},
    )


def meta_of(
    scenarios: Scenarios,
    recording: TrieRecording | RoundsRecording,
    *,
    scale: list[str] | None,
    tensor_parallel: int,
    extrapolate: bool,
) -> dict[str, Any]:
    """What a comparison says of its recording, its cost and its what-ifs.

    Args:
        scenarios: it was run under.
        recording: that was replayed.
        scale: as `--scale` was given.
        tensor_parallel: devices every model was split over.
        extrapolate: whether the cost answered beyond what was measured.
    """
    first = scenarios.first
    return {
        "trace": recording.meta.name,
        "kind": recording.meta.kind,
        "source": recording.meta.source if isinstance(recording, RoundsRecording) else None,
        "trust": trust(recording.meta.form) if isinstance(recording, RoundsRecording) else None,
        "notes": list(recording.meta.notes) if isinstance(recording, RoundsRecording) else [],
        "remarks": remarks_on(recording, batch=first.batch),
        "sampling": None if isinstance(recording, RoundsRecording) else recording.meta.sampling.words,
        "cost": first.cost.name,
        "what_if": {
            "acceptance": scenarios.shifts,
            "scale": factors_of(scale),
            "tensor_parallel": tensor_parallel,
        },
        "extrapolate": extrapolate,
        "batch": first.batch,
        "seed": first.seed,
        "seeds": scenarios.num_seeds,
        "decide_s": first.decide_s,
        "start": first.begins.value,
    }
