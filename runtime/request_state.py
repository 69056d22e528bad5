"""What the runtime holds for one running request."""

from collections.abc import Sequence

from ..policies.session import Session
from .member_cache import MemberCache
from .noise import RequestNoise
from .pending_view import PendingView


class RequestState:
    """A KV cache per member, and what stands behind the pending tokens. Mutated by the world only.

    A place (`Session.places`) is a key of `views`.

    Attributes:
        noise: of coupled sampling; None if greedy.
        caches: by level, made at the member's first forward.
        views: by place.
        last_level: of the member that ran last; None before the first step.
    """

    __slots__ = ("_num_places", "caches", "last_level", "noise", "views")

    def __init__(self, noise: RequestNoise | None) -> None:
        self.noise = noise
        self.caches: dict[int, MemberCache] = {}
        self.views: dict[int, PendingView] = {}
        self.last_level: int | None = None
        self._num_places = 0

    def add(self, view: PendingView) -> int:
        """The place of one more token."""
        self._num_places += 1
        self.views[self._num_places] = view
        return self._num_places

    def forget_all_but(self, places: Sequence[int]) -> None:
        """Drop what stood behind tokens that are pending no longer."""
        self.views = {place: self.views[place] for place in places}

    def check(self, session: Session) -> None:
        """Assert that every cache holds what the session says it does.

        Only the member that ran last holds exactly that; others may hold a refused rest until they run again.
        """
        context = [*session.prompt, *session.emitted, *session.tokens]
        for level, held in enumerate(session.cached):
            cache = self.caches.get(level)
            tokens = [] if cache is None else cache.tokens
            assert tokens[:held] == context[:held], f"{session.request_id}: level {level} holds another text"
            assert len(tokens) >= held, f"{session.request_id}: level {level} holds {len(tokens)} tokens, not {held}"
            assert len(tokens) == held or level != self.last_level, f"{session.request_id}: level {level} holds a rest"
            assert cache is None or cache.num_slots == len(tokens), f"{session.request_id}: level {level} lost slots"
