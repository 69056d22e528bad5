"""Models prepared once answer many `generate()` calls as `generate()` does, and notice what changed since."""

import copy
import pickle

import paceline
import pytest
import torch
from paceline.runtime import forward_choice
from paceline.runtime import prepare as preparing
from paceline.runtime import products as product_choice
from paceline.runtime.pools import members as loaded_members
from paceline.runtime.products import PRODUCTS, TOKEN_COUNTS, KnownChoices, Timing
from transformers.generation.streamers import BaseStreamer

from ..conftest import random_llama
from .chained_models import PAD, POLICIES, Models, batch, letters


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
    monkeypatch.setattr(product_choice, "time_products", lambda weight, usable: timing)
    monkeypatch.setattr(product_choice, "_works", lambda product, dtype: True)
    monkeypatch.setattr(product_choice, "stored", lambda weight, layout: made.append(weight) or real(weight, layout))
    monkeypatch.setattr(forward_choice, "_race_s", lambda forward: 1.0)
    return made


def answers(models, fast, inputs, **options):
    """What `generate()` makes of a call, and what prepared models make of it; `ours` goes to these alone."""
    ours = options.pop("ours", {})
    options = {"max_new_tokens": 20, "pad_token_id": PAD} | options
    stock = models.target.generate(**inputs, **options)
    return stock, models.target.generate(**inputs, **options, **ours, custom_generate=fast)


def test_weights_are_copied_once_for_all_that_share_them(models, copied):
    fast = paceline.prepare(models.target, skip_layers=[1])
    layers = len(models.target.model.layers)
    assert len(copied) == 7 * layers + 1  # of q, k, v, o, gate, up and down, and the head
    stock, ours = answers(models, fast, batch(), ours={"policy": "slim:3/target"})
    assert torch.equal(stock, ours)
    assert len(copied) == 7 * layers + 1


@pytest.mark.parametrize("copy_weights", [True, False])
def test_many_calls_read_as_generates(models, copy_weights):
    fast = paceline.prepare(models.target, models.assistants, copy_weights=copy_weights)
    for seed, policy in enumerate(POLICIES):
        stock, ours = answers(models, fast, batch(seed=seed), ours={"policy": policy})
        assert torch.equal(stock, ours), policy


def test_calls_of_other_ends_and_with_prompt_lookup(models):
    fast = paceline.prepare(models.target, models.assistants)
    inputs = batch((6, 2, 9))
    free = answers(models, fast, inputs, eos_token_id=None)[0][:, 9:]
    for eos in (int(free[0, 3]), [int(free[1, 5]), int(free[2, 2])], None):
        for policy, lookup in (("assistant0:3/target", {}), ("ngram:4/target", {"prompt_lookup_num_tokens": 4})):
            ours = {"policy": policy} | lookup
            stock, found = answers(models, fast, inputs, eos_token_id=eos, ours=ours)
            assert torch.equal(stock, found), (eos, policy)


def test_models_are_made_ready_once(models, monkeypatch):
    made = []
    real = loaded_members.choose_forward
    monkeypatch.setattr(loaded_members, "choose_forward", lambda *given, **how: made.append(1) or real(*given, **how))
    fast = paceline.prepare(models.target, models.assistants)
    assert len(made) == 3
    for seed in range(3):
        answers(models, fast, batch(seed=seed), eos_token_id=seed, ours={"prompt_lookup_num_tokens": 2})
    assert len(made) == 3


def test_a_longer_text_than_before_is_answered(models, monkeypatch):
    monkeypatch.setattr(preparing, "_FIRST_CONTEXT", 8)
    fast = paceline.prepare(models.target, models.assistants)
    for length in (4, 30, 9, 50):
        stock, ours = answers(models, fast, batch((length,)))
        assert torch.equal(stock, ours)


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
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
    ids = batch((12,))["input_ids"]
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()


@pytest.mark.parametrize("change", [copy_in_place, copy_past_torch, replace_data, train])
def test_changed_weights_are_seen(models, copied, change):
    fast = paceline.prepare(models.target, models.assistants)
    before = answers(models, fast, batch(), eos_token_id=None)[1]
    models.target.requires_grad_()
    change(models.target)
    stock, ours = answers(models, fast, batch(), eos_token_id=None)
    assert torch.equal(stock, ours)
    assert not torch.equal(before, ours)


def test_a_hook_that_changes_what_a_model_says_is_seen(models, copied):
    fast = paceline.prepare(models.target)
    before = answers(models, fast, batch())[1]
    models.target.model.layers[0].register_forward_hook(lambda module, given, said: said + 1.0)
    stock, ours = answers(models, fast, batch())
    assert torch.equal(stock, ours)
    assert not torch.equal(before, ours)


def scale_rotation(model):
    model.model.rotary_emb.inv_freq.mul_(3.0)


def other_norm(model):
    model.model.layers[0].input_layernorm.variance_epsilon = 0.5


def other_scale(model):
    model.model.layers[0].self_attn.scaling = 0.9


def other_activation(model):
    model.model.layers[0].mlp.act_fn = torch.nn.ReLU()


def fewer_layers(model):
    model.config.num_hidden_layers = 1


def write_rows(model):
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3:9] *= -20


@pytest.mark.parametrize(
    "change", [scale_rotation, other_norm, other_scale, other_activation, fewer_layers, write_rows]
)
def test_after_other_changes_a_call_is_equal_or_refused(models, copied, change):
    fast = paceline.prepare(models.target)
    call = {**batch(), "max_new_tokens": 20, "pad_token_id": PAD, "eos_token_id": None}
    before = models.target.generate(**call, custom_generate=fast)
    change(models.target)
    stock = models.target.generate(**call)
    assert not torch.equal(before, stock)
    if change in (other_scale, other_activation, fewer_layers):  # which the fused forward has no part for
        with pytest.raises(ValueError, match=r"logits must be within|whose config names its \d layers, got 1"):
            models.target.generate(**call, custom_generate=fast)
    else:
        assert torch.equal(stock, models.target.generate(**call, custom_generate=fast))


def test_a_call_that_is_refused_costs_the_next_nothing(models, monkeypatch):
    made, real = [], loaded_members.choose_forward
    monkeypatch.setattr(loaded_members, "choose_forward", lambda *given, **how: made.append(1) or real(*given, **how))
    fast = paceline.prepare(models.target, models.assistants)
    most = models.target.config.max_position_embeddings
    with pytest.raises(ValueError, match=f"must fit into the {most} positions of"):
        models.target.generate(**batch((9,)), max_new_tokens=most, pad_token_id=PAD, custom_generate=fast)
    answers(models, fast, batch())
    assert len(made) == 3


@pytest.mark.parametrize("copying", [copy.copy, copy.deepcopy, pickle.dumps])
def test_prepared_models_are_not_copied(models, copying):
    fast = paceline.prepare(models.target)
    assert repr(fast) == "models prepared for generate(): target"
    with pytest.raises(TypeError, match="prepared models cannot be copied or pickled"):
        copying(fast)


@pytest.mark.parametrize("prepared", [True, False])
def test_autocast_is_refused(models, prepared):
    fast = paceline.prepare(models.target) if prepared else paceline.generate
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match=r"torch\.autocast must be off"):
        models.target.generate(**batch(), max_new_tokens=2, pad_token_id=PAD, custom_generate=fast)


def test_a_model_that_was_set_to_training_is_refused(models):
    fast = paceline.prepare(models.target)
    models.target.train()
    with pytest.raises(ValueError, match="target must be in evaluation mode"):
        models.target.generate(**batch(), max_new_tokens=2, pad_token_id=PAD, custom_generate=fast)


def test_streams_stop_strings_and_masks(models):
    class Seen(BaseStreamer):
        def __init__(self):
            self.tokens = []

        def put(self, value):
            self.tokens += value.reshape(-1).tolist()

        def end(self):
            self.tokens.append("end")

    tokenizer, seen = letters(), Seen()
    fast = paceline.prepare(models.target, models.assistants, target_tokenizer=tokenizer)
    inputs = batch((5,))
    given = {**inputs, "max_new_tokens": 20, "pad_token_id": PAD}
    free = models.target.generate(**given)
    stop = tokenizer.decode(free[0, 9:11])
    stock = models.target.generate(**given, stop_strings=stop, tokenizer=tokenizer)
    ours = models.target.generate(**given, stop_strings=stop, streamer=seen, kv_cache="mask", custom_generate=fast)
    assert torch.equal(stock, ours)
    assert seen.tokens == [*ours[0].tolist(), "end"]


def test_models_stay_as_they_are(models):
    every = [models.target, *models.assistants]
    tensors = [tensor for model in every for tensor in model.parameters()]
    before = [(tensor.data_ptr(), tensor.stride(), tensor.requires_grad, tensor.clone()) for tensor in tensors]
    answers(models, paceline.prepare(models.target, models.assistants), batch())
    for tensor, (address, stride, grad, values) in zip(tensors, before, strict=True):
        assert (tensor.data_ptr(), tensor.stride(), tensor.requires_grad) == (address, stride, grad)
        assert torch.equal(tensor, values)


def test_assistants_by_name_and_submodels(models):
    large, small = models.assistants
    logs = []
    fast = paceline.prepare(models.target, {"large": large, "small": small}, skip_layers=[1])
    for policy in ("small:2/target", "small:2/large:4/target", "slim:3/target"):
        stock, ours = answers(models, fast, batch((7,)), ours={"policy": policy, "on_log": logs.append})
        assert torch.equal(stock, ours)
    assert {"small", "large", "slim", "target"} == set(logs[0].meta["members"])


def test_sampling_is_that_of_generate_with_the_seed(models):
    fast = paceline.prepare(models.target, models.assistants)
    given = {"do_sample": True, "max_new_tokens": 12, "pad_token_id": PAD, "sampling": "coupled"}
    drawn = []
    for how in (
        {"custom_generate": fast},
        {"custom_generate": paceline.generate, "assistant_models": models.assistants},
    ):
        torch.manual_seed(5)
        drawn.append(models.target.generate(**batch(), **given, **how))
    assert torch.equal(*drawn)


def refusals():
    models = Models(32)
    inferred = Models(33)
    return {
        "custom_generate must be prepared for the model that generates, got LlamaForCausalLM": lambda: answers(
            models, paceline.prepare(inferred.target), batch()
        ),
        "model must be one of transformers, got int": lambda: paceline.prepare(3),
        "assistant_models must be a list of models, got LlamaForCausalLM": lambda: paceline.prepare(
            models.target, models.assistants[0]
        ),
        "assistant_models must be models of transformers, got str": lambda: paceline.prepare(models.target, ["draft"]),
        "assistant_names must be left out where assistants have names": lambda: paceline.prepare(
            models.target, {"draft": models.assistants[0]}, assistant_names=["a"]
        ),
        "pool member names must be unique, got a, a, target": lambda: paceline.prepare(
            models.target, models.assistants, assistant_names=["a", "a"]
        ),
        "copy_weights must be True or False, got 'no'": lambda: paceline.prepare(models.target, copy_weights="no"),
        "assistant_names must be letters, digits": lambda: paceline.prepare(
            models.target, {"a b": models.assistants[0]}
        ),
        "repetition_penalty must be left out": lambda: answers(
            models, paceline.prepare(models.target), batch(), repetition_penalty=2.0
        ),
    }


@pytest.mark.parametrize("message", list(refusals()))
def test_refusals(message):
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        refusals()[message]()
