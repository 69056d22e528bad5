"""Host memory of one replica, and how long what comes back from it takes."""

from ....runs.serving.meta import HostTotals
from ..limits import KvLimits, Offload
from .host_tier import HostTier
from .member_kv import MemberKv
from .offloading_kv import OffloadingKv


class HostMemory:
    """Takes evicted blocks of members, and adds up the seconds of those that are loaded.

    Args:
        offload: what goes where.
    """

    def __init__(self, offload: Offload) -> None:
        members = list(offload.members.values())
        self._numbers = {name: number for number, name in enumerate(offload.members)}
        self._block_ps = [member.block_ps for member in members]
        self._devices = [member.device for member in members]
        self._tier = HostTier(offload.host_bytes, [member.block_bytes for member in members])
        self._seen = [0] * len(members)
        self._load_ps = 0
        self._latest = (0, 0)  # when it began, and how long it takes

    def member(self, name: str, limits: KvLimits) -> MemberKv:
        """The memory of a member, its evicted blocks offloaded if it is among those that are."""
        number = self._numbers.get(name)
        return MemberKv(limits) if number is None else OffloadingKv(limits, self._tier, number)

    def take_load_ps(self, start_ps: int) -> int:
        """Of all blocks that were loaded since this was asked last: they come back from `start_ps` on.

        Links of devices work side by side, and each carries one block after the other.
        """
        loaded = self._tier.loaded
        if loaded == self._seen:
            return 0
        by_device: dict[str, int] = {}
        for device, block_ps, now, before in zip(self._devices, self._block_ps, loaded, self._seen, strict=True):
            by_device[device] = by_device.get(device, 0) + (now - before) * block_ps
        self._seen = list(loaded)
        load_ps = max(by_device.values())
        self._load_ps += load_ps
        self._latest = start_ps, load_ps
        return load_ps

    def totals(self, until_ps: int) -> HostTotals:
        """See `HostTotals`; the run ends then, and what was to come back after that does not count."""
        tier = self._tier
        start_ps, load_ps = self._latest
        after_ps = min(max(start_ps + load_ps - until_ps, 0), load_ps)
        return HostTotals(
            stored={name: tier.stored[number] for name, number in self._numbers.items()},
            loaded={name: tier.loaded[number] for name, number in self._numbers.items()},
            dropped={name: tier.dropped[number] for name, number in self._numbers.items()},
            most_bytes=tier.most_bytes,
            load_ps=self._load_ps - after_ps,
        )
