"""Logs of steps: answer files of Spec-Bench, EAGLE and Medusa, our own positions, traces of the Frontier simulator.

docs/importing.md shows the files. In answer files `idxs` has the 0-based index of a turn's last step, and what counts
tokens of steps includes the target's own. A file with only steps and tokens gives the mean tokens per step of a turn:
its rounds are drawn, every drafted token kept with one probability for the turn, and a window must be given.

The times of EAGLE's answers are lists by turn, in the order of the answers; there `accept_length` leaves the target's
own token out, and `draft_length` counts the root of the tree, which is no draft. Lists of Frontier that are the same
for all requests (`committed_tokens_per_iteration`) record none: an error.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan, nan
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceFormatError
from ..meta import NAME_PATTERN
from ..rounds.rounds import OF_TREES, TARGET_ALONE, RoundsRequest
from .format import Format, described, having
from .importing import DRAFTER, Ongoing, after_prefill, check_drafted, rounds_at, starts_of
from .reading import Fields, first_object, read_objects
from .responses import (
    EMPTY,
    PREFILLED_METHODS,
    TOKEN_METHODS,
    TREE_METHODS,
    UNCOUNTED,
    check_names,
    merged,
    method_name,
)
from .totals import Counted, draw_steps

_sees_times = having("accept_length", "draft_length", "tree_time")
_PREFILL = ("reset_tree_time", "kv_time", "processor_time")
_CLOCK = 1e-3  # share by which two clocks differ, or the parts of an answer add up to more than it took
_TICK_S = 0.02  # of `time.time()` on Windows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timing:
    fields: Fields  # its object
    accepted: NDArray[np.int64]  # `[R]` accepted tokens
    drafted: NDArray[np.int64]  # `[R]` depth of the tree below its root
    draft_s: NDArray[np.float64]  # `[R]` seconds
    verify_s: NDArray[np.float64]  # `[R]` seconds
    wall_s: float  # of the answer
    prefill_s: float  # of those, before the first step; 0 if unknown

    @property
    def num_tokens(self) -> int:
        return int(self.accepted.sum()) + len(self.accepted)


def _read_eagle(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    timings = {path: list(_timings(path)) for path in files if _sees_times(first_object(path))}
    answers = {path: list(_asked(path)) for path in files if path not in timings}
    if not timings:
        raise TraceFormatError(files[0], "accept_length", "must be in one of the files, the one of timings", "nothing")
    told: list[tuple[str, Path]] = []
    parts: list[RoundsRequest] = []
    for path, turns in timings.items():
        partner = _partner(path, turns, answers)
        asked = answers.pop(partner)
        method = method_name([first_object(partner).text("model_id", default="")], path)
        name = ongoing.drafters.name(method, path, partner, prefilled=True, settled=True)
        ongoing.findings.remark(OF_TREES.format(name))
        told.append((name, path))
        parts += [_eagle_answer(ongoing, name, one, turn) for one, turn in zip(asked, turns, strict=True)]
    for path in answers:
        raise TraceFormatError(path, "file", "must be an answer file that a file of timings fits", "none")
    check_names(told)
    return merged(ongoing, parts)


def _timings(path: Path) -> Iterator[_Timing]:
    for line in read_objects(path):
        turns = len(line.sequence("accept_length"))
        if not turns:
            raise line.error("accept_length", "must hold a turn", "none")
        for turn in range(turns):
            yield _timing(line, turn, turns)


def _timing(line: Fields, turn: int, turns: int) -> _Timing:
    def by_turn(key: str) -> Fields:
        if len(line.sequence(key)) != turns:
            raise line.error(key, f"must hold {turns} turns, as accept_length does", line.sequence(key))
        return line.by_turn(key)

    at = str(turn)
    accepted = by_turn("accept_length").counts(at, least=0)
    depth = by_turn("draft_length").counts(at, least=1)
    columns = {key: by_turn(key).all_seconds(at) for key in ("tree_time", "eval_time", "update_time")}
    for key, column in (("draft_length", depth), *columns.items()):
        if len(column) != len(accepted) or not len(accepted):
            raise line.error(f"{key}.{at}", f"must hold {max(len(accepted), 1)} steps", f"{len(column)} steps")
    if (accepted >= depth).any():
        wrong = int(np.argmax(accepted >= depth))
        raise line.error(
            f"accept_length.{at}[{wrong}]", f"must be below draft_length, {depth[wrong]}", int(accepted[wrong])
        )
    wall_s = by_turn("generate_time").seconds(at)
    prefill_s = sum(by_turn(key).seconds(at) for key in _PREFILL if key in line)
    parts_s = prefill_s + float(sum(column.sum() for column in columns.values()))
    if wall_s < parts_s * (1 - _CLOCK):
        raise line.error(f"generate_time.{at}", f"must be at least the {parts_s:.6g} s of its parts", wall_s)
    return _Timing(
        fields=line,
        accepted=accepted,
        drafted=depth - 1,
        draft_s=columns["update_time"],
        verify_s=columns["tree_time"] + columns["eval_time"],
        wall_s=wall_s,
        prefill_s=prefill_s,
    )


def _asked(path: Path) -> Iterator["_Turn"]:
    seen: set[str] = set()
    for line in read_objects(path):
        question = line.text("question_id")
        if question in seen:
            raise line.error("question_id", "must be unique in the file", question)
        seen.add(question)
        if (answers := len(line.sequence("choices"))) != 1:
            raise line.error("choices", "must hold one answer, the one that is timed", f"{answers} answers")
        yield from _turns(line, timed=True)


def _partner(path: Path, turns: list[_Timing], answers: dict[Path, list["_Turn"]]) -> Path:
    """The answer file whose turns have the tokens of these steps."""
    tokens = [turn.num_tokens for turn in turns]
    fitting = [other for other, asked in answers.items() if [one.num_tokens for one in asked] == tokens]
    if len(fitting) != 1:
        found = ", ".join(map(str, fitting)) or "none"
        rule = "must fit one answer file: as many turns, each of as many new_tokens as its steps emit"
        raise TraceFormatError(path, "accept_length", rule, found)
    return fitting[0]


def _eagle_answer(ongoing: Ongoing, name: str, asked: "_Turn", turn: _Timing) -> RoundsRequest:
    if asked.num_steps not in (0, len(turn.accepted)):
        key = "decoding_steps" if "decoding_steps" in asked.fields else "idxs"
        rule = f"must tell of {len(turn.accepted)} steps in {asked.request_id}, as {turn.fields.place} has them"
        raise asked.fields.error(key, rule, f"{asked.num_steps} steps")
    if asked.emitted is not None and (wrong := np.flatnonzero(asked.emitted != turn.accepted + 1)).size:
        step = int(wrong[0])
        rule = f"must be {turn.accepted[step] + 1} in step {step} of {asked.request_id}, by accept_length of its times"
        raise asked.fields.error("accept_lengths", rule, int(asked.emitted[step]))
    if abs(asked.wall_s - turn.wall_s) > max(_CLOCK * turn.wall_s, _TICK_S):
        rule = f"must be the {turn.wall_s:.6g} s of generate_time in {asked.request_id}, of {turn.fields.place}"
        raise asked.fields.error("wall_time", rule, asked.wall_s)
    start, length = after_prefill(turn.accepted + 1, turn.num_tokens)
    ongoing.findings.note(UNCOUNTED, length - turn.num_tokens)
    rounds = rounds_at(
        ongoing,
        name,
        turn.fields,
        start,
        turn.accepted,
        length=length,
        drafted=turn.drafted,
        draft_s=turn.draft_s,
        verify_s=turn.verify_s,
    )
    return RoundsRequest(
        request_id=asked.request_id,
        tag=asked.tag,
        session=asked.session,
        num_tokens={name: length},
        rounds={name: rounds},
        wall_s={name: turn.wall_s},
        prefill_s={name: turn.prefill_s} if turn.prefill_s else {},
    )


EAGLE_TIMED = Format(**described("eagle-timed"), read=_read_eagle, sees=_sees_times, sees_beside=having("choices"))


def _read_positions(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    for path in files:
        yield from ongoing.each(path, partial(_request_of_line, ongoing))


def _request_of_line(ongoing: Ongoing, line: Fields) -> Iterator[RoundsRequest]:
    request_id = line.text("id")
    ongoing.request(line, "id", request_id)
    prompt, output = (
        tuple(line.counts(key, least=0).tolist()) if key in line else ()
        for key in ("prompt_token_ids", "output_token_ids")
    )
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
    tag, num_prompt = line.text("tag", default=""), line.count("prompt_tokens", least=0, default=len(prompt))
    if prompt and num_prompt != len(prompt):
        raise line.error("prompt_tokens", f"must be the number of prompt_token_ids, {len(prompt)}", num_prompt)
    yield RoundsRequest(
        request_id=request_id,
        tag=tag,
        prompt_tokens=num_prompt,
        num_tokens={TARGET_ALONE: length},
        rounds=rounds,
        prompt=prompt,
        output=output,
    )


def _emitted(drafters: Fields, length: int | None) -> dict[str, NDArray[np.int64]]:
    """Tokens of each drafter's rounds, every one with an entry per output position."""
    emitted = {drafters.sound(method, method): drafters.counts(method, least=1) for method in drafters.values}
    for method, tokens in emitted.items():
        wanted = max(len(tokens), 1) if length is None else length
        if len(tokens) != wanted:
            raise drafters.error(method, f"must hold one entry per output position, {wanted}", f"{len(tokens)} entries")
        length = wanted
    return emitted


POSITIONS = Format(**described("positions"), read=_read_positions, sees=having("id", "drafters"))


_LENGTHS = ("accept_lengths", "accept_lengths:")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    request_id: str  # question and turn, and for choices after the first their number, from 1
    tag: str  # category of the question
    session: str  # the question, which joins its turns and samples
    fields: Fields  # its object
    num_steps: int  # of the answer; 0: the file does not say, and a file of timings does
    # `[R]` tokens of each step, the target's own included, >= 1; None if at most their mean is known
    emitted: NDArray[np.int64] | None
    num_tokens: int  # of the text
    wall_s: float  # of the answer, NaN if unknown


def _read_spec_bench(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    names, answers = list[str](), list[RoundsRequest]()
    for path in files:
        lines = list(ongoing.each(path, lambda line: [(line, _turns(line))]))
        names.append(name := _name(path, lines, ongoing))  # it follows from the whole file
        answers += ongoing.each_of(path, lines, partial(_answers, ongoing, name, set()))
    check_names(zip(names, files, strict=True))
    return merged(ongoing, answers)


def _name(path: Path, lines: list[tuple[Fields, list[_Turn]]], ongoing: Ongoing) -> str:
    """Name of a file's method; raises TraceFormatError for a drafter that never drafted."""
    if all(turn.num_steps == turn.num_tokens for _, turns in lines for turn in turns):
        key = ongoing.options.key_of_file(path)
        if key is not None:
            rule = "must exceed one token in some step for a drafter; without, the file is the target alone"
            raise TraceFormatError(path, "accept_lengths", rule, ongoing.options.names[key])
        return TARGET_ALONE
    method = method_name((line.text("model_id", default="") for line, _ in lines), path)
    by_start, prefilled = method not in TOKEN_METHODS, method in PREFILLED_METHODS
    name = ongoing.drafters.name(method, path, by_start=by_start, prefilled=prefilled)
    if method in TREE_METHODS:
        ongoing.findings.remark(OF_TREES.format(name))
    return name


def _answers(ongoing: Ongoing, name: str, seen: set[str], told: tuple[Fields, list[_Turn]]) -> list[RoundsRequest]:
    """The answers of a line that are not repeated; raises TraceFormatError."""
    line, turns = told
    if any(turn.request_id in seen for turn in turns):
        raise line.error("question_id", "must be unique in the file", line.text("question_id"))
    told_turns = sum(len(choice.sequence("new_tokens")) for choice in line.each("choices"))
    ongoing.findings.note(EMPTY, told_turns - len(turns))
    found = [_spec_bench_answer(ongoing, name, turn) for turn in turns]
    seen.update(turn.request_id for turn in turns)
    return found


def _turns(line: Fields, *, timed: bool = False) -> list[_Turn]:
    """The turns that have tokens; raises TraceFormatError where lengths, steps and tokens do not fit.

    All of those that are `timed` must have tokens, and need not have steps.
    """
    question, tag = line.text("question_id"), line.text("category", default="")
    line.text("model_id", default="")  # checked before the rest
    found = [_choice(question, tag, choice, sample, timed) for sample, choice in enumerate(line.each("choices"))]
    if not found:
        raise line.error("choices", "must hold an answer", [])
    return [turn for turns in found for turn in turns]


def _choice(question: str, tag: str, choice: Fields, sample: int, timed: bool) -> list[_Turn]:
    num_tokens = choice.counts("new_tokens", least=int(timed))
    says_none = timed and not _STEPS & choice.values.keys()
    steps = np.zeros_like(num_tokens) if says_none else _steps(choice)
    if not len(steps):
        raise choice.error("new_tokens", "must hold a turn", "none")
    if len(steps) != len(num_tokens):
        raise choice.error("new_tokens", f"must hold {len(steps)} turns, as its steps do", num_tokens.tolist())
    wall_s = choice.all_seconds("wall_time") if "wall_time" in choice else np.full(len(steps), nan)
    if len(wall_s) != len(steps):
        raise choice.error("wall_time", f"must hold {len(steps)} turns, as its steps do", wall_s.tolist())
    lengths = None if says_none else _lengths(choice, steps, num_tokens)
    return [
        _Turn(
            request_id=f"{question}/{turn + 1}" + (f"/{sample}" if sample else ""),
            tag=tag,
            session=question,
            fields=choice,
            num_steps=int(steps[turn]),
            emitted=None if lengths is None else lengths[turn],
            num_tokens=int(num_tokens[turn]),
            wall_s=float(wall_s[turn]),
        )
        for turn in np.flatnonzero(num_tokens).tolist()
    ]


_STEPS = {"decoding_steps", "idxs"}


def _steps(choice: Fields) -> NDArray[np.int64]:
    """Steps of each turn: `idxs` has the place of the last one."""
    return (
        choice.counts("decoding_steps", least=0) if "decoding_steps" in choice else choice.counts("idxs", least=-1) + 1
    )


def _lengths(choice: Fields, steps: NDArray[np.int64], num_tokens: NDArray[np.int64]) -> list[NDArray[np.int64]] | None:
    """Tokens of each step, turn by turn; only the last step of a turn may overshoot its text. None: unknown."""
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


def _spec_bench_answer(ongoing: Ongoing, name: str, turn: _Turn) -> RoundsRequest:
    rounds, length, emitted = {}, turn.num_tokens, turn.emitted
    if name != TARGET_ALONE:
        drafted = placed = None
        if emitted is None:  # only steps and tokens are known
            ongoing.findings.forms.add("request means")
            counted = Counted(
                num_tokens=length, num_steps=turn.num_steps, num_accepted=length - turn.num_steps, prefilled=False
            )
            accepted, drafted = draw_steps(ongoing, name, turn.fields, turn.request_id, counted)
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
        request_id=turn.request_id,
        tag=turn.tag,
        session=turn.session,
        num_tokens={name: length},
        rounds=rounds,
        wall_s=wall_s,
    )


SPEC_BENCH = Format(**described("spec-bench"), read=_read_spec_bench, sees=having("question_id", "choices"))


_COMMITTED = "per_request_committed_tokens_per_iteration"
_SCHEDULED = "per_request_scheduled_draft_tokens_per_iteration"
_IDLE = "iterations committed nothing and were left out"


def _read_frontier(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    for path in files:
        name = ongoing.drafters.name(DRAFTER, path)
        found = ongoing.the_one(path, read_objects(path))
        committed = found.nested(_COMMITTED)
        scheduled = found.nested(_SCHEDULED) if _SCHEDULED in found else None
        if scheduled is not None and set(scheduled.values) != set(committed.values):
            odd = sorted(set(scheduled.values) ^ set(committed.values))
            raise found.error(_SCHEDULED, f"must name the requests of {_COMMITTED}", odd[0])
        for request_id in committed.values:
            ongoing.request(committed, request_id, committed.sound("request", request_id))
            drafted = None if scheduled is None else scheduled.counts(request_id, least=0)
            yield _request_of_iterations(ongoing, name, committed, request_id, drafted)


def _request_of_iterations(
    ongoing: Ongoing, name: str, committed: Fields, request_id: str, drafted: NDArray[np.int64] | None
) -> RoundsRequest:
    emitted = committed.counts(request_id, least=0)
    if drafted is not None and len(drafted) != len(emitted):
        rule = f"must hold as many iterations as were scheduled, {len(drafted)}"
        raise committed.error(request_id, rule, f"{len(emitted)} iterations")
    busy = emitted > 0
    if not busy.any():
        raise committed.error(request_id, "must commit at least one token", "none")
    ongoing.findings.note(_IDLE, int(len(busy) - busy.sum()))
    emitted = emitted[busy]
    if drafted is not None:
        drafted = drafted[busy]
        check_drafted(committed, emitted - 1, drafted)
    first = int(ongoing.drafters.prefilled(name))  # its token belongs to no iteration
    length = int(emitted.sum()) + first
    start = starts_of(emitted) + first
    rounds = rounds_at(ongoing, name, committed, start, emitted - 1, length=length, drafted=drafted)
    return RoundsRequest(request_id=request_id, num_tokens={name: length}, rounds={name: rounds})


FRONTIER = Format(**described("frontier"), read=_read_frontier, sees=having(_COMMITTED))
