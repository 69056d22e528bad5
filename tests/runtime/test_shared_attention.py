"""Attention over what rows share, once or row by row, and in two parts: the same but for rounding."""

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.prefix_cache import Hit, PrefixCacheSize
from paceline.runtime import prefixed_kv as prefix_caches
from paceline.runtime.caches import SlotCache
from paceline.runtime.fused import FusedForward
from paceline.runtime.prefixed_kv import (
    PrefixedMaskCache,
    PrefixedSlotCache,
    attend_in_two_parts,
    attend_with_sums,
    by_products,
)
from paceline.runtime.products import KnownChoices, ProductChooser
from torch.nn import functional

from .tiny_decoders import VOCABULARY, tiny_decoder

BLOCK = 4
SIZE = PrefixCacheSize(num_blocks=24, block_tokens=BLOCK)


@cache
def fused(heads, key_heads, window):
    sizes = {"num_attention_heads": heads, "num_key_value_heads": key_heads, "sliding_window": window}
    windows = {"use_sliding_window": window is not None, "max_window_layers": 1}
    model = tiny_decoder("qwen3", torch.float32, seed=3, **sizes, **windows)
    products = ProductChooser(only="plain", known=KnownChoices(None))
    return FusedForward(model, share_weights=False, context_tokens=128, products=products)


def feed(forward, cache, texts, counts):
    """Logits of the last `counts` tokens of texts, request after request."""
    names = [str(index) for index in range(len(texts))]
    ids = torch.tensor([token for text, count in zip(texts, counts, strict=True) for token in text[-count:]])
    return forward(ids, cache.place(names, counts), cache, slice(None))


def prefixed(kind, forward, texts, num_blocks, cache=None):
    """A cache with so many first blocks of every text in the store, as another request computed them."""
    cache = cache or PrefixedSlotCache(forward.kv_shape, SIZE)
    cache.shared_attention = kind
    plain, blocks = SlotCache(forward.kv_shape), {}
    for name, (text, count) in enumerate(zip(texts, num_blocks, strict=True)):
        feed(forward, plain, [text], [len(text)])
        keys = [tuple(text[: (index + 1) * BLOCK]) for index in range(count)]
        for index, key in enumerate(keys):
            if key not in blocks:
                slot = blocks[key] = len(blocks)
                cache._store[:, slot * BLOCK : (slot + 1) * BLOCK] = plain._kv[
                    :, 0, index * BLOCK : (index + 1) * BLOCK
                ]
        plain.free("0")
        hit = Hit(num_tokens=count * BLOCK, blocks=tuple(blocks[key] for key in keys), branch=None)
        cache.attach([(str(name), hit)])
    return cache


@given(
    shape=st.sampled_from([(2, 2), (4, 2), (4, 1)]),
    window=st.sampled_from([None, 2, 7, 20]),
    masked=st.booleans(),
    num_common=st.integers(1, 4),
    num_apart=st.integers(0, 2),
    own=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    fewer=st.integers(0, 1),
    seed=st.integers(0, 50),
)
def test_logits_are_those_without_a_prefix(shape, window, masked, num_common, num_apart, own, fewer, seed):
    generator = torch.Generator().manual_seed(seed)

    def tokens(count):
        return torch.randint(VOCABULARY, (count,), generator=generator).tolist()

    common, blocks = tokens(num_common * BLOCK), [num_common + num_apart] * len(own)
    texts = [[*common, *tokens(num_apart * BLOCK), *tokens(length)] for length in own]
    blocks[-1] -= fewer  # of the last one less was found
    counts = [len(text) - count * BLOCK for text, count in zip(texts, blocks, strict=True)]
    forward = fused(*shape, window)
    whole = feed(forward, SlotCache(forward.kv_shape), texts, [*map(len, texts)]).split([*map(len, texts)])
    expected = torch.cat([logits[-count:] for logits, count in zip(whole, counts, strict=True)])
    for kind in ("on", "off"):
        cache = PrefixedMaskCache(forward.kv_shape, SIZE, dead_share=0.5) if masked else None
        found = feed(forward, prefixed(kind, forward, texts, blocks, cache), texts, counts)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture
def calls(monkeypatch):
    """Rows of each attention in two parts."""
    noted, original = [], prefix_caches.attend_in_two_parts

    def noting(*args, **named):
        noted.append(len(args[0]))
        return original(*args, **named)

    monkeypatch.setattr(prefix_caches, "attend_in_two_parts", noting)
    return noted


ALIKE = [[*range(8), row] for row in range(3)]


@pytest.mark.parametrize(
    ("kind", "texts", "shared"),
    [
        ("on", ALIKE, True),
        ("off", ALIKE, False),
        ("on", ALIKE[:1], False),
        ("on", [[row] * 9 for row in range(3)], False),
    ],
)
def test_only_what_is_common_and_asked_for_is_shared(calls, kind, texts, shared):
    forward = fused(4, 2, None)
    feed(forward, prefixed(kind, forward, texts, [2] * len(texts)), texts, [1] * len(texts))
    assert bool(calls) is shared


@pytest.mark.parametrize("quicker", ["shared", "alone"])
def test_the_quicker_way_is_taken_and_remembered(monkeypatch, calls, quicker):
    timed = []

    def seconds(attend, _):
        timed.append(attend.__name__)
        return 1.0 if attend.__name__ == quicker else 2.0

    monkeypatch.setattr(prefix_caches, "timed", seconds)
    forward = fused.__wrapped__(4, 2, None)
    for _ in range(2):
        feed(forward, prefixed("auto", forward, ALIKE, [2] * 3), ALIKE, [1, 1, 1])
    each = prefix_caches._RACES + 1
    assert timed == ["shared"] * each + ["alone"] * each  # once, at the first layer of the first forward
    assert len(calls) == (4 if quicker == "shared" else 0)


sizes = st.integers(1, 5)


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
    """Of ragged rows: the new tokens stand last, each row has slots of nobody in front."""
    generator, own = torch.Generator().manual_seed(seed), count + more
    queries = 3 * torch.randn(rows, heads, count * groups, width, generator=generator, dtype=dtype)
    first = torch.randn(2, heads, common, width, generator=generator, dtype=dtype)
    rest = torch.randn(2, rows, heads, own, width, generator=generator, dtype=dtype)
    seen = torch.ones(rows, count, common + own, dtype=torch.bool).tril_(common + own - count)
    for row in range(rows):
        seen[row, :, common : common + int(torch.randint(more + 1, (), generator=generator))] = False
    if window is not None:
        seen &= seen.flip(-1).cumsum(-1).flip(-1) <= window
    seen = seen[:, None].repeat_interleave(groups, dim=2)
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(seen.logical_not(), -torch.inf)
    keys, values = torch.cat([first[:, None].expand(-1, rows, -1, -1, -1), rest], dim=3)
    expected = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=0.3)
    masks = {"common_mask": None if window is None else mask[..., :common], "own_mask": mask[..., common:]}
    found = attend_in_two_parts(queries, tuple(first), tuple(rest), **masks, scale=0.3)
    assert found.isfinite().all()
    rounding = 1e-5 if dtype == torch.float32 else 1e-13  # of values of about 1, under scores of up to about 50
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=rounding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_products_of_matrices_give_what_the_kernel_gives(dtype):
    generator = torch.Generator().manual_seed(1)
    queries, keys, values = (torch.randn(3, 2, size, 16, generator=generator).to(dtype) for size in (4, 9, 9))
    mask = torch.zeros(3, 1, 4, 9, dtype=dtype)
    mask[..., 6:] = -torch.inf
    near = 1e-5 if dtype in {torch.float32, torch.float64} else 0.02
    for each in (None, mask):
        by_kernel = attend_with_sums(queries, keys, values, each, 0.25)
        for found, expected in zip(by_products(queries, keys, values, each, 0.25), by_kernel, strict=True):
            torch.testing.assert_close(found.float(), expected.float(), rtol=near, atol=near)


def test_the_common_part_is_read_once(monkeypatch):
    """Its queries are those of one row."""
    asked = []

    def noting(queries, keys, values, mask, scale):
        asked.append((tuple(queries.shape), tuple(keys.shape)))
        return by_products(queries, keys, values, mask, scale)

    monkeypatch.setattr(prefix_caches, "attend_with_sums", noting)
    queries, own, common = torch.randn(4, 2, 3, 8), torch.randn(4, 2, 5, 8), torch.randn(2, 20, 8)
    attend_in_two_parts(queries, (common, common), (own, own), common_mask=None, own_mask=None, scale=1.0)
    assert asked == [((1, 2, 12, 8), (1, 2, 20, 8)), ((4, 2, 3, 8), (4, 2, 5, 8))]
