"""Whatever a server says ends in time and in bytes, spoils nothing that was measured, and steers no terminal."""

import gzip
import json
import tracemalloc

import pytest
from paceline.base.errors import escaped, message_of, one_line_of
from paceline.observing import server as server_module
from paceline.observing.server import ClientClock, Endpoint, Sent, ServerError, chunk_of, exchange
from paceline.runs.observed import read_observed
from paceline.traces.workloads.arrival import Arrival

from ..cli.command_line import done, paceline, refused, with_own
from .hostile_server import HEAD, forever, hostile, page, silence

LONG_S = 300.0  # that a test would take if what it expects did not end it
SHORT_S = 0.25
NO_END = "without [DONE] and without a finish_reason"
EVENT = b'data: {"choices": [{"text": "word "}]}\n\n'
LAST = b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'


def event(**fields):
    return b"data: " + json.dumps({"choices": [{"text": ""} | fields]}).encode() + b"\n\n"


def chunked(*pieces):
    return [HEAD.replace(b"Connection: close", b"Transfer-Encoding: chunked"), *pieces]


# By name: (what the server sends for a completion, how the request fails), for endings in time and in bytes.
ENDLESS_IN_TIME = {
    "nothing": silence(),
    "half a head": silence(b"HTTP/1.1 200 OK\r\nContent-Ty"),
    "a head that drips": forever(b"X", pause_s=0.02, first=b"HTTP/1.1 200 OK\r\nA: "),
    "a head, then nothing": silence(HEAD),
    "comments that drip": forever(b": keep alive\n\n", pause_s=0.02),
    "a line that drips": forever(b"d", pause_s=0.02),
    "text that drips": forever(EVENT, pause_s=0.02),
    "chunks that drip": forever(b"1\r\n:\r\n", pause_s=0.02, first=chunked()[0]),
    "a chunk's length that drips": forever(b"0", pause_s=0.02, first=chunked()[0]),
    "a trailer that drips": forever(b"A: b\r\n", pause_s=0.02, first=chunked(b"0\r\n")[0] + b"0\r\n"),
    "heads before the head": forever(b"HTTP/1.1 100 Continue\r\n\r\n", pause_s=0.02, first=b""),
}
ENDLESS_IN_BYTES = {
    "comments": forever(b": keep alive\n" * 500),
    "text beyond what was asked for": forever(EVENT * 500),
    "data without an empty line": forever(b"data: {}\n" * 500),
    "a line": forever(b"data: " + b"x" * 2**16),
    "empty lines": forever(b"\n" * 2**16),
    "chunks": forever(b"4000\r\n" + b":" * 0x3FFF + b"\n\r\n", first=chunked()[0]),
    "heads before the head": forever(b"HTTP/1.1 100 Continue\r\n\r\n" * 500, first=b""),
}
OTHERS = {
    "a flood of headers": ([b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n"], "got more than 100 headers"),
    "a long header": ([b"HTTP/1.1 200 OK\r\nA: " + b"b" * 2**17 + b"\r\n\r\n"], "got more than 65536 bytes"),
    "no HTTP": ([b"\x16\x03\x01\x02\x00\x01\x00garbage\n\n"], "garbage"),
    "no answer": ([], "Remote end closed connection without response"),
    "a redirect": (page(b"", status="307 Go", head=b"Location: http://a\x1b[2J/v1\r\n"),
                   "HTTP 307: Go (it says to ask http://a\\x1b[2J/v1)"),
    "a loop of redirects": (page(b"", status="302 Found", head=b"Location: /v1/completions\r\n"),
                            "HTTP 302: Found (it says"),
    "a status that steers": (page(b"", status="500 \x1b]0;title\x07"), "HTTP 500: \\x1b]0;title\\x07"),
    "a message that steers": (page(b'{"error": {"message": "\\u001b[31mred\\nline\\u202e"}}', status="400 No"),
                              "HTTP 400: \\x1b[31mred line\\u202e"),
    "a message of bytes": (page(b"\xff\xfe\x00" * 9, status="400 No"), "HTTP 400: "),
    "a message too deep": (page(b"[" * 60_000, status="400 No"), "HTTP 400: [[[["),
    "a deep message": (page(b'{"error": ' + b"[" * 900 + b"]" * 900 + b"}", status="400 No"), "HTTP 400: "),
    "a long message": (page(b'{"error": "' + b"x" * 10**6 + b'"}', status="400 No"), "HTTP 400: "),
    "a length that is short": ([b"HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\n" + EVENT + LAST], NO_END),
    "a length that is long": ([b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + EVENT], NO_END),
    "a negative chunk": (chunked(b"-5\r\n" + EVENT), ""),
    "a chunk's length that is none": (chunked(b"zz\r\n"), "IncompleteRead"),
    "a chunk cut short": (chunked(b"ff\r\n" + EVENT), ""),
    "a bomb": (page(gzip.compress(b"\0" * 10**6), head=b"Content-Encoding: gzip\r\n"),
               "the answer is encoded by gzip, which was not asked for"),
    "deep JSON": ([HEAD, b"data: " + b"[" * 50_000 + b"\n\n"], "an event is no JSON"),
    "a deep error": ([HEAD, b'data: {"error": ' + b'{"error": ' * 900 + b"1" + b"}" * 901 + b"\n\n"], ""),
    "an error of lists": ([HEAD, b'data: {"error": ' + b"[" * 900 + b"]" * 900 + b"}\n\n"], ""),
    "an error that steers": ([HEAD, b'data: {"error": "\\u001b[2J\\u0000\\ud800"}\n\n'],
                             "the server said in its stream: \\x1b[2J\\x00\\ud800"),
    "a number without end": ([HEAD, b'data: {"usage": {"prompt_tokens": ' + b"9" * 9000 + b"}}\n\n"],
                             "an event is no JSON"),
    "an end in the middle": ([HEAD, EVENT, b"data: {"], NO_END),
}  # fmt: skip


def asked_of(server, timeout_s):
    """One request, of 5 tokens."""
    client = Endpoint(server.url, api_key=None, timeout_s=timeout_s)
    sent = Sent(arrival=Arrival("a", 0, 1, 5), prompt_id="p", text="x", body={"stream": True})
    return exchange(client, "/v1/completions", sent, 0, ClientClock()).seen


@pytest.mark.parametrize("name", ENDLESS_IN_TIME)
def test_a_request_ends_in_its_time_whatever_comes(name):
    with hostile(completions=ENDLESS_IN_TIME[name]) as server:
        seen = asked_of(server, SHORT_S)
    assert seen.failed.startswith(f"no end within {SHORT_S:g} s")
    assert seen.ended_at_ps - seen.sent_at_ps >= 0.9 * SHORT_S * 10**12


@pytest.mark.parametrize("name", ENDLESS_IN_BYTES)
def test_a_request_ends_in_its_bytes_whatever_comes(name, monkeypatch):
    monkeypatch.setattr(server_module, "_BYTES_BESIDE", 2**17)
    tracemalloc.start()
    try:
        with hostile(completions=ENDLESS_IN_BYTES[name]) as server:
            seen = asked_of(server, LONG_S)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "the answer is longer than 151,552 bytes" in seen.failed  # 2**17 and five times 4096
    assert most < 12 * 2**20


@pytest.mark.parametrize("name", OTHERS)
def test_nonsense_is_a_failed_request_with_a_line_that_can_be_written(name):
    pieces, told = OTHERS[name]
    with hostile(completions=pieces) as server:
        seen = asked_of(server, LONG_S)
    assert told in seen.failed
    assert seen.failed
    assert seen.failed == escaped(seen.failed)
    assert "\n" not in seen.failed
    assert len(seen.failed) < 500


@pytest.mark.parametrize(
    "content",
    [forever(b"x" * 2**16), page(b"short")[0][:-2], page(gzip.compress(b"x"), head=b"Content-Encoding: gzip\r\n")],
    ids=["endless", "cut", "compressed"],
)
def test_pages_are_whole_or_an_error(content, monkeypatch):
    monkeypatch.setattr(server_module, "_MOST_PAGE_BYTES", 2**20)
    monkeypatch.setattr(Endpoint.asked.__wrapped__, "__kwdefaults__", {"most_bytes": 2**20})
    with hostile(metrics=[content] if isinstance(content, bytes) else content) as server:
        client = Endpoint(server.url, api_key=None, timeout_s=LONG_S)
        with pytest.raises(ServerError, match=r"^http://127\.0\.0\.1:\d+/metrics: "):
            client.page("/metrics")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text('{"id": "p", "prompt": "one two"}\n')
    return tmp_path


def observe(server, *options):
    load = ("--workload", "constant:rate=200,requests=3,prompt=9,output=5", "--tag", "")
    return ("observe", server.url, *with_own(("--prompts", "p.jsonl", *load, "--warmup", "0"), options))


def test_a_model_that_cannot_be_written_is_refused_before_anything_is_sent(folder):
    for name in ("a\nb", "a\u001b[2Jb", "\ud800", "a" * 501, "", "a\u202eb", "a\u2028b"):
        models = page(json.dumps({"data": [{"id": name}]}).encode())
        with hostile(models=models, completions=[HEAD, EVENT, LAST]) as server:
            told = refused(*observe(server, "--out", "run"))
            assert server.asked == ["models"]
        assert "--model must be a name of 1 to 500 printable characters, got" in told
        assert told.isprintable()
        assert not (folder / "run").exists()


def test_what_the_folder_could_not_hold_is_told_before_anything_is_sent(folder):
    (folder / "a\nb.jsonl").write_bytes((folder / "p.jsonl").read_bytes())
    with hostile(completions=[HEAD, EVENT, LAST]) as server:
        told = refused(*observe(server, "--prompts", "a\nb.jsonl", "--out", "run"))
        assert server.asked == ["models"]
    assert "prompts" in told


def test_lists_of_models_that_are_none_are_one_line_and_a_long_one_is_shown_in_part(folder):
    for models in (b"[" * 10**5, b'{"data": 1}', b'{"data": [[], {"id": 1}]}', b"\xff", b"\x1b[2J", b""):
        with hostile(models=page(models)) as server:
            assert refused(*observe(server)).isprintable()
            assert server.asked == ["models"]
    models = json.dumps({"data": [{"id": f"m{number}"} for number in range(10_000)]})
    with hostile(models=page(models.encode())) as server:
        assert refused(*observe(server)).endswith("m18, m19 and 9,980 more")


COUNTS = {
    "negative": {"prompt_tokens": -1, "completion_tokens": -5},
    "great": {"prompt_tokens": 10**30, "completion_tokens": 2**31},
    "others": {"prompt_tokens": True, "completion_tokens": "5"},
    "none": {"prompt_tokens": 0, "completion_tokens": 1.5},
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_that_are_none_are_unknown_and_noted_and_the_run_is_kept(folder, name):
    usage = b"data: " + json.dumps({"choices": [], "usage": COUNTS[name]}).encode() + b"\n\n"
    with hostile(completions=[HEAD, EVENT, event(finish_reason="stop"), usage, b"data: [DONE]\n\n"]) as server:
        found = json.loads(done(*observe(server, "--out", "run", "--json", "-")))
    assert (found["finished"], found["uncounted"]) == (3, 3)
    noted = [note for note in found["meta"]["notes"] if "3 answers told" in note]
    assert [note.split()[3] for note in noted] == ["output_tokens", "prompt_tokens"]
    assert [one.prompt_tokens for one in read_observed(folder / "run").requests] == [None] * 3


@pytest.mark.parametrize(
    "reason", ["\ud800", "\x1b[31mred", "two\nlines", "x" * 10**5], ids=lambda text: ascii(text)[:9]
)
def test_reasons_are_kept_so_that_they_can_be_written_and_shown(folder, reason):
    with hostile(completions=[HEAD, EVENT, event(finish_reason=reason), b"data: [DONE]\n\n"]) as server:
        shown = done(*observe(server, "--out", "run"))
    kept = {one.finish_reason for one in read_observed(folder / "run").requests}
    assert kept == {one_line_of(reason, 60)}
    assert done("metrics", "run") == shown
    assert escaped(shown) == shown


def test_pages_of_metrics_that_misbehave_do_not_spoil_a_run(folder):
    with hostile(completions=[HEAD, EVENT, LAST], metrics=page(b"\x1b[2J", status="500 \x1b[2J")) as server:
        ran = paceline(*observe(server, "--out", "run"))
    assert ran.code == 0
    assert len(read_observed(folder / "run").finished) == 3
    assert escaped(ran.out) == ran.out


def test_messages_within_messages_are_read_and_bounded():
    deep = "x"
    for _ in range(900):
        deep = [deep]
    assert message_of({"error": {"message": {"detail": "a\nb"}}}) == "a b"
    assert len(message_of({"error": deep})) <= 300
    assert len(message_of("x" * 10**6)) == 300
    assert chunk_of('{"error": "\\u0007"}').error == "\\x07"


def test_what_would_steer_a_terminal_is_escaped_and_lines_have_an_end():
    for text, shown in (
        ("plain, é 漢字 🙂\ttab\nline", "plain, é 漢字 🙂\ttab\nline"),
        ("\x1b[31m\x07\x00\r", "\\x1b[31m\\x07\\x00\\r"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("\u202eright\u2066", "\\u202eright\\u2066"),
        ("\ud83d", "\\ud83d"),
    ):
        assert escaped(text) == escaped(escaped(text)) == shown
        assert escaped(text).encode()
    long = "x" * 10
    for text, line in (("a\n b", "a b"), (long[1:], long[1:]), (long, "xxxxxx..."), (" " * 99, "...")):
        assert one_line_of(text, 9) == line
