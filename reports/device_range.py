"""Measured seconds taken to another device: between which figures the answer lies, policy by policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .grid import Column, Grid
from .summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRange:
    """The same policies under the two outer readings of a measurement.

    Attributes:
        measured_on: device of the sheet.
        device: the other one.
        runs: by reading ("all": all seconds scale; "memory": their memory term does), by policy its run at the first
            seed.
        baseline: by reading, the target alone; readings in which its seconds are unknown are absent.
    """

    measured_on: str
    device: str
    runs: Mapping[str, Mapping[str, Summary]]
    baseline: Mapping[str, Summary]

    def speed_up(self, reading: str, policy: str) -> float | None:
        """Over the target alone under the same reading; None where that is unknown."""
        alone = self.baseline.get(reading)
        return None if alone is None else self.tokens_per_s(reading, policy) / alone.output_tokens_per_s

    def tokens_per_s(self, reading: str, policy: str) -> float:
        """Output tokens per second."""
        return self.runs[reading][policy].output_tokens_per_s

    @property
    def policies(self) -> Sequence[str]:
        """Those that ran under both readings, in order."""
        first, *others = self.runs.values()
        return [policy for policy in first if all(policy in other for other in others)]

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/costs.md)."""
        return {
            "measured_on": self.measured_on,
            "device": self.device,
            "policies": {
                policy: {
                    reading: {
                        "output_tokens_per_s": self.tokens_per_s(reading, policy),
                        "speed_up": self.speed_up(reading, policy),
                    }
                    for reading in self.runs
                }
                for policy in self.policies
            },
        }


def device_range_table(found: DeviceRange) -> Grid:
    """A row per policy: its figures if all seconds scale with the device, and if only their memory term does."""
    headings = [f"{what}, {reading} scales" for what in ("speed-up", "tokens/s") for reading in found.runs]
    return Grid(
        title=f"{found.measured_on} to {found.device}, range",
        columns=(Column(heading="policy", number=False), *(Column(heading=heading) for heading in headings)),
        rows=tuple((policy, *_cells(found, policy)) for policy in found.policies),
    )


def _cells(found: DeviceRange, policy: str) -> list[str]:
    speed_ups = [found.speed_up(reading, policy) for reading in found.runs]
    return [
        *("unknown" if one is None else f"{one:.2f}x" for one in speed_ups),
        *(f"{found.tokens_per_s(reading, policy):,.1f}" for reading in found.runs),
    ]
