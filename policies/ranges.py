"""Texts of policies with ranges in place of values: `draft:1..4/target`, `my.py:Ewma,alpha=0.1..0.9,kind=fast|slow`.

    FIRST..LAST         whole numbers one by one, or any number between two of which one has a point
    FIRST..LAST:STEP    in steps, both ends included where a step meets them
    FIRST..LAST:log     any number between, whose logarithm is spread evenly
    A|B|C               one of these

Ranges follow the `=` of an option, also of nested policies, or the `:` of a chain's window.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from math import prod

from ..base.errors import ArgumentError

# Longest number, so that none takes long to read.
_NUMBER = r"[-+]?[0-9]{1,12}(?:\.[0-9]{1,12})?(?:[eE][-+]?[0-9]{1,2})?"
_RANGE = rf"(?P<first>{_NUMBER})\.\.(?P<last>{_NUMBER})(?::(?P<step>log|{_NUMBER}))?(?=[,/)+]|$)"
_LIST = r"(?<=:)[0-9]{1,7}(?:\|[0-9]{1,7})+(?=[,/)+]|$)|(?<==)[^,|()=]+(?:\|[^,|()=]+)+"
_SLOT = re.compile(rf"(?<=[=:])(?:{_RANGE}|(?P<list>{_LIST}))")
_ANY_RANGE = re.compile(r"(?<=[=:])[^,/)+=:]*[0-9]\.\.[^,/)+]*|(?<=[=:])[^,()=]*\|[^,()]*")
_NAME = re.compile(r"[^,(=:/+]*(?=[=:]$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRange:
    """The values of one place of a text: `choices`, or numbers from `first` to `last`."""

    name: str  # of the option, or of the member whose window it is
    choices: tuple[str, ...] = ()  # of a list, at least two
    first: Decimal = Decimal(0)
    last: Decimal = Decimal(0)
    step: Decimal | None = None  # > 0; None: any number between, whole ones of `whole`
    whole: bool = False  # whether numbers are whole
    log: bool = False  # whether their logarithm is spread evenly

    @property
    def count(self) -> int | None:
        """The number of values; None where there is no end of them."""
        if self.choices:
            return len(self.choices)
        return None if self.step is None else int((self.last - self.first) // self.step) + 1

    def values(self) -> Iterator[str]:
        """Each value as text; raises ArgumentError where there is no end of them."""
        if self.choices:
            yield from self.choices
            return
        count, step = self.count, self.step
        if count is None or step is None:
            raise ArgumentError(
                f"`policies` must have steps in the range of {self.name}, as in {self.first}..{self.last}:"
                f"{(self.last - self.first) / 10 or 1}, or a list, got any number between"
            )
        yield from (written(self.first + number * step) for number in range(count))


def written(number: Decimal) -> str:
    """A number as text, without an exponent and trailing zeros."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRanges:
    """A policy's text, in which some values are ranges."""

    text: str
    parts: tuple[str, ...]  # of the text, between the ranges: one more than ranges
    ranges: tuple[ValueRange, ...]

    @property
    def count(self) -> int:
        """The number of policies; raises ArgumentError where there is no end of them."""
        return prod(one.count if one.count is not None else len(list(one.values())) for one in self.ranges)

    def policies(self) -> Iterator[str]:
        """The text of each; raises as `count`."""
        for values in product(*(one.values() for one in self.ranges)):
            yield self.at(values)

    def at(self, values: Sequence[str]) -> str:
        """The text with a value in place of each range."""
        head, *others = self.parts
        return head + "".join(value + part for value, part in zip(values, others, strict=True))


def policy_ranges(text: str) -> PolicyRanges:
    """Read a text, with or without ranges; raises ArgumentError for a bad range."""
    parts, ranges, start = list[str](), list[ValueRange](), 0
    for found in _SLOT.finditer(text):
        parts.append(text[start : found.start()])
        ranges.append(_range(text, found, [one.name for one in ranges]))
        start = found.end()
    parts.append(text[start:])
    for part in parts:
        wrong = _ANY_RANGE.search(part)
        if wrong is not None:
            raise ArgumentError(
                f"`policies` must have ranges such as 1..8, 0.1..0.9:0.1, 1e-3..1:log or a|b, got {wrong[0]!r} in "
                f"{text!r}"
            )
    return PolicyRanges(text=text, parts=tuple(parts), ranges=tuple(ranges))


def _range(text: str, found: re.Match[str], before: Sequence[str]) -> ValueRange:
    named = _NAME.search(text[: found.start()])
    name = named[0] if named is not None else ""
    name = next(one for one in (name, *(f"{name}#{number}" for number in range(2, 99))) if one not in before)
    if found["list"] is not None:
        choices = tuple(found["list"].split("|"))
        if len(set(choices)) < len(choices):
            raise ArgumentError(f"`policies` must name each value of {name} once, got {found[0]} in {text!r}")
        return ValueRange(name=name, choices=choices)
    first, last = Decimal(found["first"]), Decimal(found["last"])
    log = found["step"] == "log"
    whole = all(re.fullmatch("[-+]?[0-9]+", found[end]) for end in ("first", "last"))
    step = None if log else Decimal(found["step"]) if found["step"] else Decimal(1) if whole else None
    if not (first < last or (step and first == last)) or (step is not None and not step > 0) or (log and not first > 0):
        rule = "must go up" + (" from above 0" if log else " in steps above 0" if found["step"] else "")
        raise ArgumentError(f"`policies` {rule} in the range of {name}, got {found[0]} in {text!r}")
    whole = whole and (step is None or step == step.to_integral_value())
    return ValueRange(name=name, first=first, last=last, step=step, whole=whole, log=log)
