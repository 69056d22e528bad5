"""Forwards of a chosen shape, to be timed over and over.

Letters: R rows.
"""

from collections.abc import Callable, Sequence
from statistics import median, quantiles
from time import perf_counter

import torch

from ...profiles.batch_shape import BatchShape
from ...profiles.forward_terms import MOST_JUDGED
from ..forward.model_forward import ModelForward
from ..timing.forward_seconds import timed

# Forwards before those that are timed, and these: outer caches take some ten rounds to settle on what is read over and
# over, as decoding does. Forwards of many tokens have more to multiply than to read.
SETTLING, TIMED = 10, 3
_MANY_TOKENS = 48

# Seconds that settling may take: a forward so slow reads more than caches hold, and settles at once.
_SETTLING_S = 0.1

# A request that is only in the way.
_BETWEEN = "between"


class RowsHeld:
    """A cache whose rows hold so many tokens, which forwards are run on again and again.

    Args:
        forward: of the model.
        held: `[R]` tokens of each row, >= 0.
        apart: another request stands between the first row and the others; two rows at least.
    """

    def __init__(self, forward: ModelForward, held: Sequence[int], *, apart: bool = False) -> None:
        self._forward = forward
        self._held = list(held)
        self._requests = [str(row) for row in range(len(held))]
        self._cache = forward.slot_cache()
        self._apart = apart
        # What the keys and values are makes no difference to seconds.
        first, *others = self._requests
        for request, num_tokens in ((first, held[0]), (_BETWEEN, int(apart)), *zip(others, held[1:], strict=True)):
            if num_tokens:
                self._cache.place([request], [num_tokens])

    def run_of(self, counts: Sequence[int]) -> tuple[BatchShape, Callable[[], object]]:
        """A forward of `counts` `[R]` new tokens, which rolls the cache back first, and its shape."""
        forward, cache, requests, held = self._forward, self._cache, self._requests, self._held
        total, device = sum(counts), forward.kv_shape.device
        tokens = torch.zeros(total, dtype=torch.long, device=device)
        # Verifiers need the logits of all they judge, a prompt those of its end.
        keep = slice(None) if max(counts) <= MOST_JUDGED else torch.tensor(counts, device=device).cumsum(0) - 1

        def run() -> None:
            for request, num_tokens in zip(requests, held, strict=True):
                if request in cache.rows:
                    cache.roll_back(request, num_tokens)
            forward(tokens, cache.place(requests, counts), cache, keep)

        num_slots = max(num_tokens + count for num_tokens, count in zip(held, counts, strict=True))
        return BatchShape(len(counts), total, max(counts), num_slots, self._apart), run


def median_and_spread(seconds: Sequence[float]) -> tuple[float, float]:
    """Of repeats: the median, and half of the range between the quartiles as a share of it."""
    middle = median(seconds)
    first, _, third = quantiles(seconds, n=4) if len(seconds) > 1 else (middle, middle, middle)
    return middle, (third - first) / 2 / middle


def settled_s(run: Callable[[], object], num_tokens: int, device: torch.device) -> float:
    """Seconds of a forward of so many tokens right after others like it."""
    if num_tokens > _MANY_TOKENS:
        run()
        return timed(run, device)
    settle(run)
    return median(timed(run, device) for _ in range(TIMED))


def settle(run: Callable[[], object]) -> None:
    """Run a forward until caches have settled on it."""
    taken_s = 0.0
    for _ in range(SETTLING):
        start_s = perf_counter()
        run()
        taken_s += perf_counter() - start_s
        if taken_s > _SETTLING_S:
            return


def forwards_run(num_tokens: int, seconds: float) -> int:
    """How many forwards of so many tokens `settled_s` runs, each of which takes so long."""
    return 2 if num_tokens > _MANY_TOKENS else min(SETTLING, int(_SETTLING_S / seconds) + 1) + TIMED
