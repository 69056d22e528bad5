"""Pages of Prometheus metrics, as servers give them at `/metrics`: counters over several scrapes, and gauges.

Lines are read one by one by the parser of `prometheus_client`, those alone whose metrics are known: what nobody asks
for may have any form. Series with equal labels are one counter at several times, so that it counted its last value less
its first; one that is missing at first began at 0.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from ...errors import TraceFormatError

_NAME = re.compile(r"\s*([a-zA-Z_:][a-zA-Z0-9_:]*)")
_LONGEST = 10_000  # characters of a line; those of servers have some hundred
_ANEW = "the server was started anew in between, or the pages are not in the order of time"

Key = tuple[str, tuple[tuple[str, str], ...]]


class Sample(NamedTuple):
    """One series at one time.

    Attributes:
        place: page and line, as errors name them.
        name: of the metric, without `_total`.
        labels: by name.
        value: finite, >= 0.
    """

    place: str
    name: str
    labels: Mapping[str, str]
    value: float

    @property
    def key(self) -> Key:
        """What is the same of one series at all times."""
        return self.name, tuple(sorted(self.labels.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a page says of known metrics.

    Attributes:
        samples: in order.
        others: names of metrics that are near those known, and are not.
    """

    samples: tuple[Sample, ...] = ()
    others: frozenset[str] = field(default_factory=frozenset)

    def of_model(self, model: str) -> "Page":
        """The page without the series that name another model."""
        kept = tuple(one for one in self.samples if one.labels.get("model_name", model) == model)
        return Page(samples=kept, others=self.others)

    @property
    def models(self) -> list[str]:
        """The models that its series name."""
        return sorted({one.labels["model_name"] for one in self.samples if "model_name" in one.labels})


def read_page(lines: Iterable[tuple[str, str]], names: frozenset[str], near: Sequence[str] = ()) -> Page:
    """The samples of some metrics.

    Args:
        lines: of the page, each with its place.
        names: of metrics, without `_total`; when they began to count (`_created`) is read along.
        near: what names begin with that are worth telling if they are not known.

    Raises:
        TraceFormatError: a line of a known metric that is no sample, or whose value is no finite number >= 0.
    """
    samples, others = [], set()
    for place, line in lines:
        found = _NAME.match(line)
        if found is None:
            continue
        name = found[1].removesuffix("_total")
        if name.removesuffix("_created") in names:
            samples.append(_sample(place, name, line))
        elif name.startswith(tuple(near)) and not name.endswith(("_created", "_bucket", "_sum", "_count")):
            others.add(found[1])
    return Page(samples=tuple(samples), others=frozenset(others))


class Scrapes:
    """The pages of one server in the order of time. Final.

    Args:
        pages: one or more; one in which a series stands twice is several.
    """

    def __init__(self, pages: Iterable[Page]) -> None:
        self._scrapes: list[dict[Key, Sample]] = []
        for page in pages:
            self._scrapes.append({})
            for sample in page.samples:
                if sample.key in self._scrapes[-1]:
                    self._scrapes.append({})
                self._scrapes[-1][sample.key] = sample

    def __len__(self) -> int:
        """How many scrapes there are."""
        return len(self._scrapes)

    def __contains__(self, name: str) -> bool:
        """Whether the last page has the metric."""
        return any(sample.name == name for sample in self._last.values())

    @property
    def _last(self) -> dict[Key, Sample]:
        return self._scrapes[-1] if self._scrapes else {}

    def gauges(self, name: str) -> list[Sample]:
        """The series of a metric as the last page has them."""
        return [sample for sample in self._last.values() if sample.name == name]

    def counted(self, name: str, *, by: str = "", summed: frozenset[str] = frozenset()) -> dict[str, float]:
        """What a counter counted between the first page and the last, or with one page since the server started.

        Args:
            name: of the metric, without `_total`.
            by: a label to count by; "": none.
            summed: labels in which series may differ and are added.

        Returns:
            By value of that label, "" for series without it; nothing if the last page does not have the metric.

        Raises:
            TraceFormatError: a counter went down or vanished, or series differ in another label.
        """
        series = [key for key in self._keys(name) if self._still_there(key)]
        counts: dict[str, float] = {}
        for key in series:
            value = dict(key[1]).get(by, "")
            counts[value] = counts.get(value, 0.0) + self._increase(key)
        self._refuse_differing(series, {by, *summed})
        return counts

    def _keys(self, name: str) -> list[Key]:
        return list(dict.fromkeys(key for scrape in self._scrapes for key in scrape if key[0] == name))

    def _still_there(self, key: Key) -> bool:
        if key not in self._last:
            before = next(scrape[key] for scrape in reversed(self._scrapes) if key in scrape)
            rule = f"must be there in the last page as in {before.place}: {_ANEW}"
            raise TraceFormatError(before.place, _series(key), rule, "nothing")
        return True

    def _increase(self, key: Key) -> float:
        seen = [scrape[key] for scrape in self._scrapes if key in scrape]
        for before, after in pairwise(seen):
            if after.value < before.value:
                rule = f"must be at least the {before.value:.15g} of {before.place}: {_ANEW}"
                raise TraceFormatError(after.place, _series(key), rule, after.value)
        created = (f"{key[0]}_created", key[1])
        began = [scrape[created] for scrape in self._scrapes if created in scrape]
        for before, after in pairwise(began):
            if after.value != before.value:
                rule = f"must be the {before.value:.15g} of {before.place}: {_ANEW}"
                raise TraceFormatError(after.place, _series(created), rule, after.value)
        first = self._scrapes[0].get(key) if len(self._scrapes) > 1 else None
        return seen[-1].value - (0.0 if first is None else first.value)

    def _refuse_differing(self, series: list[Key], may_differ: set[str]) -> None:
        labels = [dict(key[1]) for key in series]
        for name in sorted({name for one in labels for name in one} - may_differ):
            values = sorted({one.get(name, "") for one in labels})
            if len(values) > 1:
                allowed = ", ".join(sorted(may_differ - {""})) or "no label"
                rule = f"must be series that differ in {allowed} only; others are not added: take those of one {name}"
                raise TraceFormatError(self._last[series[0]].place, f"{series[0][0]}.{name}", rule, _listed(values))


def _sample(place: str, name: str, line: str) -> Sample:
    if len(line) > _LONGEST:
        raise TraceFormatError(place, name, f"must be a line of at most {_LONGEST} characters", len(line))
    try:
        (family,) = text_string_to_metric_families(f"{line.strip()}\n")
        (found,) = family.samples
        value = float(found.value)
    except (ValueError, IndexError, OverflowError):
        raise TraceFormatError(place, name, "must be of the form name{labels} value", line.strip()) from None
    if not isfinite(value) or value < 0:
        raise TraceFormatError(place, name, "must be a finite number >= 0", value)
    return Sample(place, name, found.labels, value)


def _series(key: Key) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in key[1])
    return f"{key[0]}{{{labels}}}" if labels else key[0]


def _listed(values: Sequence[str]) -> str:
    shown = [value or "none" for value in values[:4]]
    return ", ".join([*shown, *(["..."] if len(values) > 4 else [])])
