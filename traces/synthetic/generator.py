"""A generator of recordings whose acceptance is asked for, to study policies where the truth is known.

The closure is complete (`closure`), as in a recording. Letters: R requests, T trunk tokens, M models (smallest first),
S = M - 1 members below the target, F contexts of one level, N all contexts.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..tries.closure import Branches, grow
from ..tries.recording import TrieRecording
from ..tries.trie import Floats, Ints, Trie, TrieRequest, split
from .agreement import trunk_agreement
from .spec import MOST_CONTEXTS, SyntheticSpec
from .views import Views, draw_top_prob, views

_ALTERNATIVE_SHARES = (0.3, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """Contexts of all requests with the same number of tokens off the trunk.

    Attributes:
        request: `[F]`.
        parent: `[F]` index over all levels, -1 at a root.
        depth: `[F]`.
        token: `[F]`.
        own_log_prob: `[M, F]`.
        choice: `[M, F]` which candidate each model writes.
        candidate: `[M, F]` the candidates' tokens, all different.
        views: of the F contexts.
    """

    request: Ints
    parent: Ints
    depth: Ints
    token: Ints
    own_log_prob: Floats
    choice: Ints
    candidate: Ints
    views: Views


def make_trace(spec: SyntheticSpec) -> TrieRecording:
    """The recording a spec asks for; the same spec gives the same one."""
    rng = np.random.default_rng(spec.seed)
    prompts = rng.integers(0, spec.vocab_size, size=(spec.requests, spec.prompt_tokens))
    tries = _tries(spec, _levels(spec, rng))
    records = (
        TrieRequest(
            request_id=f"{spec.name}-{number}",
            tag=spec.tags[number % len(spec.tags)],
            prompt=tuple(prompts[number].tolist()),
            max_new_tokens=spec.tokens,
            trie=trie,
        )
        for number, trie in enumerate(tries)
    )
    return TrieRecording(meta=spec.meta(), requests=tuple(records))


def _levels(spec: SyntheticSpec, rng: np.random.Generator) -> list[_Level]:
    """The trunk, then the contexts 1, 2, ... tokens off it; none holds more tokens than the budget."""
    level = _trunk(spec, rng)
    levels = [level]
    allowance = np.full((len(spec.models) - 1, len(level.depth)), spec.reach, dtype=np.int32)
    allowance[level.choice[:-1] == len(spec.models) - 1] = 0
    first = 0
    for depth in range(1, spec.reach + 1):
        allowance[:, level.depth >= spec.tokens] = 0
        branches = grow(level.choice[:-1], allowance, spec.run)
        if not len(branches.parent):
            break
        level, first = _branch(spec, level, branches, first, depth, rng), first + len(level.depth)
        levels.append(level)
        allowance = branches.allowance
        _check_size(spec, levels)
    return levels


def _check_size(spec: SyntheticSpec, levels: list[_Level]) -> None:
    """Refuse, before memory ends, what grows without measure: three models multiply with every token of reach."""
    contexts = sum(len(level.depth) for level in levels)
    if contexts > MOST_CONTEXTS:
        rule = f"reach must give at most {MOST_CONTEXTS:,} contexts"
        raise ValueError(
            f"{rule}, got {spec.reach}: the first {len(levels) - 1} tokens off the trunk give {contexts:,}"
        )


def _trunk(spec: SyntheticSpec, rng: np.random.Generator) -> _Level:
    """R x (T + 1) contexts, the last of each request a leaf."""
    num_models, length = len(spec.models), spec.tokens + 1
    agrees = trunk_agreement(spec, rng).reshape(num_models - 1, -1)
    size = spec.requests * length
    copies = rng.random((num_models - 1, size)) < spec.off_trunk_rates(1)[:, None]
    choice = np.full((num_models, size), num_models - 1, dtype=np.int32)
    for member in range(num_models - 2, -1, -1):
        larger = choice[member + 1]
        # Two members that both miss the target's token may still miss it together.
        missed = np.where(copies[member] & (larger != num_models - 1), larger, member)
        choice[member] = np.where(agrees[member], num_models - 1, missed)
    candidate = _candidates(spec, size, rng)
    seen = _draw_views(spec, choice, agrees, np.array(spec.acceptance), rng)
    depth = np.tile(np.arange(length, dtype=np.int32), spec.requests)
    is_root = depth == 0
    # Entry i of the target's choices leads from context i to context i + 1; a root overwrites the request before it.
    return _Level(
        request=np.repeat(np.arange(spec.requests, dtype=np.int32), length),
        parent=np.where(is_root, -1, np.arange(size) - 1).astype(np.int32),
        depth=depth,
        token=np.where(is_root, -1, np.roll(candidate[-1], 1)).astype(np.int32),
        own_log_prob=np.where(is_root, 0.0, np.roll(seen.choice_log_prob[:, -1], 1, axis=-1)),
        choice=choice,
        candidate=candidate,
        views=seen,
    )


def _branch(
    spec: SyntheticSpec, above: _Level, branches: Branches, first: int, depth: int, rng: np.random.Generator
) -> _Level:
    """The level below `above`, `depth` tokens off the trunk; `first` is the index of the first context of `above`."""
    parent, choice_made = branches.parent, branches.token
    num_models, size = len(spec.models), len(parent)
    rates = spec.off_trunk_rates(depth)
    copies = rng.random((num_models - 1, size)) < rates[:, None]
    choice = np.full((num_models, size), num_models - 1, dtype=np.int32)
    for member in range(num_models - 2, -1, -1):
        choice[member] = np.where(copies[member], choice[member + 1], member)
    return _Level(
        request=above.request[parent],
        parent=(first + parent).astype(np.int32),
        depth=above.depth[parent] + 1,
        token=above.candidate[choice_made, parent],
        own_log_prob=above.views.choice_log_prob[:, choice_made, parent],
        choice=choice,
        candidate=_candidates(spec, size, rng),
        views=_draw_views(spec, choice, copies, rates, rng),
    )


def _candidates(spec: SyntheticSpec, size: int, rng: np.random.Generator) -> Ints:
    """`[M, F]` different tokens for the choices at each context."""
    num_models = len(spec.models)
    start = rng.integers(0, spec.vocab_size, size=size)
    stride = rng.integers(1, spec.vocab_size // num_models + 1, size=size)
    return ((start + np.arange(num_models)[:, None] * stride) % spec.vocab_size).astype(np.int32)


def _draw_views(
    spec: SyntheticSpec, choice: Ints, agrees: NDArray[np.bool_], rates: Floats, rng: np.random.Generator
) -> Views:
    """The target is as sure as the largest member's agreement makes it; members by their own."""
    flags = np.concatenate([agrees, agrees[-1:]])
    rate = np.broadcast_to(np.append(rates, rates[-1])[:, None], choice.shape)
    top_prob = draw_top_prob(flags, rate, spec.confidence, rng)
    share = rng.uniform(*_ALTERNATIVE_SHARES, size=choice.shape)
    return views(choice, top_prob, spec.meta().pairs, share)


def _tries(spec: SyntheticSpec, levels: list[_Level]) -> tuple[Trie, ...]:
    """One trie per request: its trunk first, then its contexts off the trunk, parents before children."""
    request = np.concatenate([level.request for level in levels])
    order = np.argsort(request, kind="stable")
    ends = np.searchsorted(request[order], np.arange(spec.requests + 1))
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32) - ends[request[order]].astype(np.int32)
    parent = np.concatenate([level.parent for level in levels])
    everything = Trie(
        parent=np.where(parent < 0, -1, rank[parent])[order].astype(np.int32),
        token=np.concatenate([level.token for level in levels])[order],
        depth=np.concatenate([level.depth for level in levels])[order],
        on_trunk=order < len(levels[0].depth),
        next_token=np.concatenate([_next_token(level) for level in levels], axis=1)[:, order],
        next_log_prob=np.concatenate([level.views.next_log_prob for level in levels], axis=1)[:, order],
        top_log_prob=np.concatenate([level.views.next_log_prob for level in levels], axis=1)[:, order],
        gap=np.concatenate([level.views.gap for level in levels], axis=1)[:, order],
        entropy=np.concatenate([level.views.entropy for level in levels], axis=1)[:, order],
        own_log_prob=np.concatenate([level.own_log_prob for level in levels], axis=1)[:, order],
        tvd=np.concatenate([level.views.tvd for level in levels], axis=1)[:, order],
    )
    return split(everything, np.diff(ends).tolist())


def _next_token(level: _Level) -> Ints:
    return np.take_along_axis(level.candidate, level.choice, axis=0)
