"""Does a sampler's work on real logits, and then says what it was told to.

Letters as in `executor.sampler`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...traces.meta import Sampling
from ..executor.sampler import Judging, Sampler, Verdict, make_sampler
from ..state.request_state import RequestState


class Told(NamedTuple):
    """What one request's part in an operation comes to.

    Attributes:
        start: output position of the first token drafted.
        tokens: drafted, or the verifier's own.
        num_accepted: of the judged tokens.
    """

    start: int
    tokens: Sequence[int]
    num_accepted: int = 0


class ForcedSampler(Sampler):
    """Writes and accepts as it is told.

    Attributes:
        told: by request, of the operation under way; whoever starts one sets it.
    """

    def __init__(self, sampling: Sampling) -> None:
        super().__init__(sampling)
        self.told: Mapping[str, Told] = {}
        self._real = make_sampler(sampling)

    def distributions(self, logits: Tensor) -> Tensor:
        """See `Sampler`."""
        return self._real.distributions(logits)

    def write(self, logits: Tensor, states: Sequence[RequestState], positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `Sampler`; the tokens are those told."""
        _, best = self._real.write(logits, states, positions)
        tokens = []
        for state, position in zip(states, positions, strict=True):
            told = self.told[state.request_id]
            tokens.append(told.tokens[position - told.start])
        return torch.tensor(tokens, device=logits.device), best

    def verdicts(self, logits: Tensor, judgings: Sequence[Judging]) -> list[Verdict | None]:
        """See `Sampler`; the verdicts are those told, but for logits that are not finite."""
        verdicts: list[Verdict | None] = []
        for row, real in zip(judgings, self._real.verdicts(logits, judgings), strict=True):
            told = self.told[row.state.request_id]
            verdicts.append(None if real is None else Verdict(told.num_accepted, told.tokens[0]))
        return verdicts
