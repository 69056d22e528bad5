"""What the requests of a run are promised, by class, and which of them got it.

Letter: R requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....runs.serving.log import ServingLog
from .service_levels import ServiceLevels


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """Service levels by class. A class with levels of its own has none of the others' besides.

    Attributes:
        others: of requests whose class has none of its own.
        classes: by name.
    """

    others: ServiceLevels = field(default_factory=ServiceLevels)
    classes: Mapping[str, ServiceLevels] = field(default_factory=dict)

    @property
    def any(self) -> bool:
        """Whether anything is promised to anybody."""
        return bool(self.others.promised) or any(levels.promised for levels in self.classes.values())

    def of(self, name: str) -> ServiceLevels:
        """Of the requests of a class; "" is that of those without one."""
        return self.classes.get(name, self.others)

    def met(self, log: ServingLog) -> NDArray[np.bool_]:
        """`[R]` whether each request finished and met all that its class is promised; not where that is nothing."""
        met = np.zeros(len(log.finished), np.bool_)
        for name, of_class in by_class(log).items():
            if self.of(name).promised:
                met |= of_class & self.of(name).met(log)
        return met

    def made(self, log: ServingLog) -> NDArray[np.bool_]:
        """`[R]` whether each request is promised anything."""
        made = np.zeros(len(log.finished), np.bool_)
        for name, of_class in by_class(log).items():
            if self.of(name).promised:
                made |= of_class
        return made

    def in_words(self) -> str:
        """For a title; empty where nothing is promised."""
        named = [("", self.others)] if self.others.promised else []
        named += [(f"{name}: ", levels) for name, levels in self.classes.items()]
        if len(named) > 1 and self.others.promised:
            named = [*named[1:], ("others: ", self.others)]
        parts = [before + ", ".join(f"{one} {s:g} s" for one, s in levels.promised.items()) for before, levels in named]
        return f"SLO {'; '.join(parts)}" if parts else ""

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/serving-metrics.md)."""
        by_name = {name: levels.promised for name, levels in self.classes.items()}
        return {"slo": self.others.promised, "slo_by_class": by_name}


def by_class(log: ServingLog) -> dict[str, NDArray[np.bool_]]:
    """`[R]` by class of service levels, in order of name, whether each request is of it; "" is that of none."""
    column = np.asarray(log.requests["slo"])
    return {name: column == name for name in sorted(set(column.tolist()))}
