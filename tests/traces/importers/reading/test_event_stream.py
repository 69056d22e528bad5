"""Server-sent events, however they are cut: the rules of WHATWG, bounded."""

from collections import deque
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces.importers.reading import BrokenStreamError, EventStream

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


def test_a_stream_that_breaks_off_has_its_last_event_for_those_who_want_it():
    stream = EventStream(most_bytes=100)
    assert list(stream.feed(b"data: a\n\ndata: b\ndata: c")) == [("a", 1, "")]
    assert list(stream.end()) == [("b\nc", 4, "")]
    assert list(stream.end()) == []


def test_lines_alone_and_unknown_fields_are_handed_out():
    seen = []
    found = events(
        b'data: {"a"}\nwhat: ever\ndata: {"b"\ndata: }\n\n',
        unknown=lambda *line: seen.append(line),
        alone=lambda text: text.endswith(b"}"),
    )
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
    stream, count = EventStream(most_bytes=100), 0
    for _ in range(1000):
        count += len(list(stream.feed(b": a comment that says nothing\ndata: x\ndata: y\n\n: and\n")))
    assert count == 1000
