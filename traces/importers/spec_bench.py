"""Answer files of Spec-Bench, EAGLE and Medusa: what each method accepted, step by step, on the same questions.

Exact: steps, accepted tokens and seconds of each method over its own text, one request per question and turn; files of
several methods give each request one drafter column each. A round that accepted the whole window is censored.

Unknown: what a drafter would have kept from any other start, unless it reads tokens only (sps, or --token-drafter); how
many tokens a round drafted (unless --window says), so that a draft stopped early by its own rule counts as refused;
prompts and token ids. A step of EAGLE, Medusa, Hydra, REST or SAMD begins with the token that the step before has
sampled, the prefill for the first one: their rounds start one position later. The others (and unknown methods, unless
--start says otherwise) verify their first draft in the forward that reads the prompt.

One object a line: `question_id`, `category`, `model_id`, `choices[0]` with, per turn, `new_tokens`, `wall_time` and
`decoding_steps` (steps) or `idxs` (0-based index of the last step), and over all turns `accept_lengths`, or the
misspelt `accept_lengths:`, with the target's own token counted in. A file whose steps all emit one token is the target
alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceFormatError
from ..imported.rounds import TARGET_ALONE, RoundsRequest
from .learned import Learned, after_prefill, starts_of
from .methods import PREFILLED_METHODS, TOKEN_METHODS, UNCOUNTED, Answer, check_names, merged, method_name
from .reading.fields import Fields
from .reading.objects import read_objects

NOTES = (
    "Exact: steps, accepted tokens and seconds of each method over its own text, one request per question and turn; "
    "files of several methods give each request one drafter column each. A round that accepted the whole window is "
    "censored.",
    "Unknown: what a drafter would have kept from any other start, unless it reads tokens only (sps, or "
    "--token-drafter); how many tokens a round drafted (unless --window says), so that a draft stopped early by its "
    "own rule counts as refused; prompts and token ids. A step of EAGLE, Medusa, Hydra, REST or SAMD begins with the "
    "token that the step before has sampled, the prefill for the first one: their rounds start one position later. The "
    "others (and unknown methods, unless --start says otherwise) verify their first draft in the forward that reads "
    "the prompt.",
)
KEYS = ("question_id", "choices")
_LENGTHS = ("accept_lengths", "accept_lengths:")
_FURTHER = "further samples of a question (choices behind the first) were left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of one answer.

    Attributes:
        request_id: question and turn.
        tag: category of the question.
        fields: where it stood.
        emitted: `[R]` tokens of each step, the target's own included, >= 1.
        num_tokens: of the text.
        wall_s: of the answer, NaN if unknown.
    """

    request_id: str
    tag: str
    fields: Fields
    emitted: NDArray[np.int64]
    num_tokens: int
    wall_s: float


def sees(found: Fields) -> bool:
    """Whether an object could be of this format."""
    return all(key in found for key in KEYS)


def read(files: Sequence[Path], learned: Learned) -> Iterator[RoundsRequest]:
    """One request per question and turn; raises TraceFormatError."""
    parts = [_read_file(path, learned) for path in files]
    check_names((name, path) for (name, _), path in zip(parts, files, strict=True))
    return merged((_answer(turn, name, learned) for name, turns in parts for turn in turns), learned)


def _read_file(path: Path, learned: Learned) -> tuple[str, list[Turn]]:
    """The method of a file, and its turns."""
    turns: dict[str, Turn] = {}
    model_id = ""
    for line in read_objects(path):
        model_id = model_id or line.text("model_id", default="")
        for turn in turns_of(line, learned):
            if turn.request_id in turns:
                raise line.error("question_id", "must be unique in the file", line.text("question_id"))
            turns[turn.request_id] = turn
    if all(len(turn.emitted) == turn.num_tokens for turn in turns.values()):
        key = learned.options.key_of_file(path)
        if key is not None:
            rule = "must exceed one token in some step for a drafter; without, the file is the target alone"
            raise TraceFormatError(path, "accept_lengths", rule, learned.options.names[key])
        return TARGET_ALONE, list(turns.values())
    method = method_name([model_id], path)
    by_start, prefilled = method not in TOKEN_METHODS, method in PREFILLED_METHODS
    return learned.drafter(method, path, by_start=by_start, prefilled=prefilled), list(turns.values())


def turns_of(line: Fields, learned: Learned) -> Iterator[Turn]:
    """The turns of one answer; raises TraceFormatError where lengths, steps and tokens do not fit."""
    question, tag = line.text("question_id"), line.text("category", default="")
    choices = list(line.each("choices"))
    if not choices:
        raise line.error("choices", "must hold an answer", [])
    learned.note(_FURTHER, len(choices) - 1)
    choice = choices[0]
    num_tokens = choice.counts("new_tokens", least=1)
    steps = _steps(choice)
    if not len(steps):
        raise choice.error("new_tokens", "must hold a turn", "none")
    if len(steps) != len(num_tokens):
        raise choice.error("new_tokens", f"must hold {len(steps)} turns, as its steps do", num_tokens.tolist())
    wall_s = choice.all_seconds("wall_time") if "wall_time" in choice else np.full(len(steps), nan)
    if len(wall_s) != len(steps):
        raise choice.error("wall_time", f"must hold {len(steps)} turns, as its steps do", wall_s.tolist())
    for turn, emitted in enumerate(_lengths(choice, steps, num_tokens)):
        yield Turn(
            request_id=f"{question}/{turn + 1}",
            tag=tag,
            fields=choice,
            emitted=emitted,
            num_tokens=int(num_tokens[turn]),
            wall_s=float(wall_s[turn]),
        )


def _steps(choice: Fields) -> NDArray[np.int64]:
    if "decoding_steps" in choice:
        return choice.counts("decoding_steps", least=1)
    return choice.counts("idxs", least=0) + 1


def _lengths(choice: Fields, steps: NDArray[np.int64], num_tokens: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Tokens of each step, turn by turn; only the last step of a turn may overshoot its text."""
    key = next((key for key in _LENGTHS if key in choice), None)
    if key is None:
        if (steps == num_tokens).all():
            return [np.ones(count, dtype=np.int64) for count in steps]
        raise choice.error(_LENGTHS[0], "must be there: without it nothing says what each step accepted", "nothing")
    lengths = choice.counts(key, least=1)
    if len(lengths) != steps.sum():
        rule = f"must hold one entry for each of the {steps.sum()} steps, its turns one after another"
        raise choice.error(key, rule, f"{len(lengths)} entries")
    turns = np.split(lengths, np.cumsum(steps)[:-1])
    for turn, (emitted, wanted) in enumerate(zip(turns, num_tokens, strict=True)):
        if not emitted.sum() - emitted[-1] < wanted <= emitted.sum():
            rule = f"must add up to the {wanted} new_tokens of turn {turn + 1}, but for the last step"
            raise choice.error(key, rule, int(emitted.sum()))
    return turns


def _answer(turn: Turn, name: str, learned: Learned) -> Answer:
    rounds, length = None, turn.num_tokens
    if name != TARGET_ALONE:
        start = starts_of(turn.emitted)
        if learned.prefilled(name):
            start, length = after_prefill(turn.emitted, length)
            learned.note(UNCOUNTED, length - turn.num_tokens)
        rounds = learned.rounds(name, turn.fields, start, turn.emitted - 1, length=length)
    return Answer(
        request_id=turn.request_id,
        tag=turn.tag,
        method=name,
        num_tokens=length,
        rounds=rounds,
        wall_s=turn.wall_s,
    )
