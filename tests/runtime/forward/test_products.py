"""Products are interchangeable but for rounding, and the quickest is chosen by measuring: noise does not choose."""

import json
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.runtime import products as choosing
from paceline.runtime.products import (
    PLAIN,
    PRODUCTS,
    TOKEN_COUNTS,
    KnownChoices,
    Multiplier,
    ProductChooser,
    chosen_of,
    named_products,
    padded,
    right,
    stored,
    time_products,
    usable_products,
    ways_of,
)

CPU = torch.device("cpu")
BY_NAME = {product.name: product for product in PRODUCTS}


def weight_of(inputs, outputs, dtype=torch.float32):
    return torch.randn(inputs, outputs, generator=torch.Generator().manual_seed(inputs * outputs)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@settings(max_examples=20)
@given(inputs=st.integers(1, 70), outputs=st.integers(1, 70), tokens=st.integers(1, 40))
def test_products_are_the_same_but_for_rounding(dtype, inputs, outputs, tokens):
    weight = weight_of(inputs, outputs, dtype)
    fed = weight_of(tokens, inputs, dtype)
    for product in usable_products(CPU, dtype):
        assert right(product, fed, weight, stored(weight, product.layout)), product.name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=20)
@given(tokens=st.integers(1, 9), more=st.integers(1, 7))
def test_padding_changes_nothing_but_rounding(dtype, tokens, more):
    weight = weight_of(33, 20, dtype)
    for product in usable_products(CPU, dtype):
        wider = padded(product, tokens + more)
        assert wider.name == f"{product.name}@{tokens + more}"
        assert right(wider, weight_of(tokens, 33, dtype), weight, stored(weight, product.layout)), wider.name


def test_padding_is_remembered_by_name():
    names = ["plain@4", "onednn-packed@16", "plain"]
    found = named_products(names, PRODUCTS, (2, 3, 4))
    assert [product.name for product in found] == names
    for wrong in ("plain@", "plain@x", "plain@4", "plain@1", "of-tomorrow@8", "@8"):
        assert named_products([wrong], PRODUCTS, (4,)) is None, wrong


@given(st.integers(1, 3 * TOKEN_COUNTS[-1]))
def test_each_number_of_tokens_goes_by_the_next_count_that_was_timed(num_tokens):
    taken = []
    watched = [PLAIN._replace(times=lambda _, __, count=count: taken.append(count)) for count in TOKEN_COUNTS]
    Multiplier(torch.zeros(2, 2), watched, {}).of(torch.zeros(num_tokens, 2))
    assert taken == [min((count for count in TOKEN_COUNTS if count >= num_tokens), default=TOKEN_COUNTS[-1])]
    if num_tokens <= 9:  # what a request's verification has goes by nobody else's time
        assert taken == [num_tokens]


def test_a_shape_is_timed_once_a_machine(tmp_path, monkeypatch):
    timed = []
    real = choosing.time_products

    def watched(weight, usable):
        timed.append(tuple(weight.shape))
        return real(weight, usable)

    monkeypatch.setattr(choosing, "time_products", watched)
    path = tmp_path / "deep" / "choices.json"
    for _ in range(2):
        chooser = ProductChooser(KnownChoices(path, "this machine"))
        for _ in range(3):
            chooser.multiplier(weight_of(24, 8), may_copy=True)
    ProductChooser(KnownChoices(path, "another machine")).multiplier(weight_of(24, 8), may_copy=True)
    assert timed == [(24, 8), (24, 8)]
    assert set(json.loads(path.read_text())) == {"this machine", "another machine"}
    assert chooser.lines()[0].startswith("float32 24x8: ")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"m": []}', '{"m": {"a": "plain"}}', '{"m": {"a": [1]}}'])
def test_choices_that_cannot_be_read_are_made_anew(tmp_path, text):
    path = tmp_path / "choices.json"
    path.write_text(text)
    known = KnownChoices(path, "m")
    assert known.get("a", 1) == []
    known.note("a", ["plain"])
    assert KnownChoices(path, "m").get("a", 1) == ["plain"]
    assert KnownChoices(path, "m").get("a", 2) == []


def test_a_product_this_torch_has_not_is_measured_anew(tmp_path):
    known = KnownChoices(tmp_path / "choices.json", "m")
    known.note("products of float32 24x8", ["of-tomorrow"] * len(TOKEN_COUNTS))
    ProductChooser(known).multiplier(weight_of(24, 8), may_copy=True)
    assert set(known.get("products of float32 24x8", len(TOKEN_COUNTS))) <= set(BY_NAME)


def test_members_that_share_a_weight_share_its_copy():
    weight = weight_of(24, 8)
    chooser = ProductChooser(KnownChoices(None), only="plain-rows")
    first, second = (chooser.multiplier(weight, may_copy=True) for _ in range(2))
    assert first._by_count[0][1].data_ptr() == second._by_count[0][1].data_ptr() != weight.data_ptr()


def test_no_copies_where_the_model_is_to_be_left_alone():
    weight = weight_of(24, 8)
    chosen = ProductChooser(KnownChoices(None)).multiplier(weight, may_copy=False)
    assert {product.layout for product in chosen.products} == {"columns"}
    with pytest.raises(ValueError, match="product plain-rows does not work for this model here; these do: plain"):
        ProductChooser(KnownChoices(None), only="plain-rows").multiplier(weight, may_copy=False)


def test_copies_of_a_model_that_is_to_be_left_alone():
    """Weights of models of transformers are seen as `[I, O]` across their rows."""
    weight = weight_of(8, 24).t()
    before = weight.clone()
    chooser = ProductChooser(KnownChoices(None), only="onednn-packed", copy_all=True)
    multiplier = chooser.multiplier(weight, may_copy=False)
    assert {product.layout for product in multiplier.products} == {"packed"}
    assert torch.allclose(multiplier.of(weight_of(3, 24)), weight_of(3, 24) @ before, atol=1e-5)
    assert torch.equal(weight, before)


def test_an_unknown_product():
    with pytest.raises(ValueError, match=r"product must be one of plain, plain-rows, .*, got 'quick'"):
        ProductChooser(KnownChoices(None), only="quick")


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
