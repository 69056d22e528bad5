"""The requests of an agent and of its sub-agents, as a graph of who waits for whom.

An agent's request waits for the one before. The first one of a sub-agent waits for the agent's latest before it, so
several sub-agents run side by side. Where the file says how long a sub-agent took, its `t` is when it had ended (so
read, the published ones begin about a second after what launched them), and the agent goes on after all of them; where
it does not say, `t` is when it was launched, and nobody waits for it. Every wait is the recorded time between an end
and what follows it: what a tool or a user took.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ....strict_json import kind_of_json
from ..exact_seconds import PS_PER_S
from ..graphs import Node, SessionGraph, Waits
from ..sessions import Runs, Session, Turn
from .agent_blocks import head_of, runs_of_prompt
from .format import Reading
from .objects import check_keys, count_of, wait_of

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
