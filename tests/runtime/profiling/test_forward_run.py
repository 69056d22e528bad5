"""Forwards to be timed have the rows they were asked for, however often they run."""

import pytest
import torch
from paceline.runtime.profiling.forwards import RowsHeld
from paceline.traces.profile import BatchShape

from ...tiny_models import tiny_pool_of_four

POOL = tiny_pool_of_four()


class Watched:
    """Notes where forwards were placed."""

    def __init__(self):
        self._forward = POOL.forward(1, "auto", share_weights=False)
        self.kv_shape, self.slot_cache = self._forward.kv_shape, self._forward.slot_cache
        self.seen = []

    def __call__(self, ids, placement, cache, keep):
        logits = self._forward(ids, placement, cache, keep)
        apart = not isinstance(placement.rows, slice)
        self.seen.append(
            (BatchShape(len(placement.counts), len(ids), placement.longest, placement.num_slots, apart), len(logits))
        )
        return logits


@pytest.mark.parametrize(
    ("held", "counts", "apart", "num_logits"),
    [
        ((5, 5), (2, 2), False, 4),
        ((5, 9, 3), (1, 4, 2), True, 7),
        ((5, 0), (1, 22), False, 2),  # a prompt among them: the last token of each
    ],
)
def test_shapes_are_those_that_were_asked_for(held, counts, apart, num_logits):
    forward = Watched()
    with torch.inference_mode():
        shape, run = RowsHeld(forward, held, apart=apart).run_of(counts)
        run()
        run()
    assert forward.seen == [(shape, num_logits)] * 2
    assert shape.num_rows == len(counts)
    assert shape.new_tokens == sum(counts)
    assert shape.apart is apart
