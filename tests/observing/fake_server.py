"""A server of the tests' own that speaks OpenAI's HTTP, with seconds and faults that a test sets."""

import json
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Barrier, Event, Lock, Thread

MODEL = "tiny"


@dataclass
class Ways:
    """How the server behaves; requests are numbered from 0, warm-ups among them.

    Attributes:
        prefill_s, step_s: seconds before the first chunk, and between two.
        tokens_a_chunk: of the answer.
        usage: whether the stream ends with counts, if they are asked for.
        done: whether it ends with [DONE].
        fault: by number of a request: "500", "garbage", "error".
        metrics: pages of /metrics, in turn; the last one stays. Empty: 404.
        timings: of the last chunk, as llama.cpp's.
        key: that has to be sent; "" for none.
        tokenizer: whether /tokenize answers, as vLLM's unless it says `llama.cpp`; `no chats`: of texts only.
        tokenized: what /tokenize answers instead of a count, in turn; the last one stays. Empty: a count.
        models: that are listed.
        policies: that are listed of each model; None: the server knows none.
        one_at_a_time: whether requests wait for each other.
        together: as many requests as have to be there before the first of them are answered.
        stuck_from: the first request whose answer has no first chunk.
    """

    prefill_s: float = 0.0
    step_s: float = 0.0
    tokens_a_chunk: int = 1
    usage: bool = True
    done: bool = True
    fault: dict[int, str] = field(default_factory=dict)
    metrics: list[str] = field(default_factory=list)
    timings: dict[str, int] | None = None
    key: str = ""
    tokenizer: bool | str = False
    tokenized: list = field(default_factory=list)
    models: tuple[str, ...] = (MODEL,)
    policies: tuple[str, ...] | None = None
    one_at_a_time: bool = False
    together: int = 1
    stuck_from: int | None = None


class Server:
    """What a test sees of it."""

    def __init__(self, url, ways):
        self.url, self.ways = url, ways
        self.bodies, self.headers = [], []
        self.lock, self.turn = Lock(), Lock()
        self.together, self.closed = Barrier(ways.together), Event()
        self.pages = self.num_answered = 0


@contextmanager
def served(ways=None):
    """A server on a free port of this machine, while the block runs."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    http.daemon_threads = True
    http.seen = Server(f"http://127.0.0.1:{http.server_port}", ways or Ways())
    thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield http.seen
    finally:
        http.seen.closed.set()
        http.shutdown()
        http.server_close()
        thread.join()


def tokens_of(text):
    """As this server counts a prompt."""
    return len(text.split())


def _sleep_until(due_s):
    time.sleep(max(0.0, due_s - time.monotonic()))


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        seen = self.server.seen
        if self.path == "/v1/models":
            served = {} if seen.ways.policies is None else {"policies": seen.ways.policies}
            self._page(200, json.dumps({"data": [{"id": name, **served} for name in seen.ways.models]}))
        elif self.path == "/metrics" and seen.ways.metrics:
            page = seen.ways.metrics[min(seen.pages, len(seen.ways.metrics) - 1)]
            seen.pages += 1
            self._page(200, page)
        else:
            self._page(404, json.dumps({"detail": "Not Found"}))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        seen = self.server.seen
        if self.path == "/tokenize" and seen.ways.tokenizer:
            if seen.ways.tokenizer == "llama.cpp":
                counted = {"tokens": [1] * tokens_of(body.get("content", ""))}
            else:  # a chat has two tokens of its template
                texts = [body["prompt"]] if "prompt" in body else ["<user>", "<assistant>"]
                texts += [message["content"] for message in body.get("messages", [])]
                counted = {"count": sum(map(tokens_of, texts))}
            if seen.ways.tokenizer == "no chats" and "messages" in body:
                counted = {"error": {"message": "no chat template"}}
            said = seen.ways.tokenized
            self._page(200, json.dumps((said.pop(0) if len(said) > 1 else said[0]) if said else counted))
            return
        if self.path not in {"/v1/completions", "/v1/chat/completions"}:
            self._page(404, json.dumps({"detail": "Not Found"}))
            return
        if seen.ways.key and self.headers.get("Authorization") != f"Bearer {seen.ways.key}":
            got = self.headers.get("Authorization", "")
            self._page(401, json.dumps({"error": {"message": f"wrong key: {got}"}}))
            return
        with seen.lock:
            number = len(seen.bodies)
            seen.bodies.append(body)
            seen.headers.append(dict(self.headers))
        if number < seen.ways.together:
            seen.together.wait()
        with suppress(BrokenPipeError, ConnectionResetError):  # the client has gone
            is_stuck = seen.ways.stuck_from is not None and number >= seen.ways.stuck_from
            self._answer(seen, body, "stuck" if is_stuck else seen.ways.fault.get(number, ""))

    def _answer(self, seen, body, fault):
        if fault == "500":
            self._page(500, json.dumps({"error": {"message": "out of memory"}}))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        if fault == "stuck":
            seen.closed.wait()
        elif seen.ways.one_at_a_time:
            with seen.turn:
                self._stream(seen.ways, body, fault)
        else:
            self._stream(seen.ways, body, fault)

    def _stream(self, ways, body, fault):
        due_s = time.monotonic() + ways.prefill_s
        _sleep_until(due_s)
        left = body["max_tokens"]
        chat = "messages" in body
        if chat:
            self._send({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        while left:
            count = min(left, ways.tokens_a_chunk)
            text = "word " * count
            self._send({"choices": [{"delta": {"content": text}} if chat else {"text": text}]})
            if fault == "garbage":
                self.wfile.write(b"<html>gateway</html>\n\n")
                return
            if fault == "error":
                self._send({"error": {"message": "engine died"}})
                return
            left -= count
            if left:
                due_s += ways.step_s  # not from now on, so that what sending takes does not add up
                _sleep_until(due_s)
        last = {"choices": [{"delta": {}} if chat else {"text": ""}]}
        last["choices"][0]["finish_reason"] = "length"
        self._send(last | ({"timings": ways.timings} if ways.timings else {}))
        if ways.usage and body.get("stream_options", {}).get("include_usage"):
            text = body["messages"][0]["content"] if chat else body["prompt"]
            usage = {"prompt_tokens": tokens_of(text), "completion_tokens": body["max_tokens"]}
            self._send({"choices": [], "usage": usage})
        if ways.done:
            self.wfile.write(b"data: [DONE]\n\n")
        with self.server.seen.lock:
            self.server.seen.num_answered += 1

    def _send(self, content):
        self.wfile.write(f"data: {json.dumps(content)}\n\n".encode())
        self.wfile.flush()

    def _page(self, status, text):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
