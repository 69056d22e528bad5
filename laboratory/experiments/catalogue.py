"""Every experiment by its name. A module is imported when it runs: together they import most of the simulator."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline.base.errors import needs_torch

from ..findings import ExperimentSetting, Finding

Use = Literal["pool", "trace", "seed", "threads"]
MODELS: frozenset[Use] = frozenset(("pool", "threads"))
REPLAY: frozenset[Use] = frozenset(("trace", "seed"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One entry of the catalogue."""

    summary: str  # one line, the first of its module
    run: Callable[[ExperimentSetting], Finding]  # does it
    uses: frozenset[Use]  # what it reads of its setting, beside the limit; an option it does not use is rejected


_KNOWN: Mapping[str, frozenset[Use]] = {
    "baseline": REPLAY | MODELS,
    "scheduler-stress": REPLAY,
    "load-sweep": REPLAY,
    "sharing": REPLAY | MODELS,
    "acceptance-by-level": REPLAY,
    "scheduling-overhead": REPLAY,
    "memory-overhead": MODELS,
    "similarity-calibration": MODELS | {"seed"},
    "slim-frontier": MODELS | {"seed"},
    "routing": REPLAY | MODELS,
    "larger-targets": REPLAY,
    "tokenizers": MODELS | {"seed"},
}


def experiments() -> Mapping[str, Experiment]:
    """By name, in the order of the page."""
    return {name: Experiment(summary=_summary(name), run=_run_of(name), uses=uses) for name, uses in _KNOWN.items()}


def _module(name: str) -> str:
    return name.replace("-", "_")


def _summary(name: str) -> str:
    with Path(__file__).with_name(f"{_module(name)}.py").open(encoding="utf-8") as source:
        return source.readline().strip().removeprefix('"""')


def _run_of(name: str) -> Callable[[ExperimentSetting], Finding]:
    def run(setting: ExperimentSetting) -> Finding:
        with needs_torch():
            module = importlib.import_module(f".{_module(name)}", __package__)
        finding: Finding = module.run(setting)
        return finding

    return run
