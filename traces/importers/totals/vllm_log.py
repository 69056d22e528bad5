"""vLLM's log: its `SpecDecoding metrics` lines, each of which sums up some seconds of all requests.

Exact: nothing of any request; of all together accepted and drafted tokens, and the share of drafts that kept the token
at each position, as far as three decimals tell it.

Unknown: which request kept what, how requests differ, how long they were (--requests, --output-tokens): every round is
drawn from the rates, so that means hold and single requests do not. Steps that drafted nothing are not in these lines:
every step is taken to draft. Seconds; token ids.

A line has `Accepted: A tokens, Drafted: D tokens, Per-position acceptance rate: 0.921, 0.828, ...`. Lines are summed,
each weighed by its drafts: A over the sum of its rates, or D over its positions where nothing was accepted.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import TraceFormatError
from ...rounds.rounds import RoundsRequest
from ..learned import Learned
from ..methods import DRAFTER
from ..reading.fields import Fields
from ..reading.lines import text_lines
from .stated import hazards_of_rates, note_short_drafts, stated_requests

NOTES = (
    "Exact: nothing of any request; of all together accepted and drafted tokens, and the share of drafts that kept the "
    "token at each position, as far as three decimals tell it.",
    "Unknown: which request kept what, how requests differ, how long they were (--requests, --output-tokens): every "
    "round is drawn from the rates, so that means hold and single requests do not. Steps that drafted nothing are not "
    "in these lines: every step is taken to draft. Seconds; token ids.",
)
KEYS = ("SpecDecoding metrics: ... Per-position acceptance rate: ...",)
_LINE = "SpecDecoding metrics:"
_ROUNDING = 0.0005  # vLLM prints rates with three decimals, each at most so far from what it was
_COUNTS = re.compile(r"Accepted: ([0-9]{1,15}) tokens, Drafted: ([0-9]{1,15}) tokens")
_RATES = re.compile(r"Per-position acceptance rate: ((?:[01]\.[0-9]{1,9}(?:, )?){1,1024})")


def sees_line(line: str) -> bool:
    """Whether a line could be of such a log."""
    return _LINE in line


def read(files: Sequence[Path], learned: Learned) -> Iterator[RoundsRequest]:
    """As many requests as the user states; raises TraceFormatError."""
    path = learned.only_file(files)
    name = learned.drafter(DRAFTER, path, prefilled=True, settled=True)
    fields = Fields(str(path), {})
    kept: NDArray[np.float64] | None = None
    drafts, fewest, drafted = 0.0, 0.0, 0
    for found in _lines(path):
        if kept is not None and len(found.rates) != len(kept):
            rule = f"must hold {len(kept)} positions, as the lines before it"
            raise TraceFormatError(found.place, "Per-position acceptance rate", rule, f"{len(found.rates)} positions")
        drafts, fewest, drafted = drafts + found.drafts, fewest + found.fewest, drafted + found.drafted
        kept = found.rates * found.drafts + (0.0 if kept is None else kept)
    if kept is None or drafts <= 0:
        raise fields.error(_LINE, "must tell of a draft in some line", "none")
    hazards = hazards_of_rates(fields, "Per-position acceptance rate", kept / drafts)
    if drafted < fewest * len(kept):
        note_short_drafts(learned, drafted=drafted, drafts=drafts, window=len(kept))
    learned.state(name, fields, hazards, window=len(hazards))
    yield from stated_requests(learned, name, fields, path.name.split(".")[0], None)


class _Line:
    """What one line says: its place, its rates, the drafts they are shares of, and the tokens drafted.

    The number of drafts follows from rounded rates: there were `fewest` at least.
    """

    __slots__ = ("drafted", "drafts", "fewest", "place", "rates")

    def __init__(self, place: str, rates: NDArray[np.float64], accepted: int, drafted: int) -> None:
        self.place = place
        self.rates = rates
        self.drafted = drafted
        total = float(rates.sum())
        self.drafts = accepted / total if total else drafted / len(rates)
        self.fewest = accepted / (total + _ROUNDING * len(rates)) if total else self.drafts


def _lines(path: Path) -> Iterator[_Line]:
    """The lines that tell of drafts."""
    for number, line in text_lines(path):
        if not sees_line(line):
            continue
        place = f"{path}: line {number}"
        counts, rates, told = _COUNTS.search(line), _RATES.search(line), line.strip()[-80:]
        if counts is None:
            raise TraceFormatError(place, _LINE, "must have Accepted: A tokens, Drafted: D tokens", told)
        accepted, drafted = int(counts[1]), int(counts[2])
        if not drafted:
            continue
        if rates is None:
            rule = "must be there (older vLLM gives only a mean: take /metrics)"
            raise TraceFormatError(place, "Per-position acceptance rate", rule, "nothing")
        found = np.array([float(rate) for rate in rates[1].rstrip(", ").split(", ")])
        if found.max() > 1 or accepted > drafted:
            raise TraceFormatError(place, _LINE, "must have rates in [0, 1] and no more accepted than drafted", told)
        yield _Line(place, found, accepted, drafted)
