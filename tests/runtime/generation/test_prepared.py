"""Models prepared once answer many `generate()` calls as `generate()` does, and notice what changed since."""

import paceline
import pytest
import torch
from paceline.runtime import forward_choice
from paceline.runtime import prepare as preparing
from paceline.runtime import products as product_choice
from paceline.runtime.pools import members as loaded_members
from paceline.runtime.products import PRODUCTS, TOKEN_COUNTS, KnownChoices, Timing

from ..conftest import random_llama
from .chained_models import PAD, POLICIES, Listener, Models, batch, letters


@pytest.fixture
def models() -> Models:
    return Models(31)


@pytest.fixture
def copied(monkeypatch):
    """All weights are multiplied by packed copies; how many there are of each shape."""
    packed = next(product for product in PRODUCTS if product.layout == "packed")
    timing = Timing({}, (packed,) * len(TOKEN_COUNTS))
    made, real = [], product_choice.stored
    monkeypatch.setattr(product_choice, "choices_of_this_machine", lambda: KnownChoices(None))
    monkeypatch.setattr(product_choice, "time_products", lambda weight, usable, room_bytes: timing)
    monkeypatch.setattr(product_choice, "_works", lambda product, dtype: True)
    monkeypatch.setattr(product_choice, "stored", lambda weight, layout: made.append(weight) or real(weight, layout))
    monkeypatch.setattr(forward_choice, "_race_s", lambda forward: 1.0)
    return made


@pytest.fixture
def readied(monkeypatch):
    """One entry for each model that is made ready."""
    made, real = [], loaded_members.choose_forward
    monkeypatch.setattr(loaded_members, "choose_forward", lambda *given, **how: made.append(1) or real(*given, **how))
    return made


def answer(models, how, inputs, **options):
    return models.target.generate(
        **inputs, **({"max_new_tokens": 14, "pad_token_id": PAD} | options), custom_generate=how
    )


def same(models, fast, inputs, *, ours=None, **options):
    """The answer of `generate()`, which prepared models have to give too; `ours` goes to these alone."""
    stock = answer(models, None, inputs, **options)
    assert torch.equal(stock, answer(models, fast, inputs, **options, **(ours or {})))
    return stock


def test_weights_are_copied_once_for_all_that_share_them(models, copied):
    fast = paceline.prepare(models.target, skip_layers=[1])
    num_weights = 7 * len(models.target.model.layers) + 1  # of q, k, v, o, gate, up and down, and the head
    assert len(copied) == num_weights
    same(models, fast, batch(), ours={"policy": "slim:3/target"})
    assert len(copied) == num_weights


@pytest.mark.parametrize("copy_weights", [True, False])
def test_many_calls_read_as_generates(models, copy_weights):
    fast = paceline.prepare(models.target, models.assistants, copy_weights=copy_weights)
    for seed, policy in enumerate(POLICIES):
        same(models, fast, batch(seed=seed), ours={"policy": policy})


def test_calls_of_other_ends_and_with_prompt_lookup(models):
    fast = paceline.prepare(models.target, models.assistants)
    inputs = batch((6, 2, 9))
    free = same(models, fast, inputs, eos_token_id=None)[:, 9:]
    for eos in (int(free[0, 3]), [int(free[1, 5]), int(free[2, 2])], None):
        for ours in ({"policy": "assistant0:3/target"}, {"policy": "ngram:4/target", "prompt_lookup_num_tokens": 4}):
            same(models, fast, inputs, eos_token_id=eos, ours=ours)


def test_models_are_made_ready_once_also_after_a_call_that_is_refused(models, readied):
    fast = paceline.prepare(models.target, models.assistants)
    assert len(readied) == 3
    most = models.target.config.max_position_embeddings
    with pytest.raises(ValueError, match=f"must fit into the {most} positions of"):
        answer(models, fast, batch((9,)), max_new_tokens=most)
    for seed in range(3):
        same(models, fast, batch(seed=seed), eos_token_id=seed, ours={"prompt_lookup_num_tokens": 2})
    assert len(readied) == 3


def test_a_longer_text_than_before_is_answered(models, monkeypatch):
    monkeypatch.setattr(preparing, "_FIRST_CONTEXT", 8)
    fast = paceline.prepare(models.target, models.assistants)
    for length in (4, 30, 9, 50):
        same(models, fast, batch((length,)))


def copy_in_place(model):
    with torch.no_grad():
        for own, new in zip(model.parameters(), random_llama(77).parameters(), strict=True):
            own.copy_(new)


def copy_past_torch(model):
    for own, new in zip(model.parameters(), random_llama(77).parameters(), strict=True):
        own.data.copy_(new.data)


def replace_data(model):
    for own, new in zip(model.parameters(), random_llama(77).parameters(), strict=True):
        own.data = new.data.clone()


def train(model):
    optimizer = torch.optim.AdamW(model.requires_grad_().parameters(), lr=0.05, fused=True)
    ids = batch((12,))["input_ids"]
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()


def hook(model):
    model.model.layers[0].register_forward_hook(lambda module, given, said: said + 1.0)


def scale_rotation(model):
    model.model.rotary_emb.inv_freq.mul_(3.0)


def other_norm(model):
    model.model.layers[0].input_layernorm.variance_epsilon = 0.5


def write_rows(model):
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3:9] *= -20


def other_scale(model):
    model.model.layers[0].self_attn.scaling = 0.9


def other_activation(model):
    model.model.layers[0].mlp.act_fn = torch.nn.ReLU()


def fewer_layers(model):
    model.config.num_hidden_layers = 1


SEEN = (copy_in_place, copy_past_torch, replace_data, train, hook, scale_rotation, other_norm, write_rows)
REFUSED = (other_scale, other_activation, fewer_layers)  # which the fused forward has no part for


@pytest.mark.parametrize("change", SEEN + REFUSED)
@pytest.mark.one_in(5)
def test_after_a_change_a_call_is_equal_or_refused(models, copied, change):
    fast = paceline.prepare(models.target, [] if change in REFUSED else models.assistants)
    before = same(models, fast, batch(), eos_token_id=None)
    change(models.target)
    assert not torch.equal(before, answer(models, None, batch(), eos_token_id=None))
    if change in REFUSED:
        with pytest.raises(ValueError, match=r"logits must be within|whose config names its \d layers, got 1"):
            answer(models, fast, batch(), eos_token_id=None)
    else:
        same(models, fast, batch(), eos_token_id=None)


def test_streams_stop_strings_and_masks(models):
    tokenizer, seen, inputs = letters(), Listener(), batch((5,))
    fast = paceline.prepare(models.target, models.assistants, target_tokenizer=tokenizer)
    free = answer(models, None, inputs)
    stop = tokenizer.decode(free[0, 9:11])
    stock = answer(models, None, inputs, stop_strings=stop, tokenizer=tokenizer)
    ours = answer(models, fast, inputs, stop_strings=stop, streamer=seen, kv_cache="mask")
    assert torch.equal(stock, ours)
    assert torch.tensor(seen.heard[0]).flatten().tolist() == inputs["input_ids"][0].tolist()
    assert [token for each in seen.heard[1:-1] for token in each] == ours[0, 5:].tolist()
    assert seen.heard[-1] == "end"


def test_assistants_by_name_and_submodels(models):
    large, small = models.assistants
    logs = []
    fast = paceline.prepare(models.target, {"large": large, "small": small}, skip_layers=[1])
    for policy in ("small:2/target", "small:2/large:4/target", "slim:3/target"):
        same(models, fast, batch((7,)), ours={"policy": policy, "on_log": logs.append})
    assert {"small", "large", "slim", "target"} == set(logs[0].meta["members"])


def test_sampling_is_that_of_generate_with_the_seed(models):
    drawn = []
    for how, given in (
        (paceline.prepare(models.target, models.assistants), {}),
        (paceline.generate, {"assistant_models": models.assistants}),
    ):
        torch.manual_seed(5)
        drawn.append(answer(models, how, batch(), do_sample=True, sampling="coupled", **given))
    assert torch.equal(*drawn)
