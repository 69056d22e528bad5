"""The proxy before llama-cpp-python's server, of which every byte is written down on its way.

PACELINE_LLAMA_SERVER says how such a server is started, but for its port:
`python -m llama_cpp.server --model smollm2.gguf --n_threads 1 --interrupt_requests False`.
"""

import asyncio
import json
import os
import shlex
import subprocess
import time
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from types import SimpleNamespace

import h11
import pytest
from paceline.runs.observed import read_observed
from paceline.server.listening import bound_socket
from paceline.server.options import Address

from .conftest import until
from .test_proxy import all_of, proxied
from .upstream import in_a_thread

COMMAND = os.environ.get("PACELINE_LLAMA_SERVER")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not COMMAND, reason="PACELINE_LLAMA_SERVER must say how to start llama-cpp-python's server"),
]


@contextmanager
def llama_server():
    with bound_socket(Address(port=0)) as free:
        port = free.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*shlex.split(COMMAND), "--port", str(port)], **quiet) as process:

        def answers():
            assert process.poll() is None
            with suppress(OSError), closing(HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
                connection.request("GET", "/v1/models")
                return connection.getresponse().status == 200

        try:
            until(answers, seconds=120)
            yield port
        finally:
            process.terminate()


@contextmanager
def relayed(port):
    """Hands bytes on to a port and back; `answers` are the bytes of each connection."""
    found = SimpleNamespace(answers=[])

    async def pump(reader, writer, kept):
        with suppress(ConnectionError):
            while data := await reader.read(2**16):
                kept.append(data)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def talk(reader, writer):
        answer = []
        found.answers.append(answer)
        behind, to_it = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, to_it, []), pump(behind, writer, answer))

    with in_a_thread(talk) as found.url:
        yield found


def bodies_of(data):
    """The bodies of the answers of one connection."""
    connection, bodies, body = h11.Connection(h11.CLIENT), [], b""
    connection.receive_data(data)
    while True:
        if connection.our_state is h11.IDLE:
            connection.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
            connection.send(h11.EndOfMessage())
        event = connection.next_event()
        if isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            bodies.append(body)
            body = b""
            if connection.their_state is not h11.DONE or not connection.trailing_data[0]:
                return bodies
            connection.start_next_cycle()
        elif not isinstance(event, h11.Response):
            return bodies


def test_every_byte_of_llama_cpp_python_passes_and_its_times_are_recorded(tmp_path):
    folder = tmp_path / "traffic"
    with llama_server() as port, relayed(port) as relay, proxied(relay, folder, count_tokens=True) as proxy:
        began_s, found = time.monotonic(), []
        for streamed, number, tokens in ((True, 40, 12), (False, 10, 12), (True, 760, 2), (False, 190, 2)):
            asked = {"prompt": "Once upon a time", "max_tokens": tokens, "stream": streamed, "temperature": 0.8}
            found += all_of(proxy.url, range(number), at_a_time=4, body=json.dumps(asked).encode())
        took_s = time.monotonic() - began_s
        sent = [body for answer in relay.answers if answer for body in bodies_of(b"".join(answer))]
        told = proxy.recorder.held.to_json()
    assert {status for status, *_ in found} == {200}
    received = sorted(data for _, _, data, _ in found)
    assert sorted(body for body in sent if b"text_completion" in body) == received
    run = read_observed(folder / "observed")
    assert len(received) == len(run.finished) == 1000
    assert {one.prompt_tokens for one in run.requests} <= {4, 5}
    assert all(1 <= one.output_tokens <= 14 for one in run.requests)
    assert sum(len(one.outputs_at_ps) > 5 for one in run.requests) > 20
    assert run.meta.counted_by == "tokenizer"
    assert max(one.ended_at_ps for one in run.requests) / 1e12 < took_s + 5
    assert told["p50"] < 0.002, told
