"""A link that is shared by all who send over it: first come, first served."""

from collections import deque
from fractions import Fraction
from typing import NamedTuple

from ....runs.serving.meta import TransferTotals
from ....traces.workloads.exact_seconds import PS_PER_S
from ..clock import to_ps
from ..roles import Transfer


class _Sent(NamedTuple):
    """A transfer: when it came to the link, when its first byte leaves and its last one has left."""

    num_bytes: int
    at_ps: int
    begins_ps: int
    ends_ps: int


class _Sums:
    """Of transfers, as far as they come until an instant."""

    def __init__(self) -> None:
        self.sent = self.unfinished = self.bytes = self.busy_ps = self.queued_ps = self.most_queued_ps = 0

    def add(self, one: _Sent, until_ps: int) -> None:
        """One that came to the link before `until_ps`."""
        lasts_ps = one.ends_ps - one.begins_ps
        busy_ps = min(max(until_ps - one.begins_ps, 0), lasts_ps)
        queued_ps = max(min(until_ps, one.begins_ps) - one.at_ps, 0)
        self.sent += 1
        self.unfinished += one.ends_ps > until_ps
        self.bytes += one.num_bytes * busy_ps // max(lasts_ps, 1) if one.ends_ps > until_ps else one.num_bytes
        self.busy_ps += busy_ps
        self.queued_ps += queued_ps
        self.most_queued_ps = max(self.most_queued_ps, queued_ps)


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
        self._over = _Sums()
        self._open: deque[_Sent] = deque()

    def send(self, num_tokens: int, now_ps: int) -> int:
        """Keys and values of so many tokens are ready; returns when the last of them is there.

        Nothing to send takes no time. To be called with times that never go back.
        """
        if not num_tokens:
            return now_ps
        num_bytes = num_tokens * self._token_bytes
        begins_ps = max(self._free_at_ps, now_ps)
        self._free_at_ps = begins_ps + round(num_bytes * self._ps_per_byte)
        self._book(now_ps)
        self._open.append(_Sent(num_bytes, now_ps, begins_ps, self._free_at_ps))
        return self._free_at_ps + self._latency_ps

    def totals(self, handed_over: int, held_ps: int, until_ps: int) -> TransferTotals:
        """What it carried until the run ended, with what is known of who was handed over; see `TransferTotals`.

        To be called once, with a time not before that of the last `send`.
        """
        self._book(until_ps)
        sums = self._over
        for one in self._open:
            sums.add(one, until_ps)
        return TransferTotals(
            handed_over=handed_over,
            held_ps=held_ps,
            sent=sums.sent,
            unfinished=sums.unfinished,
            bytes=sums.bytes,
            busy_ps=sums.busy_ps,
            queued_ps=sums.queued_ps,
            most_queued_ps=sums.most_queued_ps,
        )

    def _book(self, now_ps: int) -> None:
        """Add up the transfers that are over."""
        while self._open and self._open[0].ends_ps <= now_ps:
            self._over.add(self._open.popleft(), now_ps)
