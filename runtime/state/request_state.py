"""What the runtime holds for one running request, and what models said of one pending token.

Numbers leave here on the grids of `traces.tries.stored_resolution`, as a recording stores them, so that a policy sees
the same in both worlds. Letters: N tokens, V vocabulary.
"""

from collections.abc import Sequence
from itertools import count
from math import exp

import torch
from torch import Tensor

from ...decoding.rules.signal import NO_SIGNAL, Signal
from ...decoding.session import Session
from ...traces.tries.stored_resolution import ENTROPIES, LOG_PROBS, UNITS
from ..features.known_states import KnownStates
from ..next_token_views import entropies, gaps
from ..sampling.chance import Chance
from ..sampling.coupled_noise import RequestNoise


class PendingView:
    """Logits for one pending token, divided by the temperature and truncated as the run samples.

    Mutated when a verifier accepts the token.

    Attributes:
        token: its id.
        drafter: `[V]` of the member that wrote it, at the context before it; None if it has no distribution over
            these tokens (prompt lookup, or a drafter with another tokenizer).
        judge: `[V]` of the member whose distribution the token now follows; None likewise.
    """

    __slots__ = ("_signal", "drafter", "judge", "token")

    def __init__(self, token: int, drafter: Tensor | None, signal: Signal | None = None) -> None:
        self.token = token
        self.drafter = drafter
        self.judge = drafter
        self._signal = signal

    def signal(self) -> Signal:
        """What the drafter said of the token; computed at the first call, NaN without a distribution."""
        if self._signal is None:
            drafter = self.drafter
            self._signal = NO_SIGNAL if drafter is None else signals(drafter[None], [self.token])[0]
        return self._signal


def signals(logits: Tensor, tokens: Sequence[int]) -> list[Signal]:
    """What distributions `[N, V]` say of one token each."""
    log_probs = torch.log_softmax(logits, dim=-1)
    probs = log_probs.exp()
    index = torch.as_tensor(tokens, device=logits.device)[:, None]
    said = LOG_PROBS.round(log_probs.gather(-1, index)[:, 0].cpu().numpy()).tolist()
    entropy = ENTROPIES.round(entropies(probs).cpu().numpy()).tolist()
    gap = UNITS.round(gaps(probs).cpu().numpy()).tolist()
    return [Signal(exp(log_prob), nats, lead) for log_prob, nats, lead in zip(said, entropy, gap, strict=True)]


def rounded_signal(log_prob: float, nats: float, gap: float) -> Signal:
    """What a distribution says of one token, from unrounded numbers."""
    return Signal(exp(LOG_PROBS.nearest(log_prob)), ENTROPIES.nearest(nats), UNITS.nearest(gap))


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
        known: hidden states, where a member of the pool reads them.
    """

    __slots__ = ("_places", "chance", "fed", "known", "noise", "number", "request_id", "session", "views")

    def __init__(self, session: Session, number: int, *, noise: RequestNoise | None, chance: Chance | None) -> None:
        self.session = session
        self.request_id = session.request_id
        self.number = number
        self.noise = noise
        self.chance = chance
        self.fed: dict[int, list[int]] = {}
        self.views: dict[int, PendingView] = {}
        self.known = KnownStates()
        self._places = count(1)  # members that work at the same time never get the same one

    def add(self, view: PendingView) -> int:
        """The place of one more token."""
        place = next(self._places)
        self.views[place] = view
        return place

    def at_once(self, level: int, num_fed: int) -> int:
        """Of the tokens that a member is fed now, up to the end of the text, those of its first forward."""
        return self.session.at_once(level, num_fed, self.session.context_tokens - num_fed)

    def forget_all_but(self, places: Sequence[int]) -> None:
        """Drop what was said of tokens that are pending no longer, and the noise of those that are committed."""
        if self.noise is not None:
            self.noise.drop_before(len(self.session.emitted))
        views = self.views
        if len(views) != len(places):
            self.views = {place: views[place] for place in places}
