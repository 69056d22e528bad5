"""Sessions of coding agents as kv-cache-tester records them: a session a line, or one a file.

A session's requests follow each other: each waits for the end of the one before, then as long as the tool or the user
took. Requests of a sub-agent stand in its parent's line, which waits for them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....strict_json import kind_of_json
from ..arrival import Arrival
from ..exact_seconds import PS_PER_S
from ..options import MOST_COUNT
from ..sessions import Runs, Session, Turn
from .agent_blocks import head_of, id_offset, runs_of_prompt
from .format import Reading, WorkloadFormat, whole
from .objects import check_keys, count_of, objects_of, wait_of

_SESSION = ("id", "block_size", "hash_id_scope", "requests")
_SESSION_MORE = ("models", "tool_tokens", "system_tokens", "totals")
_REQUEST = ("t", "type", "in", "out")
_BLOCKS = ("reuse_prev", "new_runs", "n_blocks")
_REQUEST_MORE = ("model", "stop", "api_time", "think_time", "ttft", "hash_ids", "input_types", "output_types")
_SUBAGENT = ("t", "type", "requests")
_SUBAGENT_MORE = (
    *("agent_id", "models", "status", "subagent_type", "system_tokens", "tool_tokens", "tool_use_count"),
    *("total_tokens", "duration_ms"),
)
_TYPES = ("n", "s", "subagent")
_PS_PER_MS = PS_PER_S // 1000
UNKNOWN_END = "waits that hold the seconds of the request before, since the file does not say when that ended"
IN_LINE = "sub-agents that run in the line of their parent, one after another"


def read_sessions(reading: Reading) -> Iterator[tuple[int, Arrival]]:
    """The first request of each session of a file, its other requests as turns; all sessions begin at 0."""
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
        session = _Line(reading=reading, line=line, name=found["id"], unit=unit, offset=offset)
        session.take_all(found["requests"], "requests", 0)
        if session.turns:
            yield line, Session(turns=tuple(session.turns)).next(0)


def unit_of(found: Mapping[str, Any]) -> int:
    """Tokens of a block in a session; 0 where it does not say."""
    size = found.get("block_size")
    return size if isinstance(size, int) and whole(size, 1) else 0


@dataclass(slots=True, kw_only=True)
class _Line:
    """The turns of a session while they are read.

    Attributes:
        reading: of the file.
        line: of the session.
        name: of the session.
        unit: tokens of a block.
        offset: of its ids.
        turns: so far.
        num_requests: met so far, dropped ones too.
        held_ps: waits of dropped requests, which the next one takes over.
        ended_ps: when what came before ended in the recording.
        parted: whether the turn before is not the one that blocks are kept of: of another line, or dropped.
    """

    reading: Reading
    line: int
    name: str
    unit: int
    offset: int
    turns: list[Turn] = field(default_factory=list)
    num_requests: int = 0
    held_ps: int = 0
    ended_ps: int = 0
    parted: bool = True

    def take_all(self, requests: object, where: str, base_ps: int) -> None:
        """Append the requests of the session or of a sub-agent, which began `base_ps` after the session."""
        if not isinstance(requests, list):
            raise self._error(where, "must be a list", kind_of_json(requests))
        before: Runs = ()  # blocks of the prompt before, in this list
        began_ps, ended, apart = base_ps, True, True
        self.parted = True
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
                self._take_subagent(found, here, at_ps)
                ended, apart = True, True
                self.parted = True
                continue
            self._check_request(found, here)
            before = self._take(found, here, before, self._wait(found, here, at_ps, ended=ended, apart=apart))
            ended = found.get("api_time") is not None
            self.ended_ps = at_ps + (self._time(here, found, "api_time") if ended else 0)
            apart = False

    def _take_subagent(self, found: Mapping[str, Any], here: str, at_ps: int) -> None:
        check_keys(self.reading, self.line, dict(found), _SUBAGENT, (*_SUBAGENT, *_SUBAGENT_MORE), of=here)
        self.reading.tally.remark(IN_LINE)
        self.take_all(found["requests"], f"{here}requests", at_ps)
        if found.get("duration_ms") is not None:  # else it ended with its last request
            lasted = self._time(here, found, "duration_ms", unit_ps=_PS_PER_MS)
            self.ended_ps = max(self.ended_ps, at_ps + lasted)

    def _check_request(self, found: dict[str, Any], here: str) -> None:
        needed = (*_REQUEST, "hash_ids") if "hash_ids" in found else (*_REQUEST, *_BLOCKS)
        check_keys(self.reading, self.line, found, needed, (*_REQUEST, *_BLOCKS, *_REQUEST_MORE), of=here)

    def _wait(self, found: Mapping[str, Any], here: str, at_ps: int, *, ended: bool, apart: bool) -> int:
        """What a request waited for after the one before had ended.

        Args:
            found: the request.
            here: names it.
            at_ps: when it began in the recording.
            ended: whether `ended_ps` is the end of what was before it, or only its beginning.
            apart: whether what was before it is not the request that its `think_time` counts from.
        """
        if not apart and found.get("think_time") is not None:
            return self._time(here, found, "think_time")
        if not ended:
            self.reading.tally.remark(UNKNOWN_END)
        return max(0, at_ps - self.ended_ps)

    def _take(self, found: dict[str, Any], here: str, before: Runs, wait_ps: int) -> Runs:
        """Append a request; gives its blocks."""
        self.num_requests += 1
        counts = {
            f"{here}{key}": count_of(self.reading, self.line, f"{here}{key}", found[key]) for key in ("in", "out")
        }
        kept, new = runs_of_prompt(self.reading, self.line, here, found, before, unit=self.unit, offset=self.offset)
        every = (*head_of(before, kept), *new)
        tokens = self.reading.lengths(self.line, *counts.values(), names=tuple(counts))
        if tokens is None:
            self.held_ps += wait_ps
            self.parted = True
            return every
        self.turns.append(
            Turn(
                request_id=f"{self.name}/{self.num_requests}",
                wait_ps=wait_ps + self.held_ps if self.turns else 0,
                prompt_tokens=tokens[0],
                output_tokens=tokens[1],
                kept_blocks=0 if self.parted else kept,
                new_blocks=every if self.parted else new,
            )
        )
        self.held_ps, self.parted = 0, False
        return every

    def _time(self, here: str, found: Mapping[str, Any], key: str, *, unit_ps: int = PS_PER_S) -> int:
        value = found.get(key)
        return wait_of(self.reading, self.line, f"{here}{key}", value, unit_ps=unit_ps)

    def _error(self, field: str, rule: str, value: object) -> Exception:
        return self.reading.error(self.line, field, rule, value)


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
    timed=False,
    many=True,
    is_json=True,
)
