"""Workloads of other packages, files and modules: a class whose `arrivals` gives requests.

    NAME | NAME:key=value,... | path/to/file.py:Class,key=value,... | package.module:Class,...

The constructor takes a seed first, then options. Other packages register theirs in the group `paceline.workloads`.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ...base.by_name import NamedKind, Spec, names_path
from ...base.errors import pass_interrupt, repeated, said, told
from .arrival import MOST_COUNT, MOST_READ_PS, Arrival, WorkloadAbout
from .drawn_arrivals import KINDS
from .drawn_sessions import SESSION_KINDS
from .format import Tally


class GivesArrivals(Protocol):
    """The interface of a user's own workload.

    A class may also have `unit_tokens`, tokens of a unit of `Arrival.blocks` (0: no request has blocks), and
    `drawn = False`, if another seed gives the same requests.
    """

    def arrivals(self) -> Iterable[Arrival]:
        """Requests by time of arrival, from the first; the same at each call, so chance must come from the seed."""
        ...


class WorkloadSpecError(ValueError):
    """A workload of another package, file or module that cannot be used, or broke its contract; one line."""


WorkloadClass = Callable[..., GivesArrivals]


WORKLOADS: NamedKind[WorkloadClass] = NamedKind(
    noun="workload",
    group="paceline.workloads",
    methods=("arrivals",),
    example="MyWorkload",
    refused=WorkloadSpecError,
    own=lambda: dict.fromkeys((*KINDS, *SESSION_KINDS)),
    first="a seed",
)
# package.module:Class; an unknown generator with options does not match.
_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*(,.*)?", re.DOTALL)


def foreign_text(text: str) -> str | None:
    """A workload's text for `WORKLOADS.parse`; None if it is no class: a file, or nothing."""
    name, _, rest = text.partition(":")
    if name in WORKLOADS.registered() and not Path(text).exists():
        return f"{name},{rest}" if rest else name
    is_class = names_path(text.partition(",")[0]) or _CLASS.fullmatch(text)
    return text if is_class and not Path(text).exists() else None


def workload_of_class(spec: Spec[WorkloadClass], seed: int, label: str) -> "OfClass":
    """A source with the requests of a class, called `label`; raises WorkloadSpecError."""
    made = spec.build(seed)
    unit = getattr(made, "unit_tokens", 0)
    if not isinstance(unit, int) or isinstance(unit, bool) or not 0 <= unit <= MOST_COUNT:
        rule = f"must be a whole number in [0, {MOST_COUNT}]"
        raise WorkloadSpecError(f"workload {label!r}: unit_tokens {rule}, got {said(unit, repr)}")
    return OfClass(made=made, label=label, unit_tokens=unit, drawn=bool(getattr(made, "drawn", True)), seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfClass:
    """A `Source` of a foreign class; each request is checked."""

    made: GivesArrivals
    label: str
    unit_tokens: int
    drawn: bool
    seed: int

    timed: ClassVar[bool] = True  # see `Source`

    @property
    def about(self) -> WorkloadAbout:
        kind = type(self.made)
        return WorkloadAbout(
            name=kind.__name__,
            files=(),
            format=self.label,
            unit_tokens=self.unit_tokens,
            num_requests=None,
            num_arrivals=None,
            notes=(f"given by {kind.__module__}:{kind.__qualname__}" + (f", seed {self.seed}" if self.drawn else ""),),
            drawn=self.drawn,
        )

    def arrivals(self, tally: Tally) -> Iterator[Arrival]:
        one: Arrival | None = None
        for arrival in self._given():
            yield (one := self.checked(arrival, 0 if one is None else one.arrives_ps))
        if one is None:
            raise self.error("arrivals must give a request, got none")

    def checked(self, arrival: object, least_ps: int) -> Arrival:
        """A request that arrives at `least_ps` or later, its ids as integers of 64 bits; raises WorkloadSpecError."""
        if not isinstance(arrival, Arrival):
            raise self.error(
                f"arrivals must give records of paceline.traces.workloads.Arrival, got {said(arrival, repr)}"
            )
        request_id = arrival.request_id
        if not (isinstance(request_id, str) and request_id and request_id.isprintable()):
            raise self.error(f"request_id must be printable text, got {said(request_id, repr)}")
        bounds = {"arrives_ps": (least_ps, MOST_READ_PS)}
        bounds |= dict.fromkeys(("prompt_tokens", "output_tokens"), (1, MOST_COUNT))
        for field, (least, most) in bounds.items():
            found = getattr(arrival, field)
            if type(found) is not int or not least <= found <= most:
                rule = f"{field} must be a whole number in [{least}, {most}]"
                raise self.error(f"request {request_id}: {rule}, got {said(found, repr)}")
        for field in ("tag", "slo"):
            if not isinstance(found := getattr(arrival, field), str):
                raise self.error(f"request {request_id}: {field} must be text, got {said(found, repr)}")
        turns = None if arrival.turns is None else TurnsOfClass(self, arrival)
        blocks, answer = self._ids(arrival, "blocks"), self._ids(arrival, "answer")
        self._check_units(request_id, arrival.prompt_tokens, blocks, answer)
        return arrival._replace(blocks=blocks, answer=answer, turns=turns)

    def _check_units(self, request_id: str, prompt_tokens: int, blocks: "array[int]", answer: "array[int]") -> None:
        """Raise WorkloadSpecError for ids beyond the prompt's, too few before an answer's, and repeated ones."""
        unit = self.unit_tokens
        for field, ids in (("blocks", blocks), ("answer", answer)):
            if ids and not unit:
                raise self.error(f"request {request_id}: {field} must be empty without unit_tokens, got {len(ids)}")
        if unit and (len(blocks) > -(-prompt_tokens // unit) or (answer and len(blocks) < prompt_tokens // unit)):
            rule = f"blocks must be one for each {unit} tokens of the prompt"
            raise self.error(f"request {request_id}: {rule}, {prompt_tokens}, got {len(blocks)}")
        if twice := repeated(blocks):
            raise self.error(f"request {request_id}: block {twice[0]} must not be repeated")

    def _ids(self, arrival: Arrival, field: str) -> "array[int]":
        given: Any = getattr(arrival, field)
        try:
            if isinstance(given, bytes | bytearray):  # an array would take their bits
                raise TypeError
            ids = array("q", given)
        except (TypeError, ValueError, OverflowError):
            ids = None
        if ids is None or (ids and min(ids) < 0):
            rule = f"{field} must be a tuple of whole numbers in [0, 2^63)"
            raise self.error(f"request {arrival.request_id}: {rule}, got {said(given, repr)}")
        return ids

    def _given(self) -> Iterator[Any]:
        try:
            yield from self.made.arrivals()
        except GeneratorExit:
            raise
        except BaseException as error:  # foreign code
            pass_interrupt(error)
            raise self.error(f"arrivals raised {told(error)}") from error

    def error(self, what: str) -> WorkloadSpecError:
        """What is wrong with the workload, which is named."""
        return WorkloadSpecError(f"workload {self.label!r}: {what}")


class TurnsOfClass:
    """What follows a request of a foreign class, checked as that is; implements `Turns`.

    Raises:
        WorkloadSpecError: depths that are none, or a method that raises or gives what is no request.
    """

    __slots__ = ("_inner", "_request_id", "_source", "depths")

    def __init__(self, source: OfClass, arrival: Arrival) -> None:
        self._source = source
        self._inner: Any = arrival.turns
        self._request_id = arrival.request_id
        given = getattr(self._inner, "depths", None)
        try:
            depths = tuple([index(depth) for depth in given])  # type: ignore[union-attr]
        except TypeError:
            depths = (-1,)
        if list(depths) != sorted(set(depths)) or (
            depths and not 0 <= depths[0] <= depths[-1] <= arrival.output_tokens
        ):
            rule = f"depths must be a tuple of whole numbers in [0, {arrival.output_tokens}], ascending"
            raise source.error(f"request {arrival.request_id}: turns: {rule}, got {said(given, repr)}")
        self.depths: tuple[int, ...] = depths

    def reached(self, depth: int, at_ps: int) -> list[Arrival]:
        return self._followed("reached", at_ps, lambda: self._inner.reached(depth, at_ps))

    def after(self, ended_ps: int) -> list[Arrival]:
        return self._followed("after", ended_ps, lambda: self._inner.after(ended_ps))

    def _followed(self, method: str, at_ps: int, given: Callable[[], Iterable[object]]) -> list[Arrival]:
        called = f"request {self._request_id}: turns: {method}"
        try:
            following = list(given())
        except BaseException as error:  # foreign code
            pass_interrupt(error)
            raise self._source.error(f"{called} raised {told(error)}") from error
        return [self._source.checked(one, at_ps) for one in following]
