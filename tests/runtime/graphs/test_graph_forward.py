"""Padded forwards over buffers that stay where they are give the logits of the stock model."""

import pytest
import torch
from paceline.runtime.caches import SLOT_STEP, SlotCache
from paceline.runtime.forward_choice import choose_forward
from paceline.runtime.static_memory import MOST_ROW_TOKENS, Captured, bucket_of, power_of_two
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

from ..forward.test_forward import RELATIVE, worst_difference
from ..tiny_decoders import CONTEXT, FAMILIES, MODULES_ONLY, VOCABULARY, RaggedTexts, remembered, tiny_decoder
from .counting import Counting, Refusing


def graphs_of(model, capture=None):
    return choose_forward(
        model, kind="graphs", share_weights=False, context_tokens=CONTEXT, capture=capture or Counting()
    )


def other_decoder(name):
    torch.manual_seed(0)
    if name == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT))
    else:
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        model = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=VOCABULARY, attn_implementation="sdpa", **sizes))
    return model.eval().requires_grad_(requires_grad=False).double()


@pytest.mark.parametrize("dtype", RELATIVE)
@pytest.mark.parametrize("family", [*FAMILIES, *MODULES_ONLY])
def test_ragged_batches_give_the_stock_logits(family, dtype):
    model = tiny_decoder(family, dtype)
    forward = graphs_of(model)
    assert forward.name == "graphs"
    # The eager attention of Gemma 2 takes its softmax in float32, whatever the weights are.
    assert worst_difference(remembered(model), forward, forward.slot_cache()) < max(1e-6, RELATIVE[dtype])


@pytest.mark.parametrize("name", ["gpt2", "neox"])
def test_ragged_batches_of_other_decoders(name):
    model = other_decoder(name)
    forward = graphs_of(model)
    assert worst_difference(remembered(model), forward, forward.slot_cache()) < 1e-9


def test_every_shape_is_captured_once_and_rolling_back_captures_nothing():
    capture = Counting()
    forward = graphs_of(tiny_decoder(), capture)
    ragged = RaggedTexts(forward, forward.slot_cache())
    ragged.feed({"a": [1, 2, 3, 4], "b": [5, 6, 7]})
    captures, replays = capture.captures, capture.replays
    for _ in range(5):
        ragged.roll_back("a", 2)
        ragged.roll_back("b", 1)
        ragged.feed({"a": [8, 9, 10], "b": [11]})
    assert (capture.captures, capture.replays) == (captures, replays + 5)
    ragged.feed({"a": [8] * 9})  # the first one of so many tokens
    assert capture.captures == captures + 1


def test_buffers_stay_where_they_are():
    forward = graphs_of(tiny_decoder())
    ragged = RaggedTexts(forward, forward.slot_cache())
    ragged.feed({"a": [1, 2, 3], "b": [4]})
    (memory,) = forward.store._memories
    before = {key: captured.inputs.addresses for key, captured in memory.captured.items()}
    kept = memory.kv.data_ptr()
    for count in (1, 2, 3, 4, 3, 2):
        ragged.roll_back("a", 1)
        ragged.feed({"a": list(range(count)), "b": [3]})
    assert memory.kv.data_ptr() == kept
    assert {key: memory.captured[key].inputs.addresses for key in before} == before


def test_the_next_cache_takes_over_what_was_captured():
    capture = Counting()
    model = tiny_decoder()
    forward = graphs_of(model, capture)

    def decode():
        ragged = RaggedTexts(forward, forward.slot_cache())
        ragged.feed({"a": [1, 2, 3], "b": [4]})
        return torch.cat([ragged.feed({"a": [5]})["a"], ragged.feed({"b": [7, 2]})["b"]])

    first, captures = decode(), capture.captures
    assert torch.equal(decode(), first)
    assert capture.captures == captures


def test_two_caches_at_a_time_do_not_share_memory():
    model = tiny_decoder()
    stock, forward = remembered(model), graphs_of(model)
    one, other = (RaggedTexts(forward, forward.slot_cache()) for _ in range(2))
    for tokens in ([1, 2, 3], [4], [5, 6]):
        found = one.feed({"a": tokens})["a"]
        assert torch.allclose(found, stock(one.texts["a"])[-len(tokens) :])
        other.feed({"a": [9 - token for token in tokens]})


def test_growing_captures_anew_and_keeps_what_was_held():
    capture = Counting()
    model = tiny_decoder()
    stock, forward = remembered(model), graphs_of(model, capture)
    ragged = RaggedTexts(forward, forward.slot_cache())
    ragged.feed({"a": [1, 2, 3]})
    memory = forward.store._memories[0]
    kept = memory.kv.data_ptr()
    ragged.feed({name: [4, 5] for name in "bcdefg"})
    assert memory.kv.data_ptr() != kept
    assert torch.allclose(ragged.feed({"a": [6]})["a"], stock([1, 2, 3, 6])[-1:])
    assert all(isinstance(captured, Captured) for captured in memory.captured.values())


def test_memory_that_is_given_back_takes_what_was_captured_with_it():
    forward = graphs_of(tiny_decoder())
    cache = forward.slot_cache()
    RaggedTexts(forward, cache).feed({"a": [1, 2, 3]})
    (memory,) = forward.store._memories
    assert memory.captured
    cache.free("a")
    cache.truncate()
    assert (memory.kv, memory.captured, cache.held_bytes) == (None, {}, 0)
    assert RaggedTexts(forward, cache).feed({"a": [1, 2, 3]})["a"].isfinite().all()


def test_what_cannot_be_captured_is_called_and_said_once(capsys):
    model = tiny_decoder()
    forward = graphs_of(model, Refusing())
    assert worst_difference(remembered(model), forward, forward.slot_cache(), steps=6) < 1e-9
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(set(lines)) > 0
    assert all(line.startswith("paceline: forwards of Bucket(rows=") for line in lines)
    assert all("operation not permitted when stream is capturing; they are called one by one" in line for line in lines)


def test_captures_leave_half_of_the_free_memory(capsys):
    class Small(Counting):
        def free_bytes(self):
            return 2 * VOCABULARY * 4 * 4 * 4  # four logits of a token each

    forward = graphs_of(tiny_decoder(), Small())
    ragged = RaggedTexts(forward, forward.slot_cache())
    capsys.readouterr()
    ragged.feed({"a": [1] * 4})
    assert capsys.readouterr().err == ""
    ragged.feed({"a": [1] * 5})
    assert "are not captured: that takes 5,120 bytes, and the device has 5,120 free" in capsys.readouterr().err


def test_captures_take_a_small_part_of_a_limit(capsys):
    class Taking(Counting):
        def free_bytes(self):
            return 2**40

        def used_bytes(self):
            return self.captures * 1000

    capture = Taking()
    forward = graphs_of(tiny_decoder(), capture)
    limited = forward.slot_cache(limit_bytes=100_000)
    assert RaggedTexts(forward, limited).feed({"a": [1, 2]})["a"].isfinite().all()
    assert limited.held_bytes == limited.held_slots * forward.kv_shape.bytes_per_slot + 1000
    captures = capture.captures
    capsys.readouterr()
    assert RaggedTexts(forward, limited).feed({"b": [1] * 9})["b"].isfinite().all()
    # The memory moved for a second row, and what was captured is gone.
    assert "are not captured: that makes 20,480 bytes, and the KV limit is 100,000" in capsys.readouterr().err
    assert capture.captures == captures


def test_memory_that_was_made_in_inference_mode_serves_outside_it():
    forward = graphs_of(tiny_decoder())
    with torch.inference_mode():
        inside = forward.slot_cache()
        RaggedTexts(forward, inside).feed({name: [1, 2] for name in "abcd"})
        del inside
    cache = forward.slot_cache()
    RaggedTexts(forward, cache).feed({"a": [1, 2]})
    cache.free("a")
    assert cache.num_rows == 4


def test_prompts_and_caches_of_another_kind_run_as_the_forward_itself():
    capture = Counting()
    model = tiny_decoder()
    stock, forward = remembered(model), graphs_of(model, capture)
    captures, replays = capture.captures, capture.replays
    prompt = list(range(MOST_ROW_TOKENS + 1))
    for cache in (forward.slot_cache(), SlotCache(forward.kv_shape)):
        found = RaggedTexts(forward, cache).feed({"a": prompt})["a"]
        assert torch.allclose(found, stock(prompt))
    assert torch.allclose(RaggedTexts(forward, cache).feed({"b": [3, 4]})["b"], stock([3, 4]))
    assert (capture.captures, capture.replays) == (captures, replays)


def test_buckets_hold_what_they_are_for():
    cache = graphs_of(tiny_decoder()).slot_cache()
    for counts in ([1], [3], [5, 1], [2, 2, 2], [16]):
        names = [f"{len(counts)}{index}" for index in range(len(counts))]
        placement = cache.place(names, counts)
        bucket = bucket_of(placement, cache)
        assert bucket.tokens >= max(counts)
        assert bucket.slots >= placement.num_slots
        assert bucket.rows >= max(cache.rows[name] for name in names) + 1
        assert bucket.rows <= cache.num_rows
    assert [power_of_two(count) for count in (1, 2, 3, 4, 5, 8, 9)] == [1, 2, 4, 4, 8, 8, 16]


def test_graphs_need_a_gpu():
    with pytest.raises(ValueError, match="`forward` graphs needs models on a CUDA device, got one on cpu"):
        choose_forward(tiny_decoder(), kind="graphs", share_weights=False, context_tokens=CONTEXT)


def test_tokens_of_nobody_harm_nobody():
    """What is missing to a bucket is token 0; here its embedding is broken."""
    model = tiny_decoder()
    model.model.embed_tokens.weight[0] = torch.nan
    forward = graphs_of(model)
    ragged = RaggedTexts(forward, forward.slot_cache())
    ragged.feed({"a": [1, 2, 3], "b": [4, 5]})
    for _ in range(3):
        assert ragged.feed({"b": [6, 7, 8]})["b"].isfinite().all()
    assert ragged.feed({"a": [9] * 16})["a"].isfinite().all()
    assert ragged.feed({"a": [9] * 16})["a"].isfinite().all()
    ragged.feed({"a": [9] * 16})
    assert len(ragged.texts["a"]) == 51
    assert ragged.feed({"a": [9] * 10, "b": [3]})["a"].isfinite().all()


@pytest.mark.parametrize("limit_bytes", [None, 2**30])
def test_what_stands_in_slots_that_are_nobodys_is_read_by_nobody(limit_bytes):
    """Broken weights may leave NaN there; where a cache has grown, these slots are somebody's."""
    cache = graphs_of(tiny_decoder()).slot_cache(limit_bytes=limit_bytes)
    cache.place(["a", "b"], [2 * SLOT_STEP, 5])
    cache.roll_back("a", 3)
    cache.truncate()
    cache._kv[:, :, -SLOT_STEP:] = torch.nan
    cache.place(["a", "b"], [SLOT_STEP, 1])
    assert cache._kv[:, :, :-SLOT_STEP].isfinite().all()
