"""LLMServingSim's workloads: a request a line, or a session with its calls; times in nanoseconds.

A call of a session comes `tool_duration_ns` of the one before after that has ended. Where `input_tok_ids` are all of a
prompt's, equal beginnings of prompts are equal blocks of 16 tokens, each known by a hash of all tokens up to its end.
"""

from array import array
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from ....strict_json import kind_of_json
from ..arrival import Arrival
from ..sessions import Session, Turn, runs_of
from .format import Reading, WorkloadFormat, whole
from .objects import check_keys, count_of, objects_of, shown, time_of, wait_of
from .request_fields import text_of

UNIT_TOKENS = 16
_COUNTS = ("input_toks", "output_toks")
_IDS = ("input_tok_ids", "output_tok_ids")
_FLAT = (*_COUNTS, "arrival_time_ns")
_SESSION = ("session_id", "arrival_time_ns", "sub_requests")
_PS_PER_NS = 1000
UNUSED = "prompts whose input_tok_ids are not as many as input_toks: nothing is known of their text"


def read_llmservingsim(reading: Reading) -> Iterator[tuple[int, Arrival]]:
    """The requests of a file, called by their line, and by their number in the session."""
    for line, found in objects_of(reading):
        is_session = "sub_requests" in found
        needed = _SESSION if is_session else _FLAT
        check_keys(reading, line, found, needed, needed if is_session else (*_FLAT, *_IDS))
        arrives_ps = time_of(reading, line, "arrival_time_ns", found["arrival_time_ns"], unit_ps=_PS_PER_NS)
        if is_session:
            text_of(reading, line, "session_id", found["session_id"])
        turns = [*(_calls(reading, line, found) if is_session else _turn(reading, line, found, "", str(line), 0))]
        if turns:
            yield line, Session(turns=tuple(turns)).begin(arrives_ps)


def _calls(reading: Reading, line: int, found: Mapping[str, Any]) -> Iterator[Turn]:
    """Of a session; a call that is dropped hands on its wait."""
    calls = found["sub_requests"]
    if not isinstance(calls, list):
        raise reading.error(line, "sub_requests", "must be a list", kind_of_json(calls))
    held_ps, begun = 0, False
    for place, one in enumerate(calls):
        of = f"sub_requests[{place}]."
        if not isinstance(one, dict):
            raise reading.error(line, of[:-1], "must be an object", kind_of_json(one))
        check_keys(reading, line, one, _COUNTS, (*_COUNTS, "tool_duration_ns", *_IDS), of=of)
        for turn in _turn(reading, line, one, of, f"{line}/{place + 1}", held_ps if begun else 0):
            yield turn
            held_ps, begun = 0, True
        held_ps += wait_of(reading, line, f"{of}tool_duration_ns", one.get("tool_duration_ns", 0), unit_ps=_PS_PER_NS)


def _turn(reading: Reading, line: int, one: Mapping[str, Any], of: str, name: str, wait_ps: int) -> Iterator[Turn]:
    """The request, or none where it is dropped."""
    counts = {f"{of}{key}": count_of(reading, line, f"{of}{key}", one[key]) for key in _COUNTS}
    blocks = _blocks(reading, line, one, of, counts[f"{of}input_toks"])
    tokens = reading.lengths(line, *counts.values(), names=tuple(counts))
    if tokens is not None:
        prompt, output = tokens
        yield Turn(
            request_id=name, wait_ps=wait_ps, prompt_tokens=prompt, output_tokens=output, new_blocks=runs_of(blocks)
        )


def _blocks(reading: Reading, line: int, one: Mapping[str, Any], of: str, prompt: int) -> list[int]:
    """Ids of the full units of a prompt; none where its tokens are not there."""
    tokens = one.get("input_tok_ids")
    if tokens is None:
        return []
    field = f"{of}input_tok_ids"
    if not isinstance(tokens, list):
        raise reading.error(line, field, "must be a list", kind_of_json(tokens))
    wrong = next((place for place, token in enumerate(tokens) if not whole(token)), None)
    if wrong is not None:
        raise reading.error(line, f"{field}[{wrong}]", "must be a whole number >= 0", shown(tokens[wrong]))
    if len(tokens) != prompt:
        reading.tally.remark(UNUSED)
        return []
    found, before = list[int](), b""
    for start in range(0, prompt - UNIT_TOKENS + 1, UNIT_TOKENS):
        unit = array("q", tokens[start : start + UNIT_TOKENS]).tobytes()
        before = blake2b(before + unit, digest_size=8).digest()
        found.append(int.from_bytes(before, "little") >> 2)
    return found


LLMSERVINGSIM = WorkloadFormat(
    name="llmservingsim",
    keys=_FLAT,
    sees=lambda keys: bool({"input_toks", "arrival_time_ns", "sub_requests"} & keys),
    read=read_llmservingsim,
    unit_tokens=lambda _: UNIT_TOKENS,
    is_json=True,
)
