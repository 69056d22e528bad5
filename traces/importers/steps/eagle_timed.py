"""Answer files of EAGLE with, beside them, files that time every step: what each step accepted and what it took.

The timing file has one object a line, in the order of the answers, with lists by turn: per step `accept_length` (the
target's own token left out), `draft_length` (depth of the tree with its root, which is no draft: one less was drafted),
`tree_time` (the target's forward), `eval_time` (acceptance), `update_time` (the next draft); per turn `generate_time`,
and as parts of it `reset_tree_time` (prefill and the first draft), `kv_time` and `processor_time`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import TraceFormatError
from ...rounds.rounds import RoundsRequest
from ..format import Format, described, having
from ..ongoing import Ongoing
from ..reading.fields import Fields
from ..reading.objects import first_object, read_objects
from ..step_rounds import after_prefill, rounds_at
from .methods import UNCOUNTED, check_names, merged, method_name

_sees_times = having("accept_length", "draft_length", "tree_time")
_PREFILL = ("reset_tree_time", "kv_time", "processor_time")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timing:
    """One turn of a timing file.

    Attributes:
        fields: where it stood.
        accepted: `[R]` drafted tokens that stayed.
        drafted: `[R]` depth of the tree below its root.
        draft_s: `[R]` seconds.
        verify_s: `[R]` seconds.
        wall_s: of the answer.
        prefill_s: of those, before the first step; 0 if unknown.
    """

    fields: Fields
    accepted: NDArray[np.int64]
    drafted: NDArray[np.int64]
    draft_s: NDArray[np.float64]
    verify_s: NDArray[np.float64]
    wall_s: float
    prefill_s: float

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer."""
        return int(self.accepted.sum()) + len(self.accepted)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One turn of an answer file: which request it is, and what must fit its timing."""

    request_id: str
    tag: str
    model_id: str
    num_tokens: int


def _read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """One request per question and turn."""
    timings = {path: list(_timings(path)) for path in files if _sees_times(first_object(path))}
    answers = {path: list(_asked(path)) for path in files if path not in timings}
    if not timings:
        raise TraceFormatError(files[0], "accept_length", "must be in one of the files, the one of timings", "nothing")
    told: list[tuple[str, Path]] = []
    parts: list[RoundsRequest] = []
    for path, turns in timings.items():
        partner = _partner(path, turns, answers)
        asked = answers.pop(partner)
        method = method_name([asked[0].model_id], path)
        name = ongoing.drafters.name(method, path, partner, prefilled=True, settled=True)
        told.append((name, path))
        parts += [_answer(ongoing, name, one, turn) for one, turn in zip(asked, turns, strict=True)]
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
    return _Timing(
        fields=line,
        accepted=accepted,
        drafted=depth - 1,
        draft_s=columns["update_time"],
        verify_s=columns["tree_time"] + columns["eval_time"],
        wall_s=by_turn("generate_time").seconds(at),
        prefill_s=sum(by_turn(key).seconds(at) for key in _PREFILL if key in line),
    )


def _asked(path: Path) -> Iterator[_Asked]:
    seen: set[str] = set()
    for line in read_objects(path):
        question = line.text("question_id")
        if question in seen:
            raise line.error("question_id", "must be unique in the file", question)
        seen.add(question)
        choices = list(line.each("choices"))
        if len(choices) != 1:
            raise line.error("choices", "must hold one answer, the one that is timed", f"{len(choices)} answers")
        choice = choices[0]
        for turn, num_tokens in enumerate(choice.counts("new_tokens", least=1)):
            yield _Asked(
                request_id=f"{question}/{turn + 1}",
                tag=line.text("category", default=""),
                model_id=line.text("model_id", default=""),
                num_tokens=int(num_tokens),
            )


def _partner(path: Path, turns: list[_Timing], answers: dict[Path, list[_Asked]]) -> Path:
    """The answer file whose turns have the tokens that these steps emit."""
    tokens = [turn.num_tokens for turn in turns]
    fitting = [other for other, asked in answers.items() if [one.num_tokens for one in asked] == tokens]
    if len(fitting) != 1:
        found = ", ".join(map(str, fitting)) or "none"
        rule = "must fit one answer file: as many turns, each of as many new_tokens as its steps emit"
        raise TraceFormatError(path, "accept_length", rule, found)
    return fitting[0]


def _answer(ongoing: Ongoing, name: str, asked: _Asked, turn: _Timing) -> RoundsRequest:
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
        num_tokens={name: length},
        rounds={name: rounds},
        wall_s={name: turn.wall_s},
        prefill_s={name: turn.prefill_s} if turn.prefill_s else {},
    )


EAGLE_TIMED = Format(**described("eagle-timed"), read=_read, sees=_sees_times, sees_beside=having("choices"))
