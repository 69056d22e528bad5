"""Published tasks: their files read as prompts, and how many answers are right."""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from ..base.errors import ArgumentError, counted
from ..traces.errors import TraceFormatError
from .prompts import Prompt, is_right, json_lines, text_lines, text_of
from .sandbox import FAILURES, Failure, ProcessLimits, failure_of, read_tests

Form = Literal["gsm8k", "mgsm", "humaneval", "questions"]
FORMS: tuple[Form, ...] = get_args(Form)
_LANGUAGE = re.compile(r"mgsm_([a-z]{2,3})\b")
_NUMBER = re.compile(r"-?\d[\d,]*(\.\d+)?")


def read_task(form: str, path: Path) -> tuple[Prompt, ...]:
    """The prompts of a task's file, compressed (`.gz`) or not, in its order; `form` is one of `FORMS`.

    - `gsm8k`: JSONL with `question` and `answer`, which ends in `#### ` and a number (Cobbe et al., arXiv:2110.14168).
    - `mgsm`: TSV of question and number, without a header; the language is that of the file's name (Shi et al.,
    arXiv:2210.03057).
    - `humaneval`: JSONL with `task_id`, `prompt`, `entry_point` and `test`, which defines `check` (Chen et al.,
    arXiv:2107.03374); a prompt is the code to continue.
    - `questions`: JSONL with `question_id`, `category` and `turns`, as in MT-Bench and Spec-Bench. Only first turns are
    taken, since second ones continue an answer; there are no right answers.

    Raises:
        ArgumentError: another form.
        TraceFormatError: names file, line, field, rule and value of the first line that breaks the form.
        OSError: it cannot be read.
    """
    readers: Mapping[str, Callable[[Path], Iterator[Prompt]]] = {
        "gsm8k": _gsm8k,
        "mgsm": _mgsm,
        "humaneval": _humaneval,
        "questions": _questions,
    }
    if form not in readers:
        raise ArgumentError(f"`form` must be one of {', '.join(FORMS)}, got {form!r}")
    prompts = tuple(readers[form](path))
    if not prompts:
        raise TraceFormatError(path, "file", "must hold at least one question", 0)
    return prompts


def prompt_lines(prompts: tuple[Prompt, ...]) -> str:
    """The prompts as the text of a file for `read_prompts`."""
    rows = []
    for prompt in prompts:
        row: dict[str, Any] = {"id": prompt.request_id, "tag": prompt.tag}
        row |= {"session": prompt.session} if prompt.session else {}
        row["prompt"] = prompt.text
        row |= {} if prompt.answer is None else {"answer": prompt.answer, "check": prompt.check}
        row |= {} if prompt.tests is None else {"tests": asdict(prompt.tests)}
        rows.append(json.dumps(row, ensure_ascii=False) + "\n")
    return "".join(rows)


def _gsm8k(path: Path) -> Iterator[Prompt]:
    for number, fields in json_lines(path):
        question, solution = (text_of(path, number, fields, key) for key in ("question", "answer"))
        answer = solution.rpartition("####")[2].strip()
        if "####" not in solution or not _NUMBER.fullmatch(answer):
            raise TraceFormatError(path, f"line {number}, answer", "must end in #### and a number", solution[-40:])
        yield Prompt(request_id=f"gsm8k-{number:04d}", tag="gsm8k", text=question, answer=answer, check="number")


def _mgsm(path: Path) -> Iterator[Prompt]:
    language = _LANGUAGE.search(path.name)
    tag = "mgsm" if language is None else f"mgsm-{language[1]}"
    for number, line in text_lines(path):
        question, *answers = (cell.strip() for cell in line.split("\t"))
        if not question or len(answers) != 1 or not _NUMBER.fullmatch(answers[0]):
            raise TraceFormatError(path, f"line {number}", "must be a question, a tab and a number", line[:60])
        yield Prompt(request_id=f"{tag}-{number:04d}", tag=tag, text=question, answer=answers[0], check="number")


def _humaneval(path: Path) -> Iterator[Prompt]:
    for number, fields in json_lines(path):
        where = f"line {number}"
        name, text, entry_point, test = (
            text_of(path, number, fields, key) for key in ("task_id", "prompt", "entry_point", "test")
        )
        if "def check(" not in test:
            raise TraceFormatError(path, f"{where}, test", "must define check(candidate)", test[:40])
        stated = {"entry_point": entry_point, "code": text, "check": f"{test}\n\ncheck({entry_point})\n"}
        yield Prompt(request_id=name, tag="humaneval", text=text, tests=read_tests(path, where, stated))


def _questions(path: Path) -> Iterator[Prompt]:
    seen: dict[str, int] = {}
    for number, fields in json_lines(path):
        where = f"line {number}"
        asked, turns = fields.get("question_id"), fields.get("turns")
        if not isinstance(asked, int | str) or isinstance(asked, bool) or asked == "":
            raise TraceFormatError(path, f"{where}, question_id", "must be a number or a text", asked)
        if not isinstance(turns, list) or not turns or not isinstance(turns[0], str) or not turns[0].strip():
            raise TraceFormatError(path, f"{where}, turns", "must be a list that begins with a text", turns)
        name = str(asked)
        if name in seen:
            raise TraceFormatError(path, f"{where}, question_id", f"must be unique (first on line {seen[name]})", asked)
        seen[name] = number
        tag, text = text_of(path, number, fields, "category"), text_of(path, number, {"turns": turns[0]}, "turns")
        yield Prompt(request_id=name, tag=tag, text=text)


class Score(NamedTuple):
    """The score of an answer to a prompt with a right one."""

    tag: str  # of the prompt
    right: bool | None  # None if that needs tests, which are not to be run
    # how tests failed; None if they passed or there are none
    failure: Failure | None = None


class Scorer:
    """Scores answers; a program is run once only. Final.

    `limits` are for code that a model wrote; None: none is run.
    """

    def __init__(self, limits: ProcessLimits | None = None) -> None:
        self._limits = limits
        self._failures: dict[tuple[str, str], Failure | None] = {}

    def score(self, prompt: Prompt, text: str) -> Score | None:
        """The score of an answer; None if the prompt has no right one."""
        if prompt.tests is not None:
            if self._limits is None:
                return Score(prompt.tag, None)
            program = (prompt.tests.program(text), prompt.tests.check)
            if program not in self._failures:
                self._failures[program] = failure_of(prompt.tests, text, self._limits)
            failure = self._failures[program]
            return Score(prompt.tag, failure is None, failure)
        if prompt.answer is None:
            return None
        return Score(prompt.tag, is_right(prompt.tag, prompt.answer, text, prompt.check))


def score_lines(scores: Collection[Score]) -> list[str]:
    """How many answers are right, in all and by tag, and how tests failed; none without scores."""
    known = _known(scores)
    lines = []
    if known:
        shares = [f"{tag} {right:,} of {total:,}" for tag, (right, total) in _by_tag(known).items()]
        each = f" ({', '.join(shares)})" if len(shares) > 1 else ""
        lines.append(f"right answers: {sum(bool(score.right) for score in known):,} of {len(known):,}{each}")
    failures = _failures(known)
    if failures:
        lines.append(f"tests that did not pass: {', '.join(f'{kind} {count:,}' for kind, count in failures.items())}")
    if len(known) < len(scores):
        lines.append(f"{counted(len(scores) - len(known), 'answer')} not scored: run --run-tests runs a model's code")
    return lines


def scores_json(scores: Collection[Score]) -> dict[str, Any] | None:
    """The documented form (docs/runtime.md); None without scores."""
    if not scores:
        return None
    known = _known(scores)
    return {
        "right": sum(bool(score.right) for score in known),
        "total": len(known),
        "not_run": len(scores) - len(known),
        "failures": _failures(known),
        "by_tag": {tag: {"right": right, "total": total} for tag, (right, total) in _by_tag(known).items()},
    }


def _known(scores: Collection[Score]) -> Sequence[Score]:
    return [score for score in scores if score.right is not None]


def _by_tag(known: Sequence[Score]) -> Mapping[str, tuple[int, int]]:
    right, total = Counter(score.tag for score in known if score.right), Counter(score.tag for score in known)
    return {tag: (right[tag], total[tag]) for tag in total}


def _failures(known: Sequence[Score]) -> dict[str, int]:
    """Numbers of failures by kind, without zeros."""
    found = Counter(score.failure for score in known)
    return {kind: found[kind] for kind in FAILURES if found[kind]}
