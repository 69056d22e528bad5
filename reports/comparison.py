"""Policies side by side on one recording, each against the target alone."""

from dataclasses import asdict, dataclass
from typing import Any

from .summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs of several policies under the same scenario.

    Attributes:
        meta: what was compared on: trace and its kind, sampling, cost, batch, seed.
        baseline: the target alone.
        rows: one per policy, in the order asked.
    """

    meta: dict[str, Any]
    baseline: Summary
    rows: tuple[Summary, ...]

    def speed_up(self, row: Summary) -> float:
        """Output tokens per second over those of the target alone, prefill of every member included in both."""
        return row.output_tokens_per_s / self.baseline.output_tokens_per_s

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/compare.md): `meta`, and per policy every field of `Summary` and `speed_up`."""
        policies = [{"speed_up": self.speed_up(row), **asdict(row)} for row in self.rows]
        return {"meta": self.meta, "policies": policies}
