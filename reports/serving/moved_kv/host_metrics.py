"""What host memory did for the prefix caches of a run."""

from dataclasses import dataclass

from ....runs.serving.log import ServingLog
from ....traces.workloads.exact_seconds import PS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMetrics:
    """Of all replicas together.

    Attributes:
        stored, loaded, dropped: blocks by member: that came, that were read again, and that went.
        most_bytes: the most that a replica used at once.
        load_s: that steps took longer for what was read.
    """

    stored: dict[str, int]
    loaded: dict[str, int]
    dropped: dict[str, int]
    most_bytes: int
    load_s: float

    @property
    def words(self) -> str:
        """All of it in a line."""
        parts = [
            f"{name} {self.stored[name]:,} there, {self.loaded[name]:,} back, {self.dropped[name]:,} dropped"
            for name in self.stored
            if self.stored[name]
        ]
        took = f"{self.most_bytes / 1e9:,.3f} GB at most, {self.load_s:,.3f} s for what came back"
        return f"blocks to host memory: {'; '.join(parts) or 'none'}; {took}"


def host_metrics(log: ServingLog) -> HostMetrics | None:
    """Of a run; None where no replica has host memory."""
    hosts = [replica.host for replica in log.meta.replicas if replica.host is not None]
    if not hosts:
        return None
    return HostMetrics(
        stored=_sums([host.stored for host in hosts]),
        loaded=_sums([host.loaded for host in hosts]),
        dropped=_sums([host.dropped for host in hosts]),
        most_bytes=max(host.most_bytes for host in hosts),
        load_s=sum(host.load_ps for host in hosts) / PS_PER_S,
    )


def _sums(parts: list[dict[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0) for part in parts) for name in names}
