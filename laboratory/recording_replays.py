"""What experiments on a recording share: its requests, its prices, and speeds and steps by tag."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..policies.spec import make_policy
from ..runs.log import RunLog
from ..sim.cost.make import default_cost, make_cost
from ..sim.simulate import Scenario, simulate
from ..sim.tries.tables import TrieTables
from ..traces.tries.recording import TrieRecording
from ..traces.tries.store import read_trace
from .findings.finding import ExperimentSetting

ALL = "all"
TARGET_ALONE = "plain"


def recording_of(setting: ExperimentSetting) -> TrieRecording:
    """The recording, as many requests of it as the limit lets through."""
    trace = read_trace(setting.trace)
    return replace(trace, requests=trace.requests[: setting.limit])


def scenario_of(setting: ExperimentSetting, trace: TrieRecording) -> Scenario:
    """One request at a time, at the seconds measured with the recording."""
    cost = make_cost(default_cost(trace), trace)
    return Scenario(tables=TrieTables(trace), cost=cost, seed=setting.seed)


def replayed(scenario: Scenario, policy: str) -> RunLog:
    """The run of a policy built for it."""
    return simulate(scenario, make_policy(policy, scenario.tables.pool), policy)


def drafters_of(scenario: Scenario) -> tuple[str, ...]:
    """Every member below the target, smallest first; raises ValueError where there is none."""
    names = scenario.tables.pool.names[:-1]
    if not names:
        raise ValueError(
            f"recording {scenario.tables.trace.about.name}: models must be two or more, got the target alone"
        )
    return names


def tags_of(trace: TrieRecording) -> tuple[str, ...]:
    """In the order of their first request."""
    return tuple(dict.fromkeys(request.tag for request in trace.requests))


def speed_of(log: RunLog, *, tag: str = ALL, among: Sequence[str] | None = None) -> float:
    """Output tokens per second of the requests of a tag, or of those called `among`, in a run with batch 1.

    Seconds are those from admission to the last token, summed over requests.

    Raises:
        ValueError: no such request.
    """
    requests = log.requests
    chosen = np.ones(len(requests["tag"]), dtype=bool) if tag == ALL else requests["tag"] == tag
    if among is not None:
        chosen &= np.isin(requests["request_id"], list(among))
    if not chosen.any():
        raise ValueError(f"run of {log.meta['policy']}: requests of tag {tag} must be one or more, got none")
    duration_s = (requests["finished_at_s"] - requests["admitted_at_s"])[chosen].sum()
    return int(requests["emitted_tokens"][chosen].sum()) / float(duration_s)


def speed_up_of(log: RunLog, alone: RunLog, *, tag: str = ALL, among: Sequence[str] | None = None) -> float:
    """Its speed over that of the run `alone`, each of the same requests; see `speed_of`."""
    return speed_of(log, tag=tag, among=among) / speed_of(alone, tag=tag, among=among)


def steps_of(log: RunLog, tag: str = ALL) -> NDArray[np.bool_]:
    """Which steps belong to requests of a tag."""
    if tag == ALL:
        return np.ones(len(log.steps["request"]), dtype=bool)
    chosen: NDArray[np.bool_] = log.requests["tag"][log.steps["request"]] == tag
    return chosen
