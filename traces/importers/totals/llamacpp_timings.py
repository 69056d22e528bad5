"""llama.cpp's `timings` of each response: tokens drafted and accepted in all, and seconds.

Exact: of each request, its tokens, how many were drafted and how many of those accepted, its steps, which follow from
them, and the seconds of its prompt and of its answer.

Unknown: how many tokens each step drafted and kept, and in which order steps came: drafts are taken to be as even as
they can be within the window (--window), every drafted token to be kept with one probability for the request, and the
rest is drawn (--seed), so that each request takes as many steps of the target as it took; everything that a round says
counts as modelled. Token ids.

One response an object, with `timings`: `predicted_n` tokens of the answer, `prompt_n` and `cache_n` of the prompt,
`draft_n`, `draft_n_accepted`, `prompt_ms`, `predicted_ms`. Without `draft_n` a response is one of the target alone. The
window is `--draft-max` of the server: the log does not say it.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from ...rounds.rounds import RoundsRequest
from ..learned import Learned
from ..reading.fields import Fields
from ..responses import EMPTY, RequestNames, within
from .llamacpp import LLAMACPP_NOTES, LONGEST_MS, Timings, request_of

NOTES = LLAMACPP_NOTES
KEYS = ("timings.predicted_n",)


def sees(found: Fields) -> bool:
    """Whether an object could be of this format."""
    timings = within(found, "timings")
    return timings is not None and "predicted_n" in timings


def read(files: Sequence[Path], learned: Learned) -> Iterator[RoundsRequest]:
    """One request per response; raises TraceFormatError."""
    for path in files:
        names = RequestNames(path, learned)
        yield from learned.each(path, partial(_requests, path=path, names=names, learned=learned))


def _requests(line: Fields, path: Path, names: RequestNames, learned: Learned) -> Iterator[RoundsRequest]:
    request_id, timings = names.of(line), line.nested("timings")
    tokens = timings.count("predicted_n", least=0)
    if not tokens:
        learned.note(EMPTY)
        return
    told = Timings(
        num_tokens=tokens,
        prompt_tokens=sum(timings.count(key, least=0, default=0) for key in ("prompt_n", "cache_n")),
        num_drafted=timings.known_count("draft_n", least=0),
        num_accepted=timings.count("draft_n_accepted", least=0, default=0),
        prompt_ms=timings.rate("prompt_ms", most=LONGEST_MS) if "prompt_ms" in timings else 0.0,
        predicted_ms=timings.rate("predicted_ms", most=LONGEST_MS) if "predicted_ms" in timings else 0.0,
    )
    yield request_of(learned, path, timings, request_id, told)
