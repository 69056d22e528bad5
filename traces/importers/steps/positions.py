"""Counterfactual acceptance: what a round of each drafter would emit from every output position.

One object a line: `id`; `drafters`: name -> for each output position, the number of tokens a round started there emits,
the target's own token included; optional `tag`, `prompt_token_ids` or `prompt_tokens` (their number),
`output_token_ids`. Read line by line, so that files of any length pass.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...meta import NAME_PATTERN
from ...rounds.rounds import TARGET_ALONE, RoundsRequest
from ..format import Format, described, having
from ..ongoing import Ongoing
from ..reading.fields import Fields
from ..step_rounds import rounds_at


def _read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    for path in files:
        yield from ongoing.each(path, partial(_request, ongoing))


def _request(ongoing: Ongoing, line: Fields) -> Iterator[RoundsRequest]:
    """The one request of a line."""
    request_id = line.text("id")
    ongoing.request(line, "id", request_id)
    prompt, output = _tokens(line, "prompt_token_ids"), _tokens(line, "output_token_ids")
    emitted = _emitted(line.nested("drafters"), len(output) or None)
    if not emitted:
        raise line.error("drafters", "must name a drafter", "none")
    length = len(next(iter(emitted.values())))
    rounds = {}
    for method, tokens in emitted.items():
        named = ongoing.options.names.get(method, method)
        if not re.fullmatch(NAME_PATTERN, named):
            raise line.error("drafters", f"must have names that match {NAME_PATTERN} (`names`)", named)
        name = ongoing.drafters.name(method)
        if name in rounds:
            raise line.error("drafters", "must have names of their own (`names`)", name)
        rounds[name] = rounds_at(ongoing, name, line, np.arange(length), tokens - 1, length=length)
    yield RoundsRequest(
        request_id=request_id,
        tag=line.text("tag", default=""),
        prompt_tokens=_prompt_tokens(line, prompt),
        num_tokens={TARGET_ALONE: length},
        rounds=rounds,
        prompt=prompt,
        output=output,
    )


def _tokens(line: Fields, key: str) -> tuple[int, ...]:
    return tuple(line.counts(key, least=0).tolist()) if key in line else ()


def _prompt_tokens(line: Fields, prompt: tuple[int, ...]) -> int:
    told = line.count("prompt_tokens", least=0, default=len(prompt))
    if prompt and told != len(prompt):
        raise line.error("prompt_tokens", f"must be the number of prompt_token_ids, {len(prompt)}", told)
    return told


def _emitted(drafters: Fields, length: int | None) -> dict[str, NDArray[np.int64]]:
    """Tokens of each drafter's rounds, every one with an entry per output position."""
    emitted = {drafters.sound(method, method): drafters.counts(method, least=1) for method in drafters.values}
    for method, tokens in emitted.items():
        wanted = max(len(tokens), 1) if length is None else length
        if len(tokens) != wanted:
            raise drafters.error(method, f"must hold one entry per output position, {wanted}", f"{len(tokens)} entries")
        length = wanted
    return emitted


POSITIONS = Format(**described("positions"), read=_read, sees=having("id", "drafters"))
