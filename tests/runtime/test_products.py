"""Products are interchangeable but for rounding, the quickest is chosen by measuring, and choosing leaves no copy."""

import gc
import json
import weakref
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.runtime import caches, forward_choice
from paceline.runtime import products as under_test
from paceline.runtime.caches import let_go
from paceline.runtime.forward_choice import choose_forward
from paceline.runtime.fused import share
from paceline.runtime.pools.heads import share_embeddings
from paceline.runtime.pools.members import LoadedMembers, describe_model
from paceline.runtime.products import (
    PLAIN,
    PRODUCTS,
    TOKEN_COUNTS,
    KnownChoices,
    Multiplier,
    ProductChooser,
    Timing,
    chosen_of,
    named_products,
    padded,
    right,
    stored,
    time_products,
    timing_bytes,
    usable_products,
    ways_of,
)
from safetensors.torch import load_file, save_file

from .tiny_decoders import CONTEXT, tiny_decoder

CPU = torch.device("cpu")
PACKED = next(product for product in PRODUCTS if product.layout == "packed")


def weight_of(inputs, outputs, dtype=torch.float32):
    return torch.randn(inputs, outputs, generator=torch.Generator().manual_seed(inputs * outputs)).to(dtype)


def chooser_of(known=None, **options):
    return ProductChooser(known or KnownChoices(None), **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 40), st.integers(0, 7))
def test_products_are_the_same_but_for_rounding_padded_or_not(dtype, inputs, outputs, tokens, more):
    weight, fed = weight_of(inputs, outputs, dtype), weight_of(tokens, inputs, dtype)
    for product in usable_products(CPU, dtype):
        wider = padded(product, tokens + more) if more else product
        assert wider.name == (f"{product.name}@{tokens + more}" if more else product.name)
        assert right(wider, fed, weight, stored(weight, product.layout)), wider.name


def test_padding_is_remembered_by_name():
    names = ["plain@4", "onednn-packed@16", "plain"]
    assert [product.name for product in named_products(names, PRODUCTS, (2, 3, 4))] == names
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


# -- what is known of this machine


def test_a_shape_is_timed_once_a_machine(tmp_path, monkeypatch):
    timed, real = [], under_test.time_products

    def watched(weight, usable, **room):
        timed.append(tuple(weight.shape))
        return real(weight, usable, **room)

    monkeypatch.setattr(under_test, "time_products", watched)
    path = tmp_path / "deep" / "choices.json"
    for machine, room in (("this machine", {}),) * 2 + (
        ("another machine", {}),
        ("this machine", {"room_bytes": 4096}),
    ):
        chooser = chooser_of(KnownChoices(path, machine), **room)
        for _ in range(3):
            chooser.multiplier(weight_of(24, 8), may_copy=True)
    assert timed == [(24, 8)] * 3  # once more in a pool that caches may hold
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


def test_what_another_process_chose_meanwhile_stays(tmp_path):
    path = tmp_path / "choices.json"
    one, other = KnownChoices(path, "m"), KnownChoices(path, "m")
    one.note("a", ["plain"])
    other.note("a", ["onednn"])
    one.note("b", ["plain"])
    assert json.loads(path.read_text()) == {"m": {"a": ["onednn"], "b": ["plain"]}}


def test_a_product_this_torch_has_not_is_measured_anew(tmp_path):
    known, about = (
        KnownChoices(tmp_path / "choices.json", "m"),
        f"products of float32 24x8, {64 * 2**20:,} bytes in turn",
    )
    known.note(about, ["of-tomorrow"] * len(TOKEN_COUNTS))
    chooser_of(known).multiplier(weight_of(24, 8), may_copy=True)
    assert set(known.get(about, len(TOKEN_COUNTS))) <= {product.name for product in PRODUCTS}


# -- which is chosen


def chosen(*, padded_s=10.0, **quickest):
    """Layouts and names chosen where every product takes a second, but for what is said of one at one token count.

    Races find that padded products take so many seconds, and others one.
    """
    seconds = {product.name: [1.0] * len(TOKEN_COUNTS) for product in PRODUCTS}
    for name, by_place in quickest.items():
        for place, value in by_place.items():
            seconds[name.replace("_", "-")][place] = value
    ways = {product.name: ways_of(product, seconds, TOKEN_COUNTS, lambda *_: (1.0, padded_s)) for product in PRODUCTS}
    found = chosen_of(ways, PRODUCTS)
    return {product.layout for product in found}, [product.name for product in found]


def test_inputs_are_padded_only_where_a_race_says_that_it_pays():
    slow_at_two = {product.name.replace("-", "_"): {1: 2.0, 2: 1.04} for product in PRODUCTS}
    assert chosen(**slow_at_two, padded_s=0.5)[1][:4] == ["plain", "plain@4", "plain", "plain"]
    assert set(chosen(**slow_at_two, padded_s=0.95)[1]) == {"plain"}


def test_the_quickest_is_chosen_and_noise_is_not_and_at_most_one_copy_where_it_pays():
    assert chosen(onednn={0: 0.5, 1: 0.99})[1][:3] == ["onednn", "plain", "plain"]
    assert chosen(onednn_packed={4: 0.5, 5: 0.5}, plain_rows={4: 0.4})[0] == {"columns", "packed"}
    # Here the packed one saves more in all, and rows leave nobody far behind.
    nearly = {"onednn_packed": {4: 0.50, 5: 0.50}, "onednn_rows": {4: 0.52, 5: 0.52}, "plain_rows": {1: 0.9}}
    assert chosen(**nearly)[0] == {"columns", "rows"}
    assert chosen(onednn_packed={4: 0.96})[0] == {"columns"}


def test_no_product_meets_a_weight_that_another_has_just_brought_into_the_caches():
    met = []

    def times(inputs, weight):
        met.append(weight.data_ptr())
        return inputs @ weight

    products = [PLAIN._replace(name=name, times=times) for name in ("one", "other")]
    time_products(torch.ones(8, 8), products, token_counts=(1, 2))
    assert all(before != after for before, after in pairwise(met))
    assert len(set(met)) > 2


# -- copies


def test_members_that_share_a_weight_share_its_copy_which_goes_with_the_last_of_them():
    weight, chooser = weight_of(24, 8), chooser_of(only="plain-rows")
    first, second = (chooser.multiplier(weight, may_copy=True) for _ in range(2))
    copy = weakref.ref(first._by_count[0][1])
    assert copy().data_ptr() != weight.data_ptr()
    del first
    assert copy() is second._by_count[0][1]
    del second
    assert copy() is None


def test_no_copies_where_the_model_is_to_be_left_alone_unless_they_are_asked_for():
    """Weights of models of transformers are seen as `[I, O]` across their rows."""
    weight = weight_of(24, 8)
    found = chooser_of().multiplier(weight, may_copy=False)
    assert {product.layout for product in found.products} == {"columns"}
    with pytest.raises(ValueError, match="product plain-rows does not work for this model here; these do: plain"):
        chooser_of(only="plain-rows").multiplier(weight, may_copy=False)
    with pytest.raises(ValueError, match=r"product must be one of plain, plain-rows, .*, got 'quick'"):
        chooser_of(only="quick")
    weight = weight_of(8, 24).t()
    before = weight.clone()
    multiplier = chooser_of(only="onednn-packed", copy_all=True).multiplier(weight, may_copy=False)
    assert {product.layout for product in multiplier.products} == {"packed"}
    assert torch.allclose(multiplier.of(weight_of(3, 24)), weight_of(3, 24) @ before, atol=1e-5)
    assert torch.equal(weight, before)
    for weight in (torch.randn(24, 8), torch.randn(8, 24).t()):  # the second is in rows already
        for layout in ("columns", "rows", "packed"):
            made = stored(weight, layout, copy=True)
            assert made.layout != torch.strided or made.data_ptr() != weight.data_ptr()


@pytest.mark.parametrize("family", ["llama", "llama-ungrouped", "llama-biased", "qwen3"])
def test_where_the_modules_win_all_is_as_it_was(monkeypatch, family):
    """Values, strides, what is shared, and no copy, though every weight was packed for the fused forward that lost."""
    born = []

    def watched(*given_to, **how):
        made = stored(*given_to, **how)
        born.append(weakref.ref(made))
        return made

    monkeypatch.setattr(under_test, "time_products", lambda *_, **__: Timing({}, (PACKED,) * len(TOKEN_COUNTS)))
    monkeypatch.setattr(forward_choice, "_race_s", lambda forward: 2.0 if forward.name == "fused" else 1.0)
    monkeypatch.setattr(under_test, "stored", watched)
    model = tiny_decoder(family, torch.float32)
    before = {name: (weight.clone(), weight.stride()) for name, weight in model.named_parameters()}
    logits = model(torch.arange(5)[None]).logits
    gc.disable()
    try:
        forward = choose_forward(model, kind="auto", share_weights=True, context_tokens=CONTEXT, products=chooser_of())
        assert forward.name == "modules"
        assert born
        assert not [copy for copy in born if copy() is not None]
    finally:
        gc.enable()
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name][0])
        assert weight.stride() == before[name][1]
    storages = [weight.untyped_storage() for weight in model.parameters()]
    held = {storage.data_ptr(): storage.nbytes() for storage in storages}
    assert sum(held.values()) == sum(weight.nbytes for weight in model.parameters())
    assert torch.equal(model(torch.arange(5)[None]).logits, logits)


def test_while_it_is_chosen_no_old_weight_stays(monkeypatch):
    """Looked for among all tensors when the fused forward is raced: another may lie at an old address by then."""
    model = tiny_decoder("llama", torch.float32)
    old = {weight.data_ptr(): weight.clone() for weight in model.parameters() if weight.dim() == 2}
    embedding, left = model.model.embed_tokens.weight.data_ptr(), []

    def race(forward):
        if forward.name == "fused":
            kinds = (torch.Tensor, torch.nn.Parameter)
            tensors = [one for one in gc.get_objects() if type(one) in kinds and one.layout == torch.strided]
            at = [one for one in tensors if one.device.type == "cpu" and one.data_ptr() in old]
            left.extend(one.data_ptr() for one in at if torch.equal(one, old[one.data_ptr()]))
        return 1.0

    monkeypatch.setattr(forward_choice, "_race_s", race)
    products = chooser_of(only="plain")
    choose_forward(model, kind="auto", share_weights=True, context_tokens=CONTEXT, products=products)
    assert set(left) == {embedding}  # which is not multiplied by, and found


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_drafter_with_the_targets_embedding_keeps_no_old_table(order):
    drafter, target = (tiny_decoder("llama", torch.float32, num_hidden_layers=layers) for layers in (2, 3))
    target.lm_head.weight = target.model.embed_tokens.weight
    share_embeddings(drafter, target, may_round=False)
    table = target.model.embed_tokens.weight.clone()
    members = [describe_model(name, "model", model, None) for name, model in (("drafter", drafter), ("target", target))]
    pool = LoadedMembers(members=tuple(members), tokenizer=None, eos_token_ids=(), context_tokens=CONTEXT)
    for level in (*order, *order):
        forward = pool.forward(level, "fused", share_weights=True)
    for level in order:
        forward = pool.forward(level, "fused", share_weights=True)
        assert forward._embedding.data_ptr() == target.model.embed_tokens.weight.data_ptr()
        assert torch.equal(forward._embedding, table)


def test_timing_takes_the_room_that_is_said(monkeypatch):
    """All copies of a weight that are there at once, of a large one and of a small one."""
    taken, room = [], 2**20

    def watched(weight, *how, **copy):
        taken.append(weight.nbytes)
        return stored(weight, *how, **copy)

    monkeypatch.setattr(under_test, "stored", watched)
    chooser = chooser_of(room_bytes=room)
    for outputs in (64, 6000):
        taken.clear()
        weight = torch.randn(256, outputs)
        part = chooser._timed_part(weight)
        assert part.nbytes <= weight.nbytes
        time_products(part, PRODUCTS, (1, 2), room_bytes=room)
        assert room / 2 <= sum(taken) + part.nbytes <= room  # and one while a weight is packed
    assert (timing_bytes(10**6), timing_bytes(10**9), timing_bytes(10**10)) == (4 * 10**6, 256 * 2**20, 1_200_000_000)


def test_products_of_one_layout_meet_more_copies_than_caches_hold():
    """Two that are near are raced alone: then no other layout drives a copy out before its next turn."""
    met = []

    def times(inputs, weight):
        met.append(weight.data_ptr())
        return torch.mm(inputs, weight)

    weight = torch.ones(1024, 1024)
    products = [PLAIN._replace(name=name, times=times) for name in ("one", "other")]
    time_products(weight, products, token_counts=(1,))
    assert all(len(set(met[at : at + 16])) * weight.nbytes == 64 * 2**20 for at in range(len(met) - 16))


def test_weights_of_a_mapped_file_keep_their_values(tmp_path):
    """What was let go is read again from the file; what lies in no file is not touched."""
    path = tmp_path / "weights.safetensors"
    values = {name: torch.randn(700, 300) for name in ("a", "b")}
    save_file(values, path)
    mapped = {name: torch.nn.Parameter(value, requires_grad=False) for name, value in load_file(path).items()}
    aliases = {name: weight.detach() for name, weight in mapped.items()}
    joined = share(list(mapped.values()))
    for name, value in values.items():
        assert torch.equal(aliases[name], value)
        assert torch.equal(mapped[name], value)
        let_go(value)
        assert torch.equal(mapped[name], value)
    assert torch.equal(joined, torch.cat([value.t() for value in values.values()], dim=1))
    assert sorted(len(weight.untyped_storage()) for weight in mapped.values()) == [joined.nbytes] * 2


def test_for_a_small_weight_nobody_asks_which_file_holds_it(monkeypatch):
    """Reading all that a process has mapped took half of the making of a small model's forward."""
    monkeypatch.setattr(caches, "_in_a_file", lambda _: pytest.fail("it was asked"))
    let_go(torch.zeros(100, 100))


def test_the_bytes_of_a_pool_count_what_is_shared_once(tiny_pool):
    alone = [tiny_pool.member(name).model for name in ("draft", "mid", "target")]
    assert tiny_pool.weight_bytes == sum(weight.nbytes for model in alone for weight in model.parameters())
