"""Every experiment by its name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

from . import (
    acceptance_by_level,
    baseline,
    larger_targets,
    memory_overhead,
    routing,
    scheduler_stress,
    scheduling_overhead,
    similarity_calibration,
    slim_frontier,
    tokenizers,
)
from .experiment import Finding, Setting

Use = Literal["pool", "trace", "seed", "threads"]
MODELS: frozenset[Use] = frozenset(("pool", "threads"))
REPLAY: frozenset[Use] = frozenset(("trace", "seed"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One entry of the catalogue.

    Attributes:
        summary: one line.
        run: does it.
        uses: what it reads of its setting, beside the limit; an option it does not use is refused.
    """

    summary: str
    run: Callable[[Setting], Finding]
    uses: frozenset[Use]


def experiments() -> Mapping[str, Experiment]:
    """By name, in the order of the page."""
    return {
        "baseline": _of(baseline, REPLAY | MODELS),
        "scheduler-stress": _of(scheduler_stress, REPLAY),
        "acceptance-by-level": _of(acceptance_by_level, REPLAY),
        "scheduling-overhead": _of(scheduling_overhead, REPLAY),
        "memory-overhead": _of(memory_overhead, MODELS),
        "similarity-calibration": _of(similarity_calibration, MODELS | {"seed"}),
        "slim-frontier": _of(slim_frontier, MODELS | {"seed"}),
        "routing": _of(routing, REPLAY | MODELS),
        "larger-targets": _of(larger_targets, REPLAY),
        "tokenizers": _of(tokenizers, MODELS | {"seed"}),
    }


def _of(module: ModuleType, uses: frozenset[Use]) -> Experiment:
    """The experiment of a module, whose docstring's first line is the summary."""
    return Experiment(summary=(module.__doc__ or "").partition("\n")[0], run=module.run, uses=uses)
