"""On which device each member runs, and what that makes of members that work at the same time.

Letters: P parts of an `Overlap`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..arguments import ArgumentError
from ..decoding.pool import Pool
from ..decoding.results import OverlapResults

ONE, EACH = "one", "each"


@dataclass(frozen=True, slots=True)
class Placement:
    """Members by device. Parts of an `Overlap` on one device run one after another, those on several at once.

    All else is run one operation at a time, wherever it runs: a chain gains nothing by a second device.

    Attributes:
        devices: names by level; empty for one device.
        name: as it was asked for.
    """

    devices: tuple[str, ...] = ()
    name: str = ONE
    _shared: bool = field(init=False, repr=False, compare=False, default=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_shared", len(set(self.devices)) < 2)

    def placed(self, levels: Sequence[int], results: OverlapResults) -> OverlapResults:
        """What ran in turns, with the starts of its parts and its seconds as these devices have them.

        Args:
            levels: `[P]` members of the parts.
            results: of the operation, one part after the other.
        """
        if self._shared:
            return results
        busy_s: dict[str, float] = {}
        parts = []
        for level, part in zip(levels, results.parts, strict=True):
            device = self.devices[level]
            start_s = busy_s.get(device, 0.0)
            busy_s[device] = start_s + part.duration_s
            parts.append(part._replace(after_s=start_s))
        return results._replace(parts=parts, duration_s=max(busy_s.values()))


def placement_of(text: str | Mapping[str, str] | None, pool: Pool) -> Placement:
    """Where members run.

    Args:
        text: `one` device for all, `each` on one of its own, or NAME=DEVICE parted by commas (or by name): who is not
            named runs on a device with all others that are not. None is `one`.
        pool: the members.

    Raises:
        ArgumentError: another text, an unknown member, one that is named twice, or an empty device.
    """
    if text is None or text == ONE:
        return Placement()
    if text == EACH:
        return Placement(pool.names, EACH)
    pairs = list(text.items()) if isinstance(text, Mapping) else [_pair(part, text) for part in text.split(",")]
    named: dict[str, str] = {}
    for name, device in pairs:
        if name not in pool.names:
            raise ArgumentError(f"`devices` must name members of {', '.join(pool.names)}, got {name!r}")
        if name in named or not device:
            raise ArgumentError(f"`devices` must name each member once, with a device, got {name}={device}")
        named[name] = device
    devices = tuple([named.get(name, "") for name in pool.names])
    return Placement(devices, ",".join(f"{name}={device}" for name, device in named.items()))


def _pair(part: str, text: str) -> tuple[str, str]:
    name, equals, device = part.partition("=")
    if not equals:
        raise ArgumentError(f"`devices` must be {ONE}, {EACH} or NAME=DEVICE parted by commas, got {text!r}")
    return name, device
