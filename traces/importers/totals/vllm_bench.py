"""Results of `vllm bench serve --save-result`, with `--save-detailed` or without: rates per position, lengths.

One object: `spec_decode_per_position_acceptance_rates`, `spec_decode_num_drafts`, `spec_decode_draft_tokens`,
`spec_decode_accepted_tokens`, and `output_lens` with `input_lens`, or `completed` with `total_output_tokens`. Or the
block of lines that it prints.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from ...rounds.rounds import RoundsRequest
from ..format import Format, described, having
from ..ongoing import Ongoing
from ..printed_results import prints, result_of
from .stated import StatedLog, drafting_share, hazards_of_rates, lengths_of_benchmark, note_short_drafts

_RATES = "spec_decode_per_position_acceptance_rates"


def _read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """The requests of one run."""
    log = StatedLog(files, ongoing)
    run = result_of(ongoing, log.path)
    hazards = hazards_of_rates(run, _RATES, run.rates(_RATES, most=1.0))
    lengths = lengths_of_benchmark(run)
    drafts, accepted = (
        run.known_count(key, least=0) for key in ("spec_decode_num_drafts", "spec_decode_accepted_tokens")
    )
    if drafts and "spec_decode_draft_tokens" in run:
        drafted = run.count("spec_decode_draft_tokens", least=0)
        note_short_drafts(ongoing, drafted=drafted, drafts=drafts, window=len(hazards))
    drafting = drafting_share(ongoing, lengths, drafts, accepted)
    yield from log.requests(run, lengths, hazards, window=len(hazards), drafting=drafting)


VLLM_BENCH = Format(
    **described("vllm-bench"), read=_read, sees=having(_RATES), sees_line=partial(prints, "Acceptance length")
)
