"""A link that is shared by all who send over it: first come, first served."""

from fractions import Fraction

from ....runs.serving.meta import TransferTotals
from ....traces.workloads.exact_seconds import PS_PER_S
from ..clock import to_ps
from ..roles import Transfer


class Link:
    """Carries one transfer after the other, in the order in which they are given to it.

    Args:
        transfer: how fast.
    """

    def __init__(self, transfer: Transfer) -> None:
        self._token_bytes = transfer.token_bytes
        self._ps_per_byte = Fraction(PS_PER_S) / Fraction(transfer.bytes_per_s)
        self._latency_ps = to_ps(transfer.latency_s)
        self._free_at_ps = 0
        self._sent = self._bytes = self._busy_ps = self._queued_ps = self._most_queued_ps = 0

    def send(self, num_tokens: int, now_ps: int) -> int:
        """Keys and values of so many tokens are ready; returns when the last of them is there.

        Nothing to send takes no time. To be called with times that never go back.
        """
        if not num_tokens:
            return now_ps
        num_bytes = num_tokens * self._token_bytes
        queued_ps = max(self._free_at_ps - now_ps, 0)
        busy_ps = round(num_bytes * self._ps_per_byte)
        self._free_at_ps = now_ps + queued_ps + busy_ps
        self._sent += 1
        self._bytes += num_bytes
        self._busy_ps += busy_ps
        self._queued_ps += queued_ps
        self._most_queued_ps = max(self._most_queued_ps, queued_ps)
        return self._free_at_ps + self._latency_ps

    def totals(self, handed_over: int, held_ps: int) -> TransferTotals:
        """What it carried, with what is known of who was handed over; see `TransferTotals`."""
        return TransferTotals(
            handed_over=handed_over,
            held_ps=held_ps,
            sent=self._sent,
            bytes=self._bytes,
            busy_ps=self._busy_ps,
            queued_ps=self._queued_ps,
            most_queued_ps=self._most_queued_ps,
        )
