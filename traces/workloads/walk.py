"""All requests of a session, as if each ended when it arrived: for those who count and serve nothing."""

from collections.abc import Iterator
from heapq import heappop, heappush

from .arrival import Arrival


def requests_of(arrival: Arrival) -> Iterator[tuple[Arrival, int | None]]:
    """(request, its wait) of a session, by time; the first has no wait.

    A wait is that after the last of what the request waits for.
    """
    coming: list[tuple[int, int, Arrival, int | None]] = [(arrival.arrives_ps, 0, arrival, None)]
    count = 0
    while coming:
        now_ps, _, request, wait_ps = heappop(coming)
        yield request, wait_ps
        for one in _following(request, now_ps):
            count += 1
            heappush(coming, (one.arrives_ps, count, one, one.arrives_ps - now_ps))


def _following(request: Arrival, now_ps: int) -> Iterator[Arrival]:
    turns = request.turns
    if turns is None:
        return
    for depth in turns.depths:
        yield from turns.reached(depth, now_ps)
    yield from turns.after(now_ps)
