"""The closure equals its definition, enumerated by brute force over toy models."""

import hashlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.runtime.recording.views import first_allowance, offspring, writers_of
from paceline.traces.meta import Closure

from .closure_definition import Context, Definition, NextToken

EOS = 0


def toy_model(seed: int, index: int, vocab: int, agreement: float) -> NextToken:
    """A "model" whose next token is a hash of the context; a share of contexts has one answer for all models."""

    def next_token(context: Context) -> int:
        shared = hashlib.blake2b(repr((seed, context)).encode(), digest_size=8).digest()
        own = hashlib.blake2b(repr((seed, index, context)).encode(), digest_size=8).digest()
        agree = int.from_bytes(own[:4], "little") / 2**32 < agreement
        return int.from_bytes((shared if agree else own)[4:], "little") % vocab

    return next_token


def grown(wanted: Definition) -> list[Context]:
    """What the code under test gives, level by level."""
    models, closure, trunk = wanted.models, wanted.closure, wanted.trunk()
    contexts, level = list(trunk), trunk
    writers = writers_of(closure, len(models))
    allowance = first_allowance(closure, len(trunk), writers)
    for off_trunk in range(closure.reach):
        growing = [place for place, context in enumerate(level) if wanted.open_ended(context)]
        level, allowance = [level[place] for place in growing], allowance[:, growing]
        next_token = np.array([[model(context) for context in level] for model in models], dtype=np.int32)
        next_token = next_token.reshape(len(models), len(level))
        for writer, place in np.ndindex(allowance.shape):
            if (*level[place], int(next_token[writer, place])) in trunk:
                allowance[writer, place] = 0
        depth = np.array([len(context) for context in level], dtype=np.int32)
        branches = offspring(closure, next_token, allowance, writers=writers, depth=depth, off_trunk=off_trunk)
        level = [(*level[above], int(token)) for above, token in zip(branches.parent, branches.token, strict=True)]
        allowance = branches.allowance
        contexts.extend(level)
    return contexts


@given(
    seed=st.integers(0, 2**32),
    num_models=st.integers(1, 4),
    vocab=st.integers(2, 6),
    agreement=st.sampled_from([0.0, 0.5, 0.8]),
    reach=st.integers(0, 5),
    run=st.integers(0, 3),
    max_new_tokens=st.integers(1, 7),
    kind=st.sampled_from(["monotone", "full"]),
)
def test_equals_the_definition(seed, num_models, vocab, agreement, reach, run, max_new_tokens, kind):
    models = [toy_model(seed, index, vocab, agreement) for index in range(num_models)]
    closure = Closure(kind=kind, reach=reach, run=run)
    wanted = Definition(models, closure, max_new_tokens, EOS)
    contexts = grown(wanted)
    assert len(set(contexts)) == len(contexts)
    assert set(contexts) == wanted.contexts()


class Chain:
    """Exact verification with nested windows, straight from the models; notes every context whose views it asks."""

    def __init__(self, models: Sequence[NextToken], windows: Sequence[int], max_new_tokens: int) -> None:
        self.models, self.windows, self.max_new_tokens = models, windows, max_new_tokens
        self.asked: set[Context] = set()

    def token(self, level: int, context: Context) -> int:
        self.asked.add(context)
        return self.models[level](context)

    def ended(self, context: Context) -> bool:
        return len(context) == self.max_new_tokens or context[-1:] == (EOS,)

    def propose(self, level: int, context: Context) -> Context:
        """The context after at least `windows[level]` tokens that this level wrote or verified."""
        start = len(context)
        while len(context) - start < self.windows[level] and not self.ended(context):
            context = self.verified(level, context)
        return context

    def verified(self, level: int, context: Context) -> Context:
        """After the tokens of the level below that this one accepts, and its own token."""
        proposal = self.propose(level - 1, context) if level else context
        while not self.ended(context):
            own = (*context, self.token(level, context))
            if proposal[: len(own)] != own:
                return own
            context = own
        return context


@given(
    seed=st.integers(0, 2**32),
    windows=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    agreement=st.sampled_from([0.3, 0.6, 0.9]),
)
def test_holds_every_context_of_exact_chains(seed, windows, agreement):
    """The chain skips models of the pool at will; the closure does not know the chain."""
    models = [toy_model(seed, index, 4, agreement) for index in range(4)]
    members = sorted(np.random.default_rng(seed).choice(3, size=len(windows), replace=False).tolist())
    chain = Chain([models[index] for index in members] + [models[-1]], [*windows, 1], max_new_tokens=12)
    context: Context = ()
    while not chain.ended(context):
        context = chain.verified(len(windows), context)
    wanted = Definition(models, Closure(kind="monotone", reach=10, run=6), 12, EOS)
    assert context == wanted.trunk()[-1]
    assert chain.asked <= set(grown(wanted))


def test_equal_tokens_of_two_models_keep_the_best_of_both():
    """1, 1, 2 is mid's own run; 1, 1 is also mid then draft, which would leave the draft one token, not two."""
    models = [lambda _: 1, lambda context: 1 if len(context) < 2 else 2, lambda _: 3]
    contexts = grown(Definition(models, Closure(kind="monotone", reach=8, run=2), 8, EOS))
    assert (1, 1, 2, 1, 1) in contexts
    assert (1, 1, 2, 1, 1, 1) not in contexts
    assert (1,) * 8 in contexts


def test_the_target_alone_leaves_nothing_off_the_trunk():
    wanted = Definition([lambda _: 1], Closure(kind="monotone", reach=8, run=8), 4, EOS)
    assert grown(wanted) == [(1,) * length for length in range(5)]


@pytest.mark.parametrize("field", ["reach", "run"])
def test_a_negative_bound_is_refused(field):
    with pytest.raises(ValueError, match=field):
        Closure(kind="monotone", **({"reach": 4, "run": 4} | {field: -1}))
