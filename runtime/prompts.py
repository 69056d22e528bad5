"""Prompts to record or to run, from a JSONL file: each line an object of `id`, `tag`, `prompt` and a right answer."""

import gzip
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args

from ..base.errors import ArgumentError, check_least
from ..base.files import decode_json
from ..traces.errors import TraceFormatError
from ..traces.importers.reading import bounded_lines, sound_lines
from .sandbox import CodeTests, read_tests

UNTAGGED = "untagged"
PROMPTS_FILE = "prompts.jsonl"  # a pool's own, beside its file
_KEYS = ("id", "tag", "session", "prompt", "answer", "check", "tests")


Check = Literal["text", "number"]
CHECKS: tuple[Check, ...] = get_args(Check)
# Digits of any script; commas separate thousands, a dot is decimal, and a dash between two numbers is no sign.
_NUMBER = re.compile(r"(?:(?<!\w)-)?\d+(?:,\d{3})*(?:\.\d+)?")


def is_right(tag: str, answer: str, text: str, check: Check = "text") -> bool:
    """True if `text` gives `answer`; a text that the token limit cut short counts as wrong, unless `check` is `number`.

    Args:
        tag: of the request; a text tagged `math` has to end in `Answer: ` and the answer, any other to be the answer.
        answer: what is expected; space around it does not count.
        text: what was written after the prompt.
        check: `text` is the above. `number`: the last number in the text has to be the answer's, whatever the tag, as
            GSM8K and MGSM are scored (Cobbe et al., arXiv:2110.14168).
    """
    wanted = answer.strip()
    if check == "number":
        found = last_number(text)
        return found is not None and found == last_number(wanted)
    if tag == "math":
        return text.rstrip().endswith(f"Answer: {wanted}")
    return text.strip() == wanted


def last_number(text: str) -> Decimal | None:
    """The last number in a text; None if there is none."""
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request's text."""

    request_id: str  # unique in the file
    tag: str = UNTAGGED  # task or domain
    session: str = ""  # of which it is a turn, such as a conversation; "" without one
    text: str  # what the models continue, not empty
    answer: str | None = None  # what a right answer holds, or None; never shown to a model
    check: Check = "text"  # how an answer is compared with it (`is_right`)
    tests: CodeTests | None = None  # of the requested code, or None; instead of `answer`


def prompts_of(given: str | Path | Sequence[Prompt | str]) -> tuple[Prompt, ...]:
    """The prompts of a file, by its path, or those given; the id of a plain text among these is its index, from 0.

    Raises:
        ArgumentError: a text that is the path of no file, such as a prompt without brackets around it.
        TraceFormatError, FileNotFoundError: as `read_prompts`.
    """
    if isinstance(given, str) and not os.path.isfile(given):  # noqa: PTH113 - Path's raises for a name that is too long
        raise ArgumentError(f"`prompts` must be a list of texts, or the path of a file, got {given[:60]!r}")
    if isinstance(given, str | Path):
        return read_prompts(Path(given))
    return tuple(
        Prompt(request_id=str(place), text=one) if isinstance(one, str) else one for place, one in enumerate(given)
    )


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a JSONL file, in file order; blank lines are skipped.

    Raises:
        TraceFormatError: names file, line, field, rule and value of the first line that breaks the format.
        FileNotFoundError: there is no such file.
    """
    prompts: list[Prompt] = []
    line_of: dict[str, int] = {}
    for number, fields in json_lines(path):
        prompt = _prompt(path, number, fields)
        if prompt.request_id in line_of:
            rule = f"must be unique (first on line {line_of[prompt.request_id]})"
            raise TraceFormatError(path, f"line {number}, id", rule, prompt.request_id)
        line_of[prompt.request_id] = number
        prompts.append(prompt)
    if not prompts:
        raise TraceFormatError(path, "file", "must hold at least one prompt", 0)
    return tuple(prompts)


def first_of(prompts: Sequence[Prompt], limit: int | None) -> Sequence[Prompt]:
    """The first `limit` >= 1 prompts; all if None."""
    if limit is not None:
        check_least("`limit`", limit, 1)
    return prompts[:limit]


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines (from 1) that are not blank, without their ends; the file may be compressed (`.gz`).

    Raises:
        TraceFormatError: a line that is too long or no UTF-8, or a compressed file that is not whole.
        OSError: it cannot be read.
    """
    try:
        for number, raw in sound_lines(enumerate(bounded_lines(path), start=1)):
            try:
                yield number, raw.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                offender, where = raw[error.start : error.end], f"line {number}, byte {error.start + 1}"
                raise TraceFormatError(path, where, "must be UTF-8", offender) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TraceFormatError(path, "file", "must be whole and compressed by gzip", str(error)) from None


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file with their lines; raises as `text_lines`, and TraceFormatError for anything else."""
    for number, line in text_lines(path):
        try:
            fields = decode_json(line.encode("utf-8"))
        except ValueError as error:
            raise TraceFormatError(path, f"line {number}", f"must be JSON ({error})", line[:60]) from None
        if not isinstance(fields, dict):
            raise TraceFormatError(path, f"line {number}", "must be a JSON object", fields)
        yield number, fields


def _prompt(path: Path, number: int, fields: dict[str, Any]) -> Prompt:
    unknown = [key for key in fields if key not in _KEYS]
    if unknown:
        raise TraceFormatError(path, f"line {number}", f"keys must be among {', '.join(_KEYS)}", unknown[0])
    request_id = text_of(path, number, fields, "id")
    if not request_id.isprintable():
        raise TraceFormatError(path, f"line {number}, id", "must hold no control characters", request_id)
    return Prompt(
        request_id=request_id,
        tag=text_of(path, number, fields, "tag") if "tag" in fields else UNTAGGED,
        session=text_of(path, number, fields, "session") if "session" in fields else "",
        text=text_of(path, number, fields, "prompt", blank=True),
        **_right_one(path, number, fields),
    )


def _right_one(path: Path, number: int, fields: dict[str, Any]) -> dict[str, Any]:
    check = fields.get("check", "text")
    if check not in CHECKS:
        raise TraceFormatError(path, f"line {number}, check", f"must be one of {', '.join(CHECKS)}", check)
    if "check" in fields and "answer" not in fields:
        raise TraceFormatError(path, f"line {number}, check", "may stand only beside answer", check)
    answer = text_of(path, number, fields, "answer") if "answer" in fields else None
    if check == "number" and last_number(answer or "") is None:
        raise TraceFormatError(path, f"line {number}, answer", "must hold a number, as check says", answer)
    if "tests" not in fields:
        return {"answer": answer, "check": check}
    if answer is not None:
        raise TraceFormatError(path, f"line {number}, tests", "must stand without answer", answer)
    return {"tests": read_tests(path, f"line {number}, tests", fields["tests"])}


def text_of(path: Path, number: int, fields: dict[str, Any], key: str, *, blank: bool = False) -> str:
    """A string that is not empty; only a prompt may be blank, since a line break can be continued.

    Raises:
        TraceFormatError: there is none in the object of that line, or one that cannot be written to a file.
    """
    if key not in fields:
        raise TraceFormatError(path, f"line {number}", f"must have the key {key}", ", ".join(fields))
    value = fields[key]
    if not isinstance(value, str) or not value:
        raise TraceFormatError(path, f"line {number}, {key}", "must be a string that is not empty", value)
    if not blank and not value.strip():
        raise TraceFormatError(path, f"line {number}, {key}", "must be more than spaces and line breaks", value)
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise TraceFormatError(path, f"line {number}, {key}", "must hold no half of a surrogate pair", value)
    return value
