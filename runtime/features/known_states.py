"""The hidden states of one request that its drafter reads: the target's, and those of its own beyond them.

Letter: W hidden size.
"""

import torch
from torch import Tensor


class KnownStates:
    """States by position in the text; mutated by forwards of the target and of the drafter.

    Of the target's the first ones hold, as many as it has judged (`Session.num_judged`); what stands after them is of
    tokens that it refused. The drafter's own begin at the position of the judged tokens' number.
    """

    def __init__(self) -> None:
        self._target: Tensor | None = None
        self._own: list[Tensor] = []

    def put_target(self, start: int, states: Tensor) -> None:
        """The target read the tokens from position `start` on, with these states `[n, W]`."""
        end, held = start + len(states), self._target
        if held is None or end > len(held):
            grown = states.new_zeros((max(64, 2 * end), states.shape[1]))
            if held is not None:
                grown[: len(held)] = held
            self._target = held = grown
        held[start:end] = states

    def begin(self, judged: int, held: int) -> None:
        """The drafter goes on where its cache holds `held` tokens, of `judged` that the target has judged.

        What it says of its own of later tokens is forgotten.
        """
        own = max(0, held - judged)
        if own > len(self._own):
            raise ValueError(f"held must be <= {judged + len(self._own)} where states end, got {held}")
        del self._own[own:]

    def before(self, start: int, count: int, judged: int) -> Tensor:
        """`[count, W]` the states before the tokens from position `start` on: zeros before the first of all."""
        if start > judged:
            return self._own[start - 1 - judged][None]
        assert self._target is not None  # nobody drafts before the prefill
        known = self._target[max(0, start - 1) : start + count - 1]
        return known if start else torch.cat([known.new_zeros((1, known.shape[1])), known])

    def put_own(self, position: int, state: Tensor, judged: int) -> None:
        """The drafter's own state `[W]` at a position, where that is beyond the judged tokens."""
        if position >= judged:
            self._own.append(state)
