"""Sessions: a line of T turns, each of which waits for the one before it, or a graph of N requests.

A request of a graph arrives `wait_ps` after the last thing that it waits for: ends of others, or a number of tokens of
their answers. So a session may spawn parallel requests, join them, wait for a tool, and branch off an unfinished
answer.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import ClassVar, NamedTuple

from .arrival import Arrival

Runs = tuple[tuple[int, int], ...]


class Turn(NamedTuple):
    """One request of a session."""

    request_id: str  # unique in the workload
    wait_ps: int  # from the last thing that it waits for, >= 0
    prompt_tokens: int  # >= 1
    output_tokens: int  # >= 1
    new_blocks: Runs = ()  # blocks of its prompt behind those that it keeps, as runs of ids (first, last)
    kept_blocks: int = 0  # in a graph, leading blocks that this prompt shares with that of `Node.keeps`

    def blocks(self, before: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Of its prompt, which begins with those of `before` that it keeps."""
        kept = before[: self.kept_blocks]
        return (*kept, *(block for first, last in self.new_blocks for block in range(first, last + 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsLeft:
    """What is left of a session after some of its turns; implements `Turns`."""

    turns: tuple[Turn, ...]  # `[T]` all of them, whose prompts keep nothing
    place: int = 0  # number of turns before
    tag: str = ""  # of its requests
    slo: str = ""  # of its requests

    depths: ClassVar[tuple[int, ...]] = ()  # see `Turns`: a turn waits for the end of the one before

    def reached(self, depth: int, at_ps: int) -> tuple[Arrival, ...]:
        return ()

    def after(self, ended_ps: int) -> tuple[Arrival, ...]:
        return (self.begin(ended_ps),)

    def begin(self, ended_ps: int) -> Arrival:
        """The next turn, of which there must be one."""
        turn = self.turns[self.place]
        left = replace(self, place=self.place + 1) if self.place + 1 < len(self.turns) else None
        at_ps, tokens = ended_ps + turn.wait_ps, (turn.prompt_tokens, turn.output_tokens)
        return Arrival(turn.request_id, at_ps, *tokens, self.tag, turn.blocks(), left, self.slo)


def runs_of(ids: Iterable[int]) -> Runs:
    """Runs of consecutive ids."""
    runs: list[tuple[int, int]] = []
    for number in ids:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return tuple(runs)


class Waits(NamedTuple):
    """What a request waits for."""

    request: int  # number of the other one in its session
    depth: int | None = None  # tokens of its answer, >= 0; None: its end


class GraphError(ValueError):
    """A session that cannot run: its request `number` breaks `rule`."""

    def __init__(self, number: int, rule: str, value: object) -> None:
        super().__init__(f"request {number} of a session {rule}, got {value}")
        self.number = number
        self.rule = rule
        self.value = value


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One request of a session."""

    turn: Turn  # the request
    waits: tuple[Waits, ...] = ()  # what it waits for; empty for the first alone
    # number of the request with whose prompt's blocks it begins, one that arrives before it; None: none, and
    # `turn.kept_blocks` is 0
    keeps: int | None = None
    answer: tuple[int, ...] = ()  # see `Arrival`


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionGraph:
    """A session.

    Raises:
        GraphError: a request other than the first waits for nothing, for no request of the session, for more tokens
            than an answer has, or for itself, through others.
    """

    nodes: tuple[Node, ...]  # `[N]`, N >= 1; the first one begins the session
    tag: str = ""  # of its requests
    slo: str = ""  # of its requests

    def __post_init__(self) -> None:
        nodes = self.nodes
        for number, node in enumerate(nodes):
            if bool(node.waits) != bool(number):
                rule = "must wait for another one, or never comes" if number else "must wait for nothing"
                raise GraphError(number, rule, len(node.waits))
            for wait in node.waits:
                if not 0 <= wait.request < len(nodes):
                    raise GraphError(number, f"must wait for requests in [0, {len(nodes) - 1}]", wait.request)
                most = nodes[wait.request].turn.output_tokens
                if wait.depth is not None and not 0 <= wait.depth <= most:
                    name = nodes[wait.request].turn.request_id
                    raise GraphError(number, f"must wait for at most the {most} tokens that {name} answers", wait.depth)
        _check_acyclic(nodes)

    def begin(self, arrives_ps: int) -> Arrival:
        """Its first request; events of the session are then reported through `Turns`, once."""
        return _Going(self).arrival(0, arrives_ps)


def _check_acyclic(nodes: Sequence[Node]) -> None:
    waits = {number: [wait.request for wait in node.waits] for number, node in enumerate(nodes)}
    if all(other < number for number, others in waits.items() for other in others):  # the usual case
        return
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        circle = error.args[1][:0:-1]  # each waits for the next one, the last for the first
        begin = circle.index(min(circle))
        names = " -> ".join(nodes[one].turn.request_id for one in (*circle[begin:], *circle[: begin + 1]))
        raise GraphError(min(circle), "must not wait for itself, by way of others", names) from None


class _Going:
    """A running session: what its requests still wait for. Mutated by `happened` and `arrival`."""

    def __init__(self, graph: SessionGraph) -> None:
        self.graph = graph
        self.left = [len(node.waits) for node in graph.nodes]  # `[N]` events that each request still waits for
        self.keepers = [0] * len(self.left)  # `[N]` requests yet to arrive that begin with blocks of each
        self.blocks: dict[int, tuple[int, ...]] = {}  # of prompts with which a later request begins
        self.following: dict[Waits, list[int]] = {}  # by event, requests that wait
        self.depths: dict[int, set[int]] = {}  # of each request's answer that others wait for
        for number, node in enumerate(graph.nodes):
            if node.keeps is not None:
                self.keepers[node.keeps] += 1
            for wait in node.waits:
                self.following.setdefault(wait, []).append(number)
                if wait.depth is not None:
                    self.depths.setdefault(wait.request, set()).add(wait.depth)

    def happened(self, what: Waits, at_ps: int) -> Iterator[Arrival]:
        """Requests for which this was the last event; each event happens once."""
        for number in self.following.pop(what, ()):
            self.left[number] -= 1
            if not self.left[number]:
                yield self.arrival(number, at_ps + self.graph.nodes[number].turn.wait_ps)

    def arrival(self, number: int, arrives_ps: int) -> Arrival:
        node = self.graph.nodes[number]
        turn, kept = node.turn, tuple[int, ...]()
        if node.keeps is not None:
            self.keepers[node.keeps] -= 1
            kept = self.blocks[node.keeps] if self.keepers[node.keeps] else self.blocks.pop(node.keeps)
        blocks = turn.blocks(kept)
        if self.keepers[number]:
            self.blocks[number] = blocks
        ends = Waits(number) in self.following or number in self.depths
        return Arrival(
            turn.request_id,
            arrives_ps,
            turn.prompt_tokens,
            turn.output_tokens,
            self.graph.tag,
            blocks,
            NodeTurns(self, number) if ends else None,
            self.graph.slo,
            node.answer,
        )


class NodeTurns:
    """What follows a request of a graph; implements `Turns`."""

    __slots__ = ("_going", "_number", "depths")

    def __init__(self, going: _Going, number: int) -> None:
        self._going = going
        self._number = number
        self.depths = tuple(sorted(going.depths.get(number, ())))

    def reached(self, depth: int, at_ps: int) -> list[Arrival]:
        return [*self._going.happened(Waits(self._number, depth), at_ps)]

    def after(self, ended_ps: int) -> list[Arrival]:
        found = [one for depth in self.depths for one in self.reached(depth, ended_ps)]
        return [*found, *self._going.happened(Waits(self._number), ended_ps)]
