"""Objects, lines, event streams and pages of metrics: with their places, bounded, and refused in one line."""

import gzip
import json
import os
import tracemalloc
from collections import deque
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.runtime import tasks
from paceline.runtime.prompts import read_prompts
from paceline.traces import TraceFormatError
from paceline.traces.importers import read_recording, reading
from paceline.traces.importers.metrics_pages import Scrapes, read_page
from paceline.traces.importers.reading import (
    BrokenStreamError,
    EventStream,
    first_object,
    lines_of,
    read_objects,
    text_lines,
    the_one,
)
from paceline.traces.workloads import open_workload

from ...pairs import pairs

VALUES = [{"id": "a", "text": 'br{ack[ets" and \\ more'}, {"id": "b", "list": [[1], {"c": {}}]}, {"id": "c"}]


def read_object(path):
    return the_one(path, read_objects(path), None)


def test_objects_by_the_line_over_lines_and_in_arrays(tmp_path):
    plain, spread, flat = ([json.dumps(value, indent=indent) for value in VALUES] for indent in (None, 2, 0))
    for text in (
        *("\n".join(plain), "\n\n".join(spread), "\n".join(flat), "\n".join([plain[0], spread[1], plain[2]])),
        *(json.dumps(VALUES), json.dumps(VALUES, indent=4), "[\n" + ",\n".join(plain) + "\n]\n"),
    ):
        (tmp_path / "x.json").write_text(text)
        (tmp_path / "x.gz").write_bytes(gzip.compress(text.encode()))
        for name in ("x.json", "x.gz"):
            assert [found.values for found in read_objects(tmp_path / name)] == VALUES


def test_places_are_lines_and_blank_ones_count(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n  \n{"a": 2}')
    assert [(found.place, found.values) for found in read_objects(path)] == [
        (f"{path}: line 1", {"a": 1}), (f"{path}: line 4", {"a": 2}),
    ]  # fmt: skip
    path.write_text('{\n "a": 1\n}\n')
    assert read_object(path).values == first_object(path).values == {"a": 1}


LAST = "line 2: JSON: must be one JSON object (the file's last line: is it cut?), got "
ONE = b'{"a": 1}\n'
ZIPPED = gzip.compress(b"".join(b'{"a": %d}\n' % number for number in range(5000)), mtime=0)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (ONE + b'{"a": 1', LAST),
        (ONE + b"null", LAST + "'null'"),
        (ONE + b"true", LAST + "'true'"),
        (ONE + b"3", LAST + "'a number'"),
        (ONE + b'{"a": {"b": 1, "c": 2, "b": 1}}', LAST + "\"key 'b' twice\""),
        (ONE + b'{"a": nan}', LAST + "'Expecting value at character 6'"),
        (ONE + b'{"a": "\xff"}', LAST + "'a byte that is no UTF-8, at 7'"),
        (ONE + b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", LAST + "'brackets nested too deep'"),
        (ONE + b'{"a": ' + b"9" * 5000 + b"}", LAST),
        (ONE + b"\x00\x01\x02", LAST),
        (b'[{"a": 1}, 2]', "line 1, entry 1: JSON: must be one JSON object"),
        (b'{"a": 1}\n{"a": \n{"a": 3}\n', "line 2: JSON: must be one JSON object, got "),
        (b'{\n "a": \n}\n', "line 1: JSON: must be one JSON object"),
        (b'{\n "a": 1,\n "b": [\n', "line 1: JSON: must be one JSON object (is the file cut?), got "),
        (b"INFO start\n" * 70 + b"data: {}\n", "line 1: JSON: must be one JSON object"),
        (b"\n \n", "file: must hold a JSON object, got 'nothing'"),
        (ZIPPED[: len(ZIPPED) // 2], "file: must be a readable file, got "),
        (ZIPPED[:100] + b"\xff" * 50 + ZIPPED[150:], ""),
        (b"\x1f\x8bno gzip", "file: must be a readable file, got "),
        (
            b'data: {"id": "a"}\n{"usage": 2}\n',
            "line 2: event: must be data: {...}, as events are, got '{\"usage\": 2}'",
        ),
    ],
)
def test_what_is_no_object_is_told_by_its_line(tmp_path, content, told):
    path = tmp_path / ("x.gz" if content[:2] == b"\x1f\x8b" else "x")
    path.write_bytes(content)
    with pytest.raises(TraceFormatError) as error:
        list(read_objects(path))
    assert str(error.value).startswith(f"{path}: {told}")
    assert "\n" not in str(error.value)


def test_what_cannot_be_read_or_looked_ahead_in(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").write_bytes(b"\n")
    for path, told in (
        (tmp_path, "file: must be a readable file, got 'Is a directory'"),
        (tmp_path / "none", "file: must be a readable file, got 'No such file or directory'"),
        (tmp_path / "pipe", "file: must not be a pipe, to be read twice, got 'a pipe'"),
        (tmp_path / "empty", "file: must hold a JSON object, got 'nothing'"),
    ):
        with pytest.raises(TraceFormatError) as error:
            first_object(path)
        assert str(error.value) == f"{path}: {told}"
    with pytest.raises(TraceFormatError, match="must be a readable file, got 'No such file or directory'"):
        list(lines_of(tmp_path / "none"))


def test_what_is_no_object_can_be_skipped(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": [2,\n{"a": 3}\nnonsense\n{"a": 5}\n{"a": [')
    skipped = []
    assert [found.values for found in read_objects(path, skipped.append)] == [{"a": 1}, {"a": 3}, {"a": 5}]
    assert [error.path for error in skipped] == [f"{path}: line {number}" for number in (2, 4, 6)]
    path.write_text('data: {"id": "a"}\n{"usage": 2}\n\ndata: {"usage"\n\ndata: [1]\n\nData: {}\ndata: {"usage": 1}\n')
    skipped.clear()
    assert [found.values for found in read_objects(path, skipped.append)] == [{"id": "a", "usage": 1}]
    assert [str(error).split(": ")[2] for error in skipped] == ["event", "JSON", "JSON", "event"]


# -- bounded, also where a file is small until it is unpacked


def test_lines_and_values_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_BYTES", 100)
    path = tmp_path / "x"
    path.write_bytes((b"x" * 99 + b"\n") * 1000)
    assert len(list(lines_of(path))) == 1000
    path.write_bytes(b"x\n\n" + b"x" * 101)
    for read in (lines_of, text_lines, read_objects):
        with pytest.raises(TraceFormatError) as error:
            list(read(path))
        assert str(error.value) == f"{path}: line 3: line: must have at most 100 bytes, got 'more'"
    path.write_text('{"a": 1}\n[\n' + '{"b": 2},\n' * 20)
    with pytest.raises(TraceFormatError) as error:
        list(read_objects(path))
    assert str(error.value) == f"{path}: line 2: value: must have at most 100 bytes, got 'more'"


BOUND = 2**23


@pytest.fixture(scope="module")
def bomb(tmp_path_factory):
    """A small file that unpacks to three times what a line may have."""
    path = tmp_path_factory.mktemp("bomb") / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": "' + b"x" * (3 * BOUND), compresslevel=1))
    return path


READERS = {
    "auto": lambda path: read_recording("auto", [path]),
    "vllm-log": lambda path: read_recording("vllm-log", [path]),
    "workload": lambda path: list(open_workload(path)),
    "prompts": read_prompts,
    "task": lambda path: tasks.read_task("gsm8k", path),
}


@pytest.mark.parametrize("name", READERS)
def test_what_unpacks_to_one_endless_line_takes_no_more_memory_than_a_line_may(bomb, name, monkeypatch):
    monkeypatch.setattr(reading, "MOST_BYTES", BOUND)
    tracemalloc.start()
    try:
        with pytest.raises(TraceFormatError, match=f"must have at most {BOUND:,} bytes, got 'more'"):
            READERS[name](bomb)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2.5 * BOUND


# -- server-sent events, however they are cut: the rules of WHATWG, bounded


texts = st.text(st.characters(blacklist_characters="\n\r", blacklist_categories=("Cs",)), min_size=1).map(
    lambda text: f"x{text}"
)


def events(*pieces, most_bytes=2**20, **options):
    stream = EventStream(most_bytes=most_bytes, **options)
    return [event for piece in pieces for event in stream.feed(piece)]


@given(st.lists(texts, max_size=6), st.data(), st.sampled_from(["\n", "\r\n", "\r"]), st.sampled_from(["", "\ufeff"]))
def test_events_are_the_same_however_the_stream_is_cut(sent, data, end, mark):
    raw = mark + "".join(f": comment{end}event: e{end}data: {one}{end}{end}foo: bar{end}baz{end}" for one in sent)
    raw = raw.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[start:until] for start, until in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    found = events(*pieces)
    assert [event.data for event in found] == sent
    assert [event.number for event in found] == [3 + 6 * place for place in range(len(sent))]


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"data: a\ndata:b\n\n", ["a\nb"]),
        (b"data:  two spaces\n\n", [" two spaces"]),
        (b"data\ndata: x\n\n", ["\nx"]),
        (b"data\n\ndata:\n\n", []),  # an event without data
        (b"data: cut", []),
        (b"data: no empty line\n", []),
        (b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n", ["a"]),  # a mark is one at the beginning only
        (b"Data: a\n data: b\ndata : c\n\n", []),
        (b":\n: keep alive\nretry: 3\nid\nevent: error\nx-any: thing\nHTTP/1.1 200 OK\ndata: a\n\n", ["a"]),
        (b"data: a\r\rdata: b\n\ndata: c\r\n\r\n", ["a", "b", "c"]),
        (b"data: \xff\xe4\n\n", ["\ufffd\ufffd"]),
        (b"data: a\x0bb\x0c\xc2\x85\xe2\x80\xa8c\n\n", ["a\x0bb\x0c\x85\u2028c"]),  # no other ends of lines
    ],
)
def test_lines_mean_what_the_format_says(raw, found):
    assert [event.data for event in events(raw)] == found
    assert [event.data for event in events(*(bytes([byte]) for byte in raw))] == found


def test_a_stream_that_breaks_off_and_lines_alone_or_unknown():
    stream = EventStream(most_bytes=100)
    assert list(stream.feed(b"data: a\n\ndata: b\ndata: c")) == [("a", 1, "")]
    assert list(stream.end()) == [("b\nc", 4, "")]
    assert list(stream.end()) == []
    seen, raw = [], b'data: {"a"}\nwhat: ever\ndata: {"b"\ndata: }\n\n'
    found = events(raw, unknown=lambda *line: seen.append(line), alone=lambda text: text.endswith(b"}"))
    assert found == [('{"a"}', 1, ""), ('{"b"\n}', 4, "")]
    assert seen == [(2, b"what: ever")]


@pytest.mark.parametrize(
    "piece", [b"x" * 50, b": " + b"x" * 50, b"data: x\n", b"data:\n", b"data: " + b"x" * 50, b"x" * 2000]
)
def test_no_line_and_no_event_grows_beyond_the_limit(piece):
    stream = EventStream(most_bytes=1000)
    with pytest.raises(BrokenStreamError, match="an event is longer than 1,000 bytes"):
        deque(chain.from_iterable(stream.feed(piece) for _ in range(1000)))


def test_any_number_of_small_events_and_comments_passes():
    stream = EventStream(most_bytes=100)
    pieces = (b": a comment that says nothing\ndata: x\ndata: y\n\n: and\n" for _ in range(1000))
    assert sum(1 for piece in pieces for _ in stream.feed(piece)) == 1000


# -- streamed responses: one object each, with what its chunks say last


USAGE = {"prompt_tokens": 3, "completion_tokens": 5}
METRICS = {"speculative_decoding": {"per_step_accepted": [1, 0], "per_step_drafted": [2, 2]}}


def chunks(name):
    word = {"index": 0, "delta": {"content": "word"}}
    return [
        {"id": name, "choices": [word], "usage": None},
        {"id": name, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": None},
        {"id": name, "choices": [], "usage": USAGE, "metrics": METRICS},
    ]


def stream(path, *responses, done="data: [DONE]\n\n"):
    path.write_text("".join("".join(f"data: {json.dumps(one)}\n\n" for one in found) + done for found in responses))
    return [found.values for found in read_objects(path)]


def test_each_stream_is_one_response(tmp_path):
    for done in ("data: [DONE]\n\n", ""):
        found = stream(tmp_path / "x.sse", chunks("a"), chunks("b"), done=done)
        assert [response["id"] for response in found] == ["a", "b"]
        for response in found:
            assert (response["usage"], response["metrics"]) == (USAGE, METRICS)
            assert response["choices"][0]["finish_reason"] == "stop"


def test_streams_of_llama_cpp_end_with_stop_and_choices_are_kept_by_their_index(tmp_path):
    one = [{"content": "a", "stop": False}, {"content": "", "stop": True, "timings": {"predicted_n": 2}}]
    found = stream(tmp_path / "x", one, one, done="")
    assert [response["timings"] for response in found] == [{"predicted_n": 2}] * 2
    told = [
        [{"index": 1, "text": "b", "count": 1}], [{"index": 0, "text": "a"}, {"index": 1, "text": None, "count": 2}],
        [], [{"index": 0, "finish_reason": "stop"}],
    ]  # fmt: skip
    (found,) = stream(tmp_path / "x.sse", [{"id": "a", "choices": choices} for choices in told])
    first = {"index": 0, "text": "a", "finish_reason": "stop"}
    assert found["choices"] == [first, {"index": 1, "text": "b", "count": 2}]


HEADS = ("", "event: message{0}id: 7{0}", ": ping{0}{0}", "x-any: thing{0}", "HTTP/1.1 200 OK{0}content: text{0}{0}")


@pytest.mark.parametrize(("end", "mark", "head"), pairs(("\n", "\r\n", "\r"), ("", "\ufeff"), HEADS))
def test_streams_as_they_are_saved(tmp_path, end, mark, head):
    """With any line ends, a byte order mark, comments, unknown fields, a head of HTTP, and constants nobody reads."""
    sent = f'data: {{"id": "a", "x": NaN,{end}data:  "n": 1}}{end}{end}data:{{"usage": 2}}{end}retry: 10{end}'
    (tmp_path / "x.sse").write_bytes(f"{mark}{head.format(end)}{sent}data: [DONE]{end}".encode())
    (found,) = read_objects(tmp_path / "x.sse")
    assert (found.values["id"], found.values["n"], found.values["usage"]) == ("a", 1, 2)


# -- pages of metrics: what a counter counted is the same however its scrapes were kept, and lines are what they say


NAMES = frozenset({"a", "b"})
LABELS = st.dictionaries(st.sampled_from(["engine", "model_name"]), st.text(max_size=6), max_size=2)
# Of each series what it began with, and what it grew by between scrapes.
SERIES = st.tuples(st.sampled_from(["a", "b_total"]), LABELS, st.lists(st.integers(0, 50), min_size=3, max_size=3))
SUMMED = frozenset({"engine", "model_name"})


def numbered(lines):
    return [(f"page: line {number}", line) for number, line in enumerate(lines, start=1)]


def line(name, labels, value):
    inner = ",".join(f"{key}={json.dumps(found, ensure_ascii=False)}" for key, found in labels.items())
    return f"{name}{{{inner}}} {value}" if inner else f"{name} {value}"


@given(st.lists(SERIES, min_size=1, max_size=5, unique_by=lambda one: (one[0], tuple(sorted(one[1].items())))))
def test_what_was_counted_is_the_last_less_the_first(series):
    scrapes = [[line(name, labels, sum(grown[: at + 1])) for name, labels, grown in series] for at in range(3)]
    wanted = {
        name: sum(sum(grown[1:]) for other, _, grown in series if other.removesuffix("_total") == name)
        for name in NAMES
    }
    apart = Scrapes(read_page(numbered(page), NAMES) for page in scrapes)
    together = Scrapes([read_page(numbered(one for page in scrapes for one in page), NAMES)])
    for found in (apart, together):
        assert len(found) == 3
        for name in NAMES:
            assert sum(found.counted(name, summed=SUMMED).values()) == wanted[name]
    alone = Scrapes([read_page(numbered(scrapes[-1]), NAMES)])
    everything = sum(sum(grown) for _, _, grown in series)
    assert sum(sum(alone.counted(name, summed=SUMMED).values()) for name in NAMES) == everything


@pytest.mark.parametrize(
    ("text", "labels", "value"),
    [
        ("a 2", {}, 2.0),
        ("a_total 2", {}, 2.0),
        ("  a{}  2.5e3 1700000000000", {}, 2500.0),
        (r'a{x="q\"},{\\\n",y=""} 1e3', {"x": 'q"},{\\\n', "y": ""}, 1000.0),
        ('a{le="1"} 3 # {trace="x"} 0.5', {"le": "1"}, 3.0),
        ('a{le="1"} 3 # {trace="} 9"} 0.5 1700000000.1', {"le": "1"}, 3.0),
        ('a 3 # {trace="x"} 0.5', {}, 3.0),
    ],
)
def test_a_sample_is_what_its_line_says(text, labels, value):
    (found,) = read_page(numbered([text]), NAMES).samples
    assert (found.name, dict(found.labels), found.value) == ("a", labels, value)


def test_lines_of_other_metrics_are_passed_over_and_those_of_a_known_one_must_be_samples():
    for text in ("", "# TYPE a counter", "# a 3", "{", "1a 2", "abc 3", "ab{", "a_bucket x", "a_sum -1"):
        assert read_page(numbered([text]), NAMES).samples == ()
    values = ("a", "a{", "a x", "a NaN", "a -1", "a +Inf", "a 1_000")
    for text in (*values, 'a{x="1",x="2"} 3', "a{x=1} 2", "a{" + "," * 999):
        with pytest.raises(TraceFormatError, match="page: line 1: a: must be"):
            read_page(numbered([text]), NAMES)


@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_a_folder_is_its_files_in_the_order_of_their_names(tmp_path_factory, sizes):
    folder, count = tmp_path_factory.mktemp("parts"), 0
    for number, size in enumerate(sizes):
        lines = [json.dumps({"id": str(count + place), "prompt": "a"}) + "\n" for place in range(size)]
        (folder / f"{number:03}.jsonl").write_text("".join(lines))
        count += size
    (folder / "notes.txt").write_text("no part of it")
    if count:
        assert [prompt.request_id for prompt in read_prompts(folder)] == [str(number) for number in range(count)]
        assert [found.values["id"] for found in read_objects(folder)] == [str(number) for number in range(count)]
    else:
        with pytest.raises(TraceFormatError):
            read_prompts(folder)


def test_a_folder_without_such_files_is_none(tmp_path):
    with pytest.raises(IsADirectoryError):
        read_prompts(tmp_path)
