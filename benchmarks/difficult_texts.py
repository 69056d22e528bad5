"""Texts that are easy or difficult for long, and the log of a drafter that agrees less the deeper it is in a round."""

from math import erfc

import numpy as np
from paceline.traces.rounds.meta import DrafterInfo, RoundsMeta
from paceline.traces.rounds.recording import RoundsRecording
from paceline.traces.rounds.rounds import Rounds, RoundsRequest

FALLING = (0.85, 0.8, 0.72, 0.65, 0.6, 0.55, 0.5, 0.45)


def difficult_texts(persistence: float) -> np.ndarray:
    """`[60, 300]` difficulty of positions, uniform on [0, 1)."""
    rng = np.random.default_rng(0)
    walk = [rng.standard_normal(60)]
    for _ in range(299):
        walk.append(persistence * walk[-1] + np.sqrt(1 - persistence**2) * rng.standard_normal(60))
    return np.vectorize(lambda z: 0.5 * erfc(-z / 2**0.5))(np.array(walk).T)


def difficult_rounds(texts: np.ndarray, window: int) -> RoundsRecording:
    """The log of a drafter that agrees at depth d where the difficulty is below `FALLING[d]`."""
    records = []
    for index, text in enumerate(texts):
        starts, kept = [], []
        start = 0
        while start < len(text):
            agrees = text[start : start + window] < np.array(FALLING[: len(text[start : start + window])])
            starts.append(start)
            kept.append(len(agrees) if agrees.all() else int(np.argmin(agrees)))
            start += kept[-1] + 1
        columns = [np.array(column, np.int32) for column in (starts, kept, [window] * len(starts))]
        found = Rounds(start=columns[0], accepted=columns[1], drafted=columns[2])
        length = {"": len(text)}
        records.append(RoundsRequest(request_id=f"r{index}", tag="", num_tokens=length, rounds={"draft": found}))
    info = DrafterInfo(name="draft", by_start=True, window=window)
    return RoundsRecording(meta=RoundsMeta(name="made up", source="none", drafters=(info,)), requests=tuple(records))
