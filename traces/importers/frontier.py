"""Acceptance traces of the Frontier simulator: tokens committed and drafts scheduled, iteration by iteration.

Exact: accepted tokens of each iteration, and drafted ones where they are told. A round that accepted its whole draft
is censored.

Unknown: what the drafter would have kept from any other start (unless --token-drafter says that it reads tokens only);
seconds; prompts and token ids. Iterations that committed nothing are left out. The first iteration is taken to have
read the prompt; with --start NAME=prefill a prefill before it wrote a token that is in none.

One object in all: `per_request_committed_tokens_per_iteration`, request -> tokens committed by each iteration, the
target's own included, and optionally `per_request_scheduled_draft_tokens_per_iteration`, request -> tokens drafted. The
lists that hold for all requests alike (`committed_tokens_per_iteration`) are no recording of any: refused.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..rounds.rounds import RoundsRequest
from .learned import Learned, rounds_of_steps
from .methods import DRAFTER
from .reading.fields import Fields
from .reading.objects import read_object

NOTES = (
    "Exact: accepted tokens of each iteration, and drafted ones where they are told. A round that accepted its whole "
    "draft is censored.",
    "Unknown: what the drafter would have kept from any other start (unless --token-drafter says that it reads tokens "
    "only); seconds; prompts and token ids. Iterations that committed nothing are left out. The first iteration is "
    "taken to have read the prompt; with --start NAME=prefill a prefill before it wrote a token that is in none.",
)
_COMMITTED = "per_request_committed_tokens_per_iteration"
_SCHEDULED = "per_request_scheduled_draft_tokens_per_iteration"
KEYS = (_COMMITTED,)
_IDLE = "iterations committed nothing and were left out"


def sees(found: Fields) -> bool:
    """Whether an object could be of this format."""
    return _COMMITTED in found


def read(files: Sequence[Path], learned: Learned) -> Iterator[RoundsRequest]:
    """One request per entry; raises TraceFormatError."""
    for path in files:
        name = learned.drafter(DRAFTER, path)
        found = read_object(path)
        committed = found.nested(_COMMITTED)
        scheduled = found.nested(_SCHEDULED) if _SCHEDULED in found else None
        if scheduled is not None and set(scheduled.values) != set(committed.values):
            odd = sorted(set(scheduled.values) ^ set(committed.values))
            raise found.error(_SCHEDULED, f"must name the requests of {_COMMITTED}", odd[0])
        for request_id in committed.values:
            learned.request(committed, request_id, committed.sound("request", request_id))
            drafted = None if scheduled is None else scheduled.counts(request_id, least=0)
            yield _request(committed, request_id, drafted, name, learned)


def _request(
    committed: Fields, request_id: str, drafted: NDArray[np.int64] | None, name: str, learned: Learned
) -> RoundsRequest:
    emitted = committed.counts(request_id, least=0)
    if drafted is not None and len(drafted) != len(emitted):
        rule = f"must hold as many iterations as were scheduled, {len(drafted)}"
        raise committed.error(request_id, rule, f"{len(emitted)} iterations")
    busy = emitted > 0
    if not busy.any():
        raise committed.error(request_id, "must commit at least one token", "none")
    learned.note(_IDLE, int(len(busy) - busy.sum()))
    length = int(emitted.sum())
    drafted = None if drafted is None else drafted[busy]
    first = int(learned.prefilled(name))  # its token is in no iteration
    length += first
    rounds = rounds_of_steps(learned, name, committed, emitted[busy] - 1, drafted, length=length, first=first)
    return RoundsRequest(request_id=request_id, tag="", num_tokens={name: length}, rounds={name: rounds})
