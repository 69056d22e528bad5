"""A JSON object with the place it came from: each field is asked for with its rule, and a breach names both."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ...errors import TraceFormatError
from ...meta import LEAST_SECONDS, MOST, MOST_SECONDS

_LONGEST_FIELD = 100
_NOTHING = object()


class Fields:
    """One JSON object.

    Attributes:
        place: file and line, as errors name them.
        values: the object itself.
        prefix: names of the objects around it, each with a dot after it.
    """

    __slots__ = ("place", "prefix", "values")

    def __init__(self, place: str, values: Mapping[str, Any], prefix: str = "") -> None:
        self.place = place
        self.values = values
        self.prefix = prefix

    def __contains__(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(key) is not None

    def error(self, field: str, rule: str, value: object) -> TraceFormatError:
        """What to raise of a field that breaks `rule`."""
        shown = _in_words(value) if isinstance(value, (dict, list)) else value
        named = self.prefix + field
        if len(named) > _LONGEST_FIELD:  # keys of a file can be of any length
            named = f"{named[:_LONGEST_FIELD]}..."
        return TraceFormatError(self.place, named, rule, shown)

    def text(self, key: str, default: str | None = None) -> str:
        """A string, or a whole number as one; `default` where the field is missing and there is one."""
        found = self._value(key, default)
        text = str(found) if _is_whole(found) else found
        if not isinstance(text, str):
            raise self.error(key, "must be text", found)
        return self.sound(key, text)

    def sound(self, field: str, text: str) -> str:
        """The text, if it can be written to a file; raises otherwise."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise self.error(field, "must be whole Unicode, without half of a surrogate pair", text) from None
        return text

    def count(self, key: str, *, least: int, default: int | None = None) -> int:
        """A whole number in [least, 2^31 - 1]."""
        found = self._value(key, default)
        if not _is_whole(found) or not least <= found <= MOST:
            raise self.error(key, f"must be a whole number in [{least}, {MOST}]", found)
        return found

    def known_count(self, key: str, *, least: int) -> int | None:
        """A whole number in [least, 2^31 - 1], None where the field is missing or null."""
        return self.count(key, least=least) if key in self else None

    def rate(self, key: str, *, most: float) -> float:
        """A number in [0, most]."""
        return self._number(key, self._value(key, None), 0, most)

    def rates(self, key: str, *, most: float) -> NDArray[np.float64]:
        """`[N]` numbers in [0, most]."""
        return self._numbers(key, 0, most)

    def counts(self, key: str, *, least: int) -> NDArray[np.int64]:
        """`[N]` whole numbers in [least, 2^31 - 1]."""
        values = self.sequence(key)
        array = np.array(values, dtype=np.int64) if set(map(type, values)) <= {int} and _fit(values) else None
        if array is None or (len(array) and array.min() < least):
            place, wrong = next((i, v) for i, v in enumerate(values) if not _is_whole(v) or not least <= v <= MOST)
            raise self.error(f"{key}[{place}]", f"must be a whole number in [{least}, {MOST}]", wrong)
        return array

    def seconds(self, key: str) -> float:
        """Seconds, 1e-12 to 1e9."""
        return self._number(key, self._value(key, None), LEAST_SECONDS, MOST_SECONDS, of="seconds")

    def all_seconds(self, key: str) -> NDArray[np.float64]:
        """`[N]` seconds, 1e-12 to 1e9."""
        return self._numbers(key, LEAST_SECONDS, MOST_SECONDS, of="seconds")

    def sequence(self, key: str) -> list[Any]:
        """A list."""
        found = self._value(key, None)
        if not isinstance(found, list):
            raise self.error(key, "must be a list", found)
        return found

    def nested(self, key: str) -> "Fields":
        """An object within."""
        found = self._value(key, None)
        if not isinstance(found, dict):
            raise self.error(key, "must be an object", found)
        return Fields(self.place, found, f"{self.prefix}{key}.")

    def each(self, key: str) -> Iterator["Fields"]:
        """The objects of a list."""
        for place, found in enumerate(self.sequence(key)):
            if not isinstance(found, dict):
                raise self.error(f"{key}[{place}]", "must be an object", found)
            yield Fields(self.place, found, f"{self.prefix}{key}[{place}].")

    def by_turn(self, key: str) -> "Fields":
        """A list as an object with its places as keys, for lists of lists."""
        values = {str(place): found for place, found in enumerate(self.sequence(key))}
        return Fields(self.place, values, f"{self.prefix}{key}.")

    def _value(self, key: str, default: object) -> Any:  # noqa: ANN401 - what JSON holds
        found = self.values.get(key, _NOTHING)
        if found is not _NOTHING and found is not None:
            return found
        if default is not None:
            return default
        raise self.error(key, "must be there", "nothing" if found is _NOTHING else None)

    def _numbers(self, key: str, least: float, most: float, of: str = "a number") -> NDArray[np.float64]:
        values = enumerate(self.sequence(key))
        return np.array(
            [self._number(f"{key}[{place}]", found, least, most, of) for place, found in values], np.float64
        )

    def _number(self, field: str, found: object, least: float, most: float, of: str = "a number") -> float:
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not least <= found <= most:
            raise self.error(field, f"must be {of} in [{least:g}, {most:g}]", found)
        return float(found)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _fit(values: list[int]) -> bool:
    return not values or (min(values) >= -MOST and max(values) <= MOST)


def _in_words(value: dict[str, Any] | list[Any]) -> str:
    return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
