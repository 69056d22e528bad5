"""Imported recordings with seconds, written by hand."""

import numpy as np
from paceline.traces import ModelInfo
from paceline.traces.rounds.recording import RoundsRecording
from paceline.traces.rounds.rounds import DrafterInfo, Rounds, RoundsMeta, RoundsRequest

WINDOW = 4


def rounds_of(accepted, *, drafted=WINDOW, draft_s=None, verify_s=None):
    """Rounds one after another from the first token on."""
    accepted = np.array(accepted, np.int32)
    return Rounds(
        start=np.cumsum([0, *(accepted[:-1] + 1)]).astype(np.int32),
        accepted=accepted,
        drafted=np.broadcast_to(np.array(drafted, np.int32), accepted.shape).copy(),
        draft_s=None if draft_s is None else np.array(draft_s, np.float64),
        verify_s=None if verify_s is None else np.array(verify_s, np.float64),
    )


def request_of(request_id, rounds=None, *, tokens=12, wall_s=None, prefill_s=None):
    """A request of `tokens` tokens under every method."""
    rounds = {} if rounds is None else rounds
    return RoundsRequest(
        request_id=request_id,
        tag="a",
        num_tokens=dict.fromkeys(["", *rounds], tokens),
        rounds=rounds,
        wall_s={} if wall_s is None else wall_s,
        prefill_s={} if prefill_s is None else prefill_s,
    )


def recording_of(*requests, drafters=("eagle",), window=WINDOW, models=()):
    infos = tuple(DrafterInfo(name=name, by_start=True, window=window) for name in drafters)
    meta = RoundsMeta(name="by hand", source="hand", drafters=infos, models=models)
    return RoundsRecording(meta=meta, requests=requests)


def shapes(*names):
    return tuple(
        ModelInfo(name=name, parameters=10**6, layers=3, hidden_size=100, kv_bytes_per_token=400, dtype="float16")
        for name in names
    )
