"""Drawn sessions; the same seed gives the same ones. Letter: T turns.

`persistent-agent` sends a growing context again and again, `react` and `rewoo` make the same tool calls with requests
to the model after each of them or before and after all, workers of `shared-workers` write into one context at once, and
answers of `tree-rollouts` to one prompt branch at several depths.
"""

import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, count, islice, repeat
from random import Random
from typing import ClassVar, NamedTuple, Protocol

from ...base.errors import ArgumentError
from ...base.names import Branch, branches_of, num_paths_of
from .arrival import (
    AT_ONCE,
    MOST_COUNT,
    MOST_REQUESTS,
    MOST_TOKENS,
    MOST_TURNS,
    MOST_UNITS,
    PS_PER_S,
    Arrival,
    Text,
    WorkloadAbout,
)
from .drawn_arrivals import Given, Length, poisson
from .format import Tally
from .sessions import Node, SessionGraph, Turn, Waits, runs_of
from .workload import ps_of_option

_NUMBER = r"(\d{1,7}(?:\.\d{1,12})?)"
_GIVEN = re.compile(_NUMBER, re.ASCII)
_EXPONENTIAL = re.compile(rf"exponential:{_NUMBER}", re.ASCII)
_MOST_S = 10**6


Wait = Callable[[Random], int]  # draws one, in picoseconds


def _constant(wait_ps: int, _: Random) -> int:
    return wait_ps


def _exponential(mean_s: float, rng: Random) -> int:
    return round(rng.expovariate(1 / mean_s) * PS_PER_S) if mean_s else 0


def _wait_of(name: str, text: str) -> Wait:
    """Parse a distribution; raises ArgumentError with `name`."""
    given, drawn = _GIVEN.fullmatch(text), _EXPONENTIAL.fullmatch(text)
    found = given or drawn
    if found is None or float(found[1]) > _MOST_S:
        raise ArgumentError(f"{name} must be SECONDS or exponential:MEAN in [0, {_MOST_S}], got {text!r}")
    seconds = float(found[1])
    return partial(_constant, ps_of_option(seconds)) if given else partial(_exponential, seconds)


# Bits of ids within a session, enough for its units; the bits above are its number, 0 for text that all sessions share.
SESSION_BITS = 31


class DrawnSession(NamedTuple):
    """Number, arrival and fields of a session to draw."""

    number: int  # from 1; the id of its first request
    arrives_ps: int  # of its first request
    unit_tokens: int
    tag: str
    slo: str

    @property
    def first_id(self) -> int:
        """The session's first own id."""
        return self.number << SESSION_BITS

    def check_units(self, num_units: int) -> None:
        """Raise ArgumentError for more units of text than a session may have, as each takes memory."""
        if num_units > MOST_UNITS:
            rule = f"must have at most {MOST_UNITS:,} units of text"
            raise ArgumentError(f"sessions {rule}, got {num_units:,} in session {self.number}")


def check_requests(num_requests: int) -> None:
    """Raise ArgumentError for more requests than a session may have."""
    if num_requests > MOST_TURNS:
        raise ArgumentError(f"sessions must have at most {MOST_TURNS:,} requests, got {num_requests:,}")


class SessionKind(Protocol):
    """A kind of session; a frozen record of its options."""

    def begin(self, place: DrawnSession, rng: Random) -> Arrival:
        """Draw a session; returns its first request, which the others follow. Raises as `DrawnSession.check_units`."""
        ...

    @property
    def num_requests(self) -> int | None:
        """Of each session; None where drawn."""
        ...


class GrowingLine:
    """The rest of a session, from a turn on; implements `Turns`. Units of its text are numbered consecutively."""

    __slots__ = ("_drawn", "_turn")

    depths = ()

    def __init__(self, drawn: "DrawnLine", turn: int) -> None:
        self._drawn = drawn
        self._turn = turn

    def reached(self, depth: int, at_ps: int) -> tuple[Arrival, ...]:
        """See `Turns`: no request waits for a depth."""
        return ()

    def after(self, ended_ps: int) -> tuple[Arrival, ...]:
        return (self._drawn.arrival(self._turn, ended_ps),)


class DrawnLine:
    """A drawn session; immutable.

    Prompts begin with `shared_tokens` that all sessions share; each of T requests reads `[T]` new tokens after all
    before, and answers `[T]`; `[T - 1]` waits are from the end of each request to the next.
    """

    __slots__ = ("_ids", "_outputs", "_place", "_prompts", "_waits_ps")

    def __init__(
        self,
        place: DrawnSession,
        shared_tokens: int,
        new_tokens: Sequence[int],
        output_tokens: Sequence[int],
        waits_ps: Sequence[int],
    ) -> None:
        self._place = place
        texts = accumulate(map(sum, zip(new_tokens, output_tokens, strict=True)), initial=shared_tokens)
        self._prompts = array("q", [text + new for text, new in zip(texts, new_tokens, strict=False)])
        self._outputs = array("q", output_tokens)
        self._waits_ps = waits_ps
        shared, last = shared_tokens // place.unit_tokens, self._prompts[-1] // place.unit_tokens
        place.check_units(last)
        first = place.first_id
        self._ids = array("q", range(shared)) + array("q", range(first, first + last - shared))

    def begin(self) -> Arrival:
        """The first request."""
        return self.arrival(0, self._place.arrives_ps)

    def arrival(self, turn: int, after_ps: int) -> Arrival:
        """A request, by its number, whose wait begins at `after_ps`."""
        number, _, unit, tag, slo = self._place
        prompt, output, ids = self._prompts[turn], self._outputs[turn], self._ids
        full = prompt // unit
        follows = GrowingLine(self, turn + 1) if turn + 1 < len(self._prompts) else None
        return Arrival(
            f"{number}/{turn}" if turn else str(number),
            after_ps + self._waits_ps[turn - 1] if turn else after_ps,
            prompt,
            output,
            tag,
            ids[:full],
            follows,
            slo,
            ids[full : (prompt + output) // unit] if follows is not None else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistentAgent:
    """An agent that keeps one conversation open, as coding agents do.

    It imitates sessions such as those of kv-cache-tester (docs/workloads.md): a system prompt with tools that all
    sessions share, then turn after turn, each of which sends all that was read and answered before, and the result of a
    tool or a message of the user. The client does not change its text, so only the newest tokens have to be read while
    the prefix cache holds the session: with many turns over 80% of the tokens read are hits. It leaves out what real
    clients sometimes do: cutting or rewriting their history, and sub-agents.
    """

    turns: Length  # of a session
    system: int  # tokens of the system prompt, >= 0
    prompt: Length  # new tokens of each turn
    output: Length  # tokens of each answer
    wait: Wait  # from an answer to the next turn

    @property
    def num_requests(self) -> int | None:
        return self.turns.least if self.turns.is_given else None

    def begin(self, place: DrawnSession, rng: Random) -> Arrival:
        turns = self.turns.draw(rng)
        check_requests(turns)
        new, outputs = ([length.draw(rng) for _ in range(turns)] for length in (self.prompt, self.output))
        waits_ps = [self.wait(rng) for _ in range(turns - 1)]
        return DrawnLine(place, self.system, new, outputs, waits_ps).begin()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWorkers:
    """Workers on one problem that read each other's text, as in Hogwild! inference (arXiv:2504.06261).

    The context is the problem, then the workers' texts, each at a place of its own: in round r worker w has the w-th
    place after all texts of the rounds before. In each round all workers read the whole context, and write in parallel;
    a round begins when the one before is over.

    In Hogwild! workers see each other's newest token at once, and cached keys are rotated to their new places. A prefix
    cache cannot do this: worker 0's text follows all that it has read; the others' texts follow, in the context, worker
    0's, so every worker reads them again. What was read in an earlier round is a hit. So this is the cost of Hogwild!
    on an engine without such rotation, with a round in place of a token.
    """

    workers: int  # >= 1
    rounds: int  # >= 1
    prompt: Length  # tokens of the problem
    output: Length  # tokens that a worker writes in a round

    @property
    def num_requests(self) -> int | None:
        return self.workers * self.rounds

    def begin(self, place: DrawnSession, rng: Random) -> Arrival:
        ids = count(place.first_id)
        prompt = self.prompt.draw(rng)
        place.check_units(prompt // place.unit_tokens)
        context = Text(unit_tokens=place.unit_tokens).grown(prompt, ids)
        nodes: list[Node] = []
        for number in range(self.rounds):
            outputs = [self.output.draw(rng) for _ in range(self.workers)]
            # All requests of a round begin together: the first at the session's start, others at the ends of the one
            # before.
            before = tuple(Waits(len(nodes) - 1 - worker) for worker in range(self.workers)) if number else ()
            place.check_units((context.num_tokens + sum(outputs)) // place.unit_tokens)
            written = context.grown(outputs[0], ids)
            for worker, tokens in enumerate(outputs):
                waits = before if number or not worker else (Waits(0, 0),)
                name = f"{place.number}/{number}/{worker}" if nodes else str(place.number)
                turn = Turn(name, 0, context.num_tokens, tokens, runs_of(context.ids))
                answer = () if worker else written.ids[len(context.ids) :]
                nodes.append(Node(turn=turn, waits=waits, answer=answer))
            context = written.grown(sum(outputs[1:]), ids)
        return SessionGraph(nodes=tuple(nodes), tag=place.tag, slo=place.slo).begin(place.arrives_ps)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSource:
    """A `Source` that draws sessions."""

    text: str
    kind: SessionKind
    rate: float | None  # sessions per second, a Poisson process; None: all begin at 0
    active: int | None  # sessions at any time, which begin as others end; None: an open loop
    sessions: int | None  # at most; None: all within `seconds`, with a rate
    seconds: float | None  # no session begins at this time or later; None: no bound
    unit_tokens: int
    tag: str
    slo: str
    seed: int  # times and sessions are drawn separately

    timed: ClassVar[bool] = True  # see `Source`

    @property
    def about(self) -> WorkloadAbout:
        begin = AT_ONCE if self.rate is None else f"sessions begin as a Poisson process, {self.rate:g} sessions/s"
        number, sessions = self.kind.num_requests, None if self.seconds else self.sessions
        return WorkloadAbout(
            name=self.text.partition(":")[0],
            files=(),
            format=self.text,
            unit_tokens=self.unit_tokens,
            num_requests=None if number is None or sessions is None else number * sessions,
            num_arrivals=sessions,
            notes=(f"drawn, seed {self.seed}", *([begin] if self.active is None else [])),
            drawn=True,
        )

    def arrivals(self, tally: Tally) -> Iterator[Arrival]:
        """See `Source`; the first request of each session, whose id is its number, from 1."""
        times = repeat(0) if self.rate is None else poisson(self.rate, Random(f"{self.seed}/times"))
        drawn = Random(f"{self.seed}/lengths")
        end_ps = None if self.seconds is None else ps_of_option(self.seconds)
        for number, at_ps in enumerate(islice(times, self.sessions), start=1):
            if end_ps is not None and at_ps >= end_ps:
                return
            yield self.kind.begin(DrawnSession(number, at_ps, self.unit_tokens, self.tag, self.slo), drawn)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalls:
    """Base of `ReAct` and `ReWOO`."""

    steps: Length  # calls of tools
    system: int  # tokens that all prompts begin with, >= 0: the instruction and worked examples
    prompt: Length  # of the question
    output: Length  # of the model, for each call and for the answer
    observation: Length  # of a tool's result
    wait: Wait  # of a tool

    def draw(self, rng: Random) -> tuple[int, list[int], list[int], list[int]]:
        """(tokens of the question, of each output, of each observation, picoseconds of each call) of a session."""
        steps, prompt = self.steps.draw(rng), self.prompt.draw(rng)
        check_requests(steps)
        outputs = [self.output.draw(rng) for _ in range(steps + 1)]
        observations = [self.observation.draw(rng) for _ in range(steps)]
        return prompt, outputs, observations, [self.wait(rng) for _ in range(steps)]


class ReAct(ToolCalls):
    """Reasoning and acting in turns (Yao et al. 2023, arXiv:2210.03629).

    The model writes a thought and an action, the tool returns an observation, and all of it is sent again for the next
    thought; the last request writes the answer. With N calls N + 1 requests read a prompt that grows by as much each
    time: the tokens sent grow with the square of N, those that a prefix cache does not hold with N.
    """

    @property
    def num_requests(self) -> int | None:
        return self.steps.least + 1 if self.steps.is_given else None

    def begin(self, place: DrawnSession, rng: Random) -> Arrival:
        prompt, outputs, observations, waits_ps = self.draw(rng)
        return DrawnLine(place, self.system, [prompt, *observations], outputs, waits_ps).begin()


class ReWOO(ToolCalls):
    """Reasoning without observation (Xu et al. 2023, arXiv:2305.18323): plan, call the tools, solve.

    The planner writes all calls at once, each of which may name results of earlier ones; the tools are called one after
    another, with no model between; the solver reads question, plan and results, and writes the answer. So two requests
    do what N + 1 of `react` do: the tokens sent grow with N. The solver's prompt continues the planner's text here;
    with an instruction of its own, it would share less.
    """

    num_requests: ClassVar[int | None] = 2

    def begin(self, place: DrawnSession, rng: Random) -> Arrival:
        prompt, outputs, observations, waits_ps = self.draw(rng)
        plan, answer = sum(outputs[:-1]), outputs[-1]
        line = DrawnLine(place, self.system, [prompt, sum(observations)], [plan, answer], [sum(waits_ps)])
        return line.begin()


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRollouts:
    """Rollouts of one prompt for reinforcement learning on groups of answers, grown as a tree.

    It imitates samplers such as TreePO (arXiv:2508.17445): with `branch=4@0/2@32/2@64` four answers begin at the
    prompt, and each path splits in two after 32 tokens of its answer, and again after 64. A path that continues is one
    request; each new one is another, which arrives when its parent has written the tokens of that depth, and whose
    prompt is its parent's text up to there. So 16 trajectories cost 4 x 32 + 8 x 32 + 16 x rest tokens; `branch=16@0`
    are independent ones. Where samplers branch by a measure of doubt, the depths here are given; all paths of a prompt
    have the same length.
    """

    branches: tuple[Branch, ...]  # where paths branch
    prompt: Length  # tokens of prompts
    output: Length  # tokens of each whole trajectory, above the last depth

    @property
    def num_requests(self) -> int | None:
        return num_paths_of(self.branches)

    def begin(self, place: DrawnSession, rng: Random) -> Arrival:
        prompt_tokens, output_tokens = self.prompt.draw(rng), self.output.draw(rng)
        units = (prompt_tokens + output_tokens) // place.unit_tokens
        place.check_units(units * num_paths_of(self.branches))  # each path holds its text whole
        ids = count(place.first_id)
        prompt = Text(unit_tokens=place.unit_tokens).grown(prompt_tokens, ids)
        paths = [_Path(prompt, 0, prompt.grown(output_tokens, ids))]
        nodes = [_node(str(place.number), paths[0], ())]
        for num_paths, depth in self.branches:
            for number, path in enumerate(paths[:]):
                for _ in range(num_paths - 1):
                    head = path.whole.head(prompt_tokens + depth)
                    child = _Path(head, depth, head.grown(output_tokens - depth, ids))
                    nodes.append(_node(f"{place.number}.{len(nodes)}", child, (Waits(number, depth - path.depth),)))
                    paths.append(child)
        return SessionGraph(nodes=tuple(nodes), tag=place.tag, slo=place.slo).begin(place.arrives_ps)


@dataclass(frozen=True, slots=True)
class _Path:
    """A request's prompt, the tokens of the answer in it, and its text at the end."""

    prompt: Text
    depth: int
    whole: Text


def _node(name: str, path: _Path, waits: tuple[Waits, ...]) -> Node:
    read, whole = path.prompt, path.whole
    turn = Turn(name, 0, read.num_tokens, whole.num_tokens - read.num_tokens, runs_of(read.ids))
    return Node(turn=turn, waits=waits, answer=whole.ids[len(read.ids) :])


_COMMON = ("rate", "sessions", "seconds", "unit", "tag", "slo")
_TOOLS = ("steps", "prompt", "output", "observation")
_UNIT = 16


def _tree(given: Given) -> SessionKind:
    branches, output = branches_of("branch of tree-rollouts", given.options["branch"]), given.length("output")
    if output.least <= branches[-1].depth:
        rule = f"must be above the depth {branches[-1].depth} at which the last paths part"
        raise ArgumentError(f"output of tree-rollouts {rule}, got {given.options['output']!r}")
    return TreeRollouts(branches=branches, prompt=given.length("prompt"), output=output)


def _agent(given: Given) -> SessionKind:
    wait, system = _wait(given), _system(given)
    lengths = {key: given.length(key) for key in ("prompt", "output")}
    return PersistentAgent(system=system, wait=wait, turns=given.length("turns", MOST_TURNS), **lengths)


def _workers(given: Given) -> SessionKind:
    lengths = {key: given.length(key) for key in ("prompt", "output")}
    workers, rounds = (given.whole(key, 1, MOST_TURNS) or 1 for key in ("workers", "rounds"))
    check_requests(workers * rounds)
    return SharedWorkers(workers=workers, rounds=rounds, **lengths)


def _calls(kind: type[ReAct | ReWOO], given: Given) -> SessionKind:
    wait = _wait(given)
    lengths = {key: given.length(key, MOST_TURNS if key == "steps" else MOST_TOKENS) for key in _TOOLS}
    return kind(system=_system(given), wait=wait, **lengths)


def _wait(given: Given) -> Wait:
    return _wait_of(f"wait of {given.kind}", given.options.get("wait", "0"))


def _system(given: Given) -> int:
    return given.whole("system", 0, MOST_TOKENS) or 0


# By kind: required options, further ones, and the parser.
_KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], Callable[[Given], SessionKind]]] = {
    "tree-rollouts": (("branch", "prompt", "output"), (), _tree),
    "persistent-agent": (("turns", "prompt", "output"), ("system", "wait"), _agent),
    "shared-workers": (("workers", "rounds", "prompt", "output"), (), _workers),
    "react": (_TOOLS, ("system", "wait"), partial(_calls, ReAct)),
    "rewoo": (_TOOLS, ("system", "wait"), partial(_calls, ReWOO)),
}
SESSION_KINDS = {kind: (*_COMMON, *needs, *more) for kind, (needs, more, _) in _KINDS.items()}


def parse_sessions(text: str, rate: float | None, seed: int, active: int | None = None) -> SessionSource:
    """Read the text of a generator of sessions.

    `rate` is sessions per second, where the text has none; `active` is the number of sessions at any time.
    """
    given = Given(text, SESSION_KINDS)
    for key in ("rate", "seconds"):
        if active is not None and key in given.options:
            raise ArgumentError(f"`active_sessions` must be left out: {text!r} has {key}, got {active}")
    kind, options = given.kind, given.options
    needs, _, make = _KINDS[kind]
    for key in needs:
        if key not in options:
            raise ArgumentError(f"{kind} must have {', '.join(needs)}, got no {key} in {given.rest!r}")
    given.check_rate(rate)
    rate, seconds = given.number("rate") if rate is None else rate, given.number("seconds")
    sessions = given.whole("sessions", 1, MOST_REQUESTS)
    if sessions is None:
        if seconds is None or rate is None:
            raise ArgumentError(
                f"{kind} must have sessions, or seconds and a rate, so that it ends, got {given.rest!r}"
            )
        given.check_expected(rate, seconds)
    made = make(given)
    if sessions is not None and sessions * (made.num_requests or 1) > MOST_REQUESTS:
        rule = f"must have at most {MOST_REQUESTS:,} requests in all"
        raise ArgumentError(f"sessions of {kind} {rule}, got {sessions * (made.num_requests or 1):,}")
    return SessionSource(
        text=text,
        kind=made,
        rate=rate,
        active=active,
        sessions=sessions,
        seconds=seconds,
        unit_tokens=given.whole("unit", 1, MOST_COUNT) or _UNIT,
        tag=options.get("tag", ""),
        slo=options.get("slo", ""),
        seed=seed,
    )
