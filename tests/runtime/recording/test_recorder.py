"""A recording is what plain models say, written whole, gone on from where it was killed, or refused by name."""

import re

import numpy as np
import pytest
import torch
from paceline.base.terminal import Progress
from paceline.runtime.coupled_noise import gumbel
from paceline.runtime.forward import ModuleForward
from paceline.runtime.forward_choice import choose_forward
from paceline.runtime.prompts import Prompt
from paceline.runtime.recording import recorder as recorder_module
from paceline.runtime.recording.recorder import Parts, SecondsKept, group_size, record
from paceline.runtime.recording.request_trie import block_order
from paceline.runtime.recording.together import Ask, TreeForward, causal_mask, run_together, tree_mask
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.meta import Closure, CostTable, Sampling

from ...traces.making import assert_equal, content
from ..tiny_decoders import without_cache
from .closure_definition import Definition

GREEDY = Sampling(mode="greedy")
COUPLED = Sampling(mode="coupled", temperature=0.7, seed=3)
MONOTONE = Closure(kind="monotone", reach=5, run=2)
FULL = Closure(kind="full", reach=2, run=2)
PROMPTS = (
    Prompt(request_id="ends", tag="short", text="hello there, "),
    Prompt(request_id="fox", text="the quick brown fox"),
    Prompt(request_id="letters", tag="short", text="abcabc"),
)
MAX_NEW_TOKENS = 16


def recording(pool, out, *, prompts=PROMPTS, **changed):
    options = {"sampling": GREEDY, "closure": MONOTONE, "max_new_tokens": MAX_NEW_TOKENS} | changed
    return record(pool, prompts, out=out, **options)


def contexts_of(trie):
    contexts = [()]
    for parent, token in zip(trie.parent[1:], trie.token[1:], strict=True):
        contexts.append((*contexts[parent], int(token)))
    return contexts


class PlainModel:
    """A model without any cache: log-probabilities and the next token after a context, one forward each."""

    def __init__(self, model, prompt, sampling):
        self.model, self.prompt, self.sampling = model, prompt, sampling
        self.seen = {}

    @torch.inference_mode()
    def log_probs(self, context):
        if context not in self.seen:
            tokens = torch.tensor([[*self.prompt, *context]])
            positions = torch.arange(tokens.shape[1])[None]
            logits = self.model(input_ids=tokens, position_ids=positions, use_cache=False).logits[0, -1].double()
            self.seen[context] = torch.log_softmax(logits / (self.sampling.temperature or 1.0), dim=-1).numpy()
        return self.seen[context]

    def __call__(self, context):
        scores = self.log_probs(context)
        if self.sampling.mode == "coupled":
            scores = scores + gumbel(self.sampling.seed, "fox", len(context), len(scores))
        return int(scores.argmax())


@pytest.mark.parametrize(("sampling", "closure"), [(GREEDY, MONOTONE), (COUPLED, MONOTONE), (COUPLED, FULL)])
def test_a_trie_is_what_plain_models_say(tiny_pool, tmp_path, sampling, closure):
    """Every context of the definition, no other, and every number of it within the grid's rounding."""
    trace = recording(tiny_pool, tmp_path / "t.trace", prompts=PROMPTS[1:2], sampling=sampling, closure=closure)
    (request,) = trace.requests
    trie = request.trie
    plain = [PlainModel(member.model, request.prompt, sampling) for member in tiny_pool.members if member.model]
    wanted = Definition(plain, closure, MAX_NEW_TOKENS, tiny_pool.eos_token_ids[0])
    contexts = contexts_of(trie)
    assert len(set(contexts)) == len(contexts)
    assert set(contexts) == wanted.contexts()
    assert [contexts[node] for node in trie.trunk] == wanted.trunk()
    assert trie.num_nodes > 2 * len(trie.trunk)

    for row, model in enumerate(plain):
        log_probs = np.array([model.log_probs(context) for context in contexts])
        probs = np.sort(np.exp(log_probs), axis=1)
        next_token = np.array([model(context) for context in contexts])
        assert np.array_equal(trie.next_token[row], next_token)
        next_log_prob = log_probs[np.arange(len(contexts)), next_token]
        own_log_prob = log_probs[trie.parent[1:], trie.token[1:]]
        assert np.allclose(trie.next_log_prob[row], next_log_prob, rtol=0, atol=0.6 / 1024)
        assert np.allclose(trie.top_log_prob[row], log_probs.max(axis=1), rtol=0, atol=0.6 / 1024)
        assert np.allclose(trie.own_log_prob[row, 1:], own_log_prob, rtol=0, atol=0.6 / 1024)
        assert np.allclose(trie.gap[row], probs[:, -1] - probs[:, -2], rtol=0, atol=1 / 32768)
        assert np.allclose(trie.entropy[row], -(np.exp(log_probs) * log_probs).sum(axis=1), rtol=0, atol=0.6 / 4096)
        for other in range(row + 1, len(plain)):
            difference = np.exp(log_probs) - np.exp([plain[other].log_probs(context) for context in contexts])
            pair = trace.meta.pairs.index((row, other))
            assert np.allclose(trie.tvd[pair], np.abs(difference).sum(axis=1) / 2, rtol=0, atol=1 / 32768)
    assert (trie.own_log_prob[:, 0] == 0).all()


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED])
@pytest.mark.parametrize(
    ("changed", "wide"),
    [("recorder._TOGETHER", 1), ("recorder._MOST_ROWS", 1), ("request_trie._PART", 1), ("request_trie._PART", 99)],
)
@pytest.mark.one_in(3)
def test_who_is_asked_together_changes_no_context(tiny_pool, tmp_path, monkeypatch, sampling, changed, wide):
    """Tokens and the order of nodes are the same to the bit, numbers within a step or two of their grids."""
    usual = recording(tiny_pool, tmp_path / "usual.trace", sampling=sampling)
    monkeypatch.setattr(f"paceline.runtime.recording.{changed}", wide)
    other = recording(tiny_pool, tmp_path / "other.trace", sampling=sampling)
    for one, two in zip(usual.requests, other.requests, strict=True):
        for name in ("parent", "token", "depth", "on_trunk", "next_token"):
            assert np.array_equal(getattr(one.trie, name), getattr(two.trie, name))
        assert np.allclose(one.trie.own_log_prob, two.trie.own_log_prob, rtol=0, atol=2 / 1024)
        assert np.allclose(one.trie.entropy, two.trie.entropy, rtol=0, atol=2 / 4096)


def test_nodes_stand_depth_first_by_blocks():
    """Trunk 0, 1; below 0 the nodes 5 (token 3) and 2 (token 7), below 1 node 3; 4 is a child of 2, 6 of 3."""
    parent, token = np.array([-1, 0, 0, 1, 2, 0, 3], dtype=np.int32), np.array([-1, 5, 7, 4, 1, 3, 2], dtype=np.int32)
    assert block_order(parent, token, num_trunk=2, block=8).tolist() == [0, 1, 5, 2, 3, 4, 6]
    assert block_order(parent, token, num_trunk=2, block=1).tolist() == [0, 1, 3, 6, 2, 4, 5]


def test_a_group_is_as_large_as_its_rows_and_what_is_said_along_its_trunks_allow():
    assert group_size(1536, 64, 99) == group_size(49_152, 512, 8) == 8
    assert (group_size(152_064, 1024, 99), group_size(152_064, 512, 99), group_size(1536, 64, 5)) == (1, 3, 5)


def test_what_is_written_is_what_is_returned(tiny_pool, tmp_path):
    costs = {"cpu": {"target": CostTable(new_tokens=(1, 2), seconds=(0.1, 0.2))}}
    trace = recording(tiny_pool, tmp_path / "a.trace", seconds=lambda: lambda: SecondsKept(costs), name="tiny")
    stored = read_trace(tmp_path / "a.trace")
    assert_equal(stored, trace)
    assert [request.tag for request in stored.requests] == ["short", "untagged", "short"]
    meta = stored.meta
    assert (meta.name, meta.kind, meta.vocab_size) == ("tiny", "recorded", 32)
    assert meta.model_names == ("draft", "mid", "slim", "target")
    assert [model.submodel_of for model in meta.models] == [None, None, "target", None]
    assert (meta.ngram.name, meta.ngram.max_match, meta.costs) == ("ngram", 3, costs)
    assert {"torch", "transformers", "python", "paceline"} <= meta.software.keys()
    assert "thread" in meta.hardware
    assert not (tmp_path / "a.trace.part").exists()


def test_a_trunk_ends_after_the_end_of_sequence_token_and_near_ties_are_counted(tiny_pool, tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.runtime.recording.views.NEAR_TIE", 1e9)
    trace = recording(tiny_pool, tmp_path / "a.trace", prompts=PROMPTS[:1])
    trie = trace.requests[0].trie
    assert len(trie.trunk) - 1 < MAX_NEW_TOKENS
    assert trie.token[trie.trunk[-1]] == tiny_pool.eos_token_ids[0]
    ends = trie.token == tiny_pool.eos_token_ids[0]
    assert not np.isin(trie.parent, np.flatnonzero(ends)).any()
    assert trie.depth.max() <= MAX_NEW_TOKENS
    assert trace.meta.near_ties == 4 * (~ends & (trie.depth < MAX_NEW_TOKENS)).sum()


class Killed(BaseException):
    """As a signal would stop the process."""


def killed_recording(pool, out, *, forwards, together=1):
    """A recording stopped in the middle of a member's n-th forward; returns the folder of what it finished."""
    left, append = iter(range(forwards)), TreeForward.append

    def count(*given):
        if next(left, None) is None:
            raise Killed
        return append(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder_module, "_TOGETHER", together)
        patch.setattr(TreeForward, "append", count)
        with pytest.raises(Killed):
            recording(pool, out)
    return out.with_name(f"{out.name}.part")


@pytest.mark.parametrize(("forwards", "together", "finished"), [(0, 1, 0), (45, 1, 1), (20, 2, 0), (60, 2, 2)])
def test_a_killed_recording_goes_on_to_the_same_bytes(tiny_pool, tmp_path, monkeypatch, forwards, together, finished):
    monkeypatch.setattr(recorder_module, "_TOGETHER", together)
    recording(tiny_pool, tmp_path / "whole" / "a.trace")
    out = tmp_path / "cut" / "a.trace"
    part = killed_recording(tiny_pool, out, forwards=forwards, together=together)
    assert not out.exists()
    assert len(list(part.glob("*.npz"))) == finished
    assert part.exists() == bool(finished)  # with nothing to go on from, nothing is left
    part.mkdir(exist_ok=True)
    (part / "000002.tmp").write_bytes(b"half a file")
    recording(tiny_pool, out)
    assert content(out) == content(tmp_path / "whole" / "a.trace")
    assert not part.exists()


def test_finished_requests_are_not_recorded_again(tiny_pool, tmp_path):
    part = killed_recording(tiny_pool, tmp_path / "a.trace", forwards=100)
    before = {path.name: path.stat().st_mtime_ns for path in part.glob("*.npz")}
    assert len(before) == 2
    killed_recording(tiny_pool, tmp_path / "a.trace", forwards=1)
    assert {path.name: path.stat().st_mtime_ns for path in part.glob("*.npz")} == before


def test_a_group_of_which_one_is_missing_is_recorded_to_the_same_bytes(tiny_pool, tmp_path, monkeypatch):
    recording(tiny_pool, tmp_path / "whole" / "a.trace")
    out = tmp_path / "cut" / "a.trace"
    with monkeypatch.context() as patch:
        patch.setattr(Parts, "remove", lambda _: None)
        recording(tiny_pool, out)
    part = out.with_name("a.trace.part")
    (part / "000001.npz").unlink()
    for file in out.iterdir():
        file.unlink()
    out.rmdir()
    recording(tiny_pool, out)
    assert content(out) == content(tmp_path / "whole" / "a.trace")


@pytest.mark.parametrize(
    "changed",
    [
        {"max_new_tokens": 15},
        {"sampling": COUPLED},
        {"closure": MONOTONE.model_copy(update={"run": 3})},
        {"prompts": PROMPTS[::-1]},
        {"prompts": (*PROMPTS[:2], Prompt(request_id="letters", tag="long", text="abcabc"))},
        {"weights": 2.0},
    ],
)
def test_a_part_of_another_recording_is_refused(tiny_pool, tmp_path, changed):
    part = killed_recording(tiny_pool, tmp_path / "a.trace", forwards=45)
    before = content(part)
    weight = tiny_pool.member("mid").model.model.norm.weight
    scale = changed.get("weights", 1.0)
    weight.mul_(scale)
    try:
        with pytest.raises(ValueError, match=r"a\.trace\.part: fingerprint must be that of this pool") as caught:
            recording(tiny_pool, tmp_path / "a.trace", **{key: changed[key] for key in changed.keys() - {"weights"}})
    finally:
        weight.div_(scale)
    assert "\n" not in str(caught.value)
    assert content(part) == before


def test_a_damaged_part_is_named(tmp_path):
    parts = Parts(tmp_path / "t.part", "fingerprint")
    for data in (b"", b"PK", b"no archive at all"):
        (tmp_path / "t.part" / "000000.npz").write_bytes(data)
        with pytest.raises(ValueError, match=r"000000\.npz: cannot be read .*; remove it to record this request again"):
            parts.read(0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_new_tokens": 0}, "`max_new_tokens` must be >= 1, got 0"),
        ({"prompts": ()}, "`prompts` must hold at least one, got none"),
        ({"name": "a\nb"}, "the recording's name must be one line that is not empty, got 'a\\nb'"),
        ({"name": ""}, "the recording's name must be one line that is not empty, got ''"),
        ({"prompts": (PROMPTS[0], PROMPTS[0])}, "`prompts` must have unique ids, got 'ends' twice"),
        (
            {"prompts": (Prompt(request_id="a", text=""),)},
            "request a: prompt must give at least one token, and the pool's tokenizer makes none of ''",
        ),
        (
            {"prompts": (Prompt(request_id="a", text="a" * 81),)},
            "request a: prompt of 81 tokens and `max_new_tokens` 16 must fit into the pool's context of 96 tokens",
        ),
    ],
)
def test_what_cannot_be_recorded_is_refused_by_name(tiny_pool, tmp_path, changed, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        recording(tiny_pool, tmp_path / "a.trace", **changed)
    assert list(tmp_path.iterdir()) == []


def test_a_prompt_may_fill_the_context_and_nothing_is_replaced(tiny_pool, tmp_path):
    full = Prompt(request_id="a", text="ab" * 40)
    assert recording(tiny_pool, tmp_path / "a.trace", prompts=(full,)).requests[0].trie.num_nodes > 1
    with pytest.raises(FileExistsError, match=r"a\.trace: must not exist yet"):
        recording(tiny_pool, tmp_path / "a.trace")


def same(found, expected):
    return (found - expected).abs().max() < 1e-4 and found.argmax() == expected.argmax()


@pytest.fixture(params=["draft", "mid", "slim", "target"])
def model(request, tiny_pool):
    return tiny_pool.member(request.param).model


@pytest.fixture(params=["modules", "fused"])
def forward(request, model):
    return TreeForward(choose_forward(model, kind=request.param, share_weights=False, context_tokens=64))


def said(forward, tokens, positions, mask, num_logits=0, **more):
    """Logits after contexts of row 0."""
    return forward.append({0: Ask([0], tokens, positions, mask, num_logits, **more)})[0].logits


def test_random_trees_equal_forwards_without_cache(model, forward):
    """Trunk of 9, prompt of 5; three levels of children at random anchors, in each of three rows."""
    rng = np.random.default_rng(0)
    text = rng.integers(0, 31, size=14)
    logits = said(forward, text, range(14), causal_mask(0, 14), num_logits=10)
    for place, found in enumerate(logits):
        assert same(found, without_cache(model, text[: 5 + place].tolist())[-1])
    grown = {}
    for row, count in ((1, 7), (2, 5), (3, 2)):  # that begin as copies of row 0
        last_slot = rng.integers(4, 14, size=count).astype(np.int32)
        contexts = [text[: slot + 1].tolist() for slot in last_slot]
        grown[row] = contexts, last_slot, np.zeros((count, 0), dtype=np.int32)
    num_slots = dict.fromkeys(grown, 14)
    for _ in range(3):
        asks, after = {}, {}
        for row, (contexts, last_slot, path) in grown.items():
            tokens, first = rng.integers(0, 31, size=len(contexts)), num_slots[row]
            after[row] = [[*context, int(token)] for context, token in zip(contexts, tokens, strict=True)]
            positions = [len(context) for context in contexts]
            asks[row] = Ask([0], tokens, positions, tree_mask(last_slot, path, first), base=0)
        for row, answer in forward.append(asks).items():
            assert all(
                same(found, without_cache(model, context)[-1])
                for found, context in zip(answer.logits, after[row], strict=True)
            )
            _, last_slot, path = grown[row]
            own = num_slots[row] + np.arange(len(after[row]))
            num_slots[row] += len(after[row])
            parents = rng.integers(0, len(after[row]), size=len(after[row]))
            path = np.column_stack([path, own]).astype(np.int32)[parents]
            grown[row] = [after[row][parent] for parent in parents], last_slot[parents], path
        assert {row: forward.num_slots(row) for row in grown} == num_slots
    assert forward.num_slots(0) == 14


def test_cut_slots_leave_no_trace(model, forward):
    text = np.random.default_rng(1).integers(0, 31, size=12)
    said(forward, text[:8], range(8), causal_mask(0, 8))
    said(forward, np.array([1, 2, 3]), [8, 9, 10], causal_mask(8, 3))
    found = said(forward, text[8:], range(8, 12), causal_mask(8, 4))
    assert forward.num_slots(0) == 12
    assert same(found[-1], without_cache(model, text.tolist())[-1])
    with pytest.raises(ValueError, match="num_tokens must be <= 12"):
        said(forward, [1], [13], causal_mask(13, 1))
    forward.free(0)
    assert forward.num_slots(0) == 0


def test_requests_of_very_different_widths_do_not_wait_as_padding(model):
    """A model's own modules run them apart; a fused forward pads attention alone."""
    counts = {0: 40, 1: 2, 2: 38, 3: 2}
    asks = {row: Ask([0], [1] * count, range(count), causal_mask(0, count)) for row, count in counts.items()}
    for kind, together in (("modules", [[0, 2], [1, 3]]), ("fused", [[0, 2, 1, 3]])):
        forward = TreeForward(choose_forward(model, kind=kind, share_weights=False, context_tokens=64))
        assert forward._forwards_of(asks) == together


def test_generators_are_run_some_at_a_time_and_their_rows_are_free_again(tiny_pool):
    forward = TreeForward(choose_forward(tiny_pool.target.model, kind="fused", share_weights=False, context_tokens=64))
    most = []

    def asking(count):
        for place in range(count):
            (answer,) = yield Ask([0], [place], [place], causal_mask(place, 1))
            most.append(len(forward._cache.rows))
        return count, answer.logits.shape

    counts = [3, 1, 2, 4]
    found = run_together([forward], [asking(count) for count in counts], first_row=5, most=2)
    assert found == [(count, (1, 32)) for count in counts]
    assert (max(most), dict(forward._cache.rows)) == (2, {})


def test_masks():
    assert causal_mask(2, 2).tolist() == [[True, True, True, False], [True, True, True, True]]
    mask = tree_mask(np.array([0, 1], dtype=np.int32), np.array([[2], [3]], dtype=np.int32), 4)
    assert mask.tolist() == [[True, False, True, False, True, False], [True, True, False, True, False, True]]


def test_attention_that_would_be_silently_wrong_is_refused(tiny_pool, monkeypatch):
    model = tiny_pool.member("mid").model
    monkeypatch.setattr(model.config, "_attn_implementation_internal", "eager")
    with pytest.raises(ValueError, match="attention must be 'sdpa', got 'eager'"):
        ModuleForward(model)
    monkeypatch.undo()
    monkeypatch.setattr(model.config, "layer_types", ["full_attention", "sliding_attention"], raising=False)
    with pytest.raises(ValueError, match="full_attention or sliding_attention with a sliding_window, got"):
        ModuleForward(model)


@pytest.mark.parametrize("closure", [MONOTONE, FULL])
def test_the_time_left_of_a_full_closure_is_not_told(tiny_pool, tmp_path, monkeypatch, closure):
    """Shares of a group said that two seconds were left of twenty, and groups that some were left of ten minutes."""
    told, alike = [], []
    monkeypatch.setattr(Progress, "advance_to", lambda _, done, *__: told.append(done))
    monkeypatch.setattr(recorder_module, "Progress", lambda *a, **k: alike.append(k["alike"]) or Progress(*a, **k))
    monkeypatch.setattr(recorder_module, "group_size", lambda *_: 2)
    recording(tiny_pool, tmp_path / "a.trace", closure=closure)
    assert alike == [closure != FULL]
    if closure == FULL:
        assert told == [2, 3]
    else:
        assert any(0 < done < 1 for done in told)
