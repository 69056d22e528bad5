"""Results of SGLang's `bench_serving`, one object a run: the mean acceptance length, lengths.

One object: `accept_length`, and `output_lens` with `input_lens`, or `completed` with `total_output_tokens`. The window
is `--speculative-num-steps` of the server: the file does not say it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ...rounds.rounds import RoundsRequest
from ..format import Format, having
from ..ongoing import Ongoing
from ..reading.objects import read_object
from .stated import StatedLog, hazards_of_mean, lengths_of_benchmark

_MEAN = "accept_length"
_KEYS = (_MEAN, "total_output_tokens")


def _read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """The requests of one run."""
    log = StatedLog(files, ongoing)
    run = read_object(log.path)
    window = ongoing.drafters.window_of(log.name, run)
    hazards = hazards_of_mean(run, _MEAN, run.rate(_MEAN, most=1e6), window)
    yield from log.requests(run, lengths_of_benchmark(run), hazards, window=window)


SGLANG_BENCH = Format(
    name="sglang-bench",
    words="a result of SGLang's bench_serving",
    keys=_KEYS,
    exact="lengths of the requests, where they were saved (--output-details); of all together the mean tokens that a "
    "step emits.",
    unknown="how many tokens any step kept, and how requests and positions differ: every drafted token is taken to be "
    "kept with one probability, such that steps of the window (--window) have the mean; other windows rest on that "
    "assumption. Without details each request has the mean number of tokens. Seconds; token ids.",
    read=_read,
    sees=having(*_KEYS),
    form="mean",
)
