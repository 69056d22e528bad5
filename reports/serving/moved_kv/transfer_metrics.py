"""What crossed the link between replicas that prefill and those that decode."""

from dataclasses import dataclass

from ....runs.serving.log import ServingLog
from ....traces.workloads.exact_seconds import PS_PER_S
from ..member_metrics import ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferMetrics:
    """Requests that were prefilled on one replica and decoded on another.

    Attributes:
        handed_over: requests.
        sent: transfers that came to the link; a text that the other prefix cache holds needs none.
        unfinished: of these, those that the end of the run found waiting, or cut.
        bytes: that were sent by then.
        busy_share: time of the link for them, over `duration_s`.
        queued_s_mean, queued_s_max: that a transfer waited for others before it.
        held_s_mean: from the end of a prefill until blocks and a place were there for the request.
    """

    handed_over: int
    sent: int
    unfinished: int
    bytes: int
    busy_share: float | None
    queued_s_mean: float | None
    queued_s_max: float
    held_s_mean: float | None

    @property
    def words(self) -> str:
        """All of it in a line."""
        queued = "-" if self.queued_s_mean is None else f"{1e3 * self.queued_s_mean:,.3f} ms"
        held = "-" if self.held_s_mean is None else f"{1e3 * self.held_s_mean:,.3f} ms"
        busy = "-" if self.busy_share is None else f"{self.busy_share:.1%}"
        cut = f" ({self.unfinished:,} transfers not to their end)" if self.unfinished else ""
        return (
            f"{self.handed_over:,} requests handed over, {self.bytes / 1e9:,.3f} GB sent{cut}; link busy {busy}, queue "
            f"at it {queued} (mean), {1e3 * self.queued_s_max:,.3f} ms (most); before it {held} (mean) for blocks"
        )


def transfer_metrics(log: ServingLog, duration_ps: int) -> TransferMetrics | None:
    """Of a run; None where every replica prefills and decodes."""
    found = log.meta.transfers
    if found is None:
        return None
    return TransferMetrics(
        handed_over=found.handed_over,
        sent=found.sent,
        unfinished=found.unfinished,
        bytes=found.bytes,
        busy_share=ratio(found.busy_ps, duration_ps),
        queued_s_mean=ratio(found.queued_ps / PS_PER_S, found.sent),
        queued_s_max=found.most_queued_ps / PS_PER_S,
        held_s_mean=ratio(found.held_ps / PS_PER_S, found.handed_over),
    )
