"""Requests that arrived, as columns: taken one by one, turned into columns many at a time."""

from array import array

import numpy as np

from ...traces.workloads.arrival import Arrival
from ...traces.workloads.exact_seconds import MOST_PS
from ..log import Columns

_AT_ONCE = 2**6  # few: until then the ids of their texts stay in memory, and new ones find none that is warm


class WrongArrivalError(ValueError):
    """A request that cannot have come; the message says which, and why."""


class RepeatedIdError(WrongArrivalError):
    """A request with the id of another one.

    Attributes:
        request_id: that both have.
    """

    def __init__(self, request_id: str) -> None:  # its only argument: simpy makes errors anew from their arguments
        super().__init__(request_id)
        self.request_id = request_id

    def __str__(self) -> str:
        return f"request {self.request_id}: request_id must be unique in the workload, got it twice"


class ArrivedRequests:
    """What the workload says of each request, by serial, and which replica it was given to."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._newest: list[Arrival] = []
        self._texts: dict[str, list[str]] = {"request_id": [], "tag": [], "slo": []}
        self._counts = {name: array("q") for name in ("replica", "prompt_tokens", "output_tokens", "arrived_at_ps")}

    def add(self, arrival: Arrival, replica: int) -> int:
        """A request came; returns its serial.

        Raises:
            WrongArrivalError: it comes too late for a clock of 64 bits, or one before it had its id.
        """
        if arrival.arrives_ps > MOST_PS:
            raise WrongArrivalError(
                f"request {arrival.request_id}: arrives_ps must be at most {MOST_PS}, got {arrival.arrives_ps}"
            )
        known, replicas = self._known, self._counts["replica"]
        serial = len(replicas)
        known.add(arrival.request_id)
        if len(known) == serial:  # it was there
            raise RepeatedIdError(arrival.request_id)
        replicas.append(replica)
        self._newest.append(arrival)
        if len(self._newest) == _AT_ONCE:
            self._take_in()
        return serial

    def columns(self) -> Columns:
        """By name, in the order of serials."""
        self._take_in()
        texts = {name: np.array(column, dtype=object) for name, column in self._texts.items()}
        return {**texts, **{name: np.array(column) for name, column in self._counts.items()}}

    def _take_in(self) -> None:
        newest, texts, counts = self._newest, self._texts, self._counts
        texts["request_id"] += [arrival.request_id for arrival in newest]
        texts["tag"] += [arrival.tag for arrival in newest]
        texts["slo"] += [arrival.slo for arrival in newest]
        counts["prompt_tokens"].extend([arrival.prompt_tokens for arrival in newest])
        counts["output_tokens"].extend([arrival.output_tokens for arrival in newest])
        counts["arrived_at_ps"].extend([arrival.arrives_ps for arrival in newest])
        newest.clear()
