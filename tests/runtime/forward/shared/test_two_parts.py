"""Attention in two parts is attention over both, but for rounding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.runtime import prefix_caches as two_parts
from paceline.runtime.prefix_caches import attend_in_two_parts, attend_with_sums, by_products
from torch.nn import functional

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

    monkeypatch.setattr(two_parts, "attend_with_sums", noting)
    queries, own = torch.randn(4, 2, 3, 8), torch.randn(4, 2, 5, 8)
    common = torch.randn(2, 20, 8)
    attend_in_two_parts(queries, (common, common), (own, own), common_mask=None, own_mask=None, scale=1.0)
    assert asked == [((1, 2, 12, 8), (1, 2, 20, 8)), ((4, 2, 3, 8), (4, 2, 5, 8))]
