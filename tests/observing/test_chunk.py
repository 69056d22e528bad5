"""What an event of a streamed completion says."""

import json

import pytest
from paceline.base.errors import message_of
from paceline.observing.server import chunk_of
from paceline.traces.importers.reading import BrokenStreamError


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


def test_constants_in_fields_that_nobody_reads_do_no_harm():
    assert chunk_of('{"choices": [{"text": "a", "logprob": -Infinity}], "x": NaN}').text == "a"
    assert chunk_of('{"choices": [], "usage": {"prompt_tokens": NaN}}').prompt_tokens is None


@pytest.mark.parametrize("choices", [[{"index": 1, "text": "b"}], [{"index": 0}, {"index": 1}], [{}, {}]])
def test_a_second_answer_is_refused(choices):
    with pytest.raises(BrokenStreamError, match="second choice: one answer was asked for"):
        chunk_of(json.dumps({"choices": choices}))


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


@pytest.mark.parametrize(
    ("timings", "pair", "odd"),
    [
        ({"draft_n": 8, "draft_n_accepted": 3}, (8, 3), ()),
        ({"draft_n": 0, "draft_n_accepted": 0}, (0, 0), ()),
        ({"draft_n": None}, (None, None), ()),
        ({"draft_n": 8}, (None, None), ("drafted",)),
        ({"draft_n": 8, "draft_n_accepted": None}, (None, None), ("drafted",)),
        ({"draft_n_accepted": 0}, (None, None), ("accepted",)),
        ({"draft_n": -1, "draft_n_accepted": 3}, (None, None), ("drafted", "accepted")),
        ({"draft_n": 8, "draft_n_accepted": "3"}, (None, None), ("accepted", "drafted")),
        ({"draft_n": 3, "draft_n_accepted": 8}, (None, None), ("drafted", "accepted")),
    ],
)
def test_half_a_pair_of_counts_is_named_and_the_rest_is_kept(timings, pair, odd):
    told = chunk_of(json.dumps({"choices": [{"text": "a"}], "usage": {"completion_tokens": 5}, "timings": timings}))
    assert (told.drafted, told.accepted) == pair
    assert told.odd == odd
    assert (told.text, told.output_tokens) == ("a", 5)
