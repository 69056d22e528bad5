"""From a replica that prefills to one that decodes: who takes a request, and when its keys and values are there.

When a prefill has ended a router picks the replica that decodes. The request waits there for blocks and for a place in
the batch; then what that replica's prefix cache does not hold of the text crosses the link. Until it has, the blocks of
the replica that prefilled are held, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ....runs.serving.recorder import ServingRecorder
from ....traces.workloads.arrival import Arrival
from ..engine.served_session import ServedSession
from ..roles import Transfer
from ..routers import Dispatcher
from .link import Link


@dataclass(frozen=True, slots=True, eq=False)
class Handover:
    """A request between two replicas.

    Attributes:
        session: of the request, its first token written.
        prefiller: index of the replica that prefilled it.
        decoder: index of the one that decodes it.
        prefilled_at_ps: when the first token came out.
    """

    session: ServedSession
    prefiller: int
    decoder: int
    prefilled_at_ps: int


class Prefiller(Protocol):
    """A replica that prefills, as handovers see it."""

    def sent(self, session: ServedSession, at_ps: int) -> None:
        """Its keys and values are where they are decoded: their blocks are free."""
        ...


class Decoder(Protocol):
    """A replica that decodes, as handovers see it."""

    def refuses(self, arrival: Arrival) -> str:
        """Why a request can never run; "" if it can."""
        ...

    def expect(self, handover: Handover, at_ps: int) -> None:
        """A request waits for blocks."""
        ...

    def received(self, handover: Handover, at_ps: int) -> None:
        """What was sent is there."""
        ...


class Events(Protocol):
    """What drives a run."""

    def at(self, at_ps: int, do: Callable[[], None]) -> None:
        """Let something be done then, in the order of the calls among what is done at that instant."""
        ...

    @property
    def wake(self) -> Callable[[int], None]:
        """Lets a replica that found nothing to do look again, now."""
        ...


class Handovers:
    """Mutated by the replicas of a run, and by its events.

    Args:
        transfer: how keys and values are sent.
        events: of the run.
        recorder: of the run.
    """

    def __init__(self, transfer: Transfer, events: Events, recorder: ServingRecorder) -> None:
        self._link = Link(transfer)
        self._events = events
        self._recorder = recorder
        self._prefilled: dict[int, ServedSession] = {}
        self._prefillers: Mapping[int, Prefiller] = {}
        self._decoders: tuple[tuple[int, Decoder], ...] = ()
        self._dispatcher: Dispatcher | None = None
        self._held: dict[int, Handover] = {}  # who waits for blocks, by serial
        self._handed_over = self._held_ps = 0

    def connect(
        self, prefillers: Mapping[int, Prefiller], decoders: Mapping[int, Decoder], dispatcher: Dispatcher
    ) -> None:
        """Say who hands over to whom.

        Args:
            prefillers: by index.
            decoders: by index, in order.
            dispatcher: picks among the decoders by their place in that order.
        """
        self._prefillers = prefillers
        self._decoders = tuple(decoders.items())
        self._dispatcher = dispatcher

    def refuses(self, arrival: Arrival) -> str:
        """Why a replica that may be picked could never decode a request, in the words of the first; "" if all can."""
        return next(filter(None, (decoder.refuses(arrival) for _, decoder in self._decoders)), "")

    def prefilled(self, prefiller: int, session: ServedSession, at_ps: int) -> None:
        """A request has its first token, and has left the batch in which it was prefilled."""
        self._prefilled[session.serial] = session
        self._events.at(at_ps, lambda: self._hand_over(prefiller, session, at_ps))

    def begin(self, handover: Handover, num_tokens: int, now_ps: int) -> None:
        """Blocks are held for a request; so many of its tokens are to be sent."""
        self._held_ps += now_ps - self._held.pop(handover.session.serial).prefilled_at_ps
        arrives_ps = self._link.send(num_tokens, now_ps)
        self._events.at(arrives_ps, lambda: self._arrived(handover, arrives_ps))

    def close_books(self, until_ps: int) -> None:
        """Tell the recorder what it is told once: the run ends then."""
        for session in self._prefilled.values():
            self._recorder.emitted(session.serial, session.num_noted)
        held_ps = self._held_ps + sum(max(until_ps - one.prefilled_at_ps, 0) for one in self._held.values())
        self._recorder.transferred(self._link.totals(self._handed_over, held_ps, until_ps))

    def _hand_over(self, prefiller: int, session: ServedSession, at_ps: int) -> None:
        assert self._dispatcher is not None
        del self._prefilled[session.serial]
        index, decoder = self._decoders[self._dispatcher.pick(session.arrival)]
        self._handed_over += 1
        handover = self._held[session.serial] = Handover(session, prefiller, index, at_ps)
        decoder.expect(handover, at_ps)
        self._events.wake(index)

    def _arrived(self, handover: Handover, at_ps: int) -> None:
        self._prefillers[handover.prefiller].sent(handover.session, at_ps)
        self._events.wake(handover.prefiller)
        dict(self._decoders)[handover.decoder].received(handover, at_ps)
        self._events.wake(handover.decoder)
