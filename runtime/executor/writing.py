"""One request's part in a draft: what is fed, what was written, and whether it goes on.

Letters: V vocabulary.
"""

from dataclasses import dataclass, field

from torch import Tensor

from ...decoding.rules.draft_stops import Stop, token_factor
from ...decoding.rules.signal import Signal
from ..state.request_state import RequestState


@dataclass(slots=True, kw_only=True)
class Writing:
    """One request's part in a draft; mutated token by token.

    Attributes:
        state: of the request.
        feed: tokens the member's first forward reads.
        most: tokens to write, >= 1.
        position: output position of the first one.
        eos: each ends the draft.
        stop: ends the draft early; None never.
        tokens: written so far.
        rows: per token the distribution `[V]` it was chosen from.
        said: per token what the member said of it, where `stop` asked.
        broken: whether the logits were not finite; then the last token is missing.
    """

    state: RequestState
    feed: list[int]
    most: int
    position: int
    eos: frozenset[int]
    stop: Stop | None = None
    tokens: list[int] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    said: list[Signal] = field(default_factory=list)
    broken: bool = False
    _product: float = 1.0

    def take(self, token: int, row: Tensor, signal: Signal | None) -> bool:
        """Note one token; returns whether to go on."""
        self.tokens.append(token)
        self.rows.append(row)
        stopped = False
        if self.stop is not None and signal is not None:
            self.said.append(signal)
            self._product *= token_factor(self.stop)(signal, len(self.tokens) - 1)
            stopped = self.stop.holds(signal, self._product)
        return not stopped and token not in self.eos and len(self.tokens) < self.most
