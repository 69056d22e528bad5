"""Files of published tasks, read as prompts: their questions, and what a right answer ends with."""

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

from ...arguments import ArgumentError
from ...strict_json import MOST_BYTES, decode_json
from ...traces.errors import TraceFormatError
from ...traces.importers.reading.lines import opened, too_long
from ..prompts import Prompt
from .code_tests import read_tests

Form = Literal["gsm8k", "mgsm", "humaneval", "questions"]
FORMS: tuple[Form, ...] = get_args(Form)
_LANGUAGE = re.compile(r"mgsm_([a-z]{2,3})\b")
_NUMBER = re.compile(r"-?\d[\d,]*(\.\d+)?")


def read_task(form: str, path: Path) -> tuple[Prompt, ...]:
    """The prompts of a task's file, in its order.

    - `gsm8k`: JSONL with `question` and `answer`, which ends in `#### ` and a number (Cobbe et al., arXiv:2110.14168).
    - `mgsm`: TSV of question and number, without a head; the language is that of the file's name (Shi et al.,
      arXiv:2210.03057).
    - `humaneval`: JSONL with `task_id`, `prompt`, `entry_point` and `test`, which defines `check` (Chen et al.,
      arXiv:2107.03374); a prompt is the code that is to be gone on from.
    - `questions`: JSONL with `question_id`, `category` and `turns`, as MT-Bench and Spec-Bench have them. Only first
      turns are taken, since second ones go on from an answer; nobody knows a right one.

    Args:
        form: of the file, one of `FORMS`.
        path: of it, compressed or not (`.gz`).

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
    """As a file that `read_prompts` reads."""
    rows = []
    for prompt in prompts:
        row: dict[str, Any] = {"id": prompt.request_id, "tag": prompt.tag, "prompt": prompt.text}
        row |= {} if prompt.answer is None else {"answer": prompt.answer, "check": prompt.check}
        row |= {} if prompt.tests is None else {"tests": asdict(prompt.tests)}
        rows.append(json.dumps(row, ensure_ascii=False) + "\n")
    return "".join(rows)


def _gsm8k(path: Path) -> Iterator[Prompt]:
    for number, fields in _objects(path):
        where = f"line {number}"
        question, solution = (_text(path, where, fields, key) for key in ("question", "answer"))
        answer = solution.rpartition("####")[2].strip()
        if "####" not in solution or not _NUMBER.fullmatch(answer):
            raise TraceFormatError(path, f"{where}, answer", "must end in #### and a number", solution[-40:])
        yield Prompt(request_id=f"gsm8k-{number:04d}", tag="gsm8k", text=question, answer=answer, check="number")


def _mgsm(path: Path) -> Iterator[Prompt]:
    language = _LANGUAGE.search(path.name)
    tag = "mgsm" if language is None else f"mgsm-{language[1]}"
    rows = csv.reader(_lines(path), delimiter="\t", quoting=csv.QUOTE_NONE)
    for number, row in enumerate(rows, start=1):
        if len(row) != 2 or not row[0].strip() or not _NUMBER.fullmatch(row[1].strip()):
            raise TraceFormatError(
                path, f"line {number}", "must be a question, a tab and a number", "\t".join(row)[:60]
            )
        question, answer = (cell.strip() for cell in row)
        yield Prompt(request_id=f"{tag}-{number:04d}", tag=tag, text=question, answer=answer, check="number")


def _humaneval(path: Path) -> Iterator[Prompt]:
    for number, fields in _objects(path):
        where = f"line {number}"
        name, text, entry_point, test = (
            _text(path, where, fields, key) for key in ("task_id", "prompt", "entry_point", "test")
        )
        if "def check(" not in test:
            raise TraceFormatError(path, f"{where}, test", "must define check(candidate)", test[:40])
        stated = {"entry_point": entry_point, "code": text, "check": f"{test}\n\ncheck({entry_point})\n"}
        yield Prompt(request_id=name, tag="humaneval", text=text, tests=read_tests(path, where, stated))


def _questions(path: Path) -> Iterator[Prompt]:
    seen: dict[str, int] = {}
    for number, fields in _objects(path):
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
        yield Prompt(request_id=name, tag=_text(path, where, fields, "category"), text=turns[0])


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbered objects of a JSONL file; blank lines are skipped."""
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            fields = decode_json(line.encode("utf-8"))
        except ValueError as error:
            raise TraceFormatError(path, f"line {number}", f"must be JSON ({error})", line[:60]) from None
        if not isinstance(fields, dict):
            raise TraceFormatError(path, f"line {number}", "must be a JSON object", line[:60])
        yield number, fields


def _lines(path: Path) -> Iterator[str]:
    try:
        with opened(path) as file:
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise too_long(path, "file")
        text = raw.decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TraceFormatError(path, "file", "must be whole and compressed by gzip", str(error)) from None
    except UnicodeDecodeError as error:
        offender = error.object[error.start : error.end]
        raise TraceFormatError(path, f"byte {error.start + 1}", "must be UTF-8", offender) from None
    return iter(text.splitlines() if path.suffixes[:1] == [".jsonl"] else text.removesuffix("\n").split("\n"))


def _text(path: Path, where: str, fields: dict[str, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not value.strip():
        raise TraceFormatError(path, f"{where}, {key}", "must be a text that is not blank", value)
    return value
