"""Streamed responses: one object each, with what its chunks say last."""

import json

import pytest
from paceline.traces import TraceFormatError
from paceline.traces.importers.reading import read_objects

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
    return path


@pytest.mark.parametrize("done", ["data: [DONE]\n\n", ""])
def test_each_stream_is_one_response(tmp_path, done):
    path = stream(tmp_path / "x.sse", chunks("a"), chunks("b"), done=done)
    found = [response.values for response in read_objects(path)]
    assert [response["id"] for response in found] == ["a", "b"]
    for response in found:
        assert response["usage"] == USAGE
        assert response["metrics"] == METRICS
        assert response["choices"][0]["finish_reason"] == "stop"


def test_streams_of_llama_cpp_end_with_stop(tmp_path):
    one = [{"content": "a", "stop": False}, {"content": "", "stop": True, "timings": {"predicted_n": 2}}]
    found = [response.values for response in read_objects(stream(tmp_path / "x", one, one, done=""))]
    assert [response["timings"] for response in found] == [{"predicted_n": 2}] * 2


def test_other_fields_and_comments_are_passed_over(tmp_path):
    path = tmp_path / "x.sse"
    path.write_text(': ping\nevent: message\nid: 7\ndata: {"id": "a"}\nretry: 10\n\ndata: [DONE]\n')
    assert [response.values for response in read_objects(path)] == [{"id": "a"}]


def test_what_is_no_chunk_is_refused_by_its_line_or_skipped(tmp_path):
    path = tmp_path / "x.sse"
    path.write_text('data: {"id": "a"}\n{"usage": 2}\n\ndata: {"usage"\n\ndata: [1]\n\nData: {}\ndata: {"usage": 1}\n')
    with pytest.raises(
        TraceFormatError, match=r"line 2: event: must be data: {...}, as events are, got '{\"usage\": 2}'"
    ):
        list(read_objects(path))
    skipped = []
    assert [found.values for found in read_objects(path, skipped.append)] == [{"id": "a", "usage": 1}]
    assert [str(error).split(": ")[2] for error in skipped] == ["event", "JSON", "JSON", "event"]


def test_choices_are_kept_by_their_index_and_the_last_value_stays(tmp_path):
    told = [
        [{"index": 1, "text": "b", "count": 1}],
        [{"index": 0, "text": "a"}, {"index": 1, "text": None, "count": 2}],
        [],
        [{"index": 0, "finish_reason": "stop"}],
    ]
    path = stream(tmp_path / "x.sse", [{"id": "a", "choices": choices} for choices in told])
    (found,) = read_objects(path)
    assert found.values["choices"] == [
        {"index": 0, "text": "a", "finish_reason": "stop"},
        {"index": 1, "text": "b", "count": 2},
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(
    "head", ["", "event: message{0}", ": ping{0}{0}", "x-any: thing{0}", "HTTP/1.1 200 OK{0}content-type: text{0}{0}"]
)
def test_streams_as_they_are_saved(tmp_path, end, mark, head):
    """With any line ends, a byte order mark, comments, unknown fields, a head of HTTP, and constants nobody reads."""
    path = tmp_path / "x.sse"
    events = [
        f'data: {{"id": "a", "x": NaN,{end}data:  "n": 1}}{end}{end}',
        f'data:{{"usage": 2}}{end}data: [DONE]{end}',
    ]
    path.write_bytes((mark + head.format(end) + "".join(events)).encode())
    (found,) = read_objects(path)
    assert (found.values["id"], found.values["n"], found.values["usage"]) == ("a", 1, 2)


def test_text_that_speaks_of_data_further_down_is_no_stream(tmp_path):
    path = tmp_path / "x.log"
    path.write_text("INFO start\n" * 70 + "data: {}\n")
    with pytest.raises(TraceFormatError, match="line 1: JSON: must be one JSON object"):
        list(read_objects(path))
