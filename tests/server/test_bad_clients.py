"""Clients that send what is no request, too much of it, too slowly, or that read nothing: none is waited for."""

import json
import os
import random
import resource
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from select import select

import pytest
from paceline.server.listening import Connection
from paceline.server.options import RecordingOptions, RequestLimits
from paceline.server.record import responses_folder
from paceline.traces.importers import ImportOptions, read_recording
from paceline.traces.workloads import open_workload

from .conftest import Client, held, serving, until

LONG_S = 600  # that nothing here takes, nor is waited for
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNK = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
BODY = json.dumps({"model": "pico", "prompt": "Once", "max_tokens": 200, "n": 4, "stream": True, "ignore_eos": True})


@pytest.fixture(scope="module")
def patient(models):
    with serving(models, limits=RequestLimits(max_body_kib=64), policies=["plain"], patience_s=2 * LONG_S) as found:
        yield found


@pytest.fixture(scope="module")
def impatient(models):
    with serving(models, policies=["plain"], patience_s=1, send_bytes=4096) as found:
        yield found


def connected(port):
    return closing(socket.create_connection(("127.0.0.1", port), timeout=LONG_S))


def told(connection):
    """(status, error) of what comes back, until the server closes."""
    said = b""
    while b"\r\n\r\n" not in said or not said.endswith(b"}"):
        piece = connection.recv(65536)
        if not piece:
            break
        said += piece
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


RAW = {
    "no HTTP": (b"\x16\x03\x01 hello\r\n\r\n", 400),
    "no version": (b"GET /health\r\n\r\n", 400),
    "header bomb": (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X-A: " + b"a" * 200_000, 431),
    "many headers": (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X-A: a\r\n" * 50_000, 431),
    "body bomb, by its length": (HEAD + b"Content-Length: 10000000000\r\n\r\n" + b" " * 65_536, 413),
    "body bomb, in chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK * 3, 413),
    "two lengths": (HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
    "a negative length": (HEAD + b"Content-Length: -2\r\n\r\n{}", 400),
    "a path that is none": (b"GET /%00%ff HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
    "another method": (b"DELETE /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
}  # fmt: skip


@pytest.mark.parametrize("what", RAW)
def test_what_is_no_request_is_told_so_and_no_more_of_it_is_waited_for(patient, what):
    sent, status = RAW[what]
    with connected(patient.port) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):  # the server has said enough
            connection.sendall(sent)
        found, error = told(connection)
    assert found == status
    assert set(error) == {"message", "type", "param", "code"}
    assert patient.get("/health").status == 200


@pytest.mark.parametrize("sent", [b"POST /v1/comp", HEAD, HEAD + b"Content-Length: 9999\r\n\r\n{"])
def test_a_request_that_does_not_go_on_is_not_waited_for(impatient, sent):
    """Not even where a byte comes now and then: the server has to end it."""
    with connected(impatient.port) as connection:
        connection.sendall(sent)
        with suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(9000):
                if select([connection], [], [], 0.05)[0]:
                    break
                connection.sendall(b" ")
        status, error = told(connection)
    assert status == 408
    assert "within 1 s" in error["message"]


def test_a_client_that_says_nothing_is_left(impatient):
    with connected(impatient.port) as connection:
        assert told(connection)[0] == 408


def test_a_client_that_does_not_read_its_answer_frees_its_place(impatient, prompts, monkeypatch):
    left, lost = [], Connection.connection_lost
    monkeypatch.setattr(Connection, "connection_lost", lambda own, why: (lost(own, why), left.append(own.client)))
    expected = impatient.complete(prompts[0], max_tokens=4).body["choices"]
    with closing(socket.socket()) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", impatient.port))
        with held(impatient):
            slow.sendall(HEAD + f"Content-Length: {len(BODY)}\r\n\r\n{BODY}".encode())
            until(lambda: impatient.service.engine.num_open == 4)
        assert impatient.complete(prompts[0], max_tokens=4).body["choices"] == expected
        impatient.idle()
        until(lambda: slow.getsockname() in left)
        with suppress(ConnectionResetError):
            said = b"".join(iter(lambda: slow.recv(65536), b""))
            assert b"[DONE]" not in said


@pytest.mark.slow
def test_clients_that_leave_at_random_harm_nobody_and_leave_nothing_behind(models, prompts, tmp_path):
    """200 of them, streamed or not, before the head, within the head or within a stream of up to 8 answers."""
    folder, chance, policy = tmp_path / "traffic", random.Random(0), "draft:4/target"
    recording = RecordingOptions(record=folder, record_every_s=0.1)
    with serving(models, policies=[policy], recording=recording) as client, ThreadPoolExecutor(4) as pool:
        expected = [client.complete(text).body["choices"] for text in prompts]
        left = [pool.submit(leave, client, chance.random(), chance.choice(prompts)) for _ in range(200)]
        beside = [client.complete(text).body["choices"] for text in prompts * 3]
        for one in left:
            one.result()
        assert beside == expected * 3
        client.idle()
        assert [client.complete(text).body["choices"] for text in prompts] == expected
        for line in client.get("/metrics").text.splitlines():
            if line.startswith(("vllm:num_requests_", "vllm:kv_cache_usage_perc{")):
                assert float(line.split()[-1]) == 0, line
    arrivals = {one.request_id: one.output_tokens for one in open_workload(folder / "workload")}
    place = folder / responses_folder(policy)
    recorded = read_recording("auto", [place], ImportOptions(names={place.name: "draft"}))
    assert len(arrivals) >= 5 * len(prompts)
    assert {one.request_id for one in recorded.requests} == set(arrivals)
    assert all(arrivals.values())


def leave(client, when, text):
    """Ask, and leave at a point from 0 (at once) to 1 (after some 20 kB of the answer), or after half a minute."""
    chance = random.Random(when)
    asked = {"model": "pico", "prompt": text, "max_tokens": 24, "n": chance.randint(1, 8), "ignore_eos": True}
    body = json.dumps({**asked, "stream": chance.random() < 0.8}).encode()
    sent = HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    with connected(client.port) as connection:
        if when < 0.1:
            connection.sendall(sent[: int(10 * when * len(sent))])
            return
        connection.sendall(sent)
        count = int(max(0.0, when - 0.3) * 30_000)
        with suppress(TimeoutError):
            while count > 0 and (piece := connection.recv(count)):
                count -= len(piece)


@pytest.mark.slow
def test_two_thousand_connections_leave_room_for_a_request():
    """Also where the system's first answer to how many files may be open is 256."""
    command = [sys.executable, "-m", "paceline", "serve", "--port", "0", "--policy", "plain"]
    few = ["sh", "-c", 'ulimit -S -n 256; exec "$@"', "sh", *command]
    with ExitStack() as stack:
        server = stack.enter_context(
            subprocess.Popen(few, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        )
        stack.callback(server.terminate)
        port = int(server.stderr.readline().rsplit(":", 1)[1])
        count = min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)
        for _ in range(count):
            stack.enter_context(connected(port))
        client = Client(port, None)
        assert client.get("/health").status == 200
        assert client.complete("Once", max_tokens=1).status == 200
