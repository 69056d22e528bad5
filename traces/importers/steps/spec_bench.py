"""Answer files of Spec-Bench, EAGLE and Medusa: what each method accepted, step by step, on the same questions.

One object a line: `question_id`, `category`, `model_id`, `choices`, each with, per turn, `new_tokens`, `wall_time` and
`decoding_steps` (steps) or `idxs` (0-based index of the last step), and over all turns `accept_lengths`, or the
misspelt `accept_lengths:`, with the target's own token counted in. A file whose steps all emit one token is the target
alone. A file with steps and tokens only says how many tokens a step of a turn emitted on average: its rounds are drawn
(by a seed), every drafted token kept with one probability for the turn, and a window must be given.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan, nan
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import TraceFormatError
from ...rounds.rounds import TARGET_ALONE, RoundsRequest
from ..format import Format, described, having
from ..ongoing import Ongoing
from ..reading.fields import Fields
from ..responses import EMPTY
from ..step_rounds import after_prefill, rounds_at, starts_of
from ..totals.counted import Counted, draw_steps
from .methods import PREFILLED_METHODS, TOKEN_METHODS, UNCOUNTED, check_names, merged, method_name

_LENGTHS = ("accept_lengths", "accept_lengths:")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """One turn of one answer.

    Attributes:
        request_id: question and turn, and of further samples (choices after the first) which it is, from 1.
        tag: category of the question.
        fields: where it stood.
        num_steps: of the answer.
        emitted: `[R]` tokens of each step, the target's own included, >= 1; None if only their mean is known.
        num_tokens: of the text.
        wall_s: of the answer, NaN if unknown.
    """

    request_id: str
    tag: str
    fields: Fields
    num_steps: int
    emitted: NDArray[np.int64] | None
    num_tokens: int
    wall_s: float


def _read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """One request per question and turn."""
    parts = [_read_file(path, ongoing) for path in files]
    check_names((name, path) for (name, _), path in zip(parts, files, strict=True))
    return merged(ongoing, (answer for _, answers in parts for answer in answers))


def _read_file(path: Path, ongoing: Ongoing) -> tuple[str, list[RoundsRequest]]:
    """The method of a file, and its answers. Only the whole file says the method, so lines are gone through twice."""
    lines = list(ongoing.each(path, lambda line: [(line, _turns(line))]))
    name = _name(path, lines, ongoing)
    return name, list(ongoing.each_of(path, lines, partial(_answers, ongoing, name, set())))


def _name(path: Path, lines: list[tuple[Fields, list[_Turn]]], ongoing: Ongoing) -> str:
    """What the method of a file is called; raises TraceFormatError for a drafter that never drafted."""
    if all(turn.num_steps == turn.num_tokens for _, turns in lines for turn in turns):
        key = ongoing.options.key_of_file(path)
        if key is not None:
            rule = "must exceed one token in some step for a drafter; without, the file is the target alone"
            raise TraceFormatError(path, "accept_lengths", rule, ongoing.options.names[key])
        return TARGET_ALONE
    method = method_name((line.text("model_id", default="") for line, _ in lines), path)
    by_start, prefilled = method not in TOKEN_METHODS, method in PREFILLED_METHODS
    return ongoing.drafters.name(method, path, by_start=by_start, prefilled=prefilled)


def _answers(ongoing: Ongoing, name: str, seen: set[str], told: tuple[Fields, list[_Turn]]) -> list[RoundsRequest]:
    """The answers of a line that the file does not hold yet; raises TraceFormatError."""
    line, turns = told
    if any(turn.request_id in seen for turn in turns):
        raise line.error("question_id", "must be unique in the file", line.text("question_id"))
    told_turns = sum(len(choice.sequence("new_tokens")) for choice in line.each("choices"))
    ongoing.findings.note(EMPTY, told_turns - len(turns))
    found = [_answer(ongoing, name, turn) for turn in turns]
    seen.update(turn.request_id for turn in turns)
    return found


def _turns(line: Fields) -> list[_Turn]:
    """The turns that have tokens; raises TraceFormatError where lengths, steps and tokens do not fit."""
    question, tag = line.text("question_id"), line.text("category", default="")
    line.text("model_id", default="")  # refused before what follows
    found = [_choice(question, tag, choice, sample) for sample, choice in enumerate(line.each("choices"))]
    if not found:
        raise line.error("choices", "must hold an answer", [])
    return [turn for turns in found for turn in turns]


def _choice(question: str, tag: str, choice: Fields, sample: int) -> list[_Turn]:
    """The turns of one answer that have tokens."""
    num_tokens, steps = choice.counts("new_tokens", least=0), _steps(choice)
    if not len(steps):
        raise choice.error("new_tokens", "must hold a turn", "none")
    if len(steps) != len(num_tokens):
        raise choice.error("new_tokens", f"must hold {len(steps)} turns, as its steps do", num_tokens.tolist())
    wall_s = choice.all_seconds("wall_time") if "wall_time" in choice else np.full(len(steps), nan)
    if len(wall_s) != len(steps):
        raise choice.error("wall_time", f"must hold {len(steps)} turns, as its steps do", wall_s.tolist())
    lengths = _lengths(choice, steps, num_tokens)
    return [
        _Turn(
            request_id=f"{question}/{turn + 1}" + (f"/{sample}" if sample else ""),
            tag=tag,
            fields=choice,
            num_steps=int(steps[turn]),
            emitted=None if lengths is None else lengths[turn],
            num_tokens=int(num_tokens[turn]),
            wall_s=float(wall_s[turn]),
        )
        for turn in np.flatnonzero(num_tokens).tolist()
    ]


def _steps(choice: Fields) -> NDArray[np.int64]:
    if "decoding_steps" in choice:
        return choice.counts("decoding_steps", least=0)
    return choice.counts("idxs", least=-1) + 1


def _lengths(choice: Fields, steps: NDArray[np.int64], num_tokens: NDArray[np.int64]) -> list[NDArray[np.int64]] | None:
    """Tokens of each step, turn by turn; only the last step of a turn may overshoot its text. None: nobody says."""
    empty = (num_tokens > 0) & (steps == 0)
    if empty.any():
        rule = "must hold a step for every turn with tokens"
        raise choice.error("decoding_steps" if "decoding_steps" in choice else "idxs", rule, steps.tolist())
    key = next((key for key in _LENGTHS if key in choice), None)
    if key is None:
        if (steps == num_tokens).all():
            return [np.ones(count, dtype=np.int64) for count in steps]
        many = steps > num_tokens
        if (many & (num_tokens > 0)).any():
            turn = int(np.argmax(many & (num_tokens > 0)))
            rule = f"must be at least the {steps[turn]} steps of turn {turn + 1}"
            raise choice.error(f"new_tokens[{turn}]", rule, int(num_tokens[turn]))
        return None
    lengths = choice.counts(key, least=1)
    if len(lengths) != steps.sum():
        rule = f"must hold one entry for each of the {steps.sum()} steps, its turns one after another"
        raise choice.error(key, rule, f"{len(lengths)} entries")
    turns = np.split(lengths, np.cumsum(steps)[:-1])
    for turn, (emitted, wanted) in enumerate(zip(turns, num_tokens, strict=True)):
        if wanted and not emitted.sum() - emitted[-1] < wanted <= emitted.sum():
            rule = f"must add up to the {wanted} new_tokens of turn {turn + 1}, but for the last step"
            raise choice.error(key, rule, int(emitted.sum()))
    return turns


def _answer(ongoing: Ongoing, name: str, turn: _Turn) -> RoundsRequest:
    rounds, length, emitted = {}, turn.num_tokens, turn.emitted
    if name != TARGET_ALONE:
        drafted = placed = None
        if emitted is None:
            accepted, drafted = _drawn(ongoing, name, turn)
            emitted, placed = accepted + 1, np.ones(len(accepted), np.bool_)
        start = starts_of(emitted)
        if ongoing.drafters.prefilled(name):
            start, length = after_prefill(emitted, length)
            ongoing.findings.note(UNCOUNTED, length - turn.num_tokens)
        rounds[name] = rounds_at(
            ongoing, name, turn.fields, start, emitted - 1, length=length, drafted=drafted, placed=placed
        )
    wall_s = {} if isnan(turn.wall_s) else {name: turn.wall_s}
    return RoundsRequest(
        request_id=turn.request_id, tag=turn.tag, num_tokens={name: length}, rounds=rounds, wall_s=wall_s
    )


def _drawn(ongoing: Ongoing, name: str, turn: _Turn) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens accepted and drafted in the rounds of a turn of which only steps and tokens are known."""
    ongoing.findings.forms.add("request means")
    counted = Counted(
        num_tokens=turn.num_tokens,
        num_steps=turn.num_steps,
        num_accepted=turn.num_tokens - turn.num_steps,
        prefilled=False,
    )
    return draw_steps(ongoing, name, turn.fields, turn.request_id, counted)


SPEC_BENCH = Format(**described("spec-bench"), read=_read, sees=having("question_id", "choices"))
