"""The quickest product is found for each number of tokens: noise does not choose, copies are made where they pay."""

from itertools import pairwise

import torch
from paceline.runtime.products import PLAIN, PRODUCTS, TOKEN_COUNTS, chosen_of, time_products, ways_of


def seconds_of(**quickest):
    """Every product takes a second, but for what is said of one at one token count."""
    found = {product.name: [1.0] * len(TOKEN_COUNTS) for product in PRODUCTS}
    for name, by_place in quickest.items():
        for place, value in by_place.items():
            found[name.replace("_", "-")][place] = value
    return found


def found(seconds, *, padded_s=10.0):
    """What is chosen; races find that padded products take so many seconds, and others one."""
    ways = {product.name: ways_of(product, seconds, TOKEN_COUNTS, lambda *_: (1.0, padded_s)) for product in PRODUCTS}
    return chosen_of(ways, PRODUCTS)


def test_inputs_are_padded_only_where_a_race_says_that_it_pays():
    slow_at_two = seconds_of(**{product.name.replace("-", "_"): {1: 2.0, 2: 1.04} for product in PRODUCTS})
    assert [product.name for product in found(slow_at_two, padded_s=0.5)[:4]] == [
        "plain", "plain@4", "plain", "plain",
    ]  # fmt: skip
    assert {product.name for product in found(slow_at_two, padded_s=0.95)} == {"plain"}


def test_the_quickest_is_chosen_and_noise_is_not():
    chosen = found(seconds_of(onednn={0: 0.5, 1: 0.99}))
    assert [product.name for product in chosen[:3]] == ["onednn", "plain", "plain"]


def test_at_most_one_copy_and_only_where_it_pays():
    pays_more = seconds_of(onednn_packed={4: 0.5, 5: 0.5}, plain_rows={4: 0.4})
    assert {product.layout for product in found(pays_more)} == {"columns", "packed"}
    # Here the packed one saves more in all, and rows leave nobody far behind.
    nearly = seconds_of(onednn_packed={4: 0.50, 5: 0.50}, onednn_rows={4: 0.52, 5: 0.52}, plain_rows={1: 0.9})
    assert {product.layout for product in found(nearly)} == {"columns", "rows"}
    hardly = seconds_of(onednn_packed={4: 0.96})
    assert {product.layout for product in found(hardly)} == {"columns"}


def test_no_product_meets_a_weight_that_another_has_just_brought_into_the_caches():
    met = []

    def watched(name):
        def times(inputs, weight):
            met.append(weight.data_ptr())
            return inputs @ weight

        return PLAIN._replace(name=name, times=times)

    time_products(torch.ones(8, 8), [watched("one"), watched("other")], token_counts=(1, 2))
    assert all(before != after for before, after in pairwise(met))
    assert len(set(met)) > 2
