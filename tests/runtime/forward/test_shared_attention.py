"""Attention over what rows share, once or row by row, and in two parts: the same but for rounding."""

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.prefixes import Hit, PrefixCacheSize
from paceline.runtime import prefix_caches
from paceline.runtime.caches import SlotCache
from paceline.runtime.fused import FusedForward
from paceline.runtime.prefix_caches import (
    PrefixedMaskCache,
    PrefixedSlotCache,
    attend_in_two_parts,
    attend_with_sums,
    by_products,
)
from paceline.runtime.products import KnownChoices, ProductChooser
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCAB = 40
BLOCK = 4
SIZE = PrefixCacheSize(num_blocks=24, block_tokens=BLOCK)


def model(heads: int, key_heads: int, window: int | None, seed: int = 3) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=heads,
            num_key_value_heads=key_heads,
            head_dim=16,
            max_position_embeddings=128,
            initializer_range=0.3,
            sliding_window=window,
            use_sliding_window=window is not None,
            max_window_layers=1,
            attn_implementation="sdpa",
        )
    ).eval()


@cache
def fused(heads: int, key_heads: int, window: int | None) -> FusedForward:
    made = model(heads, key_heads, window)
    products = ProductChooser(only="plain", known=KnownChoices(None))
    return FusedForward(made, share_weights=False, context_tokens=128, products=products)


def feed(forward, cache, texts, counts):
    """Logits of the last `counts` tokens of texts, request after request."""
    names = [str(index) for index in range(len(texts))]
    ids = torch.tensor([token for text, count in zip(texts, counts, strict=True) for token in text[-count:]])
    return forward(ids, cache.place(names, counts), cache, slice(None))


def prefixed(kind, made_by, forward, texts, num_blocks):
    """A cache in which every text's first blocks lie in the store, as another request computed them."""
    cache = (
        PrefixedSlotCache(forward.kv_shape, SIZE)
        if made_by == "slots"
        else PrefixedMaskCache(forward.kv_shape, SIZE, dead_share=0.5)
    )
    cache.shared_attention = kind
    plain = SlotCache(forward.kv_shape)
    blocks = {}
    for name, text in enumerate(texts):
        start = tuple(text[: num_blocks * BLOCK])
        keys = [start[: (index + 1) * BLOCK] for index in range(num_blocks)]
        feed(forward, plain, [text], [len(text)])
        for index, key in enumerate(keys):
            if key not in blocks:
                blocks[key] = len(blocks)
                slot = blocks[key] * BLOCK
                cache._store[:, slot : slot + BLOCK] = plain._kv[:, 0, index * BLOCK : (index + 1) * BLOCK]
        plain.free("0")
        cache.attach([(str(name), Hit(num_tokens=len(start), blocks=tuple(blocks[key] for key in keys), branch=None))])
    return cache


@given(
    shape=st.sampled_from([(2, 2), (4, 2), (4, 1)]),
    window=st.sampled_from([None, 2, 7, 20]),
    made_by=st.sampled_from(["slots", "mask"]),
    num_common=st.integers(1, 4),
    num_apart=st.integers(0, 2),
    own=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    seed=st.integers(0, 50),
)
def test_logits_are_those_without_a_prefix(shape, window, made_by, num_common, num_apart, own, seed):
    generator = torch.Generator().manual_seed(seed)

    def tokens(count):
        return torch.randint(VOCAB, (count,), generator=generator).tolist()

    common = tokens(num_common * BLOCK)
    texts = [[*common, *tokens(num_apart * BLOCK), *tokens(length)] for length in own]
    forward = fused(*shape, window)
    plain = SlotCache(forward.kv_shape)
    before = (num_common + num_apart) * BLOCK
    feed(forward, plain, [text[:before] for text in texts], [before] * len(texts))
    expected = feed(forward, plain, texts, own)
    for kind in ("on", "off"):
        store = prefixed(kind, made_by, forward, texts, num_common + num_apart)
        found = feed(forward, store, texts, own)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def watched(monkeypatch):
    calls = []
    original = prefix_caches.attend_in_two_parts

    def noting(*args, **named):
        calls.append(len(args[0]))
        return original(*args, **named)

    monkeypatch.setattr(prefix_caches, "attend_in_two_parts", noting)
    return calls


@pytest.mark.parametrize(("kind", "rows", "shared"), [("on", 3, True), ("off", 3, False), ("on", 1, False)])
def test_only_what_is_asked_for_is_shared(monkeypatch, kind, rows, shared):
    calls = watched(monkeypatch)
    forward = fused(4, 2, None)
    texts = [[*range(8), row] for row in range(rows)]
    feed(forward, prefixed(kind, "slots", forward, texts, 2), texts, [1] * rows)
    assert bool(calls) is shared


def test_rows_without_a_common_prefix_share_nothing(monkeypatch):
    calls = watched(monkeypatch)
    forward = fused(4, 2, None)
    texts = [[row] * 9 for row in range(3)]
    feed(forward, prefixed("on", "slots", forward, texts, 2), texts, [1, 1, 1])
    assert not calls


@pytest.mark.parametrize("quicker", ["shared", "alone"])
def test_the_quicker_way_is_taken_and_remembered(monkeypatch, quicker):
    timed = []

    def seconds(attend, _):
        timed.append(attend.__name__)
        return 1.0 if attend.__name__ == quicker else 2.0

    monkeypatch.setattr(prefix_caches, "_seconds", seconds)
    calls = watched(monkeypatch)
    forward = fused.__wrapped__(4, 2, None)
    texts = [[*range(8), row] for row in range(3)]
    for _ in range(2):
        feed(forward, prefixed("auto", "slots", forward, texts, 2), texts, [1, 1, 1])
    assert sorted(timed) == ["alone", "shared"]  # once, at the first layer of the first forward
    assert len(calls) == (4 if quicker == "shared" else 0)


sizes = st.integers(1, 5)


def looks(rows, count, common, own, *, window, seed):
    """`[B, 1, Q, C + S]` bool of ragged rows: the new tokens stand last, each row has slots of nobody in front."""
    generator = torch.Generator().manual_seed(seed)
    seen = torch.ones(rows, count, common + own, dtype=torch.bool).tril_(common + own - count)
    for row in range(rows):
        gone = int(torch.randint(own - count + 1, (), generator=generator))
        seen[row, :, common : common + gone] = False
    if window is not None:
        seen &= seen.flip(-1).cumsum(-1).flip(-1) <= window
    return seen[:, None]


@given(
    rows=st.integers(2, 5),
    heads=sizes,
    groups=st.integers(1, 3),
    count=sizes,
    common=st.integers(1, 40),
    more=st.integers(0, 20),
    width=st.sampled_from([8, 16, 64]),
    window=st.none() | st.integers(1, 50),
    seed=st.integers(0, 99),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_two_parts_are_the_whole(rows, heads, groups, count, common, more, width, window, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    own = count + more
    queries = 3 * torch.randn(rows, heads, count * groups, width, generator=generator, dtype=dtype)
    first = torch.randn(2, heads, common, width, generator=generator, dtype=dtype)
    rest = torch.randn(2, rows, heads, own, width, generator=generator, dtype=dtype)
    seen = looks(rows, count, common, own, window=window, seed=seed).repeat_interleave(groups, dim=2)
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(seen.logical_not(), -torch.inf)
    keys, values = torch.cat([first[:, None].expand(-1, rows, -1, -1, -1), rest], dim=3)
    expected = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=0.3)
    found = attend_in_two_parts(
        queries,
        (first[0], first[1]),
        (rest[0], rest[1]),
        common_mask=None if window is None else mask[..., :common],
        own_mask=mask[..., common:],
        scale=0.3,
    )
    assert found.isfinite().all()
    rounding = 1e-5 if dtype == torch.float32 else 1e-13  # of values of about 1, under scores of up to about 50
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=rounding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_products_of_matrices_give_what_the_kernel_gives(dtype):
    generator = torch.Generator().manual_seed(1)
    queries, keys, values = (torch.randn(3, 2, size, 16, generator=generator).to(dtype) for size in (4, 9, 9))
    mask = torch.zeros(3, 1, 4, 9, dtype=dtype)
    mask[..., 6:] = -torch.inf
    for each in (None, mask):
        by_kernel = attend_with_sums(queries, keys, values, each, 0.25)
        for found, expected in zip(by_products(queries, keys, values, each, 0.25), by_kernel, strict=True):
            close = (
                {"rtol": 1e-5, "atol": 1e-5}
                if dtype in {torch.float32, torch.float64}
                else {"rtol": 0.02, "atol": 0.02}
            )
            torch.testing.assert_close(found.float(), expected.float(), **close)


def test_the_common_part_is_read_once(monkeypatch):
    """Its queries are those of one row."""
    asked = []

    def noting(queries, keys, values, mask, scale):
        asked.append((tuple(queries.shape), tuple(keys.shape)))
        return by_products(queries, keys, values, mask, scale)

    monkeypatch.setattr(prefix_caches, "attend_with_sums", noting)
    queries, own = torch.randn(4, 2, 3, 8), torch.randn(4, 2, 5, 8)
    common = torch.randn(2, 20, 8)
    attend_in_two_parts(queries, (common, common), (own, own), common_mask=None, own_mask=None, scale=1.0)
    assert asked == [((1, 2, 12, 8), (1, 2, 20, 8)), ((4, 2, 3, 8), (4, 2, 5, 8))]
