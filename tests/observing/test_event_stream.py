"""Server-sent events, however they are cut, and what an event says."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.observing.chunk import chunk_of, message_of
from paceline.observing.event_stream import BrokenStreamError, EventStream

texts = st.text(st.characters(blacklist_characters="\n\r", blacklist_categories=("Cs",)), min_size=1).map(
    lambda text: f"x{text}"
)


@given(st.lists(texts, max_size=6), st.data(), st.sampled_from(["\n", "\r\n"]))
def test_events_are_the_same_however_the_stream_is_cut(sent, data, end):
    raw = "".join(f": comment{end}event: e{end}data: {one}{end}{end}" for one in sent).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    stream, found = EventStream(), []
    for start, until in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        found += stream.feed(raw[start:until])
    assert found == sent


def test_lines_of_data_are_one_event():
    assert list(EventStream().feed(b"data: a\ndata:b\n\n")) == ["a\nb"]


@pytest.mark.parametrize(
    ("raw", "said"),
    [(b"<html>\n", "no field of an event stream: '<html>'"), (b"data: \xff\n", "no UTF-8"), (b"retry\n", "no field")],
)
def test_what_is_no_event_stream_is_refused(raw, said):
    events = EventStream().feed(b"data: before\n\n" + raw)
    assert next(events) == "before"
    with pytest.raises(BrokenStreamError, match=said):
        next(events)


def test_a_chunk_says_what_it_says_and_nothing_else():
    usage = {"prompt_tokens": 7, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 4}}
    found = chunk_of(json.dumps({"choices": [], "usage": usage}))
    assert (found.text, found.finish_reason) == ("", None)
    assert (found.prompt_tokens, found.output_tokens, found.cached_tokens) == (7, 0, 4)
    assert (found.drafted, found.accepted) == (None, None)
    told = chunk_of(
        '{"choices": [{"text": "", "finish_reason": "stop"}], "timings": {"draft_n": 8, "draft_n_accepted": 0}}'
    )
    assert (told.finish_reason, told.drafted, told.accepted) == ("stop", 8, 0)
    assert chunk_of('{"choices": [{"delta": {"reasoning_content": "so"}}]}').text == "so"


@pytest.mark.parametrize("data", ["{half", "[1]", "7", '{"a": 1, "a": 2}'])
def test_what_is_no_object_is_refused(data):
    with pytest.raises(BrokenStreamError, match="an event is no JSON"):
        chunk_of(data)


@pytest.mark.parametrize(
    "content",
    [{"error": {"message": "no such model"}}, {"error": "no such model"}, {"detail": "no such model"}, "no such model"],
)
def test_messages_of_all_servers_are_read(content):
    assert message_of(content) == "no such model"
