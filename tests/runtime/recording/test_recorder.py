"""A recording is what plain models say, written whole, gone on from where it was killed, or refused by name."""

import re

import numpy as np
import pytest
import torch
from paceline.runtime.prompts import Prompt
from paceline.runtime.recording.finished import Parts, TrieOptions
from paceline.runtime.recording.recorder import SecondsKept, record
from paceline.runtime.recording.request_trie import RequestRecorder
from paceline.runtime.sampling import gumbel
from paceline.traces.contexts.store import read_trace
from paceline.traces.meta import Closure, CostTable, Sampling

from ...traces.making import assert_equal, content
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


def test_small_forwards_change_no_context(tiny_pool):
    models = [member.model for member in tiny_pool.members if member.model]
    prompt = tiny_pool.encode(PROMPTS[1].text)
    wholes = []
    for max_rows in (512, 1, 7):
        options = TrieOptions(sampling=GREEDY, closure=MONOTONE, max_new_tokens=12, eos_token_ids=(), max_rows=max_rows)
        trie = RequestRecorder(models, prompt, options, None).record()
        rows = zip(contexts_of(trie), trie.next_token.T.tolist(), trie.entropy.T.round(3).tolist(), strict=True)
        wholes.append({context: (tokens, entropy) for context, tokens, entropy in rows})
    for whole in wholes[1:]:
        assert whole.keys() == wholes[0].keys()
        for context, (tokens, entropy) in whole.items():
            assert tokens == wholes[0][context][0]
            assert np.allclose(entropy, wholes[0][context][1], atol=2e-3)


def test_what_is_written_is_what_is_returned(tiny_pool, tmp_path):
    costs = {"cpu": {"target": CostTable(new_tokens=(1, 2), seconds=(0.1, 0.2))}}
    trace = recording(tiny_pool, tmp_path / "a.trace", seconds=lambda: SecondsKept(costs), name="tiny")
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


def killed_recording(pool, out, *, forwards):
    """A recording stopped in the middle of the target's n-th forward; returns the folder of what it finished."""
    left = [forwards]

    def count(*_):
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    handle = pool.target.model.register_forward_pre_hook(count)
    try:
        with pytest.raises(Killed):
            recording(pool, out)
    finally:
        handle.remove()
    return out.with_name(f"{out.name}.part")


@pytest.mark.parametrize(("forwards", "finished"), [(0, 0), (3, 0), (25, 1), (50, 2)])
def test_a_killed_recording_goes_on_to_the_same_bytes(tiny_pool, tmp_path, forwards, finished):
    recording(tiny_pool, tmp_path / "whole" / "a.trace")
    out = tmp_path / "cut" / "a.trace"
    part = killed_recording(tiny_pool, out, forwards=forwards)
    assert not out.exists()
    assert len(list(part.glob("*.npz"))) == finished
    assert part.exists() == bool(finished)  # with nothing to go on from, nothing is left
    part.mkdir(exist_ok=True)
    (part / "000002.tmp").write_bytes(b"half a file")
    recording(tiny_pool, out)
    assert content(out) == content(tmp_path / "whole" / "a.trace")
    assert not part.exists()


def test_finished_requests_are_not_recorded_again(tiny_pool, tmp_path):
    part = killed_recording(tiny_pool, tmp_path / "a.trace", forwards=50)
    before = {path.name: path.stat().st_mtime_ns for path in part.glob("*.npz")}
    killed_recording(tiny_pool, tmp_path / "a.trace", forwards=1)
    assert {path.name: path.stat().st_mtime_ns for path in part.glob("*.npz")} == before


@pytest.mark.parametrize(
    "changed",
    [
        {"max_new_tokens": 15},
        {"sampling": COUPLED},
        {"closure": MONOTONE.model_copy(update={"run": 3})},
        {"prompts": PROMPTS[::-1]},
        {"prompts": (*PROMPTS[:2], Prompt(request_id="letters", tag="long", text="abcabc"))},
    ],
)
def test_a_part_of_another_recording_is_refused(tiny_pool, tmp_path, changed):
    part = killed_recording(tiny_pool, tmp_path / "a.trace", forwards=25)
    before = content(part)
    with pytest.raises(ValueError, match=r"a\.trace\.part: fingerprint must be that of this pool") as caught:
        recording(tiny_pool, tmp_path / "a.trace", **changed)
    assert "\n" not in str(caught.value)
    assert content(part) == before


def test_other_weights_are_another_recording(tiny_pool, tmp_path):
    killed_recording(tiny_pool, tmp_path / "a.trace", forwards=25)
    weight = tiny_pool.member("mid").model.model.norm.weight
    weight.mul_(2.0)
    try:
        with pytest.raises(ValueError, match="fingerprint"):
            recording(tiny_pool, tmp_path / "a.trace")
    finally:
        weight.div_(2.0)


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
