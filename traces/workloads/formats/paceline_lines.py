"""Our own files: a request a line, with its turns where it begins a session, after a first line on the workload."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ....arguments import ArgumentError
from ....strict_json import kind_of_json
from ..arrival import Arrival, Workload
from ..exact_seconds import PS_PER_S
from ..options import MOST_COUNT
from ..sessions import Session, Turn, runs_of
from .format import MOST_ID, Reading, WorkloadFormat, whole
from .graph_lines import graph_of
from .objects import check_keys, count_of, objects_of, shown, time_of, wait_of
from .request_fields import blocks_of, request_id_of, text_of

_HEAD = ("workload", "unit_tokens")
_NEEDED = ("arrives_s", "prompt_tokens", "output_tokens")
_KNOWN = ("request_id", *_NEEDED, "tag", "blocks", "slo", "turns", "graph", "at")
_TURN_NEEDED = ("wait_s", "prompt_tokens", "output_tokens")
_TURN_KNOWN = ("request_id", *_TURN_NEEDED, "blocks")


def read_lines(reading: Reading) -> Iterator[tuple[int, Arrival]]:
    """The requests of a file; one without `request_id` is called by its line, a turn by that and its number."""
    objects = objects_of(reading)
    if _is_head(reading.first):
        line, head = next(objects)
        check_keys(reading, line, head, (), _HEAD)
        text_of(reading, line, "workload", head.get("workload", ""))
        if not whole(head.get("unit_tokens", 0)):
            raise reading.error(
                line, "unit_tokens", f"must be a whole number in [0, {MOST_COUNT}]", head["unit_tokens"]
            )
    unit = unit_of(reading.first)
    for line, found in objects:
        check_keys(reading, line, found, _NEEDED, _KNOWN)
        arrives_ps = time_of(reading, line, "arrives_s", found["arrives_s"])
        tag, slo = (text_of(reading, line, key, found.get(key, "")) for key in ("tag", "slo"))
        name = request_id_of(reading, line, "request_id", found.get("request_id", str(line)))
        if "graph" in found:
            if "turns" in found:
                raise reading.error(line, "turns", "must be left out beside graph", kind_of_json(found["turns"]))
            yield line, graph_of(reading, line, found, name=name, unit=unit, tag=tag, slo=slo).begin(arrives_ps)
            continue
        if "at" in found:
            raise reading.error(line, "at", "must be left out where there is no graph", shown(found["at"]))
        turns = [*_turns(reading, line, found, name, unit)]
        if turns:
            yield line, Session(turns=tuple(turns), tag=tag, slo=slo).begin(arrives_ps)


def unit_of(first: Mapping[str, Any]) -> int:
    """Tokens of a unit of the blocks that a file holds, as its first line says; 0 where it does not."""
    unit = first.get("unit_tokens", 0) if _is_head(first) else 0
    return unit if isinstance(unit, int) and whole(unit) else 0


def lines_of_workload(workload: Workload, arrivals: Iterable[Arrival] | None = None) -> Iterator[str]:
    """A workload as lines of this format, without line ends.

    Args:
        workload: says its name and units.
        arrivals: to be written in place of all of its own.

    Raises:
        ArgumentError: a session that is no line of turns.
    """
    about = workload.about
    yield json.dumps({"workload": about.name, "unit_tokens": about.unit_tokens})
    for arrival in workload if arrivals is None else arrivals:
        turns = [f'{{"wait_s": {_seconds(wait_ps)}, {_fields(turn)}}}' for turn, wait_ps in _turns_of(arrival)]
        texts = {key: text for key, text in (("tag", arrival.tag), ("slo", arrival.slo)) if text}
        more = "".join(f", {json.dumps(key)}: {json.dumps(text)}" for key, text in texts.items())
        more += f', "turns": [{", ".join(turns)}]' if turns else ""
        yield f'{{"arrives_s": {_seconds(arrival.arrives_ps)}, {_fields(arrival)}{more}}}'


def _turns_of(arrival: Arrival) -> Iterator[tuple[Arrival, int]]:
    """(turn, its wait) of a session, in order; raises ArgumentError for one that is no line of turns."""
    before = arrival
    while True:
        turns = before.turns
        following = () if turns is None else turns.after(before.arrives_ps)
        own = max(before.blocks, default=0) > MOST_ID  # ids of texts that only this reader knows
        if own or before.answer or len(following) > 1 or (turns is not None and turns.depths):
            rule = "must be of sessions that are lines of turns whose answers nobody reads"
            raise ArgumentError(f"lines {rule}, got request {before.request_id}")
        if not following:
            return
        (turn,) = following
        yield turn, turn.arrives_ps - before.arrives_ps
        before = turn


def _is_head(first: Mapping[str, Any]) -> bool:
    """Whether a first line is on the workload, and no request."""
    return any(key in first for key in _HEAD)


def _turns(reading: Reading, line: int, found: dict[str, Any], name: str, unit: int) -> Iterator[Turn]:
    """The request of a line, and those that follow it; one that is dropped hands on its wait, but for the first."""
    following = found.get("turns", [])
    if not isinstance(following, list):
        raise reading.error(line, "turns", "must be a list", kind_of_json(following))
    held_ps, begun = 0, False
    for place, one in enumerate([found, *following]):
        of = f"turns[{place - 1}]." if place else ""
        if place:
            if not isinstance(one, dict):
                raise reading.error(line, of[:-1], "must be an object", kind_of_json(one))
            check_keys(reading, line, one, _TURN_NEEDED, _TURN_KNOWN, of=of)
            held_ps += wait_of(reading, line, f"{of}wait_s", one["wait_s"])
        default = f"{name}/{place}" if place else name
        keys = ("prompt_tokens", "output_tokens")
        counts = {f"{of}{key}": count_of(reading, line, f"{of}{key}", one[key]) for key in keys}
        blocks = blocks_of(reading, line, f"{of}blocks", one.get("blocks", []), one["prompt_tokens"], unit)
        tokens = reading.lengths(line, *counts.values(), names=tuple(counts))
        if tokens is not None:
            yield Turn(
                request_id=request_id_of(reading, line, f"{of}request_id", one.get("request_id", default)),
                wait_ps=held_ps if begun else 0,
                prompt_tokens=tokens[0],
                output_tokens=tokens[1],
                new_blocks=runs_of(blocks),
            )
            held_ps, begun = 0, True


def _fields(arrival: Arrival) -> str:
    """What a request and a turn are both written with."""
    found: dict[str, Any] = {"request_id": arrival.request_id, "prompt_tokens": arrival.prompt_tokens}
    found["output_tokens"] = arrival.output_tokens
    if arrival.blocks:
        found["blocks"] = tuple(arrival.blocks)
    return json.dumps(found)[1:-1]


def _seconds(ps: int) -> str:
    """Exact, without trailing zeros."""
    whole_s, rest = divmod(ps, PS_PER_S)
    return f"{whole_s}.{rest:012d}".rstrip("0").rstrip(".")


PACELINE = WorkloadFormat(
    name="paceline",
    keys=_NEEDED,
    sees=lambda keys: bool({*_HEAD, "arrives_s", "prompt_tokens"} & keys),
    read=read_lines,
    unit_tokens=unit_of,
    is_json=True,
)
