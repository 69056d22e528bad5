"""Imported recordings for tests: drawn by Hypothesis, or made by a process whose rates are known."""

import numpy as np
from hypothesis import strategies as st
from paceline.benchmarks.shared.engine_logs import log_of, sequential
from paceline.traces.rounds.recording import RoundsRecording
from paceline.traces.rounds.rounds import KINDS, UNKNOWN, DrafterInfo, Rounds, RoundsMeta, RoundsRequest

from ...strategies import model_info

SECONDS = st.floats(1e-6, 1e3)
DRAFTERS = ("tiny", "mid-0.5b", "eagle")


@st.composite
def rounds(draw, length, window):
    """Rounds of a text of `length` tokens: any ascending starts, overlapping or not, censored or not."""
    start = sorted(draw(st.sets(st.integers(0, length - 1), max_size=6)))
    most = 12 if window is None else window
    accepted = [draw(st.integers(0, min(most, length - first))) for first in start]
    drafted = [draw(st.one_of(st.sampled_from([-2, -1]), st.integers(kept, most))) for kept in accepted]
    placed = draw(st.none() | st.lists(st.booleans(), min_size=len(start), max_size=len(start)))
    some_s = st.none() | st.lists(st.just(float("nan")) | SECONDS, min_size=len(start), max_size=len(start))
    draft_s, verify_s = draw(some_s), draw(some_s)
    return Rounds(
        start=np.array(start, np.int32),
        accepted=np.array(accepted, np.int32),
        drafted=np.array(drafted, np.int32),
        draft_s=None if draft_s is None else np.array(draft_s),
        verify_s=None if verify_s is None else np.array(verify_s),
        placed=None if placed is None else np.array(placed, np.bool_),
    )


@st.composite
def _requests(draw, request_id, drafters, names):
    methods = draw(st.lists(st.sampled_from(["", *names]), min_size=1, unique=True))
    num_tokens = {method: draw(st.integers(1, 30)) for method in methods}
    length = num_tokens.get("", num_tokens[methods[0]])
    prompt = tuple(draw(st.lists(st.integers(0, 99), max_size=4)))
    wall_s = {method: draw(SECONDS) for method in methods if draw(st.booleans())}
    ran = {drafter.name: drafter.window for drafter in drafters if draw(st.booleans())}
    return RoundsRequest(
        request_id=request_id,
        tag=draw(st.sampled_from(["", "math", "Übersetzung"])),
        session=draw(st.sampled_from(["", "s", "t"])),
        prompt_tokens=len(prompt) or draw(st.integers(0, 9)),
        num_tokens=num_tokens,
        rounds={name: draw(rounds(num_tokens.get(name, length), window)) for name, window in ran.items()},
        wall_s=wall_s,
        prefill_s={method: seconds / 2 for method, seconds in wall_s.items() if draw(st.booleans())},
        prompt=prompt,
        output=draw(st.sampled_from([(), tuple(range(length))])),
    )


@st.composite
def rounds_traces(draw, max_requests=4):
    """Sound imported recordings of 1 to 3 drafters, each of either kind, with or without a window."""
    names = DRAFTERS[: draw(st.integers(1, len(DRAFTERS)))]
    drafters = tuple(
        DrafterInfo(name=name, by_start=draw(st.booleans()), window=draw(st.none() | st.integers(1, 8)))
        for name in names
    )
    ids = draw(
        st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=max_requests, unique=True)
    )
    meta = RoundsMeta(
        name="drawn",
        source="hypothesis",
        drafters=drafters,
        models=tuple(model_info(name) for name in names if draw(st.booleans())),
        notes=("exact", "unknown"),
        software={"engine": "1.0"},
        hardware="none",
    )
    requests = tuple(draw(_requests(request_id, drafters, names)) for request_id in ids)
    return RoundsRecording(meta=meta, requests=requests)


def bernoulli_trace(*, by_start, share=0.7, requests=40, length=200, window=6, seed=0):
    """One drafter, `d`, whose tokens are the target's with probability `share`, whatever came before."""
    rng = np.random.default_rng(seed)
    records = []
    for index in range(requests):
        bits = rng.random(length) < share
        found = sequential(length, window, lambda start, bits=bits: bits[start : start + window])
        records.append(RoundsRequest(request_id=f"q{index}", tag="coin", num_tokens={"": length}, rounds={"d": found}))
    return log_of("coins", records, window=window, drafter="d", by_start=by_start)


def assert_same_rounds(one: RoundsRecording, other: RoundsRecording):
    assert one.meta == other.meta
    assert len(one.requests) == len(other.requests)
    for left, right in zip(one.requests, other.requests, strict=True):
        assert_same_request(left, right)


def assert_same_request(left: RoundsRequest, right: RoundsRequest):
    for field in ("request_id", "tag", "prompt_tokens", "num_tokens", "wall_s", "prefill_s", "prompt", "output"):
        assert getattr(left, field) == getattr(right, field), field
    assert list(left.num_tokens) == list(right.num_tokens)
    assert list(left.rounds) == list(right.rounds)
    for name, here in left.rounds.items():
        there = right.rounds[name]
        for field in ("start", "accepted", "drafted", "draft_s", "verify_s", "placed"):
            # What is unknown in all rounds is None: the store has one form for both.
            one, other = (each.filled(field) if field in UNKNOWN else getattr(each, field) for each in (here, there))
            assert one.dtype == other.dtype == KINDS[field]
            np.testing.assert_array_equal(one, other, err_msg=field)
