"""A server of the tests' own on asyncio, bare: it writes exactly the bytes that a test plans, when it plans them."""

import asyncio
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Queue
from random import Random

MODEL = "tiny"


@dataclass
class Plan:
    """One answer: its status, head and pieces of its body, each after a pause."""

    status: int = 200
    headers: dict = field(default_factory=dict)
    pieces: list = field(default_factory=list)  # (seconds before it, or an event that it waits for, bytes)
    chunked: bool = True
    breaks: bool = False  # whether the connection ends after the pieces, before the body does


def stream_of(tokens, *, usage=True, pause_s=0.0, more=None, done=True):
    """Events of an answer of so many tokens."""
    events = [{"choices": [{"index": 0, "text": f"wörd{number} ", "finish_reason": None}]} for number in range(tokens)]
    events.append({"choices": [{"index": 0, "text": "", "finish_reason": "length"}], **(more or {})})
    if usage:
        events.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}})
    lines = [f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode() for event in events]
    return [(pause_s, line) for line in [*lines, *([b"data: [DONE]\n\n"] if done else [])]]


def cut(pieces, random):
    """The same bytes, cut anywhere, with pauses here and there."""
    data, cuts = b"".join(piece for _, piece in pieces), []
    while data:
        size = random.choice([1, 17, 100, 1000])
        cuts.append((random.choice([0.0, 0.0, 0.0, 0.001]), data[:size]))
        data = data[size:]
    return cuts


def plan_of(seed):
    """Any answer."""
    random = Random(seed)
    kind = random.choice(["stream", "stream", "stream", "json", "error", "breaks", "bytes"])
    events = {"Content-Type": "text/event-stream; charset=utf-8", "X-Request-Id": f"r{seed}"}
    tokens = random.randrange(1, 12)
    if kind == "stream":
        pieces = stream_of(tokens, usage=random.random() < 0.8)
        return kind, Plan(headers=events, pieces=cut(pieces, random))
    if kind == "breaks":
        return kind, Plan(headers=events, pieces=cut(stream_of(tokens), random)[:-2] or [(0, b"data: ")], breaks=True)
    if kind == "bytes":
        body = random.randbytes(random.randrange(20_000))
        headers = {"Content-Type": "application/octet-stream", "ETag": '"x"', "Set-Cookie": "a=b; Path=/"}
        return kind, Plan(headers=headers, pieces=[(0, body)], chunked=random.random() < 0.5)
    usage = {"prompt_tokens": 7, "completion_tokens": tokens}
    choices = [{"index": 0, "text": "ä" * tokens, "finish_reason": "stop"}]
    answer = {"id": f"cmpl-{seed}", "choices": choices, "usage": usage}
    status = 200
    if kind == "error":
        status = random.choice([400, 401, 404, 422, 429, 500, 503])
        answer = {"error": {"message": f"no {seed}", "type": "x", "code": None}}
    body = json.dumps(answer).encode()
    return kind, Plan(status=status, headers={"Content-Type": "application/json"}, pieces=[(0, body)], chunked=False)


class Upstream:
    """What a test sees of it. `plans` tells the plan of a request by its path, headers and body."""

    def __init__(self, plans):
        self.plans, self.seen, self.written_ns = plans, [], {}
        self.num_cut = 0  # connections that their client ended in an answer
        self.pages = []  # of /metrics, in turn; the last one stays

    async def talk(self, reader, writer):
        try:
            while await self._answer(reader, writer):
                pass
        except ConnectionError:  # in an answer: a client that leaves between two has ended in order
            self.num_cut += 1
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def _answer(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = dict(line.split(": ", 1) for line in lines if line)
        lower = {name.lower(): value for name, value in headers.items()}
        body = await reader.readexactly(int(lower.get("content-length", "0")))
        plan = self._own(path) or self.plans(path, lower, body)
        self.seen.append((method, path, headers, body))
        fields = dict(plan.headers)
        if plan.chunked:
            fields["Transfer-Encoding"] = "chunked"
        else:
            fields["Content-Length"] = str(sum(len(piece) for _, piece in plan.pieces) + 100 * plan.breaks)
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"HTTP/1.1 {plan.status} X\r\n{lines}\r\n".encode())
        written = self.written_ns.setdefault(lower.get("x-name", ""), [])
        for pause_s, piece in plan.pieces:
            if isinstance(pause_s, threading.Event):
                while not pause_s.is_set():
                    await asyncio.sleep(0.001)
            elif pause_s:
                await asyncio.sleep(pause_s)
            if reader.at_eof():
                self.num_cut += 1
                return False
            written.append(time.perf_counter_ns())
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" if plan.chunked else piece)
            await writer.drain()
        if plan.breaks:
            return False
        if plan.chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _own(self, path):
        if path == "/v1/models":
            text, kind = json.dumps({"data": [{"id": MODEL}]}), "application/json"
        elif path == "/metrics" and self.pages:
            text, kind = self.pages.pop(0) if len(self.pages) > 1 else self.pages[0], "text/plain"
        elif path in {"/metrics", "/prometheus/metrics"}:
            return Plan(status=404, pieces=[(0, b"none")], chunked=False)
        else:
            return None
        return Plan(headers={"Content-Type": kind}, pieces=[(0, text.encode())], chunked=False)


@contextmanager
def in_a_thread(talk):
    """The address of a server on a free port, in a thread of its own, which calls `talk` with each connection."""
    started = Queue()

    async def run():
        server = await asyncio.start_server(talk, "127.0.0.1", 0, backlog=1000)
        ending = asyncio.Event()
        started.put((f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asyncio.get_running_loop(), ending))
        await ending.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    url, loop, ending = started.get()
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()


@contextmanager
def upstream(plans=None, *, pages=()):
    """A server whose answers are planned: as `plans` says, else by the request's seed."""
    found = Upstream(plans or (lambda _path, headers, _body: plan_of(int(headers["x-seed"]))[1]))
    found.pages = list(pages)
    with in_a_thread(found.talk) as found.url:
        yield found
