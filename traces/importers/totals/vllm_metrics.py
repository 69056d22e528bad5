"""vLLM's Prometheus counters (`curl .../metrics`): how many drafts kept the token at each position.

Exact: nothing of any request; of all together drafts, drafted and accepted tokens, and the share of drafts that kept
the token at each position.

Unknown: which request kept what, and how requests differ: every round is drawn from the rates, so that means hold and
single requests do not. Each request has the mean number of tokens. Seconds; token ids. Counters run since the server
started: what it did before counts too.

Counters `vllm:spec_decode_num_drafts_total`, `..._num_draft_tokens_total`, `..._num_accepted_tokens_total` and
`..._num_accepted_tokens_per_pos_total{position="0"}`, summed over engines and models. `vllm:request_success_total`,
`vllm:generation_tokens_total` and `vllm:prompt_tokens_total` tell the requests; without them --requests and
--output-tokens do.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...rounds.rounds import RoundsRequest
from ..learned import Learned
from ..methods import DRAFTER
from ..reading.fields import Fields
from .prometheus import Sample, samples_of
from .stated import (
    Lengths,
    drafting_share,
    even_lengths,
    hazards_of_rates,
    note_short_drafts,
    stated_requests,
)

NOTES = (
    "Exact: nothing of any request; of all together drafts, drafted and accepted tokens, and the share of drafts that "
    "kept the token at each position.",
    "Unknown: which request kept what, and how requests differ: every round is drawn from the rates, so that means "
    "hold and single requests do not. Each request has the mean number of tokens. Seconds; token ids. Counters run "
    "since the server started: what it did before counts too.",
)
_SPEC = "vllm:spec_decode_num_"
_DRAFTS, _DRAFTED, _ACCEPTED = f"{_SPEC}drafts", f"{_SPEC}draft_tokens", f"{_SPEC}accepted_tokens"
_POSITIONS = f"{_ACCEPTED}_per_pos"
_REQUESTS, _TOKENS, _PROMPTS = "vllm:request_success", "vllm:generation_tokens", "vllm:prompt_tokens"
KEYS = (f"{_POSITIONS}_total",)
_MOST_POSITIONS = 1024


def sees_line(line: str) -> bool:
    """Whether a line could be of such a page."""
    return line.startswith(_SPEC)


def read(files: Sequence[Path], learned: Learned) -> Iterator[RoundsRequest]:
    """The requests of one page of counters; raises TraceFormatError."""
    path = learned.only_file(files)
    name = learned.drafter(DRAFTER, path, prefilled=True, settled=True)
    totals, positions = _counted(path)
    fields = Fields(str(path), totals)
    drafts, accepted = totals.get(_DRAFTS, 0.0), totals.get(_ACCEPTED, 0.0)
    if drafts <= 0:
        raise fields.error(f"{_DRAFTS}_total", "must count a draft", drafts)
    most = float(positions.max(initial=0.0))
    if most > drafts:
        raise fields.error(f"{_POSITIONS}_total", f"must be at most the {drafts:g} drafts", most)
    hazards = hazards_of_rates(fields, f"{_POSITIONS}_total", positions / drafts)
    note_short_drafts(learned, drafted=totals.get(_DRAFTED, 0.0), drafts=drafts, window=len(hazards))
    lengths = _lengths(fields, totals)
    drafting = 1.0
    if lengths is not None:
        requests, tokens = len(lengths.outputs), sum(lengths.outputs)
        drafting = drafting_share(learned, tokens=tokens, requests=requests, drafts=drafts, accepted=accepted)
    learned.state(name, fields, hazards, drafting=drafting, window=len(hazards))
    yield from stated_requests(learned, name, fields, path.name.split(".")[0], lengths)


def _counted(path: Path) -> tuple[dict[str, float], NDArray[np.float64]]:
    """Totals by name, and accepted tokens by position."""
    totals: defaultdict[str, float] = defaultdict(float)
    positions: defaultdict[int, float] = defaultdict(float)
    for sample in samples_of(path, "vllm:"):
        if sample.value < 0:
            raise Fields(sample.place, {}).error(sample.name, "must be >= 0", sample.value)
        if sample.name == _POSITIONS:
            positions[_position(sample)] += sample.value
        else:
            totals[sample.name] += sample.value
    counts = np.array([positions[place] for place in range(max(positions, default=-1) + 1)], dtype=np.float64)
    return dict(totals), counts


def _position(sample: Sample) -> int:
    text = sample.labels.get("position", "")
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and int(text) < _MOST_POSITIONS):
        rule = f"must be a whole number below {_MOST_POSITIONS}"
        raise Fields(sample.place, {}).error(f"{sample.name}.position", rule, text)
    return int(text)


def _lengths(fields: Fields, totals: dict[str, float]) -> Lengths | None:
    """The requests that the page counts, None if it counts none."""
    requests, tokens, prompts = (round(totals.get(key, 0.0)) for key in (_REQUESTS, _TOKENS, _PROMPTS))
    if not requests or not tokens:
        return None
    return even_lengths(fields, requests, tokens, prompts)
