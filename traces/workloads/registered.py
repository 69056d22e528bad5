"""Workloads of other packages, files and modules: a class whose `arrivals` gives requests.

    NAME | NAME:key=value,... | path/to/file.py:Class,key=value,... | package.module:Class,...

The constructor takes a seed first, then options. Other packages register theirs in the group `paceline.workloads`.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ...base.by_name import NamedKind, Spec, names_path
from ...base.errors import pass_interrupt, said, told
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
        """See `Source`."""
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
        """See `Source`."""
        last_ps = 0
        for arrival in self._given():
            if not isinstance(arrival, Arrival):
                raise self._error(
                    f"arrivals must give records of paceline.traces.workloads.Arrival, got {said(arrival, repr)}"
                )
            request_id = arrival.request_id
            if not (isinstance(request_id, str) and request_id and request_id.isprintable()):
                raise self._error(f"request_id must be printable text, got {said(request_id, repr)}")
            bounds = {"arrives_ps": (last_ps, MOST_READ_PS)}
            bounds |= dict.fromkeys(("prompt_tokens", "output_tokens"), (1, MOST_COUNT))
            for field, (least, most) in bounds.items():
                found = getattr(arrival, field)
                if type(found) is not int or not least <= found <= most:
                    rule = f"{field} must be a whole number in [{least}, {most}]"
                    raise self._error(f"request {request_id}: {rule}, got {said(found, repr)}")
            last_ps = arrival.arrives_ps
            yield arrival

    def _given(self) -> Iterator[Any]:
        try:
            yield from self.made.arrivals()
        except GeneratorExit:
            raise
        except BaseException as error:  # foreign code
            pass_interrupt(error)
            raise self._error(f"arrivals raised {told(error)}") from error

    def _error(self, what: str) -> WorkloadSpecError:
        return WorkloadSpecError(f"workload {self.label!r}: {what}")
