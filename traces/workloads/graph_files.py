"""Sessions as graphs: those of coding agents, as recorded by kv-cache-tester, and those in our own lines.

An agent's request waits for the one before. The first one of a sub-agent waits for the agent's latest before it, so
several sub-agents run in parallel. Where the file has the duration of a sub-agent, its `t` is its end (read so, the
published ones begin about a second after what launched them), and the agent continues after all of them; where it does
not, `t` is its launch, and no request waits for it. Every wait is the recorded time between an end and what follows it:
the time of a tool or a user. Blocks of prompts are written whole or as changes since the prompt before, and kept as
runs of ids.

Our own lines have what each request waits for, whose text it continues, and where it writes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import count, pairwise
from math import inf
from typing import Any, NamedTuple

from .arrival import MOST_COUNT, PS_PER_S, Arrival, Text
from .format import FIRST_LOCAL, LOCAL_BITS, MOST_ID, Reading, Row, WorkloadFormat, rows_of, whole
from .sessions import GraphError, Node, Runs, SessionGraph, Turn, Waits, runs_of

SESSION_LOCAL_BITS = 24  # of ids within a session; the bits above are its line and its file
_LINE_BITS, _FILE_BITS = 24, 14


def _id_offset(row: Row) -> int:
    """The offset of a session's ids, which separates them from other sessions'."""
    scope, number = row.values["hash_id_scope"], row.reading.number
    if scope == "global":
        return 0
    if scope != "local":
        raise row.error("hash_id_scope", "must be local or global", scope)
    if row.line >> _LINE_BITS or number >> _FILE_BITS:
        raise row.error("hash_id_scope", f"local ids leave room for {2**_LINE_BITS:,} sessions", row.line)
    return (number << _LINE_BITS | row.line) << SESSION_LOCAL_BITS


def _runs_of_prompt(row: Row, before: Runs, *, unit: int, offset: int) -> tuple[int, Runs]:
    """(blocks kept of the prompt before, runs of the others) of a request, whose `in` is a count."""
    if "hash_ids" in row.values:
        ids = row.ids("hash_ids")
        _check_scope(row, "hash_ids", max(ids, default=0), offset)
        kept = _common(before, ids, offset)
        new = runs_of(offset + number for number in ids[kept:])
        _check_count(row, "hash_ids", len(ids), unit)
        return kept, new
    kept = row.tokens("reuse_prev")
    if kept > length(before):
        raise row.error("reuse_prev", f"must be at most the blocks of the prompt before, {length(before)}", kept)
    new = _given_runs(row, offset)
    blocks = row.tokens("n_blocks")
    if kept + length(new) != blocks:
        raise row.error("n_blocks", f"must be those of reuse_prev and new_runs, {kept + length(new)}", blocks)
    _check_count(row, "n_blocks", blocks, unit)
    for (_, last), (first, _) in pairwise(sorted((*head_of(before, kept), *new))):
        if first <= last:
            rule = "must not hold an id twice: it stands for all the text before it"
            raise row.error("new_runs", rule, first - offset)
    return kept, new


def length(runs: Runs) -> int:
    """Blocks in runs."""
    return sum([last - first + 1 for first, last in runs])


def head_of(runs: Runs, count: int) -> Runs:
    """The first `count` blocks of runs."""
    kept: list[tuple[int, int]] = []
    for first, last in runs:
        if count <= 0:
            break
        kept.append((first, min(last, first + count - 1)))
        count -= last - first + 1
    return tuple(kept)


def _common(before: Runs, ids: Sequence[int], offset: int) -> int:
    """Number of leading ids that are those of the prompt before."""
    count = 0
    for first, last in before:
        wanted = range(first - offset, min(last - offset + 1, first - offset + len(ids) - count))
        if tuple(wanted) != tuple(ids[count : count + len(wanted)]):
            return count + next(place for place, one in enumerate(wanted) if one != ids[count + place])
        count += len(wanted)
    return count


def _given_runs(row: Row, offset: int) -> Runs:
    """Runs as in a file, `[[first, last], ...]`."""
    runs: list[tuple[int, int]] = []
    key, value = "new_runs", row.values["new_runs"]
    for place, run in enumerate(value if isinstance(value, list) else [value]):
        sound = isinstance(run, list) and len(run) == 2 and all(whole(end, 0, MOST_ID) for end in run)
        if not sound or run[0] > run[1]:
            rule = "must be [first, last], two whole numbers, the first not above the last"
            raise row.reading.error(row.line, f"{row.prefix}{key}[{place}]", rule, run)
        _check_scope(row, f"{key}[{place}]", run[1], offset)
        runs.append((run[0] + offset, run[1] + offset))
    return tuple(runs)


def _check_scope(row: Row, field: str, highest: int, offset: int) -> None:
    if offset and highest >> SESSION_LOCAL_BITS:
        raise row.error(field, f"ids of a local scope must be below {2**SESSION_LOCAL_BITS:,}", highest)


def _check_count(row: Row, field: str, blocks: int, unit: int) -> None:
    tokens = row.values["in"]
    if blocks not in (tokens // unit, -(-tokens // unit)):
        rule = f"must be one for each {unit} tokens of in, {tokens}, whether the last is full or begun"
        raise row.error(field, rule, blocks)


_REQUEST = ("t", "type", "in", "out")
_BLOCKS = ("reuse_prev", "new_runs", "n_blocks")
_WHOLE = ("hash_ids",)
_REQUEST_MORE = ("model", "stop", "api_time", "think_time", "ttft", "input_types", "output_types")
_SUBAGENT = ("t", "type", "requests")
_SUBAGENT_MORE = (
    *("agent_id", "models", "status", "subagent_type", "system_tokens", "tool_tokens", "tool_use_count"),
    *("total_tokens", "duration_ms"),
)
_TYPES = ("n", "s", "subagent")
_PS_PER_MS = PS_PER_S // 1000
UNKNOWN_END = "waits that hold the seconds of the request before, since the file does not say when that ended"
EARLY = "requests that began before what they wait for had ended, as the file has it, and that wait 0 s after it"
NO_JOIN = "sub-agents that no request waits for, since the file does not say how long they took"


class _Ended(NamedTuple):
    request: int
    at_ps: int
    is_end: bool  # else `at_ps` is its beginning, as the file lacks its end


@dataclass(slots=True, kw_only=True)
class _Strand:
    """The state of an agent's requests, or of a sub-agent's."""

    own: Sequence[_Ended]  # what the next request or sub-agent follows: the agent's latest request, or what launched it
    joined: list[_Ended] = field(default_factory=list[_Ended])  # ends of its sub-agents since
    follows_own: bool = False  # whether the one before is a request of its own that was not dropped
    prompt: Runs = ()  # blocks of the prompt before
    keeps: int | None = None  # number of the request with them; None: dropped, or none

    @property
    def waits(self) -> list[_Ended]:
        return [*self.own, *self.joined]


class _AgentSession:
    """A session while it is read; `take` adds `nodes`. `unit` is tokens of a block."""

    def __init__(self, row: Row, unit: int) -> None:
        self._name, self._unit, self._offset, self._tally = row.values["id"], unit, _id_offset(row), row.reading.tally
        self.nodes: list[Node] = []
        self._num_requests = 0  # with dropped ones

    def take(self, around: Row, base_ps: int, launched_by: Sequence[_Ended] = ()) -> list[_Ended]:
        """Take the `requests` of the session or of a sub-agent; returns the ends that its successors wait for.

        They begin `base_ps` after the start of the session, and the first waits for what launched it.
        """
        strand, began_ps = _Strand(own=launched_by), base_ps
        for row in around.rows("requests"):
            if row.values.get("type") not in _TYPES:
                raise row.error("type", f"must be one of {', '.join(_TYPES)}", row.values.get("type"))
            at_ps = base_ps + row.wait("t")
            if at_ps < began_ps:
                raise row.error("t", "must not be before the request before it", row.values["t"])
            began_ps = at_ps
            if row.values["type"] == "subagent":
                self._take_subagent(strand, row, at_ps)
            else:
                self._take_request(strand, row, at_ps)
        return strand.waits

    def _take_subagent(self, strand: _Strand, row: Row, at_ps: int) -> None:
        row.check_keys(_SUBAGENT, (*_SUBAGENT, *_SUBAGENT_MORE))
        if not strand.own:
            raise row.error("type", "must follow a request of some tokens, which launched it", "subagent")
        if "duration_ms" not in row:
            self._tally.remark(NO_JOIN)
            self.take(row, at_ps, strand.own)
            return
        lasted_ps = row.wait("duration_ms", unit_ps=_PS_PER_MS)
        if lasted_ps > at_ps:
            rule = f"must be at most the {at_ps // _PS_PER_MS} ms of the session until it ended"
            raise row.error("duration_ms", rule, row.values["duration_ms"])
        for one in self.take(row, at_ps - lasted_ps, strand.own):
            strand.joined.append(one if one.is_end else _Ended(one.request, at_ps, is_end=True))

    def _take_request(self, strand: _Strand, row: Row, at_ps: int) -> None:
        needed = (*_REQUEST, *(_WHOLE if "hash_ids" in row.values else _BLOCKS))  # not both: they may differ
        row.check_keys(needed, (*needed, *_REQUEST_MORE))
        wait_ps = self._wait(strand, row, at_ps)
        self._num_requests += 1
        counts = [row.tokens(key) for key in ("in", "out")]
        kept, new = _runs_of_prompt(row, strand.prompt, unit=self._unit, offset=self._offset)
        prompt: Runs = (*head_of(strand.prompt, kept), *new)
        tokens = row.lengths(counts, ("in", "out"))
        is_end = "api_time" in row
        took_ps = row.wait("api_time") if is_end else 0
        if tokens is None:  # dropped: the next one takes over its wait
            strand.own = [_Ended(one.request, one.at_ps + took_ps, one.is_end and is_end) for one in strand.waits]
            strand.keeps = None
        else:
            parted = strand.keeps is None
            blocks = (prompt, 0) if parted else (new, kept)
            turn = Turn(f"{self._name}/{self._num_requests}", wait_ps, *tokens, *blocks)
            number, waits = len(self.nodes), dict.fromkeys(Waits(one.request) for one in strand.waits)
            self.nodes.append(Node(turn=turn, waits=tuple(waits), keeps=strand.keeps))
            strand.own, strand.keeps = [_Ended(number, at_ps + took_ps, is_end)], number
        strand.joined, strand.follows_own, strand.prompt = [], tokens is not None, prompt

    def _wait(self, strand: _Strand, row: Row, at_ps: int) -> int:
        """A request's wait after the last end that it waits for."""
        if strand.follows_own and not strand.joined and "think_time" in row:
            return row.wait("think_time")
        if not strand.waits:
            return 0
        last = max(strand.waits, key=lambda one: one.at_ps)
        if not last.is_end:
            self._tally.remark(UNKNOWN_END)
        if at_ps < last.at_ps:
            self._tally.remark(EARLY)
        return max(0, at_ps - last.at_ps)


_SESSION = ("id", "block_size", "hash_id_scope", "requests")
_SESSION_MORE = ("models", "tool_tokens", "system_tokens", "totals")


def read_sessions(reading: Reading) -> Iterator[tuple[int, Arrival]]:
    """The first request of each session of a file, followed by the others; all sessions begin at 0."""
    for row in rows_of(reading):
        row.check_keys(_SESSION, (*_SESSION, *_SESSION_MORE))
        for key in ("block_size", "hash_id_scope"):
            if row.values[key] != (wanted := reading.first.get(key)):
                raise row.error(key, f"must be {wanted} as in the first session", row.values[key])
        unit = unit_of(row.values)
        if not unit:
            raise row.error("block_size", f"must be a whole number in [1, {MOST_COUNT}]", row.values["block_size"])
        if not isinstance(row.values["id"], str) or not row.values["id"].isprintable():
            raise row.error("id", "must be printable text", row.values["id"])
        session = _AgentSession(row, unit)
        session.take(row, 0)
        if session.nodes:
            yield row.line, SessionGraph(nodes=tuple(session.nodes)).begin(0)


def unit_of(found: Mapping[str, Any]) -> int:
    """Tokens of a block in a session; 0 where unknown."""
    size = found.get("block_size")
    return size if isinstance(size, int) and whole(size, 1) else 0


AGENTS = WorkloadFormat(
    name="agent-sessions",
    keys=_SESSION,
    sees=lambda keys: bool({"block_size", "hash_id_scope"} & keys),
    read=read_sessions,
    unit_tokens=unit_of,
    notes=(
        "sessions are closed loops: a request waits for the end of the one before, then for the tool or the user; "
        "the file does not say when sessions began",
    ),
    timed=lambda _: False,
    many=True,
    is_json=True,
)


_TOKENS = ("prompt_tokens", "output_tokens")
_NEEDED = ("after", *_TOKENS)
_KNOWN = (*_NEEDED, "request_id", "wait_s", "blocks", "continues", "at")
_MOST_TOKENS = 2 ** (LOCAL_BITS - 1)  # of a session with ids of texts: its shared context has as many ids


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    row: Row
    name: str
    tokens: tuple[int, int]  # of prompt and answer
    wait_ps: int  # see `Turn`
    after: tuple[str, ...]
    blocks: tuple[int, ...]  # ids in the file
    continues: str  # the request whose text it continues; "" for none
    at: int | None  # token of the shared context at which it writes; None: not into it

    @property
    def is_first(self) -> bool:
        return not self.row.prefix

    def turn(self, blocks: tuple[int, ...]) -> Turn:
        return Turn(self.name, self.wait_ps, *self.tokens, runs_of(blocks))


def graph_of(row: Row, *, name: str, unit: int, tag: str, slo: str) -> SessionGraph:
    """The session of a line, whose `graph` holds its further requests; raises TraceFormatError."""
    following = row.rows("graph")
    requests = [_request(row, name, unit)]
    for number, one in enumerate(following, start=1):
        one.check_keys(_NEEDED, _KNOWN)
        requests.append(_request(one, f"{name}/{number}", unit))
    return _Graph(row.line, requests, unit).made(tag, slo)


def _request(row: Row, default: str, unit: int) -> _Request:
    counts = [row.tokens(key) for key in _TOKENS]
    tokens = row.lengths(counts, _TOKENS)
    if tokens is None:
        raise row.error("output_tokens", "must be >= 1: no request of a graph is dropped", min(counts))
    one, after = row.values, row.sequence("after")
    for key in ("continues", "at"):
        if key in one and not unit:
            raise row.error(key, "must be left out where the first line has no unit_tokens", one[key])
    if row.prefix and len(given := [key for key in ("blocks", "continues", "at") if key in one]) > 1:
        raise row.error(given[1], f"must be left out beside {given[0]}", one[given[1]])
    if (at := one.get("at")) is not None and not whole(at):
        raise row.error("at", "must be a whole number >= 0", at)
    return _Request(
        row=row,
        name=row.name("request_id", default),
        tokens=tokens,
        wait_ps=row.wait("wait_s", 0),
        after=tuple(row.printable("after", text) for text in after),
        blocks=row.blocks("blocks", tokens[0], unit),
        continues=row.printable("continues", one.get("continues", "")),
        at=at,
    )


class _Graph:
    """The requests of a line, as a graph; `unit` is tokens of a unit, 0: texts are unknown."""

    def __init__(self, line: int, requests: Sequence[_Request], unit: int) -> None:
        self._line, self._requests, self._unit = line, requests, unit
        self._ids = count(FIRST_LOCAL + (line << LOCAL_BITS))
        self._numbers: dict[str, int] = {}
        for number, one in enumerate(requests):
            if self._numbers.setdefault(one.name, number) != number:
                raise one.row.error("request_id", "must be unique in the workload", one.name)

    def made(self, tag: str, slo: str) -> SessionGraph:
        waits = [tuple(dict.fromkeys(self._waits(one, "after", text) for text in one.after)) for one in self._requests]
        plain = tuple(Node(turn=one.turn(()), waits=waits[number]) for number, one in enumerate(self._requests))
        try:
            SessionGraph(nodes=plain)  # check the graph before texts are built along it
        except GraphError as error:
            one = self._requests[error.number]
            raise one.row.error("after", error.rule, error.value) from None
        self._check_places()
        if self._unit and (tokens := sum(sum(one.tokens) for one in self._requests)) > _MOST_TOKENS:
            raise self._requests[0].row.error("graph", f"must have at most {_MOST_TOKENS:,} tokens in all", tokens)
        return SessionGraph(nodes=tuple(self._nodes(waits)), tag=tag, slo=slo)

    def _nodes(self, waits: Sequence[tuple[Waits, ...]]) -> Iterator[Node]:
        """Nodes with texts, built in an order in which each comes after those it waits for."""
        written: dict[int, dict[int, float]] = {}
        texts: dict[int, tuple[Text, Text]] = {}
        order = TopologicalSorter({number: [wait.request for wait in own] for number, own in enumerate(waits)})
        for number in order.static_order():
            one = self._requests[number]
            written[number] = _written(waits[number], written)
            texts[number] = self._texts(one, written[number], texts) if self._unit else (Text(unit_tokens=1),) * 2
        for number, one in enumerate(self._requests):
            prompt, answered = texts[number]
            answer = answered.ids[len(prompt.ids) :]
            yield Node(turn=one.turn(one.blocks or prompt.ids), waits=waits[number], answer=answer)

    def _texts(
        self, one: _Request, written: Mapping[int, float], texts: Mapping[int, tuple[Text, Text]]
    ) -> tuple[Text, Text]:
        """A request's prompt, and the prompt with its answer."""
        prompt_tokens, output_tokens = one.tokens
        if one.at is not None and not one.is_first:
            prompt = self._read(one, written, texts[0][0])
        elif one.continues:
            begun = self._begun(one, written, texts)
            prompt = begun.grown(prompt_tokens - begun.num_tokens, self._ids)
        else:
            ids = one.blocks[: prompt_tokens // self._unit]
            prompt = Text(unit_tokens=self._unit, num_tokens=len(ids) * self._unit, ids=ids)
            prompt = prompt.grown(prompt_tokens - prompt.num_tokens, self._ids)
        if one.at is None:
            return prompt, prompt.grown(output_tokens, self._ids)
        if one.at > prompt_tokens:  # its answer follows another text than in the context
            return prompt, prompt
        return prompt, self._context(prompt if one.is_first else texts[0][0], prompt_tokens + output_tokens)

    def _begun(self, one: _Request, written: Mapping[int, float], texts: Mapping[int, tuple[Text, Text]]) -> Text:
        other, depth = self._waits(one, "continues", one.continues)
        most = self._requests[other].tokens[1]
        tokens = most if depth is None else depth
        if tokens > most:
            rule = f"must be within the {most} tokens that {self._requests[other].name} answers"
            raise one.row.error("continues", rule, one.continues)
        if written.get(other, -1) < (inf if depth is None else depth):
            raise one.row.error("continues", "must be written by what it waits for", one.continues)
        prompt, answered = texts[other]
        whole_text = prompt.num_tokens + tokens
        if one.tokens[0] < whole_text:
            rule = f"must be at least the {whole_text} of what it continues"
            raise one.row.error("prompt_tokens", rule, one.tokens[0])
        if whole_text > answered.num_tokens:
            raise one.row.error("continues", "must not write behind the texts of others", one.continues)
        return answered.head(whole_text)

    def _read(self, one: _Request, written: Mapping[int, float], first: Text) -> Text:
        ends = [(0, first.num_tokens)]
        for number, other in enumerate(self._requests):
            if other.at is not None and written.get(number) == inf:
                ends.append((other.at, other.at + other.tokens[1]))
        known = 0
        for start, end in sorted(ends):
            if start <= known:
                known = max(known, end)
        if known < one.tokens[0]:
            rule = f"must be at most the {known} tokens of the context that those have written that it waits for"
            raise one.row.error("prompt_tokens", rule, one.tokens[0])
        return self._context(first, one.tokens[0])

    def _context(self, first: Text, num_tokens: int) -> Text:
        """The first tokens of the shared context, with ids by place."""
        if num_tokens <= first.num_tokens:
            return first.head(num_tokens)
        places = range(len(first.ids), num_tokens // self._unit)
        base = FIRST_LOCAL + (self._line << LOCAL_BITS) + _MOST_TOKENS
        ids = (*first.ids, *(base + place for place in places))
        return Text(unit_tokens=self._unit, num_tokens=num_tokens, ids=ids)

    def _check_places(self) -> None:
        """Raise TraceFormatError for two that write the same token of the context, or one within its own prompt."""
        prompt = self._requests[0].tokens[0]
        writers = [(0, prompt, self._requests[0], "the prompt of ")]
        for one in self._requests:
            if one.at is not None:
                if one.at < one.tokens[0]:
                    raise one.row.error("at", f"must be behind the {one.tokens[0]} tokens that it reads", one.at)
                writers.append((one.at, one.at + one.tokens[1], one, ""))
        writers.sort(key=lambda writer: writer[0])
        for (_, end, before, what), (start, _, one, _) in pairwise(writers):
            if start < end:
                rule = f"must not be a place where {what}{before.name} writes, which ends at {end}"
                raise one.row.error("at", rule, start)

    def _waits(self, one: _Request, field: str, text: str) -> Waits:
        """`ID`, or `ID@TOKENS`."""
        if text in self._numbers:
            return Waits(self._numbers[text])
        name, _, depth = text.rpartition("@")
        if name in self._numbers and depth.isascii() and depth.isdigit() and len(depth) <= 10:
            return Waits(self._numbers[name], int(depth))
        raise one.row.error(field, "must be a request of the session, or that, @ and tokens of its answer", text)


def _written(waits: Sequence[Waits], written: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    """By other request, tokens of its answer written when one arrives; infinite for those that have ended."""
    found: dict[int, float] = {}
    for other, depth in waits:
        known = {**written[other], other: inf if depth is None else depth}
        for number, tokens in known.items():
            found[number] = max(found.get(number, -1), tokens)
    return found
