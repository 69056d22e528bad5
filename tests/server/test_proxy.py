"""What passes through `paceline proxy` arrives byte for byte; what is recorded is what the server sent, and when."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, contextmanager, suppress
from dataclasses import replace
from itertools import accumulate, pairwise
from types import SimpleNamespace

import h11
import numpy as np
import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.observing.server import ServerError
from paceline.runs.observed import is_observed, read_observed
from paceline.runtime.prompts import read_prompts
from paceline.server.listening import bound_socket, server_config
from paceline.server.options import Address, ProxyOptions, RecordingOptions
from paceline.server.proxy import Upstream, make_proxy
from paceline.server.proxy_record import Delays
from paceline.studies.observe import shown_run
from paceline.traces.importers import ImportOptions, read_recording
from paceline.traces.importers.importing import Load
from paceline.traces.workloads import open_workload

from .conftest import until
from .upstream import MODEL, Plan, plan_of, stream_of, upstream

COMPLETIONS = "/v1/completions"


@contextmanager
def proxied(server, folder, *, api_key=None, every_s=60.0, hashes=False, mib=1024, **options):
    recording = RecordingOptions(record=folder, record_every_s=every_s, record_hashes=hashes, record_mib=mib)
    made = make_proxy(server.url, ProxyOptions(**options), recording, api_key=api_key)
    listening = bound_socket(Address(port=0))
    running = uvicorn.Server(server_config(made, 5.0, passes_on=True))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        until(lambda: running.started)
        made.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        yield made
    finally:
        running.should_exit = True
        thread.join()
        listening.close()


def asked(**fields):
    return {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 24, "stream": True, **fields}


async def got(client, seed, method="POST", target=COMPLETIONS, headers=(), body=None, heard=None):
    """(status, headers, bytes, whether it broke off); `heard` is called with the seed and what has come of the body."""
    body = json.dumps(asked(seed=seed)).encode() if body is None else body
    headers = {
        "Host": "x",
        "X-Seed": str(seed),
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **dict(headers),
    }
    status, head, data, broke = 0, {}, b"", False
    try:
        async with aclosing(
            client.answer(h11.Request(method=method, target=target, headers=[*headers.items()]), body)
        ) as events:
            async for event, _ in events:
                if isinstance(event, h11.Response):
                    status, head = event.status_code, {name.decode(): value.decode() for name, value in event.headers}
                else:
                    data += bytes(event.data)
                    if heard is not None:
                        heard(seed, data)
    except (OSError, h11.RemoteProtocolError):
        broke = True
    return status, head, data, broke


def all_of(url, seeds, at_a_time=40, **fields):
    async def run():
        places, client = asyncio.Semaphore(at_a_time), Upstream(url, 60)

        async def one(seed):
            async with places:
                return await got(client, seed, **fields)

        found = await asyncio.gather(*map(one, seeds))
        await client.close()
        return found

    return asyncio.run(run())


def test_hundreds_of_answers_pass_byte_for_byte_and_are_all_recorded(tmp_path):
    folder = tmp_path / "traffic"
    with upstream() as server, proxied(server, folder, every_s=0.05) as proxy:
        found = all_of(proxy.url, range(200))
        until(lambda: (folder / "observed" / "000001").is_dir())
        found += all_of(proxy.url, range(200, 400))
    kinds = {}
    for seed, (status, headers, data, broke) in enumerate(found):
        kind, plan = plan_of(seed)
        kinds.setdefault(kind, []).append(seed)
        assert status == plan.status
        assert data == b"".join(piece for _, piece in plan.pieces), seed
        assert broke == plan.breaks
        assert {name: headers[name.lower()] for name in plan.headers} == plan.headers
        assert "date" not in headers
    assert min(map(len, kinds.values())) > 20
    run = read_observed(folder / "observed")
    assert len(list((folder / "observed").iterdir())) > 1
    assert len(run.requests) == 400
    by_seed = {json.loads(body)["seed"] for method, _, _, body in server.seen if method == "POST"}
    assert by_seed == set(range(400))
    assert len(run.failed) == len(kinds["breaks"]) + len(kinds["error"]) + len(kinds["bytes"])
    # A stream that breaks after its [DONE] has told all of it.
    assert len(run.finished) == len(kinds["stream"]) + len(kinds["json"])
    assert sum("had begun" in one.failed for one in run.failed) > 8
    told = json.loads((folder / "proxy.json").read_text())
    assert told["requests_recorded"] == 400
    assert told["chunks_held_s"]["count"] > 800


def page(drafts, drafted, *accepted):
    """vLLM's counters; `accepted` is of each place."""
    counts = {"drafts": drafts, "draft_tokens": drafted, "accepted_tokens": sum(accepted)}
    lines = [f'num_{name}_total{{model_name="{MODEL}"}} {value}' for name, value in counts.items()]
    for place, value in enumerate(accepted):
        lines.append(f'num_accepted_tokens_per_pos_total{{model_name="{MODEL}",position="{place}"}} {value}')
    return "".join(f"vllm:spec_decode_{line}\n" for line in lines)


def test_times_lengths_and_counters_are_the_servers(tmp_path):
    """Each piece is written once its client has the one before: what came is between, by the same clock."""
    folder, pieces = tmp_path / "traffic", [piece for _, piece in stream_of(6)]
    sizes = [*accumulate(map(len, pieces))]
    events = {seed: [threading.Event() for _ in pieces] for seed in range(8)}
    received_ns = {seed: [] for seed in events}

    def plans(_path, headers, _body):
        mine = events[int(headers["x-seed"])]
        mine[0].set()
        return Plan(headers={"Content-Type": "text/event-stream"}, pieces=[*zip(mine, pieces, strict=True)])

    def heard(seed, data):
        while len(received_ns[seed]) < len(sizes) and sizes[len(received_ns[seed])] <= len(data):
            received_ns[seed].append(time.perf_counter_ns())
            for event in events[seed][len(received_ns[seed]) :][:1]:
                event.set()

    async def named(client):
        await asyncio.gather(*(got(client, seed, headers={"X-Name": str(seed)}, heard=heard) for seed in events))
        await client.close()

    with (
        upstream(plans, pages=[page(10, 30, 9, 6, 5), page(14, 42, 13, 9, 7)]) as server,
        proxied(server, folder) as proxy,
    ):
        asyncio.run(named(Upstream(proxy.url, 600)))
        began_ns = proxy.recorder.clock._began_ns
    run = read_observed(folder / "observed")
    assert [(one.prompt_tokens, one.output_tokens, one.asked_tokens) for one in run.requests] == [(7, 6, 24)] * 8
    assert len({one.prompt_id for one in run.requests}) == 1
    acceptance = run.meta.acceptance
    assert (acceptance.drafts, acceptance.drafted, acceptance.accepted_by_place) == (4, 12, (4, 3, 2))
    spans = [[*zip(server.written_ns[str(seed)][:6], received_ns[seed][:6], strict=True)] for seed in events]
    for one in run.requests:
        assert one.due_at_ps <= one.sent_at_ps < one.outputs_at_ps[0]
        at_ns = [began_ns + at_ps // 1000 for at_ps in one.outputs_at_ps]
        assert any(all(wrote <= at <= had for at, (wrote, had) in zip(at_ns, span, strict=True)) for span in spans)
    figures = shown_run(folder / "observed").figures
    gaps_s = [(later - at_ps) / 1e12 for one in run.requests for at_ps, later in pairwise(one.outputs_at_ps)]
    assert figures.ttft_s.p50 > 0
    assert min(gaps_s) <= figures.itl_s.p50 <= max(gaps_s)
    assert is_observed(folder / "observed")
    lengths = [(one.prompt_tokens, one.output_tokens) for one in open_workload(folder / "workload")]
    assert lengths == [(7, 6)] * 8
    assert {one.text for one in read_prompts(folder / "prompts")} == {"Once upon a time"}
    pages = sorted((folder / "metrics").iterdir())
    options = ImportOptions(load=Load(requests=2, output_tokens=20))
    assert len(read_recording("auto", pages, options).requests) == 2
    told = json.loads((folder / "proxy.json").read_text())
    assert 0 < told["chunks_held_s"]["p50"] <= told["chunks_held_s"]["p99"] <= told["chunks_held_s"]["max"]


VLLM = {"num_spec_steps": 3, "num_draft_tokens": 6, "num_accepted_draft_tokens": 2, "num_spec_tokens": 2}
VLLM |= {"per_step_accepted": [2, 0, 0], "per_step_drafted": [2, 2, 2]}
SGLANG = {"id": "a", "prompt_tokens": 7, "completion_tokens": 6, "spec_verify_ct": 3}
LLAMA = {"prompt_n": 7, "predicted_n": 6, "prompt_ms": 1.0, "predicted_ms": 6.0, "draft_n": 6, "draft_n_accepted": 2}


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    ("more", "counted"),
    [
        ({"metrics": {"speculative_decoding": VLLM}}, True),
        ({"meta_info": SGLANG}, False),
        ({"timings": LLAMA}, True),
    ],
)
def test_acceptance_that_an_engine_tells_can_be_imported(more, counted, streamed, tmp_path):
    folder, usage = tmp_path / "traffic", {"prompt_tokens": 7, "completion_tokens": 6}

    def plans(_path, _headers, _body):
        if streamed:
            return Plan(headers={"Content-Type": "text/event-stream"}, pieces=stream_of(6, more=more))
        answer = {"choices": [{"index": 0, "text": "secret", "finish_reason": "stop"}], "usage": usage, **more}
        return Plan(headers={"Content-Type": "application/json"}, pieces=[(0, json.dumps(answer).encode())])

    with upstream(plans) as server, proxied(server, folder, hashes=True, drafter="d") as proxy:
        all_of(proxy.url, range(3))
    recorded = read_recording(
        "auto", [folder / "responses"], ImportOptions(windows={} if "metrics" in more else {"drafter": 2})
    )
    assert len(recorded.requests) == 3
    assert all(sum(one.num_tokens.values()) == 6 for one in recorded.requests)
    run = read_observed(folder / "observed")
    assert (run.meta.acceptance is not None) == counted
    if counted:
        assert (run.meta.acceptance.drafted, run.meta.acceptance.accepted) == (18, 6)
        assert {one.drafted for one in run.requests} == {6}
    assert run.meta.drafter == "d"
    assert not (folder / "prompts").exists()
    kept = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert not any(word in data for data in kept for word in (b"secret", b"Once upon"))


@pytest.mark.parametrize("broken", [b'data: {"metrics": {"speculative_decoding"\n\n', b'data: {"timings": nul}\n\n'])
def test_acceptance_that_is_no_json_is_counted_and_half_of_it_is_not_kept(broken, tmp_path):
    """It stands after the stream's end, which a client does not read; the request itself is recorded."""
    folder, more = tmp_path / "traffic", {"timings": LLAMA}

    def plans(_path, headers, _body):
        pieces = stream_of(6, more=more) + ([(0, broken)] if headers["x-seed"] == "1" else [])
        return Plan(headers={"Content-Type": "text/event-stream"}, pieces=pieces)

    with upstream(plans) as server, proxied(server, folder) as proxy:
        all_of(proxy.url, range(3), at_a_time=1)
    told = read_told(folder)
    assert (told["requests_recorded"], told["acceptance_not_read"]) == (3, 1)
    assert "3 requests recorded (acceptance of 1 could not be read)" in proxy.recorder.words()
    rows = [line for file in (folder / "responses").iterdir() for line in file.read_text().splitlines()]
    assert len(rows) == 2
    assert len(read_observed(folder / "observed").finished) == 3


def test_a_client_that_leaves_ends_the_servers_work(tmp_path):
    def plans(_path, _headers, _body):
        return Plan(headers={"Content-Type": "text/event-stream"}, pieces=stream_of(1000, pause_s=0.02))

    async def leave(url):
        client = Upstream(url, 60)
        body = json.dumps(asked()).encode()
        request = h11.Request(
            method="POST", target=COMPLETIONS, headers=[("Host", "x"), ("Content-Length", str(len(body)))]
        )
        async with aclosing(client.answer(request, body)) as events:
            async for event, _ in events:
                if isinstance(event, h11.Data):
                    return

    async def leave_all(url):
        await asyncio.gather(*(leave(url) for _ in range(20)))

    folder = tmp_path / "traffic"
    with upstream(plans) as server, proxied(server, folder) as proxy:
        asyncio.run(leave_all(proxy.url))
        until(lambda: server.num_cut == 20)
    run = read_observed(folder / "observed")
    assert len(run.requests) == 20
    assert not run.finished
    assert not run.failed
    assert all(one.outputs_at_ps for one in run.requests)


def test_a_server_that_is_down_or_silent_is_told_in_openais_shape(tmp_path):
    goes_on, never = threading.Event(), threading.Event()

    def silent(_path, _headers, _body):
        return Plan(pieces=[(0, b"x"), (goes_on, b"y"), (never, b"z")])

    def hurry(_seed, _data):  # only what comes after y is waited for so shortly
        proxy._options = replace(proxy._options, timeout_s=0.3)
        proxy._upstream._timeout_s = 0.3
        goes_on.set()

    with upstream(silent) as server, proxied(server, tmp_path / "silent", timeout_s=600) as proxy:
        (broken,) = all_of(proxy.url, [1], heard=hurry)
    assert broken[0] == 200  # its head had come
    assert broken[3]
    with (
        closed_port() as port,
        proxied(SimpleNamespace(url=f"http://127.0.0.1:{port}"), tmp_path / "down", model=MODEL) as proxy,
    ):
        ((status, headers, data, _),) = all_of(proxy.url, [1])
    assert (status, headers["content-type"]) == (502, "application/json")
    error = json.loads(data)["error"]
    assert (error["code"], error["type"]) == ("upstream_unreachable", "server_error")
    failed = [read_observed(tmp_path / name / "observed").failed[0].failed for name in ("silent", "down")]
    assert "said nothing for 0.3 s" in failed[0]
    assert "cannot be reached" in failed[1]


def test_methods_paths_and_headers_pass_and_those_of_a_connection_do_not(tmp_path):
    def plans(_path, _headers, _body):
        headers = {"Content-Type": "text/x", "X-Own": "ä".encode().decode("latin-1"), "Keep-Alive": "timeout=5"}
        return Plan(status=299, headers=headers | {"X-Hop": "1", "Connection": "X-Hop"}, pieces=[(0, b"hello")])

    with upstream(plans) as server, proxied(server, tmp_path / "traffic") as proxy:
        for method, target, body in (("GET", "/a%20b/%2F?x=%C3%A4&y", b""), ("DELETE", "/", b""), ("PUT", "/x", b"{}")):
            sent = {"Connection": "X-Gone", "X-Gone": "1", "Authorization": "Bearer k", "TE": "trailers", "X-Kept": "v"}
            sent |= {} if body else {"Content-Length": "0"}
            ((status, headers, data, _),) = all_of(
                proxy.url, [1], method=method, target=target, headers=sent, body=body
            )
            assert (status, data) == (299, b"hello")
            assert headers["x-own"].encode("latin-1").decode() == "ä"
            assert not {"keep-alive", "x-hop"} & set(headers)
            got_method, got_target, got_headers, got_body = server.seen[-1]
            assert (got_method, got_target, got_body) == (method, target, body)
            names = {name.lower() for name in got_headers}
            assert not {"x-gone", "te", "connection"} & names
            assert got_headers.get("authorization", got_headers.get("Authorization")) == "Bearer k"
            assert {"x-kept"} <= names
        assert not read_told(tmp_path / "traffic").get("requests_recorded")


@contextmanager
def closed_port():
    """A port that belongs to the test, and at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def read_told(folder):
    path = folder / "proxy.json"
    return json.loads(path.read_text()) if path.exists() else {}


def test_limits_and_keys(tmp_path):
    refused = threading.Event()  # the other three

    def plans(_path, _headers, _body):
        return Plan(headers={"Content-Type": "text/event-stream"}, pieces=stream_of(3, pause_s=refused))

    options = {"api_key": "ours", "upstream_key": "theirs", "max_open": 2, "max_body_kib": 1}
    with upstream(plans) as server, proxied(server, tmp_path / "traffic", **options) as proxy:
        ((status, _, data, _),) = all_of(proxy.url, [1])
        assert (status, json.loads(data)["error"]["code"]) == (401, "invalid_api_key")
        key = {"Authorization": "Bearer ours"}
        ((status, _, data, _),) = all_of(proxy.url, [1], headers=key, body=b"x" * 2000)
        assert (status, json.loads(data)["error"]["code"]) == (413, "body_too_long")
        with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
            stack.callback(refused.set)
            running = pool.submit(all_of, proxy.url, range(5), headers=key)
            until(lambda: proxy.recorder._not_recorded.get("refused by the proxy with status 429") == 3)
        found = running.result()
        assert sorted(status for status, *_ in found) == [200, 200, 429, 429, 429]
        assert all(headers["retry-after"] == "1" for status, headers, *_ in found if status == 429)
        posted = [headers for method, _, headers, _ in server.seen if method == "POST"]
        assert {headers.get("authorization") for headers in posted} == {"Bearer theirs"}
    told = read_told(tmp_path / "traffic")
    assert told["requests_recorded"] == 2
    assert told["requests_not_recorded"] == {
        f"refused by the proxy with status {status}": number for status, number in ((401, 1), (413, 1), (429, 3))
    }


def test_what_is_not_one_answer_of_the_model_passes_and_is_counted(tmp_path):
    with upstream() as server, proxied(server, tmp_path / "traffic") as proxy:
        for fields in ({"model": "other"}, {"n": 2}, {"prompt": ["a", "b"]}):
            ((status, *_),) = all_of(proxy.url, [3], body=json.dumps(asked(**fields)).encode())
            assert status == plan_of(3)[1].status
        all_of(proxy.url, [3], body=b"[" * 5000)
        all_of(proxy.url, [3], method="GET", target="/health", body=b"")
        all_of(proxy.url, [3])
    told = read_told(tmp_path / "traffic")
    assert told["requests_recorded"] == 1
    assert told["requests_not_recorded"] == {
        "another model, other": 1,
        "several answers in one request": 2,
        "no JSON object": 1,
        "no completion and no chat": 1,
    }


def test_a_prompt_without_a_text_is_counted_by_its_ids_or_not_at_all(tmp_path):
    """The tokenizer would count an empty text instead: a beginning of sequence."""

    def plans(path, _headers, body):
        if path == "/tokenize":
            count = 1 + len(json.loads(body)["prompt"].split())
            return Plan(pieces=[(0, json.dumps({"count": count}).encode())], chunked=False)
        return Plan(headers={"Content-Type": "text/event-stream"}, pieces=stream_of(4, usage=False))

    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    sent = {
        6: {"prompt": [5, 4, 3, 2, 1, 0]},
        3: {"prompt": [[2, 1, 0]]},
        1: {"prompt": [7]},
        5: {"prompt": ["Once upon a time"]},
        None: {"messages": [{"role": "user", "content": image}]},
    }
    folder = tmp_path / "traffic"
    with upstream(plans) as server, proxied(server, folder, count_tokens=True) as proxy:
        for fields in sent.values():
            all_of(proxy.url, [1], body=json.dumps({"model": MODEL, "stream": True, **fields}).encode())
    found = read_observed(folder / "observed")
    assert [one.prompt_tokens for one in found.requests] == list(sent)
    assert {one.output_tokens for one in found.requests} == {4}
    assert found.meta.counted_by == "nobody"


@pytest.mark.parametrize("fields", [{"max_completion_tokens": 9}, {"max_completion_tokens": None, "max_tokens": 9}])
def test_the_longest_answer_is_that_of_the_field_that_is_not_null(fields, tmp_path):
    with upstream() as server, proxied(server, tmp_path / "traffic") as proxy:
        all_of(proxy.url, [1], body=json.dumps({"model": MODEL, "prompt": "a", **fields}).encode())
    assert [one.asked_tokens for one in read_observed(tmp_path / "traffic" / "observed").requests] == [9]


def test_nothing_more_is_kept_beyond_the_cap(tmp_path, capfd):
    folder = tmp_path / "traffic"
    with upstream() as server, proxied(server, folder, mib=1) as proxy:
        all_of(proxy.url, [2])
        until(lambda: proxy.recorder._found)
        proxy.recorder._files._write()
        proxy.recorder._files._num_bytes = 2**20
        all_of(proxy.url, [2])
    assert len(read_observed(folder / "observed").requests) == 1


def test_no_torch_is_needed():
    asked = "import sys, paceline.server.proxy; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0


def test_bad_input_is_one_line_and_writes_nothing(tmp_path):
    with upstream() as server:
        for url, options, folder, error, words in (
            ("ftp://x", {"model": "m"}, tmp_path / "a", ArgumentError, "URL must be http"),
            (server.url, {}, None, ArgumentError, "`record` must name a new folder"),
            (server.url, {}, tmp_path, ArgumentError, "must name a new folder, got"),
            (server.url, {"count_tokens": True}, tmp_path / "a", ServerError, "has no tokenizer to ask"),
            ("http://127.0.0.1:9", {}, tmp_path / "a", ServerError, "cannot be reached: Connection refused"),
        ):
            with pytest.raises(error, match=words):
                make_proxy(url, ProxyOptions(**options), RecordingOptions(record=folder))
        assert not (tmp_path / "a").exists()
    for field in ("max_open", "max_body_kib", "timeout_s"):
        with pytest.raises(ArgumentError, match=field):
            ProxyOptions(**{field: 0})


@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=200))
def test_shares_of_spans_are_those_of_the_list_to_two_percent(spans_ns):
    found = Delays()
    for span_ns in spans_ns:
        found.note(span_ns)
    for share in (0.5, 0.9, 0.99, 1.0):
        exact = sorted(spans_ns)[max(0, int(np.ceil(share * len(spans_ns))) - 1)] / 1e9
        assert exact * 0.98 - 2e-9 <= found.seconds_at(share) <= max(exact * 1.021, 2e-9) or exact > 1e3


@pytest.mark.slow
def test_a_proxy_that_is_killed_leaves_whole_files(tmp_path):
    with upstream() as server:
        for number, sent in enumerate([signal.SIGKILL] * 5 + [signal.SIGTERM] * 2):
            folder = tmp_path / f"traffic-{number}"
            command = [sys.executable, "-m", "paceline", "proxy", server.url, "--port", "0"]
            command += ["--record", str(folder), "--record-every", "0.05"]
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
                url = process.stderr.readline().split()[-1]
                thread = threading.Thread(target=all_of, args=(url, range(300)))
                thread.start()
                until(lambda folder=folder: is_observed(folder / "observed"))
                time.sleep(0.05 * number)
                process.send_signal(sent)
                thread.join()
                told = process.stderr.read()
            assert process.returncode == (0 if sent == signal.SIGTERM else -signal.SIGKILL), told
            assert "Traceback" not in told
            assert read_observed(folder / "observed").requests
            if (folder / "workload").exists():
                assert list(open_workload(folder / "workload"))


@pytest.mark.parametrize(("reads", "size"), [(1_000, 2**24), (0, 2**24), (0, 20)])
def test_an_answer_before_the_server_has_the_body_passes(tmp_path, reads, size):
    """As one to a body that is too long, after which the server closes its connection, with what it has not read."""
    told = b'{"error": "too long"}'

    def answer(listening):
        with suppress(OSError):
            while True:  # also asked for its counters
                connection, _ = listening.accept()
                with connection:
                    connection.recv(reads)
                    head = f"HTTP/1.1 413 Too Long\r\nContent-Length: {len(told)}\r\nConnection: close\r\n\r\n"
                    connection.sendall(head.encode() + told)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer, args=[listening], daemon=True).start()
        server = SimpleNamespace(url=f"http://127.0.0.1:{listening.getsockname()[1]}")
        with proxied(server, tmp_path / "traffic", model=MODEL, max_body_kib=2**15) as proxy:
            found = all_of(proxy.url, range(3), at_a_time=1, body=b"x" * size)
    assert [(status, data) for status, _, data, _ in found] == [(413, told)] * 3


def test_a_server_that_takes_a_body_slowly_is_not_silent():
    size, timeout_s = 2**25, 1.0

    def answer(listening):
        connection, _ = listening.accept()
        with connection:
            taken = 0
            while taken < size and (piece := connection.recv(2**17)):
                taken += len(piece)
                time.sleep(0.005)
            connection.sendall(b"HTTP/1.1 204 Taken\r\nConnection: close\r\n\r\n")
            while connection.recv(2**18):
                pass

    async def told(url):
        head = [("host", "x"), ("content-length", str(size))]
        async with aclosing(
            Upstream(url, timeout_s).answer(h11.Request(method="POST", target="/", headers=head), b"x" * size)
        ) as events:
            return [event.status_code async for event, _ in events]

    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)  # what it has not read waits with us
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        threading.Thread(target=answer, args=[listening], daemon=True).start()
        began_s = time.monotonic()
        assert asyncio.run(told(f"http://127.0.0.1:{listening.getsockname()[1]}")) == [204]
        assert time.monotonic() - began_s > timeout_s
