"""Results of `vllm bench serve --save-result`, with `--save-detailed` or without: rates per position, lengths.

Exact: lengths of the requests, where they were saved; of all together drafts, drafted and accepted tokens, and the
share of drafts that kept the token at each position.

Unknown: which request kept what, and how requests differ: every round is drawn from the rates, so that means hold and
single requests do not. Without --save-detailed each request has the mean number of tokens. Seconds; token ids.

One object: `spec_decode_per_position_acceptance_rates`, `spec_decode_num_drafts`, `spec_decode_draft_tokens`,
`spec_decode_accepted_tokens`, and `output_lens` with `input_lens`, or `completed` with `total_output_tokens`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ...rounds.rounds import RoundsRequest
from ..learned import Learned
from ..methods import DRAFTER
from ..reading.fields import Fields
from ..reading.objects import read_object
from .bench import bench_lengths
from .stated import drafting_share, hazards_of_rates, note_short_drafts, stated_requests

NOTES = (
    "Exact: lengths of the requests, where they were saved; of all together drafts, drafted and accepted tokens, and "
    "the share of drafts that kept the token at each position.",
    "Unknown: which request kept what, and how requests differ: every round is drawn from the rates, so that means "
    "hold and single requests do not. Without --save-detailed each request has the mean number of tokens. Seconds; "
    "token ids.",
)
_RATES = "spec_decode_per_position_acceptance_rates"
KEYS = (_RATES,)


def sees(found: Fields) -> bool:
    """Whether an object could be of this format."""
    return _RATES in found


def read(files: Sequence[Path], learned: Learned) -> Iterator[RoundsRequest]:
    """The requests of one run; raises TraceFormatError."""
    path = learned.only_file(files)
    name, run = learned.drafter(DRAFTER, path, prefilled=True, settled=True), read_object(path)
    hazards = hazards_of_rates(run, _RATES, run.rates(_RATES, most=1.0))
    lengths = bench_lengths(run)
    drafts, accepted = (
        run.known_count(key, least=0) for key in ("spec_decode_num_drafts", "spec_decode_accepted_tokens")
    )
    drafting = 1.0
    if drafts and "spec_decode_draft_tokens" in run:
        drafted = run.count("spec_decode_draft_tokens", least=0)
        note_short_drafts(learned, drafted=drafted, drafts=drafts, window=len(hazards))
    if drafts and accepted is not None and lengths is not None:
        answers = [tokens for tokens in lengths.outputs if tokens]
        drafting = drafting_share(learned, tokens=sum(answers), requests=len(answers), drafts=drafts, accepted=accepted)
    learned.state(name, run, hazards, drafting=drafting, window=len(hazards))
    yield from stated_requests(learned, name, run, path.name.split(".")[0], lengths)
