"""Every experiment by its name, and the one door to their modules: one is imported when it runs.

Together they import most of the simulator, which every command would wait for.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ...installing import needs_torch
from ..finding import Finding, Setting

Use = Literal["pool", "trace", "seed", "threads"]
MODELS: frozenset[Use] = frozenset(("pool", "threads"))
REPLAY: frozenset[Use] = frozenset(("trace", "seed"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One entry of the catalogue.

    Attributes:
        summary: one line, the first of its module.
        run: does it.
        uses: what it reads of its setting, beside the limit; an option it does not use is refused.
    """

    summary: str
    run: Callable[[Setting], Finding]
    uses: frozenset[Use]


_KNOWN: Mapping[str, tuple[str, frozenset[Use]]] = {
    "baseline": (
        (
            "Standard speculation against the target alone: every member as drafter, every window, "
            "simulated and on the models."
        ),
        REPLAY | MODELS,
    ),
    "scheduler-stress": (
        "Batches of 1 to 64: does the chain that SpecRouter chooses change with the load, and does it pay?",
        REPLAY,
    ),
    "acceptance-by-level": (
        "What each level of a deep chain keeps and drops: early rejection, and the calls of the target that it saves.",
        REPLAY,
    ),
    "scheduling-overhead": (
        (
            "What scheduling costs, 2 to 64 pool members: profiling, search, planning and every step, "
            "against what it saves."
        ),
        REPLAY,
    ),
    "memory-overhead": (
        "Memory of keys and values by depth of the chain and kind of cache: what is held, what is live, what is dead.",
        MODELS,
    ),
    "similarity-calibration": (
        "Statistics of similarity against the acceptance they predict, over drafters near and far from the target.",
        MODELS | {"seed"},
    ),
    "slim-frontier": (
        "Slim verifiers from a few layers left out to most: distance to the target, seconds, and speed of a chain.",
        MODELS | {"seed"},
    ),
    "routing": (
        (
            "VIA-SD's three-way routing against plain speculation and the strongest cascade, with the "
            "same drafter and block."
        ),
        REPLAY | MODELS,
    ),
    "larger-targets": (
        (
            "What if the models were larger: the recording at the price of targets of 7B, 70B and "
            "405B, and at 1 : 10 : 100."
        ),
        REPLAY,
    ),
    "tokenizers": (
        "Drafters with another tokenizer: what of their drafts survives, and what carrying them over costs.",
        MODELS | {"seed"},
    ),
}


def experiments() -> Mapping[str, Experiment]:
    """By name, in the order of the page."""
    return {name: Experiment(summary=summary, run=_run_of(name), uses=uses) for name, (summary, uses) in _KNOWN.items()}


def _run_of(name: str) -> Callable[[Setting], Finding]:
    """What runs an experiment."""

    def run(setting: Setting) -> Finding:
        with needs_torch():
            module = importlib.import_module(f".{name.replace('-', '_')}", __package__)
        finding: Finding = module.run(setting)
        return finding

    return run
