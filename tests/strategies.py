"""Hypothesis strategies that tests share."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from paceline.traces import (
    Closure,
    ModelInfo,
    Sampling,
    SyntheticSpec,
    Trie,
    TrieMeta,
    TrieRecording,
    TrieRequest,
    make_trace,
)
from paceline.traces.contexts.columns import ENTROPIES, LOG_PROBS, UNITS

MODEL_NAMES = ("tiny", "mid-0.5b", "large", "target")


def model_info(name: str) -> ModelInfo:
    return ModelInfo(name=name, parameters=100, layers=2, hidden_size=8, kv_bytes_per_token=64, dtype="float32")


@st.composite
def metas(draw):
    """What a trace of 1 to 4 models says of itself; tokens of either width, both kinds of sampling."""
    coupled = draw(st.booleans())
    names = MODEL_NAMES[-draw(st.integers(1, len(MODEL_NAMES))) :]
    return TrieMeta(
        name=draw(st.text(st.characters(exclude_categories=("C",)), min_size=1, max_size=8)),
        kind=draw(st.sampled_from(["recorded", "synthetic"])),
        models=tuple(model_info(name) for name in names),
        vocab_size=draw(st.sampled_from([16, 65536, 65537, 200_000])),
        sampling=Sampling(mode="coupled", temperature=0.8, seed=3) if coupled else Sampling(mode="greedy"),
        closure=Closure(kind="monotone", reach=16, run=5),
    )


def _values(draw, grid, *shape):
    codes = draw(arrays.arrays(np.uint16, shape, elements=st.integers(0, grid.high)))
    return grid.decode(codes)


@st.composite
def shapes(draw, vocab_size):
    """Parent, token and trunk membership of 2 to 10 nodes: a new node goes on with the trunk, or branches off."""
    parents, tokens, on_trunk = [-1], [-1], [True]
    trunk_end = 0
    for node in range(1, draw(st.integers(2, 10))):
        goes_on = node == 1 or draw(st.booleans())
        parent = trunk_end if goes_on else draw(st.integers(0, node - 1))
        taken = {token for token, other in zip(tokens, parents, strict=True) if other == parent}
        parents.append(parent)
        tokens.append(draw(st.integers(0, vocab_size - 1).filter(lambda token, taken=taken: token not in taken)))
        on_trunk.append(goes_on)
        trunk_end = node if goes_on else trunk_end
    return np.array(parents, np.int32), np.array(tokens, np.int32), np.array(on_trunk)


@st.composite
def tries(draw, meta):
    """Any sound trie of a trace: its closure may be anything."""
    parent, token, on_trunk = draw(shapes(meta.vocab_size))
    size, models = len(parent), len(meta.models)
    depth = np.zeros(size, np.int32)
    for node in range(1, size):
        depth[node] = depth[parent[node]] + 1
    next_token = draw(arrays.arrays(np.int32, (models, size), elements=st.integers(0, meta.vocab_size - 1)))
    written = on_trunk & (parent >= 0)
    next_token[-1, parent[written]] = token[written]
    one, other = _values(draw, LOG_PROBS, models, size), _values(draw, LOG_PROBS, models, size)
    own_log_prob = _values(draw, LOG_PROBS, models, size)
    own_log_prob[:, 0] = 0.0
    return Trie(
        parent=parent,
        token=token,
        depth=depth,
        on_trunk=on_trunk,
        next_token=next_token,
        next_log_prob=one,
        top_log_prob=one if meta.sampling.mode == "greedy" else np.maximum(one, other),
        gap=_values(draw, UNITS, models, size),
        entropy=_values(draw, ENTROPIES, models, size),
        own_log_prob=own_log_prob,
        tvd=_values(draw, UNITS, len(meta.pairs), size),
    )


@st.composite
def traces(draw, max_requests=3):
    """Any sound trace."""
    meta = draw(metas())
    requests = []
    for request_id in draw(st.lists(st.text(max_size=5), min_size=1, max_size=max_requests, unique=True)):
        trie = draw(tries(meta))
        tokens = st.lists(st.integers(0, meta.vocab_size - 1), min_size=1, max_size=4)
        requests.append(
            TrieRequest(
                request_id=request_id,
                tag=draw(st.sampled_from(["math", "code", ""])),
                session=draw(st.sampled_from(["", "s", "t"])),
                prompt=tuple(draw(tokens)),
                max_new_tokens=len(trie.trunk) - 1,
                trie=trie,
            )
        )
    return TrieRecording(meta=meta, requests=tuple(requests))


@st.composite
def synthetic_specs(draw, max_models=4):
    """Options of small synthetic traces."""
    names = MODEL_NAMES[-draw(st.integers(2, max_models)) :]
    rates = st.lists(st.floats(0, 1), min_size=len(names) - 1, max_size=len(names) - 1).map(tuple)
    run_decay = draw(st.sampled_from([0.0, 0.0, 0.1]))
    most = 0.75 if run_decay else 1.0  # 0.771 is the most that runs of this decay give
    return SyntheticSpec(
        requests=draw(st.integers(1, 3)),
        tokens=draw(st.integers(1, 12)),
        prompt_tokens=draw(st.integers(1, 4)),
        models=names,
        acceptance=tuple(min(rate, most) for rate in draw(rates)),
        off_trunk=draw(st.none() | rates),
        depth_decay=draw(st.floats(0, 1)),
        run_decay=run_decay,
        autocorrelation=0.0 if run_decay else draw(st.floats(0, 0.95)),
        shared_difficulty=draw(st.floats(0, 1)),
        vocab_size=draw(st.sampled_from([64, 32000])),
        reach=draw(st.integers(0, 6)),
        run=draw(st.integers(0, 3)),
        seed=draw(st.integers(0, 2**32)),
    )


def synthetic_traces(max_models=4):
    """Small traces whose monotone closure is complete: every chain of exact verifiers can be replayed in them."""
    return synthetic_specs(max_models).map(make_trace)
