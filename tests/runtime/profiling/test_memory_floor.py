"""The arithmetic of the least seconds of a forward, and the line that says how far a machine is from them."""

from itertools import count

import pytest
import torch
from paceline.runtime.profiling import forwards as memory_floor
from paceline.runtime.profiling.forwards import MemoryFloor, copied_bytes_per_s, weight_bytes
from paceline.traces.profile import Shape

from ..tiny_decoders import VOCABULARY, tiny_decoder

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
