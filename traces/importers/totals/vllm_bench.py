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
from ..reading.agreement import check_mean
from ..reading.fields import Fields
from .stated import StatedLog, drafting_share, hazards_of_rates, lengths_of_benchmark, note_short_drafts

_CUT_SHARE = 0.01  # of tokens: counters are read while the server counts
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
    if drafts and accepted is not None:
        _check(run, drafts, accepted)
    if drafts and "spec_decode_draft_tokens" in run:
        drafted = run.count("spec_decode_draft_tokens", least=0)
        note_short_drafts(ongoing, drafted=drafted, drafts=drafts, window=len(hazards))
    drafting = drafting_share(ongoing, lengths, drafts, accepted)
    yield from log.requests(run, lengths, hazards, window=len(hazards), drafting=drafting)


def _check(run: Fields, drafts: int, accepted: int) -> None:
    """Refuse counts that do not give the rates, or the length and the rate beside them."""
    rates = run.rates(_RATES, most=1.0)
    kept = float(rates.sum()) * drafts
    if abs(kept - accepted) > _CUT_SHARE * max(kept, accepted) + 1:
        rule = f"must be about {kept:.0f}, the sum of the {len(rates)} rates per position of {drafts} drafts"
        raise run.error("spec_decode_accepted_tokens", rule, accepted)
    check_mean(
        run, "spec_decode_acceptance_length", 1 + accepted / drafts, f"1 and {accepted} accepted, {drafts} drafts"
    )
    if drafted := run.known_count("spec_decode_draft_tokens", least=0):
        if not accepted <= drafted <= drafts * len(rates):
            rule = f"must lie between the {accepted} accepted and {drafts} drafts of {len(rates)} tokens"
            raise run.error("spec_decode_draft_tokens", rule, drafted)
        why = f"{accepted} accepted of {drafted} drafted tokens, in per cent"
        check_mean(run, "spec_decode_acceptance_rate", 100 * accepted / drafted, why)


VLLM_BENCH = Format(
    **described("vllm-bench"), read=_read, sees=having(_RATES), sees_line=partial(prints, "Acceptance length")
)
