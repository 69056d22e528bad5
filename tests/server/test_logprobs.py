"""Log-probabilities of answers are those of the target's own forward over the same text, whoever drafted it."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.server.logprobs import LOWEST, TokenTexts, token_logprobs

from ..runtime.tokenizers.trained_tokenizers import FAMILIES, texts
from .conftest import serving
from .test_server import SAMPLED, streamed_texts

ROUNDING = 2e-4  # of float32 logits, between a forward of one row and one of a batch
ASKED = [
    {"logprobs": 3},
    {"logprobs": 0, "policy": "plain"},
    {**SAMPLED, "logprobs": 20, "n": 2},
    {"temperature": 1, "seed": 0, "top_k": 5, "logprobs": 2, "stop": [" the", "."]},
    {"logprobs": 1, "stop": "e", "n": 2},
    {"logprobs": 2, "max_tokens": 1},
    {"logprobs": None},
]


@pytest.fixture(scope="module")
def served(models):
    """A server that is short of memory, so that requests are read anew, and what became of its requests."""
    ended = {}
    with serving(models, kv_blocks=14, token_budget=16, max_batch=4) as client:
        client.service.engine.on_ended.append(lambda job, _: ended.setdefault(job.request_id, job))
        yield client, ended


@torch.inference_mode()
def expected_log_probs(models, prompt, tokens):
    """`[tokens, V]` of one forward of the target's own modules over the whole text."""
    logits = models.target.model(torch.tensor([[*prompt, *tokens]])).logits[0]
    return logits[len(prompt) - 1 : -1].log_softmax(dim=-1)


def jobs_of(ended, body, count):
    names = [body["id"]] if count is None else [f"{body['id']}/{choice}" for choice in range(count)]
    return [ended[name] for name in names]


def test_they_are_those_of_an_independent_forward_whatever_runs_beside(models, served, prompts):
    client, ended = served
    asked = [(text, fields) for text in prompts[:2] for fields in ASKED]
    with ThreadPoolExecutor(12) as pool:
        answers = [pool.submit(client.complete, text, **{"max_tokens": 12, **fields}) for text, fields in asked]
        bodies = [one.result().body for one in answers]
    worst = 0.0
    for (_, fields), body in zip(asked, bodies, strict=True):
        for job, choice in zip(jobs_of(ended, body, fields.get("n")), body["choices"], strict=True):
            told = choice["logprobs"]
            if fields["logprobs"] is None:
                assert told is None
                continue
            expected = expected_log_probs(models, job.prompt, job.tokens)
            own = expected[range(len(job.tokens)), job.tokens]
            assert len(told["token_logprobs"]) == len(job.tokens)
            worst = max(worst, float((torch.tensor(told["token_logprobs"]) - own).abs().max()))
            best = expected.topk(max(1, fields["logprobs"])).values.tolist()
            for values, token, top in zip(best, told["tokens"], told["top_logprobs"], strict=True):
                found = sorted(top.values(), reverse=True)[: fields["logprobs"]]
                assert found == pytest.approx(values[: len(found)], abs=ROUNDING)
                assert token in top
                assert len(top) <= fields["logprobs"] + 1
            text = "".join(told["tokens"])
            assert text.startswith(choice["text"])
            places = zip(told["text_offset"], told["tokens"], strict=True)
            assert all(text[start:].startswith(part) for start, part in places)
    assert 0 < worst < ROUNDING


def test_a_stream_tells_each_token_once_and_as_the_whole_answer_does(served, prompts):
    client, _ = served
    for fields in (ASKED[2], ASKED[3]):
        whole = client.complete(prompts[0], max_tokens=8, **fields).body["choices"]
        stream = client.complete(prompts[0], max_tokens=8, stream=True, **fields)
        assert streamed_texts(stream, len(whole)) == [(one["text"], one["finish_reason"]) for one in whole]
        for choice in whole:
            parts = [one for event in stream.events for one in event["choices"] if one["index"] == choice["index"]]
            for name, values in choice["logprobs"].items():
                found = [value for part in parts for value in part["logprobs"][name]]
                if name in ("tokens", "text_offset"):
                    assert found == values
                assert len(found) == len(values)
            found = [value for part in parts for value in part["logprobs"]["token_logprobs"]]
            assert found == pytest.approx(choice["logprobs"]["token_logprobs"], abs=ROUNDING)


LOSSY = """
from paceline.decoding.steps import Commit, Draft, Verify

class Hasty:
    def __init__(self, pool):
        self.pool = pool

    def decide(self, seen):
        if not seen.pending:
            return Draft("draft", 2)
        return Commit(2) if len(seen.pending) > 1 else Verify(self.pool.target)

    def learn(self, outcome):
        pass
"""


def test_where_the_target_does_not_judge_every_token_they_are_refused_by_name(models, tmp_path):
    file = tmp_path / "hasty.py"
    file.write_text(LOSSY)
    policies = ["plain", "via-sd", f"{file}:Hasty"]
    with serving(models, policies=policies) as client:
        for policy in policies[1:]:
            refused = client.complete("Once", logprobs=1, policy=policy)
            assert (refused.status, refused.error["code"]) == (400, "logprobs_not_exact")
            assert policy in refused.error["message"]
            assert client.complete("Once", policy=policy).status == 200
        assert client.complete("Once", logprobs=1).status == 200


@cache
def token_texts(family):
    return TokenTexts(FAMILIES[family]())


@pytest.mark.parametrize("family", ["byte-level", "unigram", "stripping"])
@given(text=texts(min_size=1, max_size=8))
def test_bytes_of_tokens_joined_are_those_of_the_text(family, text):
    tokenizer = FAMILIES[family]()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    if tokenizer.decode(ids) != text or not ids:  # what this tokenizer cannot spell
        return
    found = [token_texts(family).bytes_of(token) for token in ids]
    assert b"".join(found).lstrip(b" ") == text.encode().lstrip(b" ")


@given(st.lists(st.floats(-50, 0), min_size=4, max_size=4), st.integers(0, 4))
def test_a_token_that_cannot_be_has_the_number_that_openai_writes(values, num_top):
    log_probs = torch.tensor([[*values, -torch.inf]])
    (told,) = token_logprobs(log_probs, [4], num_top)
    assert told.logprob == LOWEST
    assert [value for _, value in told.top] == sorted(log_probs[0, :4].tolist(), reverse=True)[:num_top]
