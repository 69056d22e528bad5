"""Caches alone, without a world: any forwards, roll-backs, moves and prefixes, against forwards without a cache."""

from functools import cache, partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from paceline.decoding.prefix_cache import MemberPrefixes, PrefixCacheSize
from paceline.runtime import caches as under_test
from paceline.runtime.caches import SLOT_STEP, KVShape, MaskCache, SlotCache, side_by_side, zeros
from paceline.runtime.compiled import CompiledForward, _fixed
from paceline.runtime.forward import ModuleForward
from paceline.runtime.fused import FusedForward
from paceline.runtime.prefixed_kv import PrefixedMaskCache, PrefixedSlotCache

from .tiny_decoders import CONTEXT, VOCABULARY, RaggedTexts, remembered, tiny_decoder

SHAPE = KVShape(num_layers=2, num_heads=1, head_width=2, dtype=torch.float32, device=torch.device("cpu"))
MOST_REQUESTS, MOST_TOKENS = 6, 40


def exactly_normed():
    """A decoder all in float64: the norms of transformers would go through float32."""
    model = tiny_decoder("llama")
    for module in list(model.modules()):
        for name, norm in list(module.named_children()):
            if hasattr(norm, "variance_epsilon"):
                exact = torch.nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon, dtype=torch.float64)
                exact.weight.data = norm.weight.data
                setattr(module, name, exact)
    return model


@cache
def made(kind):
    """A forward, what its model says without a cache, and the difference allowed, for norms round to float32."""
    how, family = kind.split()
    model = exactly_normed() if family == "llama" else tiny_decoder(family)
    if how == "fused":
        forward = FusedForward(model, share_weights=False, context_tokens=CONTEXT)
    elif how == "modules":
        forward = ModuleForward(model)
    else:  # padded to fixed shapes, which are not compiled here, over caches that double
        forward = CompiledForward(model, context_tokens=CONTEXT)
        forward._compiled = partial(_fixed, forward._modules)
    return forward, remembered(model), 1e-9 if family == "llama" else 1e-4


class CacheMachine(RuleBasedStateMachine):
    """Both caches in lockstep: requests open, grow in ragged batches while others sit out, are rolled back and go.

    With prefix caches, requests over two tokens begin with what is cached, and tokens once committed stay.
    """

    kinds = ("modules llama", "fused qwen3", "padded llama")
    prefixed = False

    @initialize(
        data=st.data(),
        num_blocks=st.integers(1, 9),
        block_tokens=st.integers(1, 4),
        dead_share=st.sampled_from([0.1, 0.5, 1.0]),
    )
    def begin(self, data, num_blocks, block_tokens, dead_share):
        kind = data.draw(st.sampled_from(self.kinds))
        forward, self.stock, self.tolerance = made(kind)
        self.num_opened, self.block_tokens, self.committed, self.prefixes = 0, block_tokens, {}, None
        self.token = st.integers(0, 1 if self.prefixed else VOCABULARY - 1)
        shape, size = forward.kv_shape, PrefixCacheSize(num_blocks=num_blocks, block_tokens=block_tokens)
        if self.prefixed:
            self.prefixes = MemberPrefixes(size)
            kept = [PrefixedSlotCache(shape, size), PrefixedMaskCache(shape, size, dead_share=dead_share)]
        else:
            masked = forward.slot_cache() if "padded" in kind else MaskCache(shape, dead_share=dead_share)
            kept = [SlotCache(shape), masked]
        self.sides = [RaggedTexts(forward, each) for each in kept]
        self.open(data, MOST_REQUESTS)

    @property
    def texts(self):
        return self.sides[0].texts

    def some(self, data, **how):
        return data.draw(st.lists(st.sampled_from(sorted(self.texts)), min_size=1, unique=True, **how))

    @precondition(lambda self: len(self.texts) < MOST_REQUESTS)
    @rule(data=st.data(), most=st.integers(1, 3))
    def open(self, data, most):
        """Some requests at once: look up, read what is found, feed the rest."""
        new, hits = {}, []
        for _ in range(min(most, MOST_REQUESTS - len(self.texts))):
            name, self.num_opened = f"r{self.num_opened}", self.num_opened + 1
            text = data.draw(st.lists(self.token, min_size=1, max_size=14))
            found = 0
            if self.prefixed:
                hits.append((name, self.prefixes.look_up(name, tuple(text))))
                found = hits[-1][1].num_tokens
            for side in self.sides:
                side.texts[name] = text[:found]
            self.committed[name] = len(text) if self.prefixed else 0
            new[name] = text[found:] + [0] * data.draw(st.integers(0, 2))  # drafted behind it
        for side in self.sides:
            if hits:
                side.cache.attach(hits)
        self.feed(data, new)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def append(self, data):
        names = list(self.texts) if data.draw(st.booleans()) else self.some(data)
        self.feed(data, {name: data.draw(st.lists(self.token, min_size=1, max_size=6)) for name in names})

    def feed(self, data, new):
        """A ragged batch; logits are compared with those of the whole texts, fed afresh."""
        new = {name: tokens for name, tokens in new.items() if len(self.texts[name]) <= MOST_TOKENS}
        if not new:
            return
        keep = data.draw(st.sampled_from([None, 1]))
        for logits in [side.feed(new, keep) for side in self.sides]:
            for name in new:
                expected = self.stock(self.texts[name])[-len(logits[name]) :]
                torch.testing.assert_close(logits[name], expected, rtol=self.tolerance, atol=self.tolerance)
        self.enter(sorted(new, key=lambda name: int(name[1:])))

    def enter(self, names):
        entered = []
        for name in names if self.prefixed else ():
            text, size = tuple(self.texts[name]), self.block_tokens
            block = lambda index, text=text, size=size: text[index * size : (index + 1) * size]  # noqa: E731
            blocks = self.prefixes.enter(name, block, self.committed[name])
            entered += [(name, blocks)] if blocks.blocks else []
        for side in self.sides if self.prefixed else ():
            side.cache.absorb(entered)

    @precondition(lambda self: self.texts and self.prefixed)
    @rule(data=st.data())
    def commit(self, data):
        (name,) = self.some(data, max_size=1)
        self.committed[name] = data.draw(st.integers(self.committed[name], len(self.texts[name])))
        self.enter([name])

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def roll_back(self, data):
        """Never behind what is committed, but for its last token, which a verifier may read again."""
        (name,) = self.some(data, max_size=1)
        text, least = list(self.texts[name]), max(0, self.committed[name] - 1)
        kept = data.draw(st.integers(least, len(text)))
        for side in self.sides:
            held, before = side.cache._kv, side.cache._kv.clone()
            if not self.prefixed:
                with pytest.raises(ValueError, match=rf"num_tokens must be <= {len(text)}, .* got {len(text) + 1}"):
                    side.cache.roll_back(name, len(text) + 1)
            side.roll_back(name, kept)
            assert side.cache._kv is held, "rolling back makes no memory"
            assert torch.equal(held, before), "rolling back changes no byte"
        if kept == least and (self.prefixed or data.draw(st.booleans())):
            self.feed(data, {name: text[least : least + 1]} if self.prefixed else {name: [1, 2]})

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def free(self, data):
        for name in self.some(data):
            for side in self.sides:
                side.cache.free(name)
                del side.texts[name]
            if self.prefixed:
                self.prefixes.release(name)

    @rule()
    def truncate(self):
        for side in self.sides:
            held = side.cache.held_slots
            side.cache.truncate()
            assert side.cache.held_slots <= held
            if not self.prefixed:
                assert side.cache.live_slots <= side.cache.held_slots
                assert side.cache.num_rows == len(side.cache.rows)

    @invariant()
    def the_caches_hold_what_was_fed_and_not_rolled_back(self):
        for side in getattr(self, "sides", ()):
            kept, rows = side.cache, list(side.cache.rows.values())
            assert {name: kept.length(name) for name in side.texts} == {n: len(text) for n, text in side.texts.items()}
            assert set(kept.rows) <= set(side.texts)
            assert kept.length("nobody") == 0
            assert len(set(rows)) == len(rows)
            assert all(0 <= row < kept.num_rows for row in rows)
            if self.prefixed:
                continue
            assert kept.live_slots == sum(map(len, side.texts.values()))
            for name, text in side.texts.items():
                slots = kept.live_slots_of(name)
                assert len(slots) == len(text)
                assert slots == sorted(set(slots))
                assert not slots or 0 <= slots[0] <= slots[-1] < kept.capacity


class PrefixedMachine(CacheMachine):
    """Grouped heads, a window shorter than texts, tied heads, and modules with capped scores."""

    kinds = (
        "modules llama", "fused qwen3", "fused qwen3-window", "modules qwen3-window", "fused llama-ungrouped",
        "modules gemma2",
    )  # fmt: skip
    prefixed = True


TestCaches = CacheMachine.TestCase
TestCaches.settings = settings(stateful_step_count=25)
TestPrefixed = PrefixedMachine.TestCase
TestPrefixed.settings = settings(stateful_step_count=25)


def broken(held, name):
    held._kv[:, held.rows[name], held.live_slots_of(name)] = torch.nan


of_both = pytest.mark.parametrize("kind", [SlotCache, MaskCache])


@of_both
@pytest.mark.parametrize(
    "calls",
    [
        [("roll_back", "a", 2), ("free", "a"), ("place", ["c"], [3])],
        [("free", "a"), ("reserve", ["b"], [SLOT_STEP])],
        [
            ("place", ["a"], [3 * SLOT_STEP]), (broken, "a"), ("roll_back", "a", 4), ("truncate",), ("free", "a"),
            ("place", ["b", "c"], [2 * SLOT_STEP, 1]),
        ],
        [
            ("place", ["a", "b"], [7, 1]), (broken, "a"), ("roll_back", "a", 6), ("free", "b"), ("truncate",),
            ("place", ["c"], [60]), ("free", "a"), ("place", ["d"], [3]),
        ],
    ],
    ids=["a row taken again", "a move", "memory given back", "what truncating moved"],
)  # fmt: skip
def test_what_was_broken_is_gone_for_whoever_comes(kind, calls):
    held = kind(SHAPE)
    held.place(["a", "b"], [5, 9])
    broken(held, "a")
    for call, *given_to in calls:
        call(held, *given_to) if callable(call) else getattr(held, call)(*given_to)
    assert held._kv.isfinite().all()


@of_both
def test_a_move_keeps_what_requests_hold(kind):
    held = kind(SHAPE)
    held.place(["a", "b"], [5, 9])
    held._kv.normal_()
    before = {name: held._kv[:, held.rows[name], held.live_slots_of(name)].clone() for name in "ab"}
    held.reserve(["a", "b", "c"], [SLOT_STEP, 1, 1])
    for name, values in before.items():
        assert torch.equal(held._kv[:, held.rows[name], held.live_slots_of(name)], values)


@of_both
@given(data=st.data())
def test_nothing_grows_that_was_not_reserved(kind, data):
    """Long feeds and long drafts may belong to different requests."""
    held = kind(SHAPE)
    for turn in range(data.draw(st.integers(1, 6))):
        for name in data.draw(st.sets(st.sampled_from(sorted(held.rows) or ["x"]))):
            held.free(name) if data.draw(st.booleans()) else held.roll_back(name, held.length(name) // 2)
        names = data.draw(st.lists(st.sampled_from("abcde"), min_size=1, unique=True))
        counts = [data.draw(st.integers(1, 70)) for _ in names]
        further = [data.draw(st.integers(0, 61)) for _ in names]
        held.reserve(names, counts, further)
        num_bytes, order = held.held_bytes, held.in_order(names)
        assert held.extra_bytes(names, counts, further) == 0
        held.place([names[index] for index in order], [counts[index] for index in order])
        for step in range(max(further)):
            going = [names[index] for index in order if further[index] > step]
            held.place(going, [1] * len(going))
        assert held.held_bytes == num_bytes, turn


@of_both
def test_nobody_left_means_nothing_in_use(kind):
    """Else every new batch would begin after the columns of the one before it."""
    held = kind(SHAPE)
    for _ in range(20):
        held.place(["a", "b"], [40, 7])
        held.free("a")
        held.free("b")
        assert held.capacity == SLOT_STEP


@pytest.mark.parametrize(
    ("kind", "lost"), [(MaskCache, "zeros"), (MaskCache, "kv"), (SlotCache, "arange"), (SlotCache, "kv")]
)
def test_a_cache_that_cannot_grow_stays_as_it_was(monkeypatch, kind, lost):
    """Whichever piece of its memory cannot be had."""

    def none(*_, **__):
        raise torch.OutOfMemoryError("no memory")

    held = kind(SHAPE)
    held.place(["a"], [10])
    with monkeypatch.context() as patch:
        patch.setattr({"zeros": under_test, "arange": torch, "kv": held}[lost], {"kv": "_zeros"}.get(lost, lost), none)
        with pytest.raises(torch.OutOfMemoryError):
            held.reserve(["a", "b"], [100, 5])
    assert (held.num_rows, held.capacity, held.live_slots_of("a")) == (1, SLOT_STEP, list(range(10)))
    held.place(["a", "b"], [100, 5])
    assert [held.length(name) for name in "ab"] == [110, 5]


def test_texts_of_very_different_lengths_are_not_moved_at_every_forward():
    """What a short text leaves unused beside a long one cannot be won by truncating."""
    held = MaskCache(SHAPE, dead_share=0.5)
    held.place(["a", "b", "c"], [4, 4, 100])
    for _ in range(50):
        held.place(["a", "b", "c"], [1, 1, 1])
    assert held.num_truncations == 0


def test_rows_are_read_as_a_slice_only_in_their_order():
    assert [side_by_side(rows) for rows in ([2, 3, 4], [7])] == [slice(2, 5), slice(7, 8)]
    # A new request in a free row in front, another one at the back.
    assert [side_by_side(rows) for rows in ([1, 0, 3], [0, 2], [2, 4, 3])] == [None] * 3


@of_both
def test_newcomers_in_rows_around_an_old_one_read_their_own(kind):
    """Rows 0 and 3 become free at once, and the next forward leaves the request in row 2 out."""
    forward, stock, tolerance = made("modules llama")
    side = RaggedTexts(forward, kind(forward.kv_shape))
    side.feed({name: [index, 1, index] for index, name in enumerate("abcde")})
    for name in "ad":
        side.cache.free(name)
        del side.texts[name]
    for name, row in side.feed({"b": [7], "a": [8, 9, 3, 4], "d": [5, 6]}).items():
        torch.testing.assert_close(row, stock(side.texts[name])[-len(row) :], rtol=tolerance, atol=tolerance)
    assert [side.cache.rows[name] for name in "cbe"] == [2, 1, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_memory_of_zeros_begins_at_a_line_of_the_cache_and_is_its_own(dtype):
    one, other = (zeros((3, 5, 2), dtype, torch.device("cpu")) for _ in range(2))
    one.fill_(1)
    assert (one.dtype, one.shape, one.data_ptr() % 64) == (dtype, (3, 5, 2), 0)
    assert one.is_contiguous()
    assert not other.any()
