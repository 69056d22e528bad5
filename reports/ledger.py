"""The ledger of a recommendation: every candidate with its status, its figures and one reason.

Written as `recommendation.json`, from which each candidate can be run again (`studies.recommend_again`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from ..base.files import write_whole
from .page import PAGE, Pictured, page_of
from .tables import Grid, Printed

FORMAT, VERSION = "paceline-recommendation", 1


class Standing(StrEnum):
    """The status of a candidate."""

    feasible = "feasible"  # it can be used, whether or not it is the best
    infeasible = "infeasible"  # memory, or a limit that it misses
    refused = "refused"  # its seconds or its decisions are unknown
    failed = "failed"  # the policy broke the contract


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """One line of the ledger."""

    number: int  # from 1
    policy: str  # as `compare` takes it
    batch: int | None  # requests that ran at a time, in a replay without arrivals; None of a served workload
    standing: Standing
    reason: str  # one, in words
    figures: Mapping[str, Any] = field(default_factory=dict)  # by flat name; of a served workload means over seeds
    # Of a served workload, by seed; those of `paceline metrics` at the first seed.
    by_seed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationLedger:
    """All candidates, and what is needed to run them again."""

    asked: Mapping[str, Any]  # `recording` and the keywords of the call
    inputs: Mapping[str, str]  # a hash of each file that was read, by its name
    candidates: tuple[LedgerLine, ...]

    def to_json(self) -> dict[str, Any]:
        """The part of `recommendation.json` that is read again."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "asked": dict(self.asked),
            "inputs": dict(self.inputs),
            "candidates": [asdict(one) for one in self.candidates],
        }


class Pasteable(Protocol):
    """Settings of an engine, as printable lines."""

    def lines(self) -> Sequence[str]:
        """The settings, and the text to paste."""

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/settings.md)."""


BARE = "published peaks are a lower bound on seconds, which says nothing of the best draft length"


class Recommended(Pictured):
    """A decision with its ledger."""

    __slots__ = ()
    ledger: RecommendationLedger
    setting: Pasteable | None  # to paste; None where something is not decided

    def configuration(self) -> Mapping[str, Any]:
        return self.ledger.asked

    def paste(self) -> str:
        return "" if self.setting is None else "\n".join(self.setting.lines())

    def write(self, path: str | Path) -> None:
        """Write `recommendation.json`, of which `report` makes a page; replaces an existing one."""
        found = {**self.to_json(), PAGE: page_of(self).to_json()}
        write_whole(Path(path), json.dumps(found, indent=1, sort_keys=True) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Again(Printed):
    """The result of a candidate that was run again; prints as its own result, then whether the figures are equal."""

    found: Printed
    candidate: str  # FILE#N
    differing: Mapping[str, tuple[Any, Any]]  # figures that are not equal: (now, in the ledger)

    @property
    def equal(self) -> bool:
        """Whether every figure equals that of the ledger exactly."""
        return not self.differing

    def tables(self) -> Sequence[Grid]:
        return self.found.tables()

    def lines(self) -> Sequence[str]:
        if self.equal:
            return [*self.found.lines(), f"all figures are those of {self.candidate}"]
        name, (now, then) = next(iter(self.differing.items()))
        return [
            *self.found.lines(),
            f"{len(self.differing)} figures are NOT those of {self.candidate}, as {name}: {now} now, {then} there",
        ]

    def to_json(self) -> dict[str, Any]:
        """Its own, with `again`."""
        differing = {name: list(pair) for name, pair in self.differing.items()}
        return {**self.found.to_json(), "again": {"candidate": self.candidate, "differing": differing}}

    def to_dicts(self) -> list[dict[str, Any]]:
        return self.found.to_dicts()
