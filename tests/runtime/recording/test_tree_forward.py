import numpy as np
import pytest
import torch
from paceline.runtime.recording.branches import TreeForward, causal_mask, tree_mask


@torch.inference_mode()
def without_cache(model, context):
    tokens = torch.tensor([context])
    return model(input_ids=tokens, position_ids=torch.arange(len(context))[None], use_cache=False).logits[0, -1]


def same(found, expected):
    return (found - expected).abs().max() < 1e-4 and found.argmax() == expected.argmax()


@pytest.fixture(params=["draft", "mid", "slim", "target"])
def model(request, tiny_pool):
    return tiny_pool.member(request.param).model


def test_a_random_tree_equals_forwards_without_cache(model):
    """Trunk of 9, prompt of 5; three levels of children at random anchors, evaluated 7 at a time."""
    rng = np.random.default_rng(0)
    text = rng.integers(0, 31, size=14)
    forward = TreeForward(model, capacity=4)
    logits = forward.append(text, range(14), causal_mask(0, 14), num_logits=10)
    for place, found in enumerate(logits):
        assert same(found, without_cache(model, text[: 5 + place].tolist()))
    last_slot = rng.integers(4, 14, size=12).astype(np.int32)
    contexts = [text[: slot + 1].tolist() for slot in last_slot]
    path = np.zeros((12, 0), dtype=np.int32)
    for _ in range(3):
        tokens = rng.integers(0, 31, size=len(contexts))
        contexts = [[*context, int(token)] for context, token in zip(contexts, tokens, strict=True)]
        positions, own = [len(context) - 1 for context in contexts], []
        for start in range(0, len(contexts), 7):
            part = slice(start, start + 7)
            own.extend(range(forward.num_slots, forward.num_slots + len(contexts[part])))
            mask = tree_mask(last_slot[part], path[part], forward.num_slots)
            found = forward.append(tokens[part], positions[part], mask)
            assert all(
                same(row, without_cache(model, context)) for row, context in zip(found, contexts[part], strict=True)
            )
        parents = rng.integers(0, len(contexts), size=15)
        path = np.column_stack([path, own]).astype(np.int32)[parents]
        last_slot, contexts = last_slot[parents], [contexts[parent] for parent in parents]


def test_cut_slots_leave_no_trace(model):
    text = np.random.default_rng(1).integers(0, 31, size=12)
    forward = TreeForward(model)
    forward.append(text[:8], range(8), causal_mask(0, 8))
    forward.append(np.array([1, 2, 3]), [8, 9, 10], causal_mask(8, 3))
    forward.cut(8)
    assert forward.num_slots == 8
    found = forward.append(text[8:], range(8, 12), causal_mask(8, 4))
    assert same(found[-1], without_cache(model, text.tolist()))


def test_masks():
    assert causal_mask(2, 2).tolist() == [[True, True, True, False], [True, True, True, True]]
    mask = tree_mask(np.array([0, 1], dtype=np.int32), np.array([[2], [3]], dtype=np.int32), 4)
    assert mask.tolist() == [[True, False, True, False, True, False], [True, True, False, True, False, True]]


def test_a_cache_cuts_only_what_it_holds(model):
    forward = TreeForward(model, capacity=2)
    forward.append([1, 2, 3], range(3), causal_mask(0, 3))
    with pytest.raises(ValueError, match="num_tokens must be <= 3"):
        forward.cut(4)
    assert forward.num_slots == 3


def test_attention_that_would_be_silently_wrong_is_refused(tiny_pool, monkeypatch):
    model = tiny_pool.member("mid").model
    monkeypatch.setattr(model.config, "_attn_implementation_internal", "eager")
    with pytest.raises(ValueError, match="attention must be 'sdpa', got 'eager'"):
        TreeForward(model)
    monkeypatch.undo()
    monkeypatch.setattr(model.config, "layer_types", ["full_attention", "sliding_attention"], raising=False)
    with pytest.raises(ValueError, match="full_attention or sliding_attention with a sliding_window, got"):
        TreeForward(model)
