"""Takes back what caches hold beyond a request's text; rolling back moves no data."""

from collections.abc import Sequence

from ...decoding.contract import Step
from ...decoding.session import Session
from ..state.request_state import RequestState
from ..state.state_manager import StateManager


class RollbackProcessor:
    """Mutates the caches of a state manager.

    Args:
        manager: caches and requests.
        foreign: levels whose caches are in tokens of another tokenizer; they roll back by text when they draft.
        reader: level of the member that reads the target's states; None for none.
        beside: whether other members work for the same requests at the same time; then a verdict touches no cache, and
            whoever puts all verdicts together cuts them back.
    """

    def __init__(
        self,
        manager: StateManager,
        *,
        foreign: frozenset[int] = frozenset(),
        reader: int | None = None,
        beside: bool = False,
    ) -> None:
        self._manager = manager
        self._foreign = foreign
        self._reader = reader
        self._beside = beside

    def before(self, items: Sequence[tuple[Session, Step]], level: int, *, verify: bool) -> list[list[int]]:
        """Roll a member back to what the next step may use of its cache; returns the tokens it must be fed.

        What it missed while it sat out is among them. A verifier is fed the position before the first token it judges
        again if it held that one.
        """
        feeds = []
        for session, _ in items:
            _, held = session.feed(level, verify=verify)
            self._manager.roll_back(self._manager.states[session.request_id], level, held)
            feeds.append(session.tail(held))
        return feeds

    def after(self, state: RequestState, num_tokens: int, *, by_target: bool) -> None:
        """A verifier kept the first `num_tokens` tokens of a context: no member may hold more.

        Whoever reads the target's states read by its own what stands beyond the tokens that the target had judged
        before, and the one after them: it reads that anew.
        """
        if self._beside:
            return
        if by_target and self._reader is not None:
            self._manager.roll_back(state, self._reader, min(num_tokens, state.session.num_judged + 1))
        for level, fed in state.fed.items():
            if len(fed) > num_tokens and level not in self._foreign:
                self._manager.roll_back(state, level, num_tokens)
