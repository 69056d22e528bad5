"""Logs of rounds in the form of engines: cut from a run, thinned, or synthetic."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import erfc

import numpy as np
from paceline.decoding.seen import Start
from paceline.policies import make_policy
from paceline.runs.log import RunLog
from paceline.sim import Scenario, simulate
from paceline.sim.cost.files import CostLine, FileCost
from paceline.sim.replay_tables import tables_of
from paceline.traces.contexts.recording import TrieRecording
from paceline.traces.rounds.recording import RoundsRecording
from paceline.traces.rounds.rounds import DrafterInfo, Rounds, RoundsMeta, RoundsRequest

FALLING = (0.85, 0.8, 0.72, 0.65, 0.6, 0.55, 0.5, 0.45)


def difficult_texts(persistence: float, requests: int = 60) -> np.ndarray:
    """`[requests, 300]` difficulty of positions, uniform on [0, 1): ranks of a normal walk."""
    rng = np.random.default_rng(0)
    walk = [rng.standard_normal(requests)]
    for _ in range(299):
        walk.append(persistence * walk[-1] + np.sqrt(1 - persistence**2) * rng.standard_normal(requests))
    return np.vectorize(lambda z: 0.5 * erfc(-z / 2**0.5))(np.array(walk).T)


def sequential(num_tokens: int, window: int, agrees: Callable[[int], np.ndarray]) -> Rounds:
    """Consecutive rounds over a text; `agrees(start)` are the verdicts on a draft from there."""
    starts, accepted = [], []
    start = 0
    while start < num_tokens:
        asked = agrees(start)
        starts.append(start)
        accepted.append(len(asked) if asked.all() else int(np.argmin(asked)))
        start += accepted[-1] + 1
    columns = [np.array(column, np.int32) for column in (starts, accepted, [window] * len(starts))]
    return Rounds(start=columns[0], accepted=columns[1], drafted=columns[2])


def log_of(
    name: str, requests: Iterable[RoundsRequest], *, window: int, drafter: str = "draft", **about: bool
) -> RoundsRecording:
    """The log of one drafter; `about` has further fields of it."""
    info = DrafterInfo(name=drafter, window=window, **{"by_start": True, **about})
    return RoundsRecording(meta=RoundsMeta(name=name, source="made", drafters=(info,)), requests=tuple(requests))


def difficult_rounds(texts: np.ndarray, window: int) -> RoundsRecording:
    """The log of a drafter that agrees at depth d if the difficulty is below `FALLING[d]`."""

    def request(index: int) -> RoundsRequest:
        text = texts[index]
        falling = np.array(FALLING[:window])
        found = sequential(len(text), window, lambda start: text[start : start + window] < falling[: len(text) - start])
        return RoundsRequest(request_id=f"r{index}", tag="", num_tokens={"": len(text)}, rounds={"draft": found})

    return log_of("made up", map(request, range(len(texts))), window=window)


def replay(
    recording: TrieRecording | RoundsRecording, drafter: str, window: int, seed: int = 0, start: Start | None = None
) -> RunLog:
    """A run of one drafter and the target, whose forwards all take a second."""
    tables = tables_of(recording)
    chain = f"{drafter}:{window}/{tables.pool.target}"
    flat = FileCost("flat", dict.fromkeys(tables.pool.names, CostLine(intercept_s=1.0)))
    scenario = Scenario(tables=tables, cost=flat, seed=seed, start=start)
    return simulate(scenario, make_policy(chain, tables.pool), chain)


def rounds_taken(recording: RoundsRecording, seed: int) -> np.ndarray:
    """Rounds by request, in the recording's order, of a replay with the drafter's own window."""
    (drafter,) = recording.meta.drafters
    log = replay(recording, drafter.name, drafter.window, seed)
    taken = np.bincount(log.rounds()["request"], minlength=len(recording.requests))
    by_id = dict(zip(log.requests["request_id"].tolist(), taken.tolist(), strict=True))
    return np.array([by_id[one.request_id] for one in recording.requests])


def cut(log: RunLog, drafter: str, *, by_start: bool, most: int, tagged: bool = False) -> RoundsRecording:
    """A run as an engine would log it, with drafts cut to `most` tokens; without tags unless `tagged`."""
    rounds = log.rounds()
    prefills = np.bincount(log.steps["request"], log.steps["prefill"], minlength=len(log.requests["request_id"]))
    records = []
    for index, request_id in enumerate(log.requests["request_id"].tolist()):
        own = rounds["request"] == index
        emitted, accepted, drafted = (rounds[name][own] for name in ("emitted", "accepted", "drafted"))
        found = Rounds(
            start=(np.cumsum(emitted) - emitted + prefills[index]).astype(np.int32),
            accepted=np.minimum(accepted, most).astype(np.int32),
            drafted=np.minimum(drafted, most).astype(np.int32),
        )
        length, tag = int(log.requests["emitted_tokens"][index]), str(log.requests["tag"][index]) if tagged else ""
        records.append(RoundsRequest(request_id=request_id, tag=tag, num_tokens={"": length}, rounds={drafter: found}))
    begun = bool(prefills.any())
    return log_of("cut", records, window=most, drafter=drafter, by_start=by_start, prefilled=begun)


def keeping(recording: RoundsRecording, kept: Callable[[int, int], np.ndarray]) -> RoundsRecording:
    """Keep only the rounds chosen by `kept(index of the request, number of rounds)`."""
    name = recording.meta.drafters[0].name
    requests = []
    for index, one in enumerate(recording.requests):
        all_of = one.rounds[name]
        chosen = kept(index, len(all_of.start))
        columns = {column: getattr(all_of, column)[chosen] for column in ("start", "accepted", "drafted")}
        requests.append(replace(one, rounds={name: Rounds(**columns)} if chosen.any() else {}))
    return replace(recording, requests=tuple(requests))


def synthetic_log(requests: int) -> RoundsRecording:
    rng = np.random.default_rng(0)
    records = []
    for index in range(requests):
        share = 1 / (1 + np.exp(-1.0 - 0.5 * rng.standard_normal()))
        accepted = np.minimum(rng.geometric(1 - share, 200) - 1, 5)
        start = np.cumsum(accepted + 1) - accepted - 1
        inside = start < 200
        columns = (start[inside], accepted[inside], np.full(inside.sum(), 5))
        start, accepted, drafted = (column.astype(np.int32) for column in columns)
        found = Rounds(start=start, accepted=accepted, drafted=drafted)
        records.append(
            RoundsRequest(request_id=f"r{index}", tag=f"t{index % 7}", num_tokens={"": 200}, rounds={"draft": found})
        )
    return log_of("made up", records, window=5)
