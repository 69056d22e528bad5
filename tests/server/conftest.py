"""A server of the shipped pool in a thread of the tests' process, and requests to it."""

import json
import socket
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection

import pytest
import torch

pytest.importorskip("fastapi", reason="the server needs fastapi, of the extra `serve`")
pytest.importorskip("uvicorn", reason="the server needs uvicorn, of the extra `serve`")

import uvicorn
from paceline.base.files import pool_path
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import read_prompts
from paceline.server.app import make_app
from paceline.server.listening import bound_socket, server_config
from paceline.server.options import Address, EngineOptions, RequestLimits
from paceline.server.start import ServedPool, make_service

CHAIN = "draft:3/mid:6/target"


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict
    text: str
    events: list = field(default_factory=list)  # of a stream

    @property
    def body(self):
        return json.loads(self.text)

    @property
    def error(self):
        return self.body["error"]


class Client:
    """Asks a server on this machine."""

    def __init__(self, port, service):
        self.port, self.service = port, service

    def connection(self):
        return closing(HTTPConnection("127.0.0.1", self.port, timeout=60))

    def get(self, path, **headers):
        return self._ask("GET", path, None, headers)

    def post(self, path, body, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._ask("POST", path, data, {"Content-Type": "application/json", **headers})

    def complete(self, prompt, **fields):
        asked = {"model": "pico", "prompt": prompt, "max_tokens": 24, "temperature": 0, **fields}
        return self.post("/v1/completions", asked)

    def idle(self):
        """Wait until nobody runs or waits."""
        until(lambda: not self.service.engine.num_open)

    def _ask(self, method, path, data, headers):
        with self.connection() as connection:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            text = response.read().decode()
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        events = [json.loads(line) for line in lines if line != "[DONE]"]
        return Answer(response.status, dict(response.headers), text, events)


def until(holds, seconds=300):
    """Wait for what comes by itself; no test asks how soon."""
    ends_at = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends_at, "it never came"
        time.sleep(0.01)


@contextmanager
def held(client, operations=0):
    """The engine runs so many more operations, and the next one once the block has ended."""
    engine, goes_on = client.service.engine, threading.Event()
    turn, left = engine._turn, iter(range(operations))

    def held_turn():
        if next(left, None) is None:
            goes_on.wait()
        return turn()

    engine._turn = held_turn
    try:
        yield
    finally:
        engine._turn = turn
        goes_on.set()


@contextmanager
def serving(
    models,
    *,
    limits=None,
    api_key=None,
    policies=(CHAIN, "plain"),
    debug=False,
    recording=None,
    follow=None,
    patience_s=15,
    send_bytes=None,
    **engine,
):
    asked = ServedPool(pool=models, policies=policies, engine=EngineOptions(**engine), debug=debug)
    service = make_service(asked, limits or RequestLimits(), recording, follow)
    listening = bound_socket(Address(port=0))
    if send_bytes is not None:  # that the system takes of an answer before the client reads it
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
    app = make_app(service, api_key=api_key)
    server = uvicorn.Server(server_config(app, 5.0, patience_s=patience_s))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        until(lambda: server.started)
        yield Client(listening.getsockname()[1], service)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
    assert not service.engine.num_open
    assert not service.engine.is_alive


@pytest.fixture(scope="session")
def models():
    torch.set_num_threads(1)
    return ModelPool.load(pool_path(None))


@pytest.fixture(scope="session")
def prompts():
    return [prompt.text for prompt in read_prompts(pool_path(None) / "prompts.jsonl")[:6]]


@pytest.fixture(scope="module")
def client(models):
    with serving(models) as found:
        yield found


# As instruction models have it; a second question is refused by the template itself, where no answer came between.
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'user' and not loop.first and loop.previtem.role == 'user' %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ message.role }}: {{ message.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="session")
def chat_pool(tmp_path_factory):
    """The shipped pool with a chat template beside its tokenizer."""
    folder = tmp_path_factory.mktemp("pools") / "pico"
    folder.mkdir()
    for path in pool_path(None).iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder
