"""Sessions as graphs: a request comes after the last thing that it waits for, once, and no session waits for ever."""

from heapq import heappop, heappush

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces.workloads.sessions import GraphError, Node, SessionGraph, Turn, Waits

OUTPUT = 10


def node(number, *waits, wait_ps=0, **more):
    turn = Turn(request_id=f"r{number}", wait_ps=wait_ps, prompt_tokens=5, output_tokens=OUTPUT, **more)
    return Node(turn=turn, waits=tuple(waits))


@st.composite
def sound(draw):
    nodes = [node(0)]
    for number in range(1, draw(st.integers(1, 12))):
        others = st.builds(Waits, st.integers(0, number - 1), st.sampled_from([None, 0, 3, OUTPUT]))
        waits = draw(st.lists(others, min_size=1, max_size=4, unique=True))
        nodes.append(node(number, *waits, wait_ps=draw(st.integers(0, 5))))
    return SessionGraph(nodes=tuple(nodes))


@given(sound(), st.data())
def test_every_request_comes_after_the_last_that_it_waits_for(graph, data):
    """However long requests take, and however fast their tokens come."""
    events, arrived, happened, count = [], {}, {}, 0

    def comes(arrival):
        nonlocal count
        number = int(arrival.request_id[1:])
        assert number not in arrived
        arrived[number] = now_ps = arrival.arrives_ps
        turns = arrival.turns
        for depth in () if turns is None else turns.depths:
            now_ps += data.draw(st.integers(0, 3)) if depth else 0
            heappush(events, (now_ps, count := count + 1, number, depth, turns))
        now_ps += data.draw(st.integers(0, 5))
        heappush(events, (now_ps, count := count + 1, number, None, turns))

    comes(graph.begin(7))
    while events:
        at_ps, _, number, depth, turns = heappop(events)
        happened[Waits(number, depth)] = at_ps
        if turns is not None:
            for one in turns.after(at_ps) if depth is None else turns.reached(depth, at_ps):
                comes(one)
    assert arrived.pop(0) == 7
    assert len(arrived) == len(graph.nodes) - 1
    for number, at_ps in arrived.items():
        own = graph.nodes[number]
        assert at_ps == max(happened[wait] for wait in own.waits) + own.turn.wait_ps


def test_who_was_rejected_is_followed_by_those_that_waited_for_its_tokens():
    first = SessionGraph(nodes=(node(0), node(1, Waits(0, 4)), node(2, Waits(0)))).begin(0)
    assert [one.request_id for one in first.turns.after(3)] == ["r1", "r2"]
    assert first.turns.after(4) == []


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([node(0, Waits(0))], "request 0 of a session must wait for nothing"),
        ([node(0), node(1)], "request 1 of a session must wait for another one, or never comes"),
        ([node(0), node(1, Waits(5))], r"must wait for requests in \[0, 1\], got 5"),
        ([node(0), node(1, Waits(0, 11))], "must wait for at most the 10 tokens that r0 answers, got 11"),
        ([node(0), node(1, Waits(1))], "must not wait for itself, by way of others, got r1 -> r1"),
        ([node(0), node(1, Waits(0), Waits(3)), node(2, Waits(1)), node(3, Waits(2, 1))],
         "must not wait for itself, by way of others, got r1 -> r3 -> r2 -> r1"),
    ],
)  # fmt: skip
def test_a_session_that_cannot_run_is_refused(nodes, told):
    with pytest.raises(GraphError, match=told):
        SessionGraph(nodes=tuple(nodes))
