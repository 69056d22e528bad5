"""Small recordings of both forms, made by hand, and what spoils their folders."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from paceline.traces import (
    Closure,
    Sampling,
    SyntheticSpec,
    TraceFormatError,
    Trie,
    TrieMeta,
    TrieRecording,
    TrieRequest,
    read_trace,
)
from paceline.traces.contexts.columns import ENTROPIES, LOG_PROBS, UNITS
from paceline.traces.contexts.trie import arrays_of
from paceline.traces.rounds.rounds import DrafterInfo, Rounds, RoundsMeta, RoundsRequest
from paceline.traces.rounds.store import write_rounds

from ..strategies import model_info
from .rounds.rounds_strategies import bernoulli_trace

SPEC = SyntheticSpec(requests=2, tokens=8, prompt_tokens=3, models=("a", "b", "c"), acceptance=(0.5, 0.7), reach=3)
V = 16


def ints(*values):
    return np.array(values, np.int32)


def trie(mode="greedy") -> Trie:
    """Trunk 0-1-2 (tokens 3, 4); off the trunk node 3 after the root (5), node 4 after node 3 (6)."""
    next_log_prob = LOG_PROBS.round(np.full((2, 5), -0.5))
    return Trie(
        parent=ints(-1, 0, 1, 0, 3),
        token=ints(-1, 3, 4, 5, 6),
        depth=ints(0, 1, 2, 1, 2),
        on_trunk=np.array([True, True, True, False, False]),
        next_token=np.array([[5, 4, 9, 6, 7], [3, 4, 8, 1, 2]], np.int32),
        next_log_prob=next_log_prob,
        top_log_prob=next_log_prob if mode == "greedy" else LOG_PROBS.round(np.full((2, 5), -0.25)),
        gap=UNITS.round(np.full((2, 5), 0.3)),
        entropy=ENTROPIES.round(np.full((2, 5), 1.0)),
        own_log_prob=LOG_PROBS.round(np.array([[0, -1, -2, -1, -1]] * 2)),
        tvd=UNITS.round(np.full((1, 5), 0.2)),
    )


def trace(mode="greedy") -> TrieRecording:
    """Requests r0 and r1, of the same trie."""
    coupled = Sampling(mode="coupled", temperature=1.0, seed=0)
    meta = TrieMeta(
        name="small",
        kind="recorded",
        models=(model_info("d"), model_info("t")),
        vocab_size=V,
        sampling=Sampling(mode="greedy") if mode == "greedy" else coupled,
        closure=Closure(kind="monotone", reach=2, run=1),
    )
    requests = tuple(
        TrieRequest(request_id=name, tag="math", prompt=(1, 2), max_new_tokens=2, trie=trie(mode))
        for name in ("r0", "r1")
    )
    return TrieRecording(meta=meta, requests=requests)


def a_round(**changes):
    fields = {"start": ints(0, 3, 7), "accepted": ints(2, 3, 0), "drafted": ints(4, -1, 4)}
    return Rounds(**(fields | changes))


def a_request(**changes):
    fields = {
        "request_id": "a",
        "tag": "t",
        "prompt_tokens": 2,
        "num_tokens": {"": 9, "d": 8},
        "rounds": {"d": a_round()},
        "wall_s": {"": 1.0, "d": 0.5},
        "prefill_s": {"d": 0.1},
        "prompt": (5, 6),
        "output": tuple(range(9)),
    }
    return RoundsRequest(**(fields | changes))


ROUNDS_META = RoundsMeta(
    name="hand",
    source="test",
    drafters=(DrafterInfo(name="d", by_start=True, window=4), DrafterInfo(name="e", by_start=False)),
)


def timed_trace():
    """An imported recording of three requests, of the second of which some seconds are known."""
    made = bernoulli_trace(by_start=True, requests=3, length=20)
    seconds = np.linspace(0.1, 0.2, len(made.requests[1].rounds["d"].start))
    seconds[0] = np.nan
    timed = replace(made.requests[1].rounds["d"], draft_s=seconds)
    return replace(made, requests=(made.requests[0], replace(made.requests[1], rounds={"d": timed}), made.requests[2]))


def write(recording, path):
    """An imported recording to its folder."""
    return write_rounds(iter(recording.requests), lambda: recording.meta, path)


def assert_equal(one: TrieRecording, other: TrieRecording):
    assert one.meta == other.meta
    assert len(one.requests) == len(other.requests)
    for left, right in zip(one.requests, other.requests, strict=True):
        assert replace(left, trie=None) == replace(right, trie=None)
        for name in arrays_of(left.trie):
            here, there = getattr(left.trie, name), getattr(right.trie, name)
            assert here.dtype == there.dtype
            np.testing.assert_array_equal(here, there, err_msg=name)


def read_whole(path):
    """A recording whose every trie was read once."""
    recording = read_trace(path)
    for request in recording.requests:
        assert request.trie.num_nodes == request.num_nodes
    return recording


def refusal(path, read=read_whole) -> TraceFormatError:
    """The one line in which a folder is refused."""
    with pytest.raises(TraceFormatError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value


def content(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


def edit_table(path, name, edit):
    """Change a Parquet file and give `meta.json` its new hash: only its content can be refused."""
    table = edit(pq.read_table(path / name))
    pq.write_table(table, path / name, store_schema=False)
    sign(path, name)


def sign(path, name):
    edit_meta(path, lambda meta: meta["sha256"].update({name: hashlib.sha256((path / name).read_bytes()).hexdigest()}))


def edit_meta(path, edit):
    meta = json.loads((path / "meta.json").read_text())
    edit(meta)
    (path / "meta.json").write_text(json.dumps(meta))


def edited(array, place, value):
    changed = array.copy()
    changed[place] = value
    return changed


def with_column(table, name, values):
    """A table whose column has other values, of its own type."""
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(place), pa.array(values, table.schema.field(place).type))


def with_cell(table, name, row, value):
    values = table.column(name).to_pylist()
    values[row] = value
    return with_column(table, name, values)


def with_null(table, name):
    place = table.schema.get_field_index(name)
    values = [None, *table.column(name).to_pylist()[1:]]
    return table.set_column(place, name, pa.array(values, table.schema.field(name).type))


def cast(table, name, kind):
    place = table.schema.get_field_index(name)
    return table.set_column(place, name, table.column(name).cast(kind))
