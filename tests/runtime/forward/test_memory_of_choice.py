"""What choosing a forward leaves: one set of weights, in the layout that runs, and copies only while they are used."""

import gc
import weakref

import pytest
import torch
from paceline.runtime import forward_choice
from paceline.runtime import products as product_choice
from paceline.runtime.caches import let_go
from paceline.runtime.forward_choice import choose_forward
from paceline.runtime.fused import FusedForward, share
from paceline.runtime.pools.members import LoadedMembers, describe_model
from paceline.runtime.pools.parts import share_embeddings
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.products import (
    LEAST_TIMING_BYTES,
    PRODUCTS,
    TOKEN_COUNTS,
    KnownChoices,
    ProductChooser,
    Timing,
    stored,
    time_products,
    timing_bytes,
)
from safetensors.torch import load_file, save_file

from ..tiny_decoders import CONTEXT, tiny_decoder

PACKED = next(product for product in PRODUCTS if product.layout == "packed")


@pytest.fixture
def modules_win(monkeypatch):
    """And every weight is packed for the fused forward that loses."""
    timing = Timing({}, (PACKED,) * len(TOKEN_COUNTS))
    monkeypatch.setattr(product_choice, "time_products", lambda weight, usable: timing)
    monkeypatch.setattr(forward_choice, "_race_s", lambda forward: 2.0 if forward.name == "fused" else 1.0)


@pytest.mark.parametrize("family", ["llama", "llama-ungrouped", "llama-biased", "qwen3"])
def test_where_the_modules_win_all_is_as_it_was(modules_win, monkeypatch, family):
    """Values, strides, what is shared, and no copy."""
    born = []
    monkeypatch.setattr(product_choice, "stored", lambda *given, **how: watched(born, stored(*given, **how)))
    model = tiny_decoder(family, torch.float32)
    values = {name: weight.clone() for name, weight in model.named_parameters()}
    strides = {name: weight.stride() for name, weight in model.named_parameters()}
    logits = model(torch.arange(5)[None]).logits
    gc.disable()
    try:
        chooser = ProductChooser(KnownChoices(None))
        forward = choose_forward(model, kind="auto", share_weights=True, context_tokens=CONTEXT, products=chooser)
        assert forward.name == "modules"
        assert born
        assert not [copy for copy in born if copy() is not None]
    finally:
        gc.enable()
    assert {name: weight.stride() for name, weight in model.named_parameters()} == strides
    assert all(torch.equal(weight, values[name]) for name, weight in model.named_parameters())
    assert sum(held_bytes(model).values()) == sum(weight.nbytes for weight in model.parameters())
    assert torch.equal(model(torch.arange(5)[None]).logits, logits)


def watched(born, made):
    born.append(weakref.ref(made))
    return made


def held_bytes(model):
    """Bytes of each storage that parameters lie in."""
    storages = [weight.untyped_storage() for weight in model.parameters()]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


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
    chooser = ProductChooser(KnownChoices(None), only="plain")
    choose_forward(model, kind="auto", share_weights=True, context_tokens=CONTEXT, products=chooser)
    assert set(left) == {embedding}  # which is not multiplied by, and found


@pytest.mark.parametrize("first", ["drafter", "target"])
def test_a_drafter_with_the_targets_embedding_keeps_no_old_table(first):
    target, drafter = tiny_decoder("llama", torch.float32, num_hidden_layers=3), tiny_decoder("llama", torch.float32)
    target.lm_head.weight = target.model.embed_tokens.weight
    share_embeddings(drafter, target)
    table = target.model.embed_tokens.weight.clone()
    members = [describe_model(name, "model", model, None) for name, model in (("drafter", drafter), ("target", target))]
    pool = LoadedMembers(members=tuple(members), tokenizer=None, eos_token_ids=(), context_tokens=CONTEXT)
    for level in (0, 1) if first == "drafter" else (1, 0):
        pool.forward(level, "fused", share_weights=True)
    for level in (0, 1):
        forward = pool.forward(level, "fused", share_weights=True)
        assert isinstance(forward, FusedForward)
        assert forward._embedding.data_ptr() == target.model.embed_tokens.weight.data_ptr()
        assert torch.equal(forward._embedding, table)


def test_copies_go_with_the_forward_that_uses_them():
    chooser = ProductChooser(KnownChoices(None), only="plain-rows")
    weight = torch.randn(24, 8)
    first, second = (chooser.multiplier(weight, may_copy=True) for _ in range(2))
    copy = weakref.ref(first._by_count[0][1])
    del first
    assert copy() is second._by_count[0][1]
    del second
    assert copy() is None


def test_timing_takes_the_room_that_is_said(monkeypatch):
    """All copies of a weight that are there at once, of a large one and of a small one."""
    taken = []
    monkeypatch.setattr(
        product_choice,
        "stored",
        lambda weight, *how, **copy: watched_bytes(taken, weight, stored(weight, *how, **copy)),
    )
    room = 2**20
    chooser = ProductChooser(KnownChoices(None), room_bytes=room)
    for outputs in (64, 6000):
        taken.clear()
        weight = torch.randn(256, outputs)
        part = chooser._timed_part(weight)
        assert part.nbytes <= weight.nbytes
        time_products(part, PRODUCTS[:2], (1, 2))
        assert sum(taken) <= LEAST_TIMING_BYTES
    assert 4 * part.nbytes <= room
    assert timing_bytes(10**6) == LEAST_TIMING_BYTES
    assert timing_bytes(10**10) == 1_200_000_000


def watched_bytes(taken, weight, made):
    taken.append(weight.nbytes)
    return made


def test_copies_are_never_the_weight_itself():
    """A weight as it stands in a model of transformers is in rows already."""
    for weight in (torch.randn(24, 8), torch.randn(8, 24).t()):
        for layout in ("columns", "rows", "packed"):
            made = stored(weight, layout, copy=True)
            assert made.layout != torch.strided or made.data_ptr() != weight.data_ptr()


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


def test_the_bytes_of_a_pool_count_what_is_shared_once(tiny_pool):
    assert isinstance(tiny_pool, ModelPool)
    models = [member.model for member in tiny_pool.members if member.model is not None]
    alone = {name: model for name, model in zip("dmst", models, strict=True) if name != "s"}
    assert tiny_pool.weight_bytes == sum(weight.nbytes for model in alone.values() for weight in model.parameters())
