"""Several methods over the same questions: what each is called, and one recorded request out of what they all said.

A method's name is what the user calls it, else the first known word in its model id or in the name of its file.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import nan
from pathlib import Path

from ...errors import TraceFormatError
from ...rounds.rounds import Rounds, RoundsRequest
from ..drafters import DRAFTER
from ..ongoing import Ongoing

# In this order: `..._ea_hsd` is the second of its two words.
_METHODS = (
    *("hsd", "eagle3", "eagle2", "eagle", "ea", "medusa", "hydra", "sps", "pld", "lookahead", "rest", "recycling"),
    *("kangaroo", "samd", "space", "swift"),
)
TOKEN_METHODS = frozenset({"sps"})  # a draft model that reads tokens only
# Their steps begin with the token that the step before has sampled, the prefill for the first one; in the code of
# Spec-Bench the others verify a draft in the forward that reads the prompt.
PREFILLED_METHODS = frozenset({"hsd", "eagle3", "eagle2", "eagle", "medusa", "hydra", "rest", "samd"})
UNCOUNTED = "answers end with a step of which the file counts only the token before it; the one it sampled is counted"
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


def method_name(model_ids: Iterable[str], path: Path) -> str:
    """The first known method among the words of the model id, then of the file's name; else the model id itself."""
    ids = [model_id for model_id in model_ids if model_id]
    for text in (*ids[:1], path.name):
        words = re.split(r"[^a-z0-9]+", text.lower())
        for method in _METHODS:
            if method in words:
                return "eagle" if method == "ea" else method
    stem = path.name.split(".jsonl")[0]
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", ids[0] if ids else stem).lstrip("-._+") or DRAFTER


def check_names(names: Iterable[tuple[str, Path]]) -> None:
    """Raise TraceFormatError unless every file stands for a method of its own."""
    seen: dict[str, Path] = {}
    for name, path in names:
        if name in seen:
            told = f"{seen[name]} and {path}" if name else f"{seen[name]} and {path}, both the target alone,"
            raise TraceFormatError(
                path, "method", f"must differ from file to file (--drafter FILE=NAME), {told} share one", name
            )
        seen[name] = path


def merged(ongoing: Ongoing, answers: Iterable[Answer]) -> Iterator[RoundsRequest]:
    """Requests in the order they are first seen in, with every method's part."""
    parts: dict[str, list[Answer]] = {}
    for answer in answers:
        parts.setdefault(answer.request_id, []).append(answer)
    methods = {answer.method for told in parts.values() for answer in told}
    for request_id, told in parts.items():
        ongoing.findings.note(_UNLIKE, len({answer.num_tokens for answer in told}) > 1)
        ongoing.findings.note(_PARTIAL, len(told) < len(methods))
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
