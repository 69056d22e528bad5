"""Sessions as graphs: cycles that are added up equal steps, with and without prefix caches."""

from itertools import count

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from paceline.decoding.legal_steps import Policy
from paceline.decoding.steps import Commit, Draft
from paceline.sim.serving.requests import DrawnRequests
from paceline.traces.workloads.arrival import Text
from paceline.traces.workloads.sessions import Node, SessionGraph, Turn, Waits, runs_of

from ..engine.both_ways import cases, check, settings_of
from ..engine.served_runs import drawn_as, limits_of, pico, some_rounds, target_only
from .random_graphs import Begun, begun_graphs


def test_a_request_finds_what_the_one_it_branches_off_has_written():
    """All full blocks of it but for the last token, while that goes on; and both ways say the same."""
    tables = target_only()
    ids = count(1)
    prompt = Text(unit_tokens=8).grown(16, ids)
    whole = prompt.grown(200, ids)
    first = Turn(request_id="a", wait_ps=0, prompt_tokens=16, output_tokens=200, new_blocks=runs_of(prompt.ids))
    child = whole.head(16 + 65)
    second = Turn(request_id="b", wait_ps=0, prompt_tokens=81, output_tokens=5, new_blocks=runs_of(child.ids))
    nodes = (
        Node(turn=first, answer=whole.ids[2:]),
        Node(turn=second, waits=(Waits(0, 65),)),
    )
    sessions = Begun([(0, SessionGraph(nodes=nodes))])
    run = check(sessions, tables, limits=limits_of(tables, block_tokens=8), unit_tokens=8)
    requests = run.log.requests
    (started, branched), (ended, _) = requests["arrived_at_ps"], requests["ended_at_ps"]
    assert started < branched < ended
    lookups = run.log.meta.replicas[0].members[-1].lookups
    assert (lookups.found_blocks, lookups.found_tokens) == (10, 80)


def test_a_whole_answer_is_found_as_far_as_the_target_judged_it():
    """Its last token was drafted and judged where the recorded answer ends, so the last block is whole and computed."""
    tables, ids = some_rounds(), count(1)
    name = drawn_as(DrawnRequests(tables.trace.requests, seed=0), "r0")
    prompt = Text(unit_tokens=8).grown(8, ids)
    whole = prompt.grown(24, ids)
    turns = [
        Turn(request_id=name, wait_ps=0, prompt_tokens=8, output_tokens=24, new_blocks=runs_of(prompt.ids)),
        Turn(
            request_id="next", wait_ps=0, prompt_tokens=40, output_tokens=1, new_blocks=runs_of(whole.grown(8, ids).ids)
        ),
    ]
    nodes = (Node(turn=turns[0], answer=whole.ids[1:]), Node(turn=turns[1], waits=(Waits(0),)))
    sessions = Begun([(0, SessionGraph(nodes=nodes))])
    run = check(sessions, tables, "feature:4/target", limits=limits_of(tables, block_tokens=8), unit_tokens=8)
    assert run.log.meta.replicas[0].members[-1].lookups.found_tokens == 32


class Takes(Policy):
    """Drafts, and takes what was drafted as it is."""

    def decide(self, seen):
        return Commit(seen.num_pending) if seen.num_pending else Draft("draft", 4)


def test_a_request_that_waits_for_what_a_commit_writes_comes_when_it_is_there():
    """Also where nothing else looks at the replica: it runs no further than that."""
    tables = pico()
    turns = [
        Turn(request_id=name, wait_ps=0, prompt_tokens=16, output_tokens=40, new_blocks=()) for name in ("a", "b", "c")
    ]
    nodes = (Node(turn=turns[0]), Node(turn=turns[1], waits=(Waits(0, 21),)), Node(turn=turns[2], waits=(Waits(1, 5),)))
    run = check(Begun([(0, SessionGraph(nodes=nodes))]), tables, Takes, limits=limits_of(tables))
    times, arrived = run.times(), run.log.requests["arrived_at_ps"].tolist()
    assert 0 == arrived[0] < times["a"][1] < arrived[1] < times["a"][2]
    assert arrived[1] < times["b"][1] < arrived[2] < times["b"][2]


def test_a_session_ends_with_the_last_of_its_requests_wherever_that_was_served():
    """The longer of two branches, on a replica that nobody waits for and that tells its end first."""
    turns = [
        Turn(request_id=name, wait_ps=0, prompt_tokens=16, output_tokens=count, new_blocks=())
        for name, count in (("a", 4), ("b", 60), ("c", 5))
    ]
    graph = SessionGraph(nodes=(Node(turn=turns[0]), *(Node(turn=turn, waits=(Waits(0, 0),)) for turn in turns[1:])))
    alone = turns[0]._replace(request_id="d")
    run = check(Begun([(0, graph), (10**12, SessionGraph(nodes=(Node(turn=alone),)))]), target_only(), num_replicas=3)
    assert run.log.meta.sessions_ps == (run.times()["b"][2],)


# No shrinking: a case takes long, and what differs is told by its first difference.
@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data())
def test_both_ways_are_equal(data):
    (tables, policy, cost), unit_tokens = data.draw(cases()), data.draw(st.sampled_from([0, 8]))
    sessions = data.draw(begun_graphs(unit_tokens=unit_tokens))
    check(sessions, tables, policy, cost=cost, **data.draw(settings_of(tables, unit_tokens)))
