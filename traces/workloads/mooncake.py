"""Workloads with prompts as ids of blocks: Mooncake (FAST'25), Qwen-Bailian and LLMServingSim.

Mooncake counts milliseconds and blocks of 512 tokens, Bailian seconds and blocks of 16. A row of either is the whole
prompt; Bailian's `parent_chat_id` names the text that a prompt continues, which also follows from its hashes.

AIPerf and Dynamo write Mooncake's lines with `session_id`: rows of a session follow each other, `delay` milliseconds
after the end of the one before. With `hash_ids` a row is the whole prompt, as in Dynamo, and begins as the row before
did; without them its `input_length` is added to all that was read and written, as in AIPerf's replay.

LLMServingSim writes one request per line, or a session with its calls, in nanoseconds. A call arrives
`tool_duration_ns` of the one before after that has ended. Where `input_tok_ids` are all of a prompt's, equal beginnings
of prompts are equal blocks of 16 tokens, each with a hash of all tokens up to its end as id.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from typing import Any

from .arrival import MOST_COUNT, PS_PER_S, Arrival, Text
from .format import FIRST_LOCAL, LOCAL_BITS, Reading, Row, WorkloadFormat, rows_of, whole
from .sessions import Node, SessionGraph, Turn, TurnsLeft, Waits, runs_of

MOONCAKE_UNIT_TOKENS, BAILIAN_UNIT_TOKENS = 512, 16
_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
_BAILIAN = ("chat_id", "parent_chat_id", *_KEYS, "type", "turn")
_MOONCAKE_SESSION, _SESSION_MORE = (
    ("input_length", "output_length"),
    ("session_id", "timestamp", "delay", "hash_ids", "type"),
)
_PS_PER_MS = PS_PER_S // 1000
_MOST_OWN = 2 ** (LOCAL_BITS - 1)  # tokens of a session with generated ids
HELD = "waits that hold the seconds of the request before, since the file does not say when that ended"
ADDED = "requests of sessions without hash_ids, whose input_length is added to what was read and written before"


def read_mooncake(reading: Reading) -> Iterator[tuple[int, Arrival]]:
    """The requests of a file, with their lines as ids."""
    for row in rows_of(reading):
        row.check_keys(_KEYS, _KEYS)
        yield from _alone(row, MOONCAKE_UNIT_TOKENS, _PS_PER_MS)


def read_bailian(reading: Reading) -> Iterator[tuple[int, Arrival]]:
    """The same of Bailian's traces."""
    for row in rows_of(reading):
        row.check_keys(("chat_id", *_KEYS), _BAILIAN)
        yield from _alone(row, BAILIAN_UNIT_TOKENS, PS_PER_S)


def _alone(row: Row, unit: int, unit_ps: int) -> Iterator[tuple[int, Arrival]]:
    arrives_ps = row.time("timestamp", unit_ps=unit_ps)
    counts = [row.tokens(key) for key in _MOONCAKE_SESSION]
    blocks = _mooncake_blocks(row, counts[0], unit)
    tokens = row.lengths(counts, _MOONCAKE_SESSION)
    if tokens is not None:
        yield row.line, Arrival(str(row.line), arrives_ps, *tokens, blocks=blocks)


def _mooncake_blocks(row: Row, prompt: int, unit: int) -> tuple[int, ...]:
    blocks = row.ids("hash_ids")
    if len(blocks) != (wanted := -(-prompt // unit)):
        rule = f"must be {wanted}, one for each {unit} tokens or part of input_length {prompt}"
        raise row.error("hash_ids", rule, len(blocks))
    return blocks


@dataclass(slots=True, kw_only=True)
class _Session:
    name: str  # of the session
    line: int  # of its first row
    arrives_ps: int  # of that row
    begun_ps: int | None  # beginning of the newest row, None if unknown
    first_id: int | None  # the first hash of its first row; None: rows continue the text before
    # all that was read and written, where rows are added
    text: Text = field(default_factory=lambda: Text(unit_tokens=MOONCAKE_UNIT_TOKENS))
    nodes: list[Node] = field(default_factory=list[Node])  # so far
    held_ps: int = 0  # waits of dropped rows


def read_sessions(reading: Reading) -> Iterator[tuple[int, Arrival]]:
    """The first request of each session, in order of the file; all are in memory, since sessions are interleaved.

    Their lines are the ids of requests.
    """
    sessions: dict[str | int, _Session] = {}
    timed = is_timed(reading.first)
    for row in rows_of(reading):
        found = row.values
        for one in ("text_input", "messages", "payload"):
            if one in found:
                raise row.error(one, "must be left out: how many tokens it has is not said", "a text")
        row.check_keys(_MOONCAKE_SESSION, (*_MOONCAKE_SESSION, *_SESSION_MORE))
        if found.get("type", "mooncake_trace") != "mooncake_trace":
            raise row.error("type", "must be mooncake_trace", found["type"])
        name = found.get("session_id")
        # A row without a session's name is one of its own.
        key: str | int = row.line if name is None else row.printable("session_id", name)
        begins_ps = row.time("timestamp", unit_ps=_PS_PER_MS) if "timestamp" in row else None
        if key not in sessions:
            if timed != (begins_ps is not None):
                rule = "must be there" if timed else "must be left out"
                rule += " in the first row of each session, as in that of the file"
                raise row.error("timestamp", rule, found.get("timestamp", "nothing"))
            sessions[key] = _Session(
                name=str(key),
                line=row.line,
                arrives_ps=begins_ps or 0,
                begun_ps=begins_ps,
                first_id=next(iter(row.ids("hash_ids")), None) if "hash_ids" in row else None,
            )
        _take(row, sessions[key], begins_ps)
    for session in sessions.values():
        if session.nodes:
            yield session.line, SessionGraph(nodes=tuple(session.nodes)).begin(session.arrives_ps)


def _take(row: Row, session: _Session, begins_ps: int | None) -> None:
    number, is_first = len(session.nodes), session.line == row.line
    wait_ps = 0 if is_first else _wait(row, session, begins_ps)
    session.begun_ps = begins_ps
    counts = [row.tokens(key) for key in _MOONCAKE_SESSION]
    whole = "hash_ids" in row
    blocks = _mooncake_blocks(row, counts[0], MOONCAKE_UNIT_TOKENS) if whole else ()
    if whole != (session.first_id is not None) or (whole and blocks[:1] != (session.first_id,)):
        rule = (
            f"must begin with {session.first_id} as the session's first row does: it is the whole prompt"
            if session.first_id is not None
            else "must be left out as in the session's first row"
        )
        raise row.error("hash_ids", rule, blocks[0] if blocks else "nothing")
    tokens = row.lengths(counts, _MOONCAKE_SESSION)
    if tokens is None:
        session.held_ps += wait_ps
        return
    answer: Sequence[int] = ()
    prompt = tokens[0]
    if not whole and (number or not is_first or "session_id" in row):
        if number:
            row.reading.tally.remark(ADDED)
        prompt, blocks, answer = _grown(row, session, *tokens)
    turn = Turn(str(row.line), session.held_ps + wait_ps if number else 0, prompt, tokens[1], runs_of(blocks))
    waits = (Waits(number - 1),) if number else ()
    session.nodes.append(Node(turn=turn, waits=waits, answer=tuple(answer)))
    session.held_ps = 0


def _wait(row: Row, session: _Session, begins_ps: int | None) -> int:
    """Picoseconds from the end of the row before."""
    if "delay" in row:
        return row.wait("delay", unit_ps=_PS_PER_MS)
    if begins_ps is None:
        return 0
    if session.begun_ps is None or begins_ps < session.begun_ps:
        rule = "must have a delay, or a timestamp not before that of the session's row before"
        raise row.error("timestamp", rule, row.values["timestamp"])
    row.reading.tally.remark(HELD)
    return begins_ps - session.begun_ps


def _grown(row: Row, session: _Session, added: int, output: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """(tokens of the prompt, its blocks, those of its answer) of a row that continues the text before."""
    if session.text.num_tokens + added + output > min(_MOST_OWN, MOST_COUNT):
        rule = f"must leave the session at most {_MOST_OWN:,} tokens in all"
        raise row.error("input_length", rule, session.text.num_tokens + added + output)
    ids = count(FIRST_LOCAL + (session.line << LOCAL_BITS) + len(session.text.ids))
    asked = session.text.grown(added, ids)
    session.text = asked.grown(output, ids)
    return asked.num_tokens, asked.ids, session.text.ids[len(asked.ids) :]


def is_timed(first: Mapping[str, Any]) -> bool:
    """Whether the sessions of a file have times, by its first row."""
    return first.get("timestamp") is not None


MOONCAKE_FORMATS = (
    WorkloadFormat(
        name="mooncake",
        keys=_KEYS,
        sees=lambda keys: bool({"input_length", "hash_ids"} & keys) and not keys & {"session_id", "delay", "chat_id"},
        read=read_mooncake,
        unit_tokens=lambda _: MOONCAKE_UNIT_TOKENS,
        is_json=True,
    ),
    WorkloadFormat(
        name="mooncake-sessions",
        keys=("session_id", *_MOONCAKE_SESSION),
        sees=lambda keys: bool({"session_id", "delay"} & keys) and bool({"input_length", "output_length"} & keys),
        read=read_sessions,
        unit_tokens=lambda _: MOONCAKE_UNIT_TOKENS,
        notes=(
            "sessions are closed loops: a request waits for the end of the one before, then for its delay, "
            "whatever its timestamp",
        ),
        timed=is_timed,
        is_json=True,
    ),
    WorkloadFormat(
        name="bailian",
        keys=_BAILIAN[:2],
        sees=lambda keys: bool({"chat_id", "parent_chat_id"} & keys),
        read=read_bailian,
        unit_tokens=lambda _: BAILIAN_UNIT_TOKENS,
        notes=("parent_chat_id, turn and type are not used: each request arrives at its own time",),
        is_json=True,
    ),
)


LLMSERVINGSIM_UNIT_TOKENS = 16
_COUNTS = ("input_toks", "output_toks")
_IDS = ("input_tok_ids", "output_tok_ids")
_FLAT = (*_COUNTS, "arrival_time_ns")
_SESSION = ("session_id", "arrival_time_ns", "sub_requests")
_PS_PER_NS = 1000
UNUSED = "prompts whose input_tok_ids are not as many as input_toks: nothing is known of their text"


def read_llmservingsim(reading: Reading) -> Iterator[tuple[int, Arrival]]:
    """The requests of a file; ids are their lines, and their numbers in the session."""
    for row in rows_of(reading):
        is_session = "sub_requests" in row.values
        needed = _SESSION if is_session else _FLAT
        row.check_keys(needed, needed if is_session else (*_FLAT, *_IDS))
        arrives_ps = row.time("arrival_time_ns", unit_ps=_PS_PER_NS)
        if is_session:
            row.printable("session_id", row.values["session_id"])
        turns = [*(_calls(row) if is_session else _turn(row, str(row.line), 0))]
        if turns:
            yield row.line, TurnsLeft(turns=tuple(turns)).begin(arrives_ps)


def _calls(row: Row) -> Iterator[Turn]:
    """Of a session; a dropped call passes on its wait."""
    held_ps, begun = 0, False
    for number, call in enumerate(row.rows("sub_requests"), start=1):
        call.check_keys(_COUNTS, (*_COUNTS, "tool_duration_ns", *_IDS))
        for turn in _turn(call, f"{row.line}/{number}", held_ps if begun else 0):
            yield turn
            held_ps, begun = 0, True
        held_ps += call.wait("tool_duration_ns", 0, unit_ps=_PS_PER_NS)


def _turn(row: Row, name: str, wait_ps: int) -> Iterator[Turn]:
    """The request, or none if dropped."""
    counts = [row.tokens(key) for key in _COUNTS]
    blocks = _llmservingsim_blocks(row, counts[0])
    tokens = row.lengths(counts, _COUNTS)
    if tokens is not None:
        yield Turn(name, wait_ps, *tokens, runs_of(blocks))


def _llmservingsim_blocks(row: Row, prompt: int) -> list[int]:
    """Ids of the full units of a prompt; none where its tokens are unknown."""
    if "input_tok_ids" not in row:
        return []
    tokens = row.sequence("input_tok_ids")
    wrong = next((place for place, token in enumerate(tokens) if not whole(token)), None)
    if wrong is not None:
        raise row.error(f"input_tok_ids[{wrong}]", "must be a whole number >= 0", tokens[wrong])
    if len(tokens) != prompt:
        row.reading.tally.remark(UNUSED)
        return []
    found, before = list[int](), b""
    for start in range(0, prompt - LLMSERVINGSIM_UNIT_TOKENS + 1, LLMSERVINGSIM_UNIT_TOKENS):
        unit = array("q", tokens[start : start + LLMSERVINGSIM_UNIT_TOKENS]).tobytes()
        before = blake2b(before + unit, digest_size=8).digest()
        found.append(int.from_bytes(before, "little") >> 2)
    return found


LLMSERVINGSIM = WorkloadFormat(
    name="llmservingsim",
    keys=_FLAT,
    sees=lambda keys: bool({"input_toks", "arrival_time_ns", "sub_requests"} & keys),
    read=read_llmservingsim,
    unit_tokens=lambda _: LLMSERVINGSIM_UNIT_TOKENS,
    is_json=True,
)
