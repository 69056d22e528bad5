"""What the runtime holds for one running request."""

from collections.abc import Sequence

from ...decoding.session import Session
from ..sampling.chance import Chance
from ..sampling.coupled_noise import RequestNoise
from .pending_view import PendingView


class RequestState:
    """What was fed to each member, and what was said of the pending tokens. Mutated by the executor only.

    A place (`Session.places`) is a key of `views`.

    Attributes:
        session: the decoding state; read only here.
        request_id: of the session.
        number: in order of admission; the youngest is preempted first.
        noise: of coupled sampling, else None.
        chance: of rejection sampling, else None.
        fed: by level, the tokens the member's cache holds, oldest first, in the member's own tokenizer.
        views: by place.
    """

    __slots__ = ("_num_places", "chance", "fed", "noise", "number", "request_id", "session", "views")

    def __init__(self, session: Session, number: int, *, noise: RequestNoise | None, chance: Chance | None) -> None:
        self.session = session
        self.request_id = session.request_id
        self.number = number
        self.noise = noise
        self.chance = chance
        self.fed: dict[int, list[int]] = {}
        self.views: dict[int, PendingView] = {}
        self._num_places = 0

    def add(self, view: PendingView) -> int:
        """The place of one more token."""
        self._num_places += 1
        self.views[self._num_places] = view
        return self._num_places

    def forget_all_but(self, places: Sequence[int]) -> None:
        """Drop what was said of tokens that are pending no longer."""
        views = self.views
        if len(views) != len(places):
            self.views = {place: views[place] for place in places}
