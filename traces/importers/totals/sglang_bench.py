"""Results of SGLang's `bench_serving`, one object a run: the mean acceptance length, lengths.

Exact: lengths of the requests, where they were saved (--output-details); of all together the mean tokens that a step
emits.

Unknown: how many tokens any step kept, and how requests and positions differ: every drafted token is taken to be kept
with one probability, such that steps of the window (--window) have the mean; other windows rest on that assumption.
Without details each request has the mean number of tokens. Seconds; token ids.

One object: `accept_length`, and `output_lens` with `input_lens`, or `completed` with `total_output_tokens`. The window
is `--speculative-num-steps` of the server: the file does not say it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ...rounds.rounds import RoundsRequest
from ..learned import Learned
from ..methods import DRAFTER
from ..reading.fields import Fields
from ..reading.objects import read_object
from .bench import bench_lengths
from .stated import hazards_of_mean, stated_requests

NOTES = (
    "Exact: lengths of the requests, where they were saved (--output-details); of all together the mean tokens that a "
    "step emits.",
    "Unknown: how many tokens any step kept, and how requests and positions differ: every drafted token is taken to be "
    "kept with one probability, such that steps of the window (--window) have the mean; other windows rest on that "
    "assumption. Without details each request has the mean number of tokens. Seconds; token ids.",
)
KEYS = ("accept_length", "total_output_tokens")


def sees(found: Fields) -> bool:
    """Whether an object could be of this format."""
    return all(key in found for key in KEYS)


def read(files: Sequence[Path], learned: Learned) -> Iterator[RoundsRequest]:
    """The requests of one run; raises TraceFormatError."""
    path = learned.only_file(files)
    name, run = learned.drafter(DRAFTER, path, prefilled=True, settled=True), read_object(path)
    window = learned.window_of(name, run, None)
    hazards = hazards_of_mean(run, KEYS[0], run.rate(KEYS[0], most=1e6), window)
    learned.state(name, run, hazards, window=window)
    yield from stated_requests(learned, name, run, path.name.split(".")[0], bench_lengths(run))
