"""Sessions as graphs in our own lines: what requests read and write, and what is refused."""

import json

import pytest
from paceline.traces.errors import TraceFormatError
from paceline.traces.workloads import open_workload
from paceline.traces.workloads.arrival import requests_of

from .files import lines, write

FIRST = {"request_id": "a", "arrives_s": 1, "prompt_tokens": 40, "output_tokens": 32}


def one(after, prompt, output=8, **more):
    return {"after": after, "prompt_tokens": prompt, "output_tokens": output, **more}


def session_of(tmp_path, *graph, first=None, unit=8, **options):
    head = {"workload": "w", "unit_tokens": unit}
    path = write(tmp_path, lines(head, FIRST | (first or {}) | {"graph": list(graph)}))
    (arrival,) = open_workload(path, **options)
    return {request.request_id: (request, wait_ps) for request, wait_ps in requests_of(arrival)}


def test_requests_go_on_from_what_others_wrote(tmp_path):
    found = session_of(
        tmp_path,
        one(["a@12"], 52, request_id="b", continues="a@12"),
        one(["a", "b"], 80, continues="a", wait_s=1.5),
        one(["a/2"], 20),
    )
    a, b, c, d = (found[name][0] for name in ("a", "b", "a/2", "a/3"))
    assert a.depths == (12,)
    assert len(a.blocks) == 5
    assert b.blocks == (a.blocks + a.answer)[:6]
    assert c.blocks[:9] == a.blocks + a.answer
    assert not set(c.blocks[9:]) & set(a.blocks + a.answer + b.answer)
    assert not set(d.blocks) & set(a.blocks + a.answer)
    assert [wait_ps for _, wait_ps in found.values()] == [None, 0, 15 * 10**11, 0]


def test_a_shared_context_is_one_text_that_each_writes_a_place_of(tmp_path):
    """The first writer's text follows what it has read; the second's does not, so that others read it again."""
    found = session_of(
        tmp_path,
        one(["a@0"], 40, 16, request_id="w1", at=40),
        one(["a@0"], 40, 16, request_id="w2", at=56),
        one(["w1", "w2"], 72, request_id="r1", at=72),
        one(["w1", "w2"], 72, request_id="r2", at=80),
    )
    w1, w2, r1, r2 = (found[name][0] for name in ("w1", "w2", "r1", "r2"))
    assert w1.blocks == w2.blocks == found["a"][0].blocks
    assert r1.blocks == r2.blocks
    assert r1.blocks[:7] == w1.blocks + w1.answer
    assert w2.answer == r2.answer == ()
    assert len(r1.answer) == 1


def test_blocks_of_files_stay_what_they_are(tmp_path):
    found = session_of(
        tmp_path, one(["a"], 24, blocks=[1, 2, 9]), one(["a"], 72, continues="a"), first={"blocks": [1, 2, 3, 4, 5]}
    )
    assert found["a"][0].blocks == (1, 2, 3, 4, 5)
    assert found["a/1"][0].blocks == (1, 2, 9)
    assert found["a/2"][0].blocks[:5] == (1, 2, 3, 4, 5)


def test_graphs_need_no_texts(tmp_path):
    head = {"workload": "w"}
    path = write(tmp_path, lines(head, FIRST | {"graph": [one(["a@3", "a@3"], 5), one(["a/1", "a"], 5)]}))
    (arrival,) = open_workload(path)
    assert [request.blocks for request, _ in requests_of(arrival)] == [(), (), ()]


@pytest.mark.parametrize(
    ("graph", "told"),
    [
        ([one(["z"], 5)], "graph[0].after: must be a request of the session, or that, @ and tokens of its answer"),
        ([one([], 5)], "graph[0].after: must wait for another one, or never comes, got 0"),
        ([one(["a@33"], 5)], "graph[0].after: must wait for at most the 32 tokens that a answers, got 33"),
        ([one(["a", "c"], 5, request_id="b"), one(["b"], 5, request_id="c")], "by way of others, got 'b -> c -> b'"),
        ([one(["a"], 5, request_id="a")], "graph[0].request_id: must be unique in the workload, got 'a'"),
        ([one(["a@3"], 60, continues="a@4")], "graph[0].continues: must be written by what it waits for, got 'a@4'"),
        ([one(["a@3"], 80, continues="a")], "graph[0].continues: must be written by what it waits for, got 'a'"),
        ([one(["a"], 80, continues="a@40")], "graph[0].continues: must be within the 32 tokens that a answers, got"),
        ([one(["a"], 5, request_id="")], "graph[0].request_id: must not be empty, got ''"),
        (
            [one(["a"], 71, continues="a")],
            "graph[0].prompt_tokens: must be at least the 72 of what it continues",
        ),
        ([one(["a"], 72, continues="a", at=72)], "graph[0].at: must be left out beside continues, got 72"),
        (
            [one(["a"], 40, 16, at=40, request_id="b"), one(["a"], 40, at=55)],
            "graph[1].at: must not be a place where b writes, which ends at 56, got 55",
        ),
        ([one(["a"], 8, at=20)], "graph[0].at: must not be a place where the prompt of a writes, which ends at 40"),
        ([one(["a"], 40, at=39)], "graph[0].at: must be behind the 40 tokens that it reads, got 39"),
        (
            [one(["a"], 40, at=40, request_id="b"), one(["a"], 48, at=48)],
            "graph[1].prompt_tokens: must be at most the 40 tokens of the context that those have written",
        ),
        ([one(["a"], 5, 0)], "graph[0].output_tokens: must be >= 1"),
        ([one("a", 5)], "graph[0].after: must be a list"),
        ([5], "graph[0]: must be an object"),
        ([one(["a"], 5, turns=[])], "graph[0].turns: must be one of after"),
    ],
)
def test_a_session_that_cannot_run_is_refused(tmp_path, graph, told):
    with pytest.raises(TraceFormatError) as error:
        session_of(tmp_path, *graph)
    assert "line 2" in str(error.value)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"graph": {}}, "graph: must be a list"),
        ({"graph": [], "turns": []}, "turns: must be left out beside graph"),
        ({"at": 3}, "at: must be left out where there is no graph"),
        ({"request_id": ""}, "request_id: must not be empty"),
        (
            {"turns": [{"wait_s": 1, "prompt_tokens": 5, "output_tokens": 5, "request_id": ""}]},
            r"turns\[0\].request_id:",
        ),
        ({"graph": [one(["a"], 72, continues="a")]}, "must be left out where the first line has no unit_tokens"),
    ],
)
def test_lines_that_say_two_things_are_refused(tmp_path, row, told):
    path = write(tmp_path, json.dumps(FIRST | row))
    with pytest.raises(TraceFormatError, match=told):
        list(open_workload(path))


def test_no_request_of_a_graph_is_dropped(tmp_path):
    with pytest.raises(TraceFormatError, match="no request of a graph is dropped"):
        session_of(tmp_path, one(["a"], 5, 0), zero_tokens="drop")
