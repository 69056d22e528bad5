"""Sessions as graphs in our own lines: what each request waits for, whose text it goes on from, and where it writes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from math import inf
from typing import Any

from ....strict_json import kind_of_json
from ..graphs import GraphError, Node, SessionGraph, Waits
from ..sessions import Turn, runs_of
from ..texts import Text
from .format import FIRST_LOCAL, LOCAL_BITS, Reading, whole
from .objects import check_keys, count_of, shown, wait_of
from .request_fields import blocks_of, request_id_of, text_of

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
