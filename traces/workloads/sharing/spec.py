"""The texts of generators of sessions, `react:steps=8,sessions=100,rate=2,prompt=200,...`, read and checked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ....arguments import ArgumentError
from ....notations.branches import branches_of
from ..generated.lengths import Length, length_of
from ..generated.spec_text import check_expected, number_of, pairs_of, whole_of
from ..options import MOST_COUNT, MOST_REQUESTS, MOST_TOKENS, MOST_TURNS
from .persistent_agent import PersistentAgent
from .seconds import seconds_of
from .session_kind import SessionKind, check_requests
from .shared_workers import SharedWorkers
from .source import SessionSource
from .tool_loops import ReAct, ReWOO, ToolCalls
from .tree_rollouts import TreeRollouts

_COMMON = ("rate", "sessions", "seconds", "unit", "tag", "slo")
_TOOLS = ("steps", "prompt", "output", "observation")
_UNIT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """The options of a text."""

    kind: str
    options: Mapping[str, str]

    def length(self, key: str, most: int = MOST_TOKENS) -> Length:
        return length_of(f"{key} of {self.kind}", self.options[key], most)

    def count(self, key: str, default: int, least: int, most: int = MOST_COUNT) -> int:
        found = whole_of(self.kind, self.options, key, least, most)
        return default if found is None else found

    def number(self, key: str) -> float | None:
        return number_of(self.kind, self.options, key, "[1e-9, 1e9]")


def _tree(given: _Given) -> SessionKind:
    branches, output = branches_of("branch of tree-rollouts", given.options["branch"]), given.length("output")
    if output.least <= branches[-1].depth:
        rule = f"must be above the depth {branches[-1].depth} at which the last paths part"
        raise ArgumentError(f"output of tree-rollouts {rule}, got {given.options['output']!r}")
    return TreeRollouts(branches=branches, prompt=given.length("prompt"), output=output)


def _agent(given: _Given) -> SessionKind:
    wait, system = seconds_of("wait of persistent-agent", given.options.get("wait", "0")), _system(given)
    lengths = {key: given.length(key) for key in ("prompt", "output")}
    return PersistentAgent(system=system, wait=wait, turns=given.length("turns", MOST_TURNS), **lengths)


def _workers(given: _Given) -> SessionKind:
    lengths = {key: given.length(key) for key in ("prompt", "output")}
    workers, rounds = (given.count(key, 1, 1, MOST_TURNS) for key in ("workers", "rounds"))
    check_requests(workers * rounds)
    return SharedWorkers(workers=workers, rounds=rounds, **lengths)


def _calls(given: _Given) -> ToolCalls:
    wait = seconds_of(f"wait of {given.kind}", given.options.get("wait", "0"))
    lengths = {key: given.length(key, MOST_TURNS if key == "steps" else MOST_TOKENS) for key in _TOOLS}
    return ToolCalls(system=_system(given), wait=wait, **lengths)


def _system(given: _Given) -> int:
    return given.count("system", 0, 0, MOST_TOKENS)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a kind needs and may have, and who makes it."""

    needs: tuple[str, ...]
    may_have: tuple[str, ...]
    make: Callable[[_Given], SessionKind]


_KINDS = {
    "tree-rollouts": _Kind(("branch", "prompt", "output"), (), _tree),
    "persistent-agent": _Kind(("turns", "prompt", "output"), ("system", "wait"), _agent),
    "shared-workers": _Kind(("workers", "rounds", "prompt", "output"), (), _workers),
    "react": _Kind(_TOOLS, ("system", "wait"), lambda given: ReAct(calls=_calls(given))),
    "rewoo": _Kind(_TOOLS, ("system", "wait"), lambda given: ReWOO(calls=_calls(given))),
}
SESSION_KINDS = tuple(_KINDS)


def parse_sessions(text: str, rate: float | None, seed: int) -> SessionSource:
    """Read the text of a generator of sessions.

    Args:
        text: `KIND:KEY=VALUE,...`.
        rate: sessions per second, where the text names none.
        seed: of what is drawn.

    Raises:
        ArgumentError: an unknown key, one given twice or missing, or a value out of its range.
    """
    kind, _, rest = text.partition(":")
    known = _KINDS[kind]
    options = pairs_of(kind, rest, (*_COMMON, *known.needs, *known.may_have))
    for key in known.needs:
        if key not in options:
            raise ArgumentError(f"{kind} must have {', '.join(known.needs)}, got no {key} in {rest!r}")
    if "rate" in options and rate is not None:
        raise ArgumentError(f"`rate` must be given once: {text!r} has a rate of its own, got {rate:g} too")
    given = _Given(kind=kind, options=options)
    rate, seconds = given.number("rate") if rate is None else rate, given.number("seconds")
    sessions = whole_of(kind, options, "sessions", 1, MOST_REQUESTS)
    if sessions is None and (seconds is None or rate is None):
        raise ArgumentError(f"{kind} must have sessions, or seconds and a rate, so that it ends, got {rest!r}")
    if sessions is None:
        check_expected(kind, rate, seconds)
    made = known.make(given)
    if sessions is not None and sessions * (made.num_requests or 1) > MOST_REQUESTS:
        rule = f"must have at most {MOST_REQUESTS:,} requests in all"
        raise ArgumentError(f"sessions of {kind} {rule}, got {sessions * (made.num_requests or 1):,}")
    return SessionSource(
        text=text,
        kind=made,
        rate=rate,
        sessions=sessions,
        seconds=seconds,
        unit_tokens=given.count("unit", _UNIT, 1),
        tag=options.get("tag", ""),
        slo=options.get("slo", ""),
        seed=seed,
    )
