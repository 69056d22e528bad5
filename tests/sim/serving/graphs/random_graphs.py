"""Sessions as graphs of any form, their requests going on from what others read and wrote; begun anew by each run."""

from itertools import count

from hypothesis import strategies as st
from paceline.traces.workloads.arrival import Text
from paceline.traces.workloads.sessions import Node, SessionGraph, Turn, Waits, runs_of

from ..engine.served_runs import MICROSECOND


class Begun:
    """Sessions with the times at which they begin."""

    def __init__(self, sessions):
        self._sessions = sessions

    def __iter__(self):
        return (graph.begin(at_ps) for at_ps, graph in self._sessions)


@st.composite
def graphs(draw, name, unit_tokens, most=6):
    """A session: each request waits for one to three things, and goes on from one of them, or from nothing."""
    ids = count(int(name[1:]) << 20)
    texts, nodes = [], []
    for number in range(draw(st.integers(2, most))):
        waits, text = (), Text(unit_tokens=unit_tokens or 1)
        for _ in range(draw(st.integers(1, 3)) if number else 0):
            other = draw(st.integers(0, number - 1))
            written = nodes[other].turn.output_tokens
            depth = draw(st.sampled_from([written // 2, written // 2, None, None, 0, 1, written]))
            waits += (Waits(other, depth),)
            if draw(st.sampled_from([True, True, False])):
                text = texts[other].head(texts[other].num_tokens - (0 if depth is None else written - depth))
        prompt = text.grown(draw(st.integers(0 if text.num_tokens else 1, 12)), ids)
        output = draw(st.sampled_from([24, 40, 17, 9, 1]))
        whole = prompt.grown(output, ids)
        texts.append(whole)
        turn = Turn(
            request_id=f"{name}.{number}",
            wait_ps=draw(st.sampled_from([0, 0, 1, 10**8])),
            prompt_tokens=prompt.num_tokens,
            output_tokens=output,
            new_blocks=runs_of(prompt.ids) if unit_tokens else (),
        )
        answer = whole.ids[len(prompt.ids) :] if unit_tokens else ()
        nodes.append(Node(turn=turn, waits=tuple(dict.fromkeys(waits)), answer=answer))
    return SessionGraph(nodes=tuple(nodes))


@st.composite
def begun_graphs(draw, *, unit_tokens=0, most=6):
    """Some sessions, some of them at once."""
    now_ps, sessions = 0, []
    for index in range(draw(st.integers(1, most))):
        now_ps += draw(st.sampled_from([0, 0, 1, 150, 2_000])) * MICROSECOND
        sessions.append((now_ps, draw(graphs(f"s{index}", unit_tokens))))
    return Begun(sessions)
