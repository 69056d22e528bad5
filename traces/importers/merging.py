"""One recorded request out of several files: what each method said of the same question and turn."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import nan

from ..imported.rounds import Rounds, RoundsRequest
from .learned import Learned

_UNLIKE = "requests have answers whose length depends on the method"
_PARTIAL = "requests were not answered by every method"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one method said of one request.

    Attributes:
        request_id: the same in all files.
        tag: "" if the file does not say.
        method: name of the drafter, "" for the target alone.
        num_tokens: of the answer, >= 1.
        rounds: of the drafter, None for the target alone.
        wall_s: of the whole answer, NaN if unknown.
        prefill_s: of those, before the first round, NaN if unknown.
    """

    request_id: str
    tag: str
    method: str
    num_tokens: int
    rounds: Rounds | None
    wall_s: float = nan
    prefill_s: float = nan


def merged(answers: Iterable[Answer], learned: Learned) -> Iterator[RoundsRequest]:
    """Requests in the order they are first seen in, with every method's part."""
    parts: dict[str, list[Answer]] = {}
    for answer in answers:
        parts.setdefault(answer.request_id, []).append(answer)
    methods = {answer.method for told in parts.values() for answer in told}
    for request_id, told in parts.items():
        learned.note(_UNLIKE, len({answer.num_tokens for answer in told}) > 1)
        learned.note(_PARTIAL, len(told) < len(methods))
        yield _request(request_id, told)


def _request(request_id: str, told: list[Answer]) -> RoundsRequest:
    return RoundsRequest(
        request_id=request_id,
        tag=next((answer.tag for answer in told if answer.tag), ""),
        num_tokens={answer.method: answer.num_tokens for answer in told},
        rounds={answer.method: answer.rounds for answer in told if answer.rounds is not None},
        wall_s={answer.method: answer.wall_s for answer in told if answer.wall_s > 0},
        prefill_s={answer.method: answer.prefill_s for answer in told if answer.prefill_s > 0},
    )
