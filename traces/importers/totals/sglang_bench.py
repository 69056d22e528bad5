"""Results of SGLang's `bench_serving`, one object a run: the mean acceptance length, lengths.

One object: `accept_length`, and `output_lens` with `input_lens`, or `completed` with `total_output_tokens`; or the
block of lines that it prints. The window is `--speculative-num-steps` of the server: the file does not say it.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from ...rounds.rounds import RoundsRequest
from ..format import Format, described, having
from ..ongoing import Ongoing
from ..printed_results import prints, result_of
from .stated import StatedLog, hazards_of_mean, lengths_of_benchmark

_MEAN = "accept_length"


def _read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """The requests of one run."""
    log = StatedLog(files, ongoing)
    run = result_of(ongoing, log.path)
    window = ongoing.drafters.window_of(log.name, run)
    hazards = hazards_of_mean(run, _MEAN, run.rate(_MEAN, most=1e6), window)
    yield from log.requests(run, lengths_of_benchmark(run), hazards, window=window)


SGLANG_BENCH = Format(
    **described("sglang-bench"),
    read=_read,
    sees=having(_MEAN, "total_output_tokens"),
    sees_line=partial(prints, "Accept length"),
)
