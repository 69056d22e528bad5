"""`paceline serve` over HTTP: answers are those of `paceline run`, and nothing that a client sends ends the server."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest
from paceline.base.errors import ArgumentError
from paceline.base.options import declared
from paceline.decoding.results import Failed
from paceline.decoding.steps import Draft
from paceline.observing.load_generator import acceptance_between, counters
from paceline.observing.server import Endpoint
from paceline.policies.fixed import Chain
from paceline.runtime.decode import decode
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.prompts import Prompt
from paceline.runtime.world import TorchWorld
from paceline.server.engine import End
from paceline.server.listening import bound_socket, server_config
from paceline.server.options import Address, EngineOptions, FollowOptions, ProxyOptions, RecordingOptions, RequestLimits
from paceline.server.start import ServedPool, make_service
from paceline.studies.setting import named_policy
from paceline.traces.meta import Sampling
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from ..unit_cost import UnitCost
from .conftest import CHAIN, held, serving, until

SAMPLED = {"temperature": 0.8, "seed": 7, "top_p": 0.9}
ASKED = [
    {},
    {"policy": "plain"},
    SAMPLED,
    {**SAMPLED, "n": 2, "policy": "plain"},
    {"temperature": 1, "seed": 0, "top_k": 5, "stop": [" the", "."]},
    {"stop": "e", "n": 2},
    {"max_tokens": 1},
]


def run_texts(models, text, fields):
    """What `paceline run` writes: choice i is the prompt called i."""
    temperature = float(fields.get("temperature", 0))
    shape = {name: fields[name] for name in ("seed", "top_p", "top_k") if name in fields}
    mode = Sampling(mode="coupled", temperature=temperature, **shape) if temperature else Sampling(mode="greedy")
    policy = named_policy(fields.get("policy", CHAIN)).build(loaded_pool(models))
    stop = fields.get("stop", ())
    outputs, _ = decode(
        models,
        policy,
        [Prompt(request_id=str(choice), text=text) for choice in range(fields.get("n", 1))],
        sampling=mode,
        max_new_tokens=fields.get("max_tokens", 24),
        name="policy",
        batch=2,
        prices=UnitCost(),
        stop=[stop] if isinstance(stop, str) else stop,
    )
    reasons = {"eos": "stop", "stop": "stop", "length": "length"}
    return [(output.text, reasons[output.finish_reason]) for output in outputs]


@pytest.fixture(scope="module")
def expected_texts(models):
    known = {}

    def found(text, fields):
        key = text, json.dumps(fields)
        if key not in known:
            known[key] = run_texts(models, text, fields)
        return known[key]

    return found


def streamed_texts(answer, count):
    choices = [choice for event in answer.events for choice in event["choices"]]
    return [
        (
            "".join(choice["text"] for choice in choices if choice["index"] == index),
            next(choice["finish_reason"] for choice in reversed(choices) if choice["index"] == index),
        )
        for index in range(count)
    ]


@pytest.mark.parametrize(
    "served",
    [
        pytest.param({}, id="roomy", marks=pytest.mark.slow),
        pytest.param(
            {"kv_blocks": 14, "token_budget": 16, "max_batch": 4, "debug": True}, id="short of memory and budget"
        ),
    ],
)
def test_answers_are_those_of_run_whatever_runs_beside_them(models, prompts, expected_texts, served):
    asked = [(text, fields) for text in prompts[:2] for fields in ASKED]
    count = sum(fields.get("n", 1) for _, fields in (*asked, *asked[::2]))
    with serving(models, **served) as client, ThreadPoolExecutor(count) as pool:
        with held(client):  # so that memory is short, however late they come
            whole = [pool.submit(client.complete, text, **fields) for text, fields in asked]
            streams = [pool.submit(client.complete, text, stream=True, **fields) for text, fields in asked[::2]]
            until(lambda: client.service.engine.num_open == count)
        found = [
            [(choice["text"], choice["finish_reason"]) for choice in one.result().body["choices"]] for one in whole
        ]
        streamed = [
            streamed_texts(one.result(), fields.get("n", 1))
            for one, (_, fields) in zip(streams, asked[::2], strict=True)
        ]
        page = client.get("/metrics").text
    expected = [expected_texts(text, fields) for text, fields in asked]
    assert found == expected
    assert streamed == expected[::2]
    preempted = sum(
        float(line.split()[-1]) for line in page.splitlines() if line.startswith("vllm:num_preemptions_total{")
    )
    assert bool(preempted) == bool(served)


def test_a_sampled_answer_without_a_seed_differs_from_time_to_time(client, prompts):
    texts = {client.complete(prompts[0], temperature=1.5).body["choices"][0]["text"] for _ in range(3)}
    assert len(texts) > 1


def test_the_prompt_may_be_token_ids(models, client, prompts):
    of_text, of_ids = client.complete(prompts[0]), client.complete(models.encode(prompts[0]))
    assert of_ids.body["choices"] == of_text.body["choices"]
    assert of_ids.body["usage"] == of_text.body["usage"]


def test_ids_of_a_tokenizer_with_gaps_are_those_it_has(models):
    gapped = Tokenizer(WordLevel({"a": 0, "b": 1535}, unk_token="a"))
    with serving(replace(models, tokenizer=gapped), policies=("plain",)) as client:
        assert client.complete([0, 1535]).status == 200
        assert client.complete([1536]).error["param"] == "prompt"


def test_usage_and_acceptance_are_told_where_asked_for_and_are_those_of_the_counters(client, prompts):
    client.idle()
    endpoint = Endpoint(f"http://127.0.0.1:{client.port}", api_key=None, timeout_s=30)
    before = counters(endpoint)
    options = {"stream": True, "stream_options": {"include_usage": True}, "spec_decode_metrics": True}
    last = client.complete(prompts[1], **options).events[-1]
    plain = client.complete(prompts[1], policy="plain", spec_decode_metrics=True).body
    told = last["metrics"]["speculative_decoding"]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 24
    assert plain["metrics"] == {"speculative_decoding": None}
    explained = 1 + told["num_accepted_draft_tokens"] + told["num_spec_steps"]
    assert explained - told["per_step_accepted"][-1] - 1 < 24 <= explained
    found, why = acceptance_between(before, counters(endpoint), [], "pico")
    assert not why
    assert (found.drafted, found.accepted) == (told["num_draft_tokens"], told["num_accepted_draft_tokens"])
    assert found.drafts == sum(drafted > 0 for drafted in told["per_step_drafted"])
    kept = told["per_step_accepted"]
    assert found.accepted_by_place == tuple(sum(one > place for one in kept) for place in range(max(kept)))


def test_counters_start_at_0_though_every_policy_was_tried_and_have_their_series(models):
    with serving(models) as fresh:
        page = fresh.get("/metrics").text
    samples = [line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#")]
    counts = {name: float(value) for name, value in samples if "_total{" in name}
    assert 'vllm:spec_decode_num_drafts_total{model_name="pico"}' in counts
    assert not any(counts.values())


BAD = [
    ({"model": "other"}, 404, "model"),
    ({"policy": "other"}, 400, "policy"),
    ({"prompt": 5}, 400, "prompt"),
    ({"prompt": ""}, 400, "prompt"),
    ({"prompt": ["a", "b"]}, 400, "prompt"),
    ({"prompt": [2**20]}, 400, "prompt"),
    ({"prompt": "\ud800"}, 400, "prompt"),
    ({"prompt": "word " * 2000}, 400, "max_tokens"),
    ({"max_tokens": 10**30}, 400, "max_tokens"),
    ({"max_tokens": "3"}, 400, "max_tokens"),
    ({"max_tokens": 0}, 400, "max_tokens"),
    ({"n": 10**6}, 400, "n"),
    ({"temperature": -1}, 400, "temperature"),
    ({"temperature": 0.0001}, 400, "temperature"),
    ({"top_p": 0}, 400, "top_p"),
    ({"seed": -1}, 400, "seed"),
    ({"stop": [""]}, 400, "stop"),
    ({"stop": ["a"] * 100}, 400, "stop"),
    ({"logprobs": 21}, 400, "logprobs"),
    ({"logprobs": True}, 400, "logprobs"),
    ({"top_logprobs": 3}, 400, "top_logprobs"),
    ({"logit_bias": {"5": 1}}, 400, "logit_bias"),
    ({"presence_penalty": 0.5}, 400, "presence_penalty"),
    ({"repetition_penalty": 1.1}, 400, "repetition_penalty"),
    ({"tools": [{}]}, 400, "tools"),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
    ({"spec_decode_metrics": True, "n": 2}, 400, "spec_decode_metrics"),
    ({"tempreature": 1}, 400, "tempreature"),
]


@pytest.mark.parametrize(("fields", "status", "param"), BAD)
def test_what_cannot_be_honoured_is_refused_by_name(client, fields, status, param):
    found = client.complete(**{"prompt": "a", **fields})
    assert (found.status, found.error["param"]) == (status, param)
    assert found.error["type"] == "invalid_request_error"
    assert param in found.error["message"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"n": []}, "n: Input should be a valid integer, got []"),
        ({"stop": [""]}, "stop: must hold no empty text and no U+FFFD, got ['']"),
        ({"stop": ["a"] * 100}, f"stop: must hold at most 16 texts, got {str(['a'] * 100)[:57]}..."),
        ({"logit_bias": {"5": 1}}, "logit_bias is not supported here, got {'5': 1}"),
        ({"stream_options": {}}, "stream_options goes with stream: true, got {}"),
    ],
)
def test_a_refusal_names_a_value_of_any_kind(client, fields, told):
    assert client.complete("a", **fields).error["message"] == told


BODIES = [b"", b"{", b"[]", b"null", b'{"model": "pico", "prompt": "\xff\xfe"}', b"[" * 100_000, b'{"a":' * 50_000]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_what_is_no_request_is_refused_in_the_same_shape(client, body):
    for path in ("/v1/completions", "/v1/chat/completions"):
        found = client.post(path, body)
        assert found.status == 400
        assert set(found.error) == {"message", "type", "param", "code"}
    assert client.get("/health").status == 200


def test_a_body_that_is_no_json_is_told_why_and_in_one_line(client):
    for body, message in (
        (
            b'{"model": "pico", "prompt": "a", "max_tokens": 1, "max_tokens": 3}',
            "the body must be JSON (key 'max_tokens' twice",
        ),
        (b'{"model": "pico", "prompt": "\xff"}', "the body must be JSON (a byte that is no UTF-8"),
        (b"[" * 1000 + b"]" * 1000, "the body must be JSON (brackets nested too deep"),
        (b"null", "body: "),
        (b'{"model": "pico", "prompt": "a", "temperature": NaN}', "temperature: "),
        (b'{"model": "pico", "prompt": "a", "a\\nb": 1}', "a b: is not a field"),
    ):
        found = client.post("/v1/completions", body)
        assert (found.status, found.error["message"][: len(message)]) == (400, message)
        assert "\n" not in found.error["message"]


def test_values_that_ask_for_nothing_are_taken(client):
    fields = {"logprobs": None, "echo": False, "presence_penalty": 0, "response_format": {"type": "text"}, "tools": []}
    fields |= {"repetition_penalty": 1.0, "min_p": 0.0}  # as vLLM's benchmark sends them
    assert client.complete("a", **fields).status == 200


def test_a_model_without_a_chat_template_refuses_chats(client):
    found = client.post("/v1/chat/completions", {"model": "pico", "messages": [{"role": "user", "content": "hi"}]})
    assert (found.status, found.error["code"]) == (400, "no_chat_template")


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves_frees_its_place_at_once(client, prompts, streams, monkeypatch):
    client.idle()
    engine, ended = client.service.engine, []
    monkeypatch.setattr(engine, "on_ended", [*engine.on_ended, lambda _, end: ended.append(end)])
    with held(client, operations=40):
        with client.connection() as connection:
            asked = {
                "model": "pico",
                "prompt": prompts[0],
                "max_tokens": 300,
                "ignore_eos": True,
                "stream": streams,
                "n": 8,
            }
            connection.request("POST", "/v1/completions", json.dumps(asked), {"Content-Type": "application/json"})
            until(lambda: engine.num_open == 8)
            if streams:
                connection.getresponse().read(100)
        until(lambda: len(ended) + len(engine._inbox) == 8)  # some may be cancelled already
    client.idle()
    assert ended == [End("", left=True)] * 8
    assert client.complete(prompts[0]).status == 200
    for line in client.get("/metrics").text.splitlines():
        if line.startswith(("vllm:num_requests_", "vllm:kv_cache_usage_perc{")):
            assert float(line.split()[-1]) == 0, line


def test_without_max_tokens_a_completion_is_no_longer_than_allowed(models):
    with serving(models, limits=RequestLimits(max_tokens=9)) as client:
        asked = {"model": "pico", "prompt": "Once", "temperature": 0, "ignore_eos": True}
        assert client.post("/v1/completions", asked).body["usage"]["completion_tokens"] == 9


def test_beyond_the_queue_a_request_is_told_to_come_again(models, prompts):
    limits = RequestLimits(max_queue=1, max_tokens=200)
    with serving(models, limits=limits, policies=["plain"], max_batch=2) as client, ThreadPoolExecutor(1) as pool:
        with held(client):
            early = pool.submit(client.complete, prompts[0], max_tokens=60, ignore_eos=True, n=3)
            until(lambda: client.service.engine.num_open == 3)
            late = client.complete(prompts[0])
        assert (late.status, late.headers["retry-after"], late.error["code"]) == (429, "1", "queue_full")
        assert early.result().status == 200
        assert client.complete(prompts[0]).status == 200
        assert client.complete("a", max_tokens=201).error["param"] == "max_tokens"
        never = client.complete("a", n=4)  # to come again would not help
        assert (never.status, never.error["message"]) == (400, "n must be at most 3 here, got 4")


def test_a_request_has_a_place_from_when_it_came_whole_and_is_refused_before(models, prompts):
    asked = json.dumps({"model": "pico", "prompt": prompts[0], "max_tokens": 60, "ignore_eos": True, "n": 2}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(asked)}\r\n\r\n".encode()
    limits = RequestLimits(max_queue=0)
    options = {"policies": ["plain"], "max_batch": 2, "patience_s": 600}
    with serving(models, limits=limits, **options) as client, ExitStack() as stack:
        address = ("127.0.0.1", client.port)
        slow = [stack.enter_context(closing(socket.create_connection(address, timeout=300))) for _ in range(4)]
        for one in slow[:3]:
            one.sendall(head + asked[:1])
        assert client.complete(prompts[0]).status == 200  # nobody waits for those who do not go on
        with held(client):
            slow[0].sendall(asked[1:])
            until(lambda: client.service.engine.num_open == 2)
            slow[3].sendall(head)  # and no more
            assert slow[3].recv(12) == b"HTTP/1.1 429"
            slow[1].sendall(asked[1:])
            assert slow[1].recv(12) == b"HTTP/1.1 429"
        assert client.get("/v1/models").status == client.get("/health").status == 200
        assert slow[0].recv(12) == b"HTTP/1.1 200"
        assert client.post("/v1/completions", b"{").status == 400
        assert client.post("/v1/completions", {"model": "x", "prompt": "a"}).status == 404
        until(lambda: not client.service._arriving)


def test_the_key_guards_v1_and_bodies_are_bounded(models):
    limits = RequestLimits(max_body_kib=1, timeout_s=0.05)
    with serving(models, limits=limits, api_key="secret", policies=["plain"]) as client:
        asked = {"model": "pico", "prompt": "a", "max_tokens": 400, "ignore_eos": True}
        for wrong in ({}, {"Authorization": "Bearer other"}, {"Authorization": "secret"}):
            assert client.post("/v1/completions", asked, **wrong).status == 401
            assert client.get("/v1/models", **wrong).error["code"] == "invalid_api_key"
        right = {"Authorization": "Bearer secret"}
        assert client.get("/v1/models", **right).body["data"][0]["id"] == "pico"
        assert client.get("/health").status == client.get("/metrics").status == 200
        assert client.post("/v1/completions", b" " * 1025, **right).status == 413
        with held(client):
            assert client.post("/v1/completions", asked, **right).error["code"] == "timeout"
        with client.connection() as connection:  # whose length nobody said
            headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked", **right}
            connection.request("POST", "/v1/completions", iter([b" " * 600] * 4), headers, encode_chunked=True)
            assert connection.getresponse().status == 413
        client.idle()


BREAKS = """
from paceline.decoding.steps import Verify

class BreaksOnLongPrompts:
    def __init__(self, pool):
        self.step = Verify(pool.target)

    def decide(self, seen):
        if seen.num_prompt > 30:
            raise RuntimeError("oh")
        return self.step

    def learn(self, outcome):
        pass
"""


def test_a_policy_that_breaks_fails_its_requests_and_the_server_lives(models, tmp_path):
    file = tmp_path / "breaks.py"
    file.write_text(BREAKS)
    policy = f"{file}:BreaksOnLongPrompts"
    with serving(models, policies=["plain", policy]) as client:
        short, long = {"prompt": "Once"}, {"prompt": "Once upon a time " * 12}
        broken = client.complete(**long, policy=policy)
        assert (broken.status, broken.error["type"]) == (500, "server_error")
        assert "oh" in broken.error["message"]
        stream = client.complete(**long, policy=policy, stream=True)
        assert "oh" in stream.events[-1]["error"]["message"]
        assert client.complete(**short, policy=policy).body["choices"] == client.complete(**short).body["choices"]


def test_a_draft_whose_check_failed_counts_as_none(models, monkeypatch):
    """Nobody knows what the target would have accepted of it, so its policy learns nothing of it either."""
    verify, learned = TorchWorld.verify, []
    monkeypatch.setattr(Chain, "learn", lambda _, outcome: learned.append(type(outcome.step)))

    def broken(world, level, items, chunks=()):
        ran = verify(world, level, items, chunks)
        lost = [bool(session.tokens) for session, _ in items]
        return ran._replace(
            rows=[Failed(ValueError("lost")) if one else row for one, row in zip(lost, ran.rows, strict=True)]
        )

    with serving(models, policies=["draft:4/target"]) as client:
        monkeypatch.setattr(TorchWorld, "verify", broken)
        learned.clear()
        answer = client.complete("Once")
        assert (answer.status, "lost" in answer.error["message"], learned) == (500, True, [Draft])
        page = client.get("/metrics").text
    assert 'vllm:spec_decode_num_draft_tokens_total{model_name="pico"} 0' in page


FAILS = """
from paceline.decoding.steps import Draft, Verify

class Mad:
    lossless = needs_target_prob = False

    def holds(self, signal, product):
        raise RuntimeError("oh")

    accepts = lambda self, facts: self.holds(None, 0)

class Fails:
    def __init__(self, pool):
        self.verify = Verify(pool.target)

    def decide(self, seen):
        long = seen.num_prompt > 30
        if seen.num_pending or not seen.has_room:
            return {} if long else self.verify
        return {} if long else Draft("draft", 2)

    def learn(self, outcome):
        pass
"""


@pytest.mark.parametrize(
    ("verify", "draft", "told"),
    [
        ("self.verify", "Draft('draft', 2, Mad())", "its stop raised RuntimeError('oh') ({}:8)"),
        ("Verify('target', Mad())", "Draft('draft', 2)", "its rule raised RuntimeError('oh') ({}:8)"),
        ("self.verify", "Draft('ngram', 1, copy=(1_536,))", "draft copy must hold ids below 1,536, got 1536"),
    ],
)
def test_a_request_whose_stop_rule_or_copy_is_wrong_fails_alone(models, tmp_path, verify, draft, told):
    file = tmp_path / "fails.py"
    file.write_text(FAILS.format(verify, draft))
    with serving(models, policies=[f"{file}:Fails"]) as client, ThreadPoolExecutor(3) as pool:
        with held(client):
            found = [pool.submit(client.complete, text) for text in ("Once", "Once upon a time " * 12, "One")]
            until(lambda: client.service.engine.num_open == 3)
        sound, broken, other = (one.result() for one in found)
        assert (sound.status, broken.status, other.status) == (200, 500, 200)
        assert f": {told.format(file)}" in broken.error["message"]


def test_a_request_whose_logits_are_broken_fails_alone(models, prompts, monkeypatch):
    with serving(models, policies=["plain"]) as client:
        target = models.target.model
        assert target is not None
        world = client.service.engine._replicas["plain"]._models
        real = world.verify

        def verify(level, items, chunks=()):
            from paceline.decoding.results import Failed

            found = real(level, items, chunks)
            rows = [
                Failed(ValueError("not finite")) if session.num_prompt == 1 else row
                for (session, _), row in zip(items, found.rows, strict=True)
            ]
            return found._replace(rows=rows)

        monkeypatch.setattr(world, "verify", verify)
        with ThreadPoolExecutor(8) as pool:
            sound = [pool.submit(client.complete, text) for text in prompts]
            broken = pool.submit(client.complete, "a")
            assert broken.result().error["message"] == "not finite"
            assert all(one.result().status == 200 for one in sound)


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ({"policies": []}, "`policies` must name at least one"),
        ({"policies": ["plain", "plain"]}, "got plain twice"),
        ({"policies": ["tree"]}, "cannot be served"),
        ({"engine": EngineOptions(kv_blocks=10**12)}, "which has"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anybody_asks(models, asked, rule):
    with pytest.raises(ValueError, match=rule):
        make_service(ServedPool(pool=models, **asked), RequestLimits())


@pytest.mark.parametrize("record", [EngineOptions, RequestLimits, RecordingOptions, FollowOptions, ProxyOptions])
def test_a_number_that_is_less_than_its_option_declares_is_refused_by_name(record):
    leasts = {name: said.least for name, (_, said) in declared(record).items() if said.least is not None}
    assert leasts
    for name, least in leasts.items():
        with pytest.raises(ArgumentError, match=f"^`{name}` must be >= {least}, got {least - 1}$"):
            record(**{name: least - 1})


def test_an_address_that_is_taken_or_public_without_a_key_is_refused():
    with bound_socket(Address(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ArgumentError, match="cannot be listened at: Address already in use"):
            bound_socket(Address(port=port))
    with pytest.raises(ArgumentError, match="can be reached from elsewhere: give `api_key_env`"):
        bound_socket(Address(host="0.0.0.0", port=0))
    with pytest.raises(ArgumentError, match="must be an address of this machine"):
        bound_socket(Address(host="nowhere.invalid"))
    bound_socket(Address(host="0.0.0.0", port=0, api_key="a")).close()


@pytest.mark.slow
def test_the_command_ends_in_order_after_what_is_under_way():
    command = [sys.executable, "-m", "paceline", "serve", "--port", "0", "--policy", "plain", "--max-batch", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        line = process.stderr.readline()
        assert line.startswith("paceline: serving pico at http://127.0.0.1:"), line
        from .conftest import Client

        client, found = Client(int(line.rsplit(":", 1)[1]), None), []
        asked = {"max_tokens": 100, "ignore_eos": True, "stream": True}
        thread = threading.Thread(target=lambda: found.append(client.complete("Once", **asked)))
        thread.start()
        until(lambda: 'running{model_name="pico",policy="plain"} 1.0' in client.get("/metrics").text)
        process.send_signal(signal.SIGTERM)
        thread.join()
        assert process.wait(60) == 0
    assert found[0].text.endswith("data: [DONE]\n\n")


def test_the_official_client_is_served(client, prompts):
    openai = pytest.importorskip("openai", reason="the official client is not installed")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{client.port}/v1", api_key="any", max_retries=0) as official:
        assert [one.id for one in official.models.list()] == ["pico"]
        asked = {"model": "pico", "prompt": prompts[0], "max_tokens": 24, "temperature": 0}
        whole = official.completions.create(**asked)
        parts = list(official.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        assert "".join(choice.text for part in parts for choice in part.choices) == whole.choices[0].text
        assert parts[-1].usage == whole.usage
        told = official.completions.create(**asked, logprobs=2).choices[0].logprobs
        assert len(told.tokens) == len(told.token_logprobs) == whole.usage.completion_tokens
        assert [max(top.values()) for top in told.top_logprobs] == told.token_logprobs  # greedy
        with pytest.raises(openai.NotFoundError):
            official.completions.create(model="other", prompt="a")
        with pytest.raises(openai.BadRequestError, match="policy 'x' is declined"):
            official.completions.create(**asked, extra_body={"policy": "x"})
        stream = official.completions.create(**{**asked, "max_tokens": 300}, stream=True)
        next(iter(stream))
        stream.close()
    client.idle()


def test_the_official_client_is_told_of_limits_and_keys_by_its_own_errors(models, prompts):
    openai = pytest.importorskip("openai", reason="the official client is not installed")
    limits, asked = RequestLimits(max_queue=0, max_tokens=300), {"model": "pico", "prompt": prompts[0]}
    with serving(models, limits=limits, api_key="secret", policies=["plain"], max_batch=1) as client:
        url = f"http://127.0.0.1:{client.port}/v1"
        with openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as stranger:
            for ask in (stranger.models.list, lambda: stranger.completions.create(**asked)):
                with pytest.raises(openai.AuthenticationError):
                    ask()
        with openai.OpenAI(base_url=url, api_key="secret", max_retries=0) as official:
            for fields, message in (({"max_tokens": 301}, "at most 300"), ({"prompt": "a " * 900}, "must fit into")):
                with pytest.raises(openai.BadRequestError, match=message) as told:
                    official.completions.create(**{**asked, **fields})
                assert told.value.param == "max_tokens"
            with (
                held(client, operations=9),
                official.completions.create(**asked, max_tokens=300, stream=True) as stream,
            ):
                next(iter(stream))
                with pytest.raises(openai.RateLimitError) as told:
                    official.completions.create(**asked)
                assert (told.value.code, told.value.response.headers["retry-after"]) == ("queue_full", "1")
            client.idle()
            assert official.completions.create(**asked).choices[0].finish_reason


@pytest.mark.slow
def test_nothing_that_the_description_allows_is_an_error_of_the_server(client):
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from hypothesis import HealthCheck, given, settings

    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{client.port}/openapi.json")
    for operation in schema.get_all_operations():
        case_of = operation.ok().as_strategy()

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=case_of)
        def never_fails(case):
            response = case.call()
            assert response.status_code < 500
            assert response.status_code in (200, 400, 404, 413, 429)

        never_fails()
    assert client.get("/health").status == 200


def test_a_part_of_a_second_to_end_in_counts():
    assert server_config(None, 0.9).timeout_graceful_shutdown == 0.9
