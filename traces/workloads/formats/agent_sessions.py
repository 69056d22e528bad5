"""Sessions of coding agents as kv-cache-tester records them: a session a line, or one a file.

A session's requests follow each other: each waits for the end of the one before, then as long as the tool or the user
took. Sub-agents run beside each other (`agent_requests`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ..arrival import Arrival
from ..options import MOST_COUNT
from .agent_blocks import id_offset
from .agent_requests import AgentRequests
from .format import Reading, WorkloadFormat, whole
from .objects import check_keys, objects_of

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
