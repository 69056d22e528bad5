"""A server that misbehaves: bytes as a test writes them, for as long as somebody reads."""

import socket
from contextlib import contextmanager, suppress
from threading import Event, Thread

MODEL = "tiny"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def page(content, *, status="200 OK", head=b""):
    """An answer of known length."""
    return [f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n".encode() + head + b"\r\n" + content]


def forever(piece, *, pause_s=0.0, first=HEAD):
    """A beginning, then the same piece again and again."""

    def pieces(closed):
        yield first
        while not closed.wait(pause_s):
            yield piece

    return pieces


def silence(*first):
    """A beginning, then nothing until nobody listens any more."""

    def pieces(closed):
        yield from first
        closed.wait()

    return pieces


class Hostile:
    """What a test sees of it.

    Attributes:
        url: of the server.
        answers: by path, what is sent: pieces, or a function of an event that is set at the end.
        asked: paths, in the order in which they were asked for.
        sent: bytes of all answers.
    """

    def __init__(self, url, answers):
        self.url, self.answers = url, answers
        self.asked, self.sent = [], 0


@contextmanager
def hostile(**answers):
    """A server on a free port of this machine, while the block runs; answers by the last name of their path."""
    closed = Event()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        models = b'{"data": [{"id": "%s"}]}' % MODEL.encode()
        standard = {"models": page(models), "metrics": page(b"", status="404 Not Found")}
        seen = Hostile(f"http://127.0.0.1:{listening.getsockname()[1]}", standard | answers)
        threads = [Thread(target=_accept, args=(listening, seen, closed), daemon=True)]
        threads[0].start()
        try:
            yield seen
        finally:
            closed.set()
            listening.shutdown(socket.SHUT_RDWR)
            threads[0].join()


def _accept(listening, seen, closed):
    while not closed.is_set():
        try:
            connected, _ = listening.accept()
        except OSError:
            return
        Thread(target=_answer, args=(connected, seen, closed), daemon=True).start()


def _received(connected):
    """Raises ConnectionError where nothing more will come, so that no thread asks again and again."""
    if not (piece := connected.recv(65536)):
        raise ConnectionError
    return piece


def _answer(connected, seen, closed):
    with connected, suppress(OSError):
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += _received(connected)
        head, _, body = asked.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        while len(body) < length:
            body += _received(connected)
        name = head.split()[1].decode().rpartition("/")[2]
        seen.asked.append(name)
        pieces = seen.answers.get(name, page(b"", status="404 Not Found"))
        for piece in pieces(closed) if callable(pieces) else pieces:
            connected.sendall(piece)
            seen.sent += len(piece)
