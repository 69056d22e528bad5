"""Chats are answered as `paceline run --chat` answers, whole and streamed, also by OpenAI's own client."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import pytest
from paceline.base.files import pool_path
from paceline.runtime.pools.pool import ModelPool
from paceline.server.options import RequestLimits

from .conftest import CHAIN, serving
from .test_server import SAMPLED, run_texts

QUESTIONS = ("What is a gate?", "Name three birds of the sea. Be brief.")
ASKED = [
    {},
    {"policy": "plain"},
    {**SAMPLED, "n": 2},
    {"temperature": 1, "seed": 0, "top_k": 5, "stop": [" the", "."]},
    {"stop": "e"},
    {"max_tokens": 1},
]


def said(question, **fields):
    return {
        "model": fields.pop("model", "pico"),
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 24,
        "temperature": 0,
        **fields,
    }


def chat(client, question, **fields):
    return client.post("/v1/chat/completions", said(question, **fields))


def streamed(answer):
    """(text, how it ended) of each choice."""
    choices = [choice for event in answer.events for choice in event["choices"]]
    count = 1 + max(choice["index"] for choice in choices)
    mine = [[choice for choice in choices if choice["index"] == index] for index in range(count)]
    assert all(one[0]["delta"] == {"role": "assistant", "content": ""} for one in mine)
    return [("".join(part["delta"].get("content", "") for part in one), one[-1]["finish_reason"]) for one in mine]


@pytest.fixture(scope="module")
def talking(chat_pool):
    """The models with their chat template, and a server of them."""
    models = ModelPool.load(chat_pool, chat=True)
    with serving(models, limits=RequestLimits(max_queue=64)) as client:
        yield models, client


def test_answers_are_those_of_run_with_the_template_applied(talking):
    models, client = talking
    asked = [*zip(cycle(QUESTIONS), ASKED, strict=False)]
    with ThreadPoolExecutor(8) as pool:
        whole = [pool.submit(chat, client, text, **fields) for text, fields in asked]
        streams = [pool.submit(chat, client, text, stream=True, **fields) for text, fields in asked[::2]]
        found = [
            [(choice["message"]["content"], choice["finish_reason"]) for choice in one.result().body["choices"]]
            for one in whole
        ]
        parts = [streamed(one.result()) for one in streams]
    assert found == [run_texts(models, text, fields) for text, fields in asked]
    assert parts == found[::2]


def test_a_chat_is_its_template_as_a_prompt(talking):
    models, client = talking
    dialogue = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "a gate?"}]},
        {"role": "assistant", "content": "A door."},
        {"role": "user", "content": "And a bar?"},
    ]
    words = "system: Be brief.\nuser: What is a gate?\nassistant: A door.\nuser: And a bar?\nassistant:"
    answer = client.post("/v1/chat/completions", {**said(""), "messages": dialogue}).body
    prompt = client.complete(models.tokenizer.encode(words, add_special_tokens=False).ids).body
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": prompt["choices"][0]["text"]}
    assert answer["usage"] == prompt["usage"]


@pytest.mark.slow
def test_without_max_tokens_a_chat_goes_on_as_the_context_allows(talking):
    models, client = talking
    asked = {**said(QUESTIONS[0]), "ignore_eos": True}
    del asked["max_tokens"]
    usage = client.post("/v1/chat/completions", asked).body["usage"]
    assert usage["total_tokens"] == models.context_tokens
    limited = client.post("/v1/chat/completions", {**asked, "max_completion_tokens": 5}).body
    assert limited["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "tool", "content": "hi"}]}, "messages"),
        ({"messages": [{"role": "user", "content": None}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, "messages"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"max_completion_tokens": 3}, "max_completion_tokens"),
    ],
)
def test_a_chat_that_cannot_be_answered_is_refused_by_name(talking, fields, param):
    _, client = talking
    found = client.post("/v1/chat/completions", {**said("a"), **fields})
    assert (found.status, found.error["param"]) == (400, param)
    assert param in found.error["message"]


def test_log_probabilities_have_openais_shape(talking):
    _, client = talking
    asked = said("What is a gate?", logprobs=True, top_logprobs=4, max_tokens=6)
    whole = client.post("/v1/chat/completions", asked).body["choices"][0]
    stream = client.post("/v1/chat/completions", {**asked, "stream": True}).events
    alone = client.post("/v1/chat/completions", {**asked, "top_logprobs": 0}).body["choices"][0]
    content = whole["logprobs"]["content"]
    assert whole["logprobs"]["refusal"] is None
    assert b"".join(bytes(one["bytes"]) for one in content).decode() == whole["message"]["content"]
    for one in content:
        assert set(one) == {"token", "logprob", "bytes", "top_logprobs"}
        assert [set(near) for near in one["top_logprobs"]] == [{"token", "logprob", "bytes"}] * 4
        assert one["top_logprobs"][0] == {name: one[name] for name in ("token", "logprob", "bytes")}  # greedy
    parts = [event["choices"][0].get("logprobs") for event in stream]
    assert [one["token"] for part in parts if part for one in part["content"]] == [one["token"] for one in content]
    assert [one["top_logprobs"] for one in alone["logprobs"]["content"]] == [[]] * 6


@pytest.fixture
def official(talking):
    """OpenAI's own client."""
    openai = pytest.importorskip("openai", reason="the official client is not installed")
    _, client = talking
    with openai.OpenAI(base_url=f"http://127.0.0.1:{client.port}/v1", api_key="any", max_retries=0) as found:
        yield found


def test_the_official_client_chats(talking, official):
    _, client = talking
    asked = said(QUESTIONS[0], temperature=0.8, seed=7, n=2)
    whole = official.chat.completions.create(**asked)
    assert [one.message.content for one in whole.choices] == [
        choice["message"]["content"] for choice in client.post("/v1/chat/completions", asked).body["choices"]
    ]
    parts = list(official.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    for choice in whole.choices:
        mine = [part for chunk in parts for part in chunk.choices if part.index == choice.index]
        assert "".join(part.delta.content or "" for part in mine) == choice.message.content
        assert mine[-1].finish_reason == choice.finish_reason
    assert parts[-1].usage == whole.usage
    likely = official.chat.completions.create(**said(QUESTIONS[0]), logprobs=True, top_logprobs=2)
    content = likely.choices[0].logprobs.content
    assert b"".join(bytes(one.bytes) for one in content).decode() == likely.choices[0].message.content
    assert [one.top_logprobs[0].logprob for one in content] == [one.logprob for one in content]  # greedy


def test_the_official_client_may_leave_a_chat(talking, official):
    _, client = talking
    beside, text = [], said(QUESTIONS[1])
    thread = threading.Thread(target=lambda: beside.append(client.post("/v1/chat/completions", text).body))
    stream = official.chat.completions.create(**said(QUESTIONS[0], max_tokens=300, n=4), stream=True)
    thread.start()
    next(iter(stream))
    stream.close()
    thread.join()
    client.idle()
    assert beside[0]["choices"] == client.post("/v1/chat/completions", text).body["choices"]


def test_the_official_client_is_told_of_keys_and_limits(chat_pool):
    openai = pytest.importorskip("openai", reason="the official client is not installed")
    limits = RequestLimits(max_queue=0, max_tokens=100)
    models = ModelPool.load(chat_pool, chat=True)
    with serving(models, limits=limits, api_key="right", policies=["plain"], max_batch=1) as client:
        url = {"base_url": f"http://127.0.0.1:{client.port}/v1", "max_retries": 0}
        with openai.OpenAI(api_key="wrong", **url) as wrong, pytest.raises(openai.AuthenticationError):
            wrong.chat.completions.create(**said("a"))
        with openai.OpenAI(api_key="right", **url) as right:
            with pytest.raises(openai.BadRequestError, match="max_tokens must be at most 100 here, got 101"):
                right.chat.completions.create(**said("a", max_tokens=101))
            with right.chat.completions.create(**said("a", max_tokens=100), stream=True) as stream:
                next(iter(stream))
                with pytest.raises(openai.RateLimitError) as refused:
                    right.chat.completions.create(**said("a"))
                assert refused.value.response.headers["retry-after"] == "1"
                assert refused.value.code == "queue_full"
            client.idle()
            assert right.chat.completions.create(**said("a", max_tokens=1)).usage.completion_tokens == 1


@pytest.mark.slow
@pytest.mark.usefixtures("smollm2_weights")
def test_a_real_model_chats_as_run_does():
    models = ModelPool.load(pool_path("smollm2"), chat=True)
    with serving(models, policies=["draft:3/mid:6/target"]) as client:
        found = [
            chat(client, text, model="smollm2", **fields) for text in QUESTIONS for fields in ASKED[:1] + ASKED[2:4]
        ]
        texts = [[one["message"]["content"] for one in each.body["choices"]] for each in found]
    assert CHAIN == "draft:3/mid:6/target"
    expected = [run_texts(models, text, fields) for text in QUESTIONS for fields in ASKED[:1] + ASKED[2:4]]
    assert texts == [[text for text, _ in each] for each in expected]
