"""Measured seconds taken to another device: between which figures the answer lies, policy by policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .side_by_side import SideBySide
from .summary import Summary
from .tables.grid import Grid, table


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRange:
    """The same policies under the two outer readings of a measurement.

    Attributes:
        measured_on: device of the sheet.
        device: the other one.
        readings: by reading ("all": all seconds scale; "memory": their memory term does), its policies; at least one.
        left_out: policies whose seconds a reading does not know, and why, a line each.
    """

    measured_on: str
    device: str
    readings: Mapping[str, SideBySide]
    left_out: tuple[str, ...] = ()

    def speed_up(self, reading: str, policy: str) -> float | None:
        """Over the target alone under the same reading, mean over seeds; None where that is unknown."""
        return self.readings[reading].speed_up(self._row(reading, policy))

    def tokens_per_s(self, reading: str, policy: str) -> float:
        """Output tokens per second, mean over seeds."""
        return self.readings[reading].output_tokens_per_s(self._row(reading, policy))

    def _row(self, reading: str, policy: str) -> Summary:
        return next(row for row in self.readings[reading].rows if row.policy == policy)

    @property
    def policies(self) -> Sequence[str]:
        """Those that ran under both readings, in order."""
        first, *others = ([row.policy for row in comparison.rows] for comparison in self.readings.values())
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
                    for reading in self.readings
                }
                for policy in self.policies
            },
            "left_out": list(self.left_out),
        }


def device_range_table(found: DeviceRange) -> Grid:
    """A row per policy: its figures if all seconds scale with the device, and if only their memory term does."""
    title = f"{found.measured_on} to {found.device}, range"
    return table([_cells(found, policy) for policy in found.policies], title=title, remarks=found.left_out)


def _cells(found: DeviceRange, policy: str) -> dict[str, str]:
    cells = {"policy": policy}
    for reading in found.readings:
        speed_up = found.speed_up(reading, policy)
        cells[f"speed-up, {reading} scales"] = "unknown" if speed_up is None else f"{speed_up:.2f}x"
    for reading in found.readings:
        cells[f"tokens/s, {reading} scales"] = f"{found.tokens_per_s(reading, policy):,.1f}"
    return cells
