"""Several methods over the same questions: what each is called, and one recorded request out of what they all said.

A method's name is what the user calls it, else the first known word in its model id or in the name of its file.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ...errors import TraceFormatError
from ...rounds.rounds import RoundsRequest
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
_OTHER_PROMPT = "requests have prompts whose length depends on the method; that of the first one counts"
_PARTIAL = "requests were not answered by every method"


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
                path, "method", f"must differ from file to file (`names` FILE=NAME), {told} share one", name
            )
        seen[name] = path


def merged(ongoing: Ongoing, answers: Iterable[RoundsRequest]) -> Iterator[RoundsRequest]:
    """Requests in the order they are first seen in, out of what each method, by itself, said of them."""
    parts: dict[str, list[RoundsRequest]] = {}
    for answer in answers:
        parts.setdefault(answer.request_id, []).append(answer)
    methods = {method for told in parts.values() for answer in told for method in answer.num_tokens}
    for told in parts.values():
        request = _request(told)
        ongoing.findings.note(_UNLIKE, len(set(request.num_tokens.values())) > 1)
        ongoing.findings.note(_PARTIAL, len(request.num_tokens) < len(methods))
        ongoing.findings.note(_OTHER_PROMPT, len({answer.prompt_tokens for answer in told if answer.prompt_tokens}) > 1)
        yield request


def _request(told: list[RoundsRequest]) -> RoundsRequest:
    by_method: dict[str, Any] = {
        field: {method: value for answer in told for method, value in getattr(answer, field).items()}
        for field in ("num_tokens", "rounds", "wall_s", "prefill_s")
    }
    tag = next((answer.tag for answer in told if answer.tag), "")
    prompt_tokens = next((answer.prompt_tokens for answer in told if answer.prompt_tokens), 0)
    return RoundsRequest(request_id=told[0].request_id, tag=tag, prompt_tokens=prompt_tokens, **by_method)
