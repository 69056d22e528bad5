"""Memory does not follow the length of a file, however it is read."""

import tracemalloc

import pytest
from paceline.traces.workloads import open_workload

ROWS = 20_000
MOST_BYTES = 1_000_000  # a buffer of the file, a row, an arrival


def vidur(path, count):
    with path.open("w") as file:
        file.write("arrived_at,num_prefill_tokens,num_decode_tokens\n")
        file.writelines(f"{number / 8},{number % 999 + 1},{number % 77 + 1}\n" for number in range(count))


def own(path, count):
    with path.open("w") as file:
        file.writelines(
            f'{{"arrives_s": {number / 8}, "prompt_tokens": {number % 999 + 1}, "output_tokens": 9}}\n'
            for number in range(count)
        )


@pytest.mark.parametrize("make", [vidur, own])
@pytest.mark.parametrize("more", [{}, {"rate": 3.0}])
def test_a_file_is_read_as_it_is_needed(tmp_path, make, more):
    make(tmp_path / "load", ROWS)
    tracemalloc.start()
    try:
        count = sum(1 for _ in open_workload(tmp_path / "load", **more))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == ROWS
    assert peak < MOST_BYTES


def test_a_generator_draws_as_it_is_asked():
    tracemalloc.start()
    try:
        count = sum(1 for _ in open_workload(f"poisson:rate=4,requests={ROWS},prompt=1..9,output=geometric:5"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == ROWS
    assert peak < MOST_BYTES
