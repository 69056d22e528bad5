"""Both caches in lockstep, under any sequence of forwards, roll-backs and truncations, against no cache at all."""

from functools import partial

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from paceline.runtime.caches import MaskCache, SlotCache
from paceline.runtime.compiled import CompiledForward, _fixed
from paceline.runtime.forward import ModuleForward
from paceline.runtime.fused import FusedForward

from ..tiny_decoders import VOCABULARY, RaggedTexts, tiny_decoder, without_cache

MOST_REQUESTS = 6
MOST_TOKENS = 40
MOST_NEW = 4
NEW_TOKENS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=MOST_NEW)


class CacheMachine(RuleBasedStateMachine):
    """Requests open, grow in ragged batches while others sit out, are rolled back and go.

    A subclass sets `model`, `forward` and `largest`, the difference from cache-free logits that is allowed.
    """

    @initialize(dead_share=st.sampled_from([0.1, 0.5, 1.0]), data=st.data())
    def begin(self, dead_share, data):
        self.sides = [RaggedTexts(self.forward, cache) for cache in self.caches(dead_share)]
        self.num_opened = 0
        for _ in range(data.draw(st.integers(0, MOST_REQUESTS))):
            self.open()
        if self.texts:
            self.feed(data, list(self.texts))

    def caches(self, dead_share):
        shape = self.forward.kv_shape
        return SlotCache(shape), MaskCache(shape, dead_share=dead_share)

    @property
    def texts(self):
        return self.sides[0].texts

    def feed(self, data, names):
        """A ragged batch; logits are compared with those of the whole texts, fed afresh."""
        new = {name: data.draw(NEW_TOKENS) for name in names if len(self.texts[name]) <= MOST_TOKENS - MOST_NEW}
        if not new:
            return
        keep = data.draw(st.sampled_from([None, 1]))
        found = [side.feed(new, keep) for side in self.sides]
        for name in new:
            expected = without_cache(self.model, self.texts[name])
            for logits in found:
                assert (logits[name] - expected[-len(logits[name]) :]).abs().max() < self.largest

    @precondition(lambda self: len(self.texts) < MOST_REQUESTS)
    @rule()
    def open(self):
        name = f"request-{self.num_opened}"
        self.num_opened += 1
        for side in self.sides:
            side.texts[name] = []

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def append_to_all(self, data):
        self.feed(data, list(self.texts))

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def append_to_some(self, data):
        self.feed(data, data.draw(st.lists(st.sampled_from(sorted(self.texts)), min_size=1, unique=True)))

    @precondition(lambda self: any(self.texts.values()))
    @rule(data=st.data())
    def roll_back(self, data):
        """As after a refusal: some tokens go, others follow, or none yet."""
        name = data.draw(st.sampled_from(sorted(name for name, text in self.texts.items() if text)))
        held = len(self.texts[name])
        num_tokens = data.draw(st.integers(0, held - 1))
        for side in self.sides:
            before = side.cache._kv, side.cache._kv.clone()
            with pytest.raises(ValueError, match=rf"num_tokens must be <= {held}, .* got {held + 1}"):
                side.cache.roll_back(name, held + 1)
            side.roll_back(name, num_tokens)
            assert side.cache._kv is before[0], "rolling back makes no memory"
            assert torch.equal(side.cache._kv, before[1]), "rolling back changes no byte"
        if data.draw(st.booleans()):
            self.feed(data, [name])

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def free(self, data):
        name = data.draw(st.sampled_from(sorted(self.texts)))
        for side in self.sides:
            side.cache.free(name)
            del side.texts[name]
        if data.draw(st.booleans()):
            self.open()
            self.feed(data, list(self.texts))

    @rule()
    def truncate(self):
        for side in self.sides:
            held = side.cache.held_slots
            side.cache.truncate()
            assert side.cache.live_slots <= side.cache.held_slots <= held
            assert side.cache.num_rows == len(side.cache.rows)

    @invariant()
    def the_caches_hold_what_was_fed_and_not_rolled_back(self):
        for side in self.sides:
            assert {name: side.cache.length(name) for name in side.texts} == {
                name: len(text) for name, text in side.texts.items()
            }
            assert set(side.cache.rows) <= set(side.texts)
            assert side.cache.live_slots == sum(len(text) for text in side.texts.values())
            assert side.cache.length("nobody") == 0

    @invariant()
    def no_two_requests_share_a_slot(self):
        for side in self.sides:
            rows = list(side.cache.rows.values())
            assert len(set(rows)) == len(rows)
            assert all(0 <= row < side.cache.num_rows for row in rows)

    @invariant()
    def live_slots_ascend(self):
        for side in self.sides:
            for name, text in side.texts.items():
                slots = side.cache.live_slots_of(name)
                assert len(slots) == len(text)
                assert slots == sorted(set(slots))
                assert not slots or 0 <= slots[0] <= slots[-1] < side.cache.capacity


def exactly_normed():
    """A decoder all in float64: the norms of transformers would go through float32."""
    model = tiny_decoder("llama", num_hidden_layers=2)
    for module in list(model.modules()):
        for name, norm in list(module.named_children()):
            if hasattr(norm, "variance_epsilon"):
                exact = torch.nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon, dtype=torch.float64)
                exact.weight.data = norm.weight.data
                setattr(module, name, exact)
    return model


class ModuleMachine(CacheMachine):
    model = exactly_normed()
    forward = ModuleForward(model)
    largest = 1e-9


class FusedMachine(CacheMachine):
    model = tiny_decoder("qwen3")
    forward = FusedForward(model, share_weights=False, context_tokens=MOST_TOKENS)
    # Now and then a norm's rounding to float32 falls the other way.
    largest = 1e-4


class PaddedMachine(CacheMachine):
    """Caches that double, over forwards padded to fixed shapes, which are not compiled here."""

    model = ModuleMachine.model
    forward = CompiledForward(model, context_tokens=MOST_TOKENS + MOST_NEW)
    forward._compiled = partial(_fixed, forward._modules)
    largest = 1e-9

    def caches(self, dead_share):
        return self.forward.slot_cache(), SlotCache(self.forward.kv_shape)


SHORT = settings(max_examples=20, stateful_step_count=20)
LONG = settings(max_examples=500, stateful_step_count=30)

ModuleMachine.TestCase.settings = SHORT
TestModules = ModuleMachine.TestCase
FusedMachine.TestCase.settings = SHORT
TestFused = FusedMachine.TestCase
PaddedMachine.TestCase.settings = SHORT
TestPadded = PaddedMachine.TestCase


@pytest.mark.slow
class TestModulesAtLength(ModuleMachine.TestCase):
    settings = LONG


@pytest.mark.slow
class TestFusedAtLength(FusedMachine.TestCase):
    settings = LONG
