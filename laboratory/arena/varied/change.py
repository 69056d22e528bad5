"""One constant changed: a number of a record halved or doubled.

A record is a frozen dataclass. Its numbers are constants; of its other fields nothing is said here.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol, TypeVar

from ....arguments import ArgumentError

HALVED, DOUBLED = 0.5, 2.0
TIMES = "*"


class Constants(Protocol):
    """Any frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Record = TypeVar("Record", bound=Constants)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change by name; its text is `memory*2`.

    Attributes:
        field: of the record.
        factor: by which its number is multiplied, > 0.
    """

    field: str
    factor: float

    def __str__(self) -> str:
        return f"{self.field}{TIMES}{self.factor:.17g}"

    @classmethod
    def parse(cls, text: str) -> "Change":
        """Read a change's text.

        Raises:
            ArgumentError: another form.
        """
        field, times, factor = text.partition(TIMES)
        try:
            value = float(factor)
        except ValueError:
            value = 0.0
        if not (field and times and 0 < value < float("inf")):
            raise ArgumentError(f"`change` must be NAME{TIMES}FACTOR, as memory{TIMES}2, got {text!r}")
        return cls(field=field, factor=value)


def changed(record: Record, change: Change) -> Record:
    """The record with the change; what was a whole number stays one, rounded half up.

    Raises:
        ArgumentError: no such constant, or one that the change leaves as it is, as half of 1 round is.
        ValueError: the record does not take the new value.
    """
    known = constants_of(record)
    if change.field not in known:
        raise ArgumentError(f"`change` must name one of {', '.join(known) or 'none'}, got {change.field!r}")
    value = known[change.field]
    new = int(value * change.factor + 0.5) if isinstance(value, int) else value * change.factor
    if new == value:
        raise ArgumentError(f"`change` must change {change.field}, which stays {value} with {change}")
    return replace(record, **{change.field: new})


def constants_of(record: Constants) -> dict[str, float]:
    """The numbers of a record by name, but for 0, which no factor changes."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {name: value for name, value in values.items() if _is_number(value) and value}


def changes_of(record: Constants) -> tuple[Change, ...]:
    """Every constant halved and doubled, where that is another number that the record takes."""
    tried = [Change(field=name, factor=factor) for name in constants_of(record) for factor in (HALVED, DOUBLED)]
    return tuple(change for change in tried if _is_taken(record, change))


def _is_taken(record: Constants, change: Change) -> bool:
    try:
        changed(record, change)
    except ValueError:
        return False
    return True


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
