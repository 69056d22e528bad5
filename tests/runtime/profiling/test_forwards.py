"""Forwards to be timed have the rows they were asked for; the least seconds of one; what uneven rows cost."""

from itertools import count

import pytest
import torch
from paceline.runtime.profiling import forwards as memory_floor
from paceline.runtime.profiling.forwards import (
    MemoryFloor,
    RowsHeld,
    cases_within,
    copied_bytes_per_s,
    measure_uneven,
    weight_bytes,
)
from paceline.traces.profile import BatchShape, ProfiledForwards, Shape

from ...tiny_models import tiny_pool_of_four
from ..tiny_decoders import VOCABULARY, tiny_decoder

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


FLOOR = MemoryFloor("target", weight_bytes=8_000_000_000, kv_bytes_per_token=100_000, bytes_per_s=2e12)


def test_weights_are_read_once_and_the_cache_once_a_row():
    assert FLOOR.seconds(1, 1, 999) == pytest.approx((8e9 + 1000 * 1e5) / 2e12)
    assert FLOOR.seconds(4, 2, 998) - FLOOR.seconds(3, 2, 998) == pytest.approx(1000 * 1e5 / 2e12)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_embedding_table_counts_only_where_it_is_the_head_too(tied, dtype):
    model = tiny_decoder("llama", dtype, tie_word_embeddings=tied)
    everything = sum(weight.numel() for weight in model.parameters()) * dtype.itemsize
    table = VOCABULARY * 32 * dtype.itemsize
    assert weight_bytes(model) == everything - (0 if tied else table)


def test_the_line_names_the_smallest_and_the_widest_step():
    shapes = [
        Shape("target", rows, new, context, 1.5 * FLOOR.seconds(rows, new, context), 0.01)
        for rows in (1, 16)
        for new in (1, 5)
        for context in (0, 200)
    ]
    assert FLOOR.said_of(shapes) == (
        "target against its memory floor (8 GB of weights at 2000 GB/s, 4.01 ms a step): "
        "1.50x at 1 x 1 after 200, 1.50x at 16 x 1 after 200"
    )
    assert FLOOR.said_of(shapes[:3]).endswith(": 1.50x at 1 x 1 after 200")


def test_copying_reads_and_writes_each_byte(monkeypatch):
    marks = count(0.0, step=2.0)  # so every copy takes two seconds
    monkeypatch.setattr(memory_floor, "mark", lambda _: next(marks))
    monkeypatch.setattr(memory_floor, "_COPIED_BYTES", 2**20)
    assert copied_bytes_per_s(torch.device("cpu")) == 2**20


@pytest.mark.parametrize("longest", [51, 60, 100, 200, 300])
def test_every_case_fits_every_context_that_has_room_for_its_new_tokens(longest):
    cases = cases_within(longest)
    assert len(cases) == 14
    for case in cases:
        totals = [held + count for held, count in zip(case.held, case.counts, strict=True)]
        assert max(totals) <= longest
        assert min(case.counts) >= 1
    assert any(len(set(case.held)) > 1 for case in cases)


def test_a_context_that_holds_next_to_nothing_has_few():
    assert 0 < len(cases_within(10)) < 14
    assert cases_within(1) == []


def test_uneven_rows_of_a_short_context_are_measured():
    """Whatever these took beyond even ones, it is in terms of which none is negative."""
    even = ProfiledForwards(
        [Shape("draft", rows, new, held, 1e-9, 0.0) for rows in (1, 12) for new in (1, 60) for held in (0, 60)], None
    )
    found = measure_uneven({"draft": POOL.forward(1, "auto", share_weights=False)}, {"draft": even}, longest=56)
    assert max(found["draft"].model_dump().values()) > 0
