"""Sessions as graphs in our own lines: what each request waits for, whose text it goes on from, and where it writes.

The blocks of an agent's prompts, written whole or as what changed since the prompt before; kept as runs of ids.

The requests of an agent and of its sub-agents, as a graph of who waits for whom.

An agent's request waits for the one before. The first one of a sub-agent waits for the agent's latest before it, so
several sub-agents run side by side. Where the file says how long a sub-agent took, its `t` is when it had ended (so
read, the published ones begin about a second after what launched them), and the agent goes on after all of them; where
it does not say, `t` is when it was launched, and nobody waits for it. Every wait is the recorded time between an end
and what follows it: what a tool or a user took.

Sessions of coding agents as kv-cache-tester records them: a session a line, or one a file.

A session's requests follow each other: each waits for the end of the one before, then as long as the tool or the user
took. Sub-agents run beside each other.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from math import inf
from typing import Any, NamedTuple

from ...base.files import kind_of_json
from .arrival import MOST_COUNT, PS_PER_S, Arrival, Text
from .format import (
    FIRST_LOCAL,
    LOCAL_BITS,
    Reading,
    WorkloadFormat,
    blocks_of,
    check_keys,
    count_of,
    ids_of,
    objects_of,
    request_id_of,
    shown,
    text_of,
    wait_of,
    whole,
)
from .sessions import GraphError, Node, Runs, Session, SessionGraph, Turn, Waits, runs_of

SESSION_LOCAL_BITS = 24  # of ids that count within their session; above them stand its line and its file
_LINE_BITS, _FILE_BITS = 24, 14


def id_offset(reading: Reading, line: int, scope: object) -> int:
    """What is added to the ids of a session, so that those of other sessions are others.

    Raises:
        TraceFormatError: a scope that is not known, or more lines or files than ids leave room for.
    """
    if scope == "global":
        return 0
    if scope != "local":
        raise reading.error(line, "hash_id_scope", "must be local or global", scope)
    if line >> _LINE_BITS or reading.number >> _FILE_BITS:
        raise reading.error(line, "hash_id_scope", f"local ids leave room for {2**_LINE_BITS:,} sessions", line)
    return (reading.number << _LINE_BITS | line) << SESSION_LOCAL_BITS


def runs_of_prompt(
    reading: Reading, line: int, where: str, found: Mapping[str, Any], before: Runs, *, unit: int, offset: int
) -> tuple[int, Runs]:
    """(blocks kept of the prompt before, runs of the others) of a request.

    Args:
        reading: of the file.
        line: of the session.
        where: names the request within it, a dot at the end.
        found: the request: `hash_ids`, or `reuse_prev`, `new_runs` and `n_blocks`; its `in` is a count.
        before: runs of the prompt before, with their offset.
        unit: tokens of a block.
        offset: of ids.

    Raises:
        TraceFormatError: blocks that contradict each other or the length of the prompt.
    """
    if "hash_ids" in found:
        ids = ids_of(reading, line, f"{where}hash_ids", found["hash_ids"])
        _check_scope(reading, line, f"{where}hash_ids", max(ids, default=0), offset)
        kept = _common(before, ids, offset)
        new = runs_of(offset + number for number in ids[kept:])
        _check_count(reading, line, f"{where}hash_ids", found["in"], len(ids), unit)
        return kept, new
    kept = count_of(reading, line, f"{where}reuse_prev", found["reuse_prev"])
    if kept > length(before):
        rule = f"must be at most the blocks of the prompt before, {length(before)}"
        raise reading.error(line, f"{where}reuse_prev", rule, kept)
    new = _given_runs(reading, line, f"{where}new_runs", found["new_runs"], offset)
    blocks = count_of(reading, line, f"{where}n_blocks", found["n_blocks"])
    if kept + length(new) != blocks:
        rule = f"must be those of reuse_prev and new_runs, {kept + length(new)}"
        raise reading.error(line, f"{where}n_blocks", rule, blocks)
    _check_count(reading, line, f"{where}n_blocks", found["in"], blocks, unit)
    _check_once(reading, line, where, (*head_of(before, kept), *new), offset)
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
    """How many of the first ids are those of the prompt before."""
    count = 0
    for first, last in before:
        wanted = range(first - offset, min(last - offset + 1, first - offset + len(ids) - count))
        if tuple(wanted) != tuple(ids[count : count + len(wanted)]):
            return count + next(place for place, one in enumerate(wanted) if one != ids[count + place])
        count += len(wanted)
    return count


def _given_runs(reading: Reading, line: int, field: str, value: object, offset: int) -> Runs:
    """Runs as a file has them, `[[first, last], ...]`."""
    runs: list[tuple[int, int]] = []
    for place, run in enumerate(value if isinstance(value, list) else [value]):
        sound = isinstance(run, list) and len(run) == 2 and all(whole(end, 0, 2**62) for end in run)
        if not sound or run[0] > run[1]:
            rule = "must be [first, last], two whole numbers, the first not above the last"
            raise reading.error(line, f"{field}[{place}]", rule, run)
        _check_scope(reading, line, f"{field}[{place}]", run[1], offset)
        runs.append((run[0] + offset, run[1] + offset))
    return tuple(runs)


def _check_scope(reading: Reading, line: int, field: str, highest: int, offset: int) -> None:
    if offset and highest >> SESSION_LOCAL_BITS:
        raise reading.error(line, field, f"ids of a local scope must be below {2**SESSION_LOCAL_BITS:,}", highest)


def _check_count(reading: Reading, line: int, field: str, tokens: int, blocks: int, unit: int) -> None:
    if blocks not in (tokens // unit, -(-tokens // unit)):
        rule = f"must be one for each {unit} tokens of in, {tokens}, whether the last is full or begun"
        raise reading.error(line, field, rule, blocks)


def _check_once(reading: Reading, line: int, where: str, runs: Runs, offset: int) -> None:
    """Raise TraceFormatError for an id that stands in a prompt twice."""
    for (_, last), (first, _) in pairwise(sorted(runs)):
        if first <= last:
            rule = "must not hold an id twice: it stands for all the text before it"
            raise reading.error(line, f"{where}new_runs", rule, first - offset)


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
NO_JOIN = "sub-agents that nobody waits for, since the file does not say how long they took"


class _Ended(NamedTuple):
    """A request that others wait for, as it was recorded."""

    request: int
    at_ps: int
    is_end: bool  # else the file has its beginning only


@dataclass(slots=True, kw_only=True)
class _Strand:
    """Where the requests of an agent, or of one sub-agent, have come to.

    Attributes:
        own: what the next request or sub-agent follows: the agent's latest request, or who launched it.
        joined: ends of its sub-agents since.
        follows_own: whether what came before is a request of its own that is not dropped.
        prompt: blocks of the prompt before.
        keeps: number of the request that has them; None: it was dropped, or there is none.
    """

    own: Sequence[_Ended]
    joined: list[_Ended] = field(default_factory=list[_Ended])
    follows_own: bool = False
    prompt: Runs = ()
    keeps: int | None = None

    @property
    def waits(self) -> list[_Ended]:
        """What the next request waits for."""
        return [*self.own, *self.joined]


@dataclass(slots=True, kw_only=True)
class AgentRequests:
    """A session while it is read; mutated by `take`.

    Attributes:
        reading: of the file.
        line: of the session.
        name: of the session.
        unit: tokens of a block.
        offset: of its ids.
        nodes: so far.
        num_requests: met so far, dropped ones too.
        has_subagents: whether it is no line of turns.
    """

    reading: Reading
    line: int
    name: str
    unit: int
    offset: int
    nodes: list[Node] = field(default_factory=list[Node])
    num_requests: int = 0
    has_subagents: bool = False

    def session(self) -> Session | SessionGraph | None:
        """What was read; None: nothing of it is left."""
        if not self.nodes:
            return None
        if self.has_subagents:
            return SessionGraph(nodes=tuple(self.nodes))
        return Session(turns=tuple(node.turn for node in self.nodes))

    def take(self, requests: object, where: str, base_ps: int, launched_by: Sequence[_Ended] = ()) -> list[_Ended]:
        """Take the requests of the session or of a sub-agent.

        Args:
            requests: as the file has them.
            where: names them.
            base_ps: when they begin, from the start of the session.
            launched_by: what the first of them waits for.

        Returns:
            What who goes on after them waits for.

        Raises:
            TraceFormatError: a field that is missing, unknown or wrong.
        """
        if not isinstance(requests, list):
            raise self._error(where, "must be a list", kind_of_json(requests))
        strand, began_ps = _Strand(own=launched_by), base_ps
        for place, found in enumerate(requests):
            here = f"{where}[{place}]."
            if not isinstance(found, dict):
                raise self._error(here[:-1], "must be an object", kind_of_json(found))
            if found.get("type") not in _TYPES:
                raise self._error(f"{here}type", f"must be one of {', '.join(_TYPES)}", found.get("type"))
            at_ps = base_ps + self._time(here, found, "t")
            if at_ps < began_ps:
                raise self._error(f"{here}t", "must not be before the request before it", found["t"])
            began_ps = at_ps
            if found["type"] == "subagent":
                self._take_subagent(strand, found, here, at_ps)
            else:
                self._take_request(strand, found, here, at_ps)
        return strand.waits

    def _take_subagent(self, strand: _Strand, found: dict[str, Any], here: str, at_ps: int) -> None:
        check_keys(self.reading, self.line, found, _SUBAGENT, (*_SUBAGENT, *_SUBAGENT_MORE), of=here)
        if not strand.own:
            raise self._error(f"{here}type", "must follow a request of some tokens, which launched it", "subagent")
        self.has_subagents = True
        if found.get("duration_ms") is None:
            self.reading.tally.remark(NO_JOIN)
            self.take(found["requests"], f"{here}requests", at_ps, strand.own)
            return
        lasted_ps = self._time(here, found, "duration_ms", unit_ps=_PS_PER_MS)
        if lasted_ps > at_ps:
            rule = f"must be at most the {at_ps // _PS_PER_MS} ms of the session until it ended"
            raise self._error(f"{here}duration_ms", rule, found["duration_ms"])
        for one in self.take(found["requests"], f"{here}requests", at_ps - lasted_ps, strand.own):
            strand.joined.append(one if one.is_end else _Ended(one.request, at_ps, is_end=True))

    def _take_request(self, strand: _Strand, found: dict[str, Any], here: str, at_ps: int) -> None:
        blocks = _WHOLE if "hash_ids" in found else _BLOCKS  # both may contradict each other
        needed = (*_REQUEST, *blocks)
        check_keys(self.reading, self.line, found, needed, (*needed, *_REQUEST_MORE), of=here)
        wait_ps = self._wait(strand, found, here, at_ps)
        self.num_requests += 1
        counts = {
            f"{here}{key}": count_of(self.reading, self.line, f"{here}{key}", found[key]) for key in ("in", "out")
        }
        kept, new = runs_of_prompt(
            self.reading, self.line, here, found, strand.prompt, unit=self.unit, offset=self.offset
        )
        whole: Runs = (*head_of(strand.prompt, kept), *new)
        tokens = self.reading.lengths(self.line, *counts.values(), names=tuple(counts))
        is_end = found.get("api_time") is not None
        took_ps = self._time(here, found, "api_time") if is_end else 0
        if tokens is None:  # what follows takes over its wait
            strand.own = [_Ended(one.request, one.at_ps + took_ps, one.is_end and is_end) for one in strand.waits]
            strand.keeps = None
        else:
            parted = strand.keeps is None
            turn = Turn(
                request_id=f"{self.name}/{self.num_requests}",
                wait_ps=wait_ps,
                prompt_tokens=tokens[0],
                output_tokens=tokens[1],
                kept_blocks=0 if parted else kept,
                new_blocks=whole if parted else new,
            )
            number = self._add(turn, strand)
            strand.own, strand.keeps = [_Ended(number, at_ps + took_ps, is_end)], number
        strand.joined, strand.follows_own, strand.prompt = [], tokens is not None, whole

    def _add(self, turn: Turn, strand: _Strand) -> int:
        """The number of a request, now one of the session's."""
        number = len(self.nodes)
        waits = tuple(dict.fromkeys(Waits(one.request) for one in strand.waits))
        self.nodes.append(Node(turn=turn, waits=waits, keeps=strand.keeps))
        return number

    def _wait(self, strand: _Strand, found: Mapping[str, Any], here: str, at_ps: int) -> int:
        """What a request waited for after the last of what it waits for had ended."""
        if strand.follows_own and not strand.joined and found.get("think_time") is not None:
            return self._time(here, found, "think_time")
        waits = strand.waits
        if not waits:
            return 0
        last = max(waits, key=lambda one: one.at_ps)
        if not last.is_end:
            self.reading.tally.remark(UNKNOWN_END)
        if at_ps < last.at_ps:
            self.reading.tally.remark(EARLY)
        return max(0, at_ps - last.at_ps)

    def _time(self, here: str, found: Mapping[str, Any], key: str, *, unit_ps: int = PS_PER_S) -> int:
        return wait_of(self.reading, self.line, f"{here}{key}", found.get(key), unit_ps=unit_ps)

    def _error(self, field: str, rule: str, value: object) -> Exception:
        return self.reading.error(self.line, field, rule, value)


_SESSION = ("id", "block_size", "hash_id_scope", "requests")
_SESSION_MORE = ("models", "tool_tokens", "system_tokens", "totals")


def read_sessions(reading: Reading) -> Iterator[tuple[int, Arrival]]:
    """The first request of each session of a file, which the others follow; all sessions begin at 0."""
    for line, found in objects_of(reading):
        check_keys(reading, line, found, _SESSION, (*_SESSION, *_SESSION_MORE))
        for key in ("block_size", "hash_id_scope"):
            if found[key] != (wanted := reading.first.get(key)):
                raise reading.error(line, key, f"must be {wanted} as in the first session", found[key])
        unit = unit_of(found)
        if not unit:
            raise reading.error(line, "block_size", f"must be a whole number in [1, {MOST_COUNT}]", found["block_size"])
        if not isinstance(found["id"], str) or not found["id"].isprintable():
            raise reading.error(line, "id", "must be printable text", found["id"])
        offset = id_offset(reading, line, found["hash_id_scope"])
        requests = AgentRequests(reading=reading, line=line, name=found["id"], unit=unit, offset=offset)
        requests.take(found["requests"], "requests", 0)
        session = requests.session()
        if session is not None:
            yield line, session.begin(0)


def unit_of(found: Mapping[str, Any]) -> int:
    """Tokens of a block in a session; 0 where it does not say."""
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


_NEEDED = ("after", "prompt_tokens", "output_tokens")
_KNOWN = (*_NEEDED, "request_id", "wait_s", "blocks", "continues", "at")
_MOST_TOKENS = 2 ** (LOCAL_BITS - 1)  # of a session where texts have ids: its context has as many of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A request as a line has it.

    Attributes:
        of: names its fields.
        name: its id.
        tokens: of prompt and answer.
        wait_ps: see `Turn`.
        after: as the file has them.
        blocks: ids that the file gives.
        continues: whose text it goes on from; "" for nobody's.
        at: token of the shared context at which it writes; None: it does not.
    """

    of: str
    name: str
    tokens: tuple[int, int]
    wait_ps: int
    after: tuple[str, ...]
    blocks: tuple[int, ...]
    continues: str
    at: int | None


def graph_of(
    reading: Reading, line: int, found: Mapping[str, Any], *, name: str, unit: int, tag: str, slo: str
) -> SessionGraph:
    """The session that a line begins, whose `graph` holds its other requests; raises TraceFormatError."""
    following = found["graph"]
    if not isinstance(following, list):
        raise reading.error(line, "graph", "must be a list", kind_of_json(following))
    requests = [_request(reading, line, found, "", name, unit)]
    for place, one in enumerate(following):
        of = f"graph[{place}]."
        if not isinstance(one, dict):
            raise reading.error(line, of[:-1], "must be an object", kind_of_json(one))
        check_keys(reading, line, one, _NEEDED, _KNOWN, of=of)
        requests.append(_request(reading, line, one, of, f"{name}/{place + 1}", unit))
    return _Graph(reading, line, requests, unit).made(tag, slo)


def _request(reading: Reading, line: int, one: Mapping[str, Any], of: str, default: str, unit: int) -> _Request:
    counts = [count_of(reading, line, f"{of}{key}", one[key]) for key in ("prompt_tokens", "output_tokens")]
    tokens = reading.lengths(line, *counts, names=(f"{of}prompt_tokens", f"{of}output_tokens"))
    if tokens is None:
        raise reading.error(line, f"{of}output_tokens", "must be >= 1: no request of a graph is dropped", min(counts))
    after = one.get("after", [])
    if not isinstance(after, list):
        raise reading.error(line, f"{of}after", "must be a list", kind_of_json(after))
    for key in ("continues", "at"):
        if key in one and not unit:
            raise reading.error(
                line, f"{of}{key}", "must be left out where the first line has no unit_tokens", one[key]
            )
    if len(given := [key for key in ("blocks", "continues", "at") if of and key in one]) > 1:
        raise reading.error(line, f"{of}{given[1]}", f"must be left out beside {given[0]}", shown(one[given[1]]))
    if (at := one.get("at")) is not None and not whole(at):
        raise reading.error(line, f"{of}at", "must be a whole number >= 0", shown(at))
    return _Request(
        of=of,
        name=request_id_of(reading, line, f"{of}request_id", one.get("request_id", default)),
        tokens=tokens,
        wait_ps=wait_of(reading, line, f"{of}wait_s", one.get("wait_s", 0)),
        after=tuple(text_of(reading, line, f"{of}after", text) for text in after),
        blocks=blocks_of(reading, line, f"{of}blocks", one.get("blocks", []), tokens[0], unit),
        continues=text_of(reading, line, f"{of}continues", one.get("continues", "")),
        at=at,
    )


class _Graph:
    """The requests of a line, as a graph.

    Args:
        reading: of the file.
        line: of the session.
        requests: `[N]`.
        unit: tokens of a unit; 0: nothing is known of texts.
    """

    def __init__(self, reading: Reading, line: int, requests: Sequence[_Request], unit: int) -> None:
        self._reading, self._line, self._requests, self._unit = reading, line, requests, unit
        self._ids = count(FIRST_LOCAL + (line << LOCAL_BITS))
        self._numbers: dict[str, int] = {}
        for number, one in enumerate(requests):
            if self._numbers.setdefault(one.name, number) != number:
                raise self._error(one, "request_id", "must be unique in the workload", one.name)

    def made(self, tag: str, slo: str) -> SessionGraph:
        """The graph, its requests with their texts."""
        waits = [tuple(dict.fromkeys(self._waits(one, "after", text) for text in one.after)) for one in self._requests]
        plain = tuple(Node(turn=_turn(one, ()), waits=waits[number]) for number, one in enumerate(self._requests))
        try:
            SessionGraph(nodes=plain)  # before texts are followed from one to the next
        except GraphError as error:
            one = self._requests[error.number]
            raise self._error(one, "after", error.rule, error.value) from None
        self._check_places()
        if self._unit and (tokens := sum(sum(one.tokens) for one in self._requests)) > _MOST_TOKENS:
            raise self._error(self._requests[0], "graph", f"must have at most {_MOST_TOKENS:,} tokens in all", tokens)
        return SessionGraph(nodes=tuple(self._nodes(waits)), tag=tag, slo=slo)

    def _nodes(self, waits: Sequence[tuple[Waits, ...]]) -> Iterator[Node]:
        """With texts: those that others wait for come before them."""
        written: dict[int, dict[int, float]] = {}
        texts: dict[int, tuple[Text, Text]] = {}
        for number in _in_order(waits):
            one = self._requests[number]
            written[number] = _written(waits[number], written)
            texts[number] = self._texts(one, written[number], texts) if self._unit else (Text(unit_tokens=1),) * 2
        for number, one in enumerate(self._requests):
            prompt, answered = texts[number]
            answer = answered.ids[len(prompt.ids) :]
            yield Node(turn=_turn(one, one.blocks or prompt.ids), waits=waits[number], answer=answer)

    def _texts(
        self, one: _Request, written: Mapping[int, float], texts: Mapping[int, tuple[Text, Text]]
    ) -> tuple[Text, Text]:
        """A request's prompt, and that with its answer."""
        prompt_tokens, output_tokens = one.tokens
        if one.at is not None and one.of:
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
        if one.at > prompt_tokens:  # what it writes follows another text than in the context
            return prompt, prompt
        return prompt, self._context(texts[0][0] if one.of else prompt, prompt_tokens + output_tokens)

    def _begun(self, one: _Request, written: Mapping[int, float], texts: Mapping[int, tuple[Text, Text]]) -> Text:
        """What a request goes on from."""
        other, depth = self._waits(one, "continues", one.continues)
        most = self._requests[other].tokens[1]
        tokens = most if depth is None else depth
        if tokens > most:
            rule = f"must be within the {most} tokens that {self._requests[other].name} answers"
            raise self._error(one, "continues", rule, one.continues)
        if written.get(other, -1) < (inf if depth is None else depth):
            raise self._error(one, "continues", "must be written by what it waits for", one.continues)
        prompt, answered = texts[other]
        whole_text = prompt.num_tokens + tokens
        if one.tokens[0] < whole_text:
            rule = f"must be at least the {whole_text} of what it continues"
            raise self._error(one, "prompt_tokens", rule, one.tokens[0])
        if whole_text > answered.num_tokens:
            raise self._error(one, "continues", "must not write behind the texts of others", one.continues)
        return answered.head(whole_text)

    def _read(self, one: _Request, written: Mapping[int, float], first: Text) -> Text:
        """The first tokens of the shared context."""
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
            raise self._error(one, "prompt_tokens", rule, one.tokens[0])
        return self._context(first, one.tokens[0])

    def _context(self, first: Text, num_tokens: int) -> Text:
        """The first tokens of the context, by the ids of its places."""
        if num_tokens <= first.num_tokens:
            return first.head(num_tokens)
        places = range(len(first.ids), num_tokens // self._unit)
        base = FIRST_LOCAL + (self._line << LOCAL_BITS) + _MOST_TOKENS
        ids = (*first.ids, *(base + place for place in places))
        return Text(unit_tokens=self._unit, num_tokens=num_tokens, ids=ids)

    def _check_places(self) -> None:
        """Raise TraceFormatError for two that write one token of the context, or for one that has not read so far."""
        prompt = self._requests[0].tokens[0]
        writers = [(0, prompt, self._requests[0], "the prompt of ")]
        for one in self._requests:
            if one.at is not None:
                if one.at < one.tokens[0]:
                    raise self._error(one, "at", f"must be behind the {one.tokens[0]} tokens that it reads", one.at)
                writers.append((one.at, one.at + one.tokens[1], one, ""))
        writers.sort(key=lambda writer: writer[0])
        for (_, end, before, what), (start, _, one, _) in pairwise(writers):
            if start < end:
                rule = f"must not be a place where {what}{before.name} writes, which ends at {end}"
                raise self._error(one, "at", rule, start)

    def _waits(self, one: _Request, field: str, text: str) -> Waits:
        """`ID`, or `ID@TOKENS`."""
        if text in self._numbers:
            return Waits(self._numbers[text])
        name, _, depth = text.rpartition("@")
        if name in self._numbers and depth.isascii() and depth.isdigit() and len(depth) <= 10:
            return Waits(self._numbers[name], int(depth))
        raise self._error(one, field, "must be a request of the session, or that, @ and tokens of its answer", text)

    def _error(self, one: _Request, field: str, rule: str, value: object) -> Exception:
        return self._reading.error(self._line, f"{one.of}{field}", rule, value)


def _turn(one: _Request, blocks: tuple[int, ...]) -> Turn:
    prompt, output = one.tokens
    return Turn(
        request_id=one.name,
        wait_ps=one.wait_ps if one.of else 0,
        prompt_tokens=prompt,
        output_tokens=output,
        new_blocks=runs_of(blocks),
    )


def _in_order(waits: Sequence[tuple[Waits, ...]]) -> list[int]:
    """Requests after those that they wait for."""
    left = {number: {wait.request for wait in own} for number, own in enumerate(waits)}
    order: list[int] = []
    while left:
        ready = [number for number, others in left.items() if not others & left.keys()]
        order += ready
        for number in ready:
            del left[number]
    return order


def _written(waits: Sequence[Waits], written: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    """How many tokens of whose answers are written when a request comes; infinite of those that have ended."""
    found: dict[int, float] = {}
    for other, depth in waits:
        known = {**written[other], other: inf if depth is None else depth}
        for number, tokens in known.items():
            found[number] = max(found.get(number, -1), tokens)
    return found
