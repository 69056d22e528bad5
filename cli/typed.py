"""Options of the command line, built from their declarations, and typed text as values."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from math import floor, isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

import typer

from ..base.errors import ArgumentError
from ..base.options import Opt, Secret, as_option, declared
from ..decoding.rollouts import Rollouts, rollouts_of
from ..decoding.seen import Start
from ..reports.intervals import OverTags
from ..studies.options import Promised

_MOST_DIGITS = 7
MOST_IN_RANGE = 1000


def numbers(option: str, text: str) -> tuple[float, ...]:
    """The comma-separated numbers of an option; raises ValueError with the part that is no number."""
    values = []
    for part in text.split(","):
        try:
            values.append(float(part))
        except ValueError:
            raise ValueError(f"{option} must hold numbers with commas between, got {part!r}") from None
    return tuple(values)


def rates(option: str, text: str) -> tuple[float, ...]:
    """The comma-separated numbers of an option; `LOW:HIGH:STEP` stands for all from LOW to HIGH.

    Raises ValueError with the part that is no number, or a range that holds no number or more than `MOST_IN_RANGE`.
    """
    values: list[float] = []
    for part in text.split(","):
        if ":" not in part:
            values += numbers(option, part)
            continue
        ends = [_number(end) for end in part.split(":")]
        low, high, step = (end if end is not None and isfinite(end) else 0.0 for end in (*ends, 0.0, 0.0)[:3])
        if len(ends) != 3 or not 0 < low <= high or not step > 0:
            raise ValueError(f"{option} ranges are LOW:HIGH:STEP with 0 < LOW <= HIGH and STEP > 0, got {part!r}")
        count = floor((high - low) / step + 1e-9) + 1  # HIGH is included, whatever decimals round to
        if count > MOST_IN_RANGE:
            raise ValueError(f"{option} ranges hold at most {MOST_IN_RANGE:,} numbers, got {count:,} in {part!r}")
        values += [float(f"{low + place * step:.12g}") for place in range(count)]
    return tuple(values)


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """The comma-separated whole numbers of an option; raises ValueError with the part that is no whole number."""
    parts = text.split(",")
    for part in parts:
        if not (part.isascii() and part.isdecimal() and len(part) <= _MOST_DIGITS):
            raise ValueError(f"{option} must hold whole numbers with commas between, got {part!r}")
    return tuple(int(part) for part in parts)


def words(option: str, text: str) -> tuple[str, ...]:
    """The comma-separated names of an option; raises ValueError for an empty one."""
    values = tuple(text.split(","))
    if not all(values):
        raise ValueError(f"{option} must hold names with commas between, got {text!r}")
    return values


def named_numbers(option: str, what: str, texts: Sequence[str] | None) -> dict[str, float]:
    """The number of each name, in the order given: `--scale draft=0.5 --scale target=2`, or both after one `--scale`.

    `texts` are `NAME=number`, one each; `what` is what the number is, in capitals. Raises ValueError for another form,
    a number that is not finite, or a name given twice.
    """
    values: dict[str, float] = {}
    for name, number in named_texts(option, what, texts).items():
        found = _number(number)
        if found is None:
            raise ValueError(f"{option} must be NAME={what}, got {f'{name}={number}'!r}")
        if not isfinite(found):
            raise ValueError(f"{option} of {name} must be finite, got {number}")
        values[name] = found
    return values


def named_texts(option: str, what: str, texts: Sequence[str] | None, *, named_by_file: bool = False) -> dict[str, str]:
    """The text of each name, in the order given; as `named_numbers`, of `NAME=text`.

    With `named_by_file` a name may be that of a file, which may contain `=`: the last one ends it.
    """
    values: dict[str, str] = {}
    for text in texts or ():
        name, _, value = text.rpartition("=") if named_by_file else text.partition("=")
        if name in values:
            raise ValueError(f"{option} {name} is given twice")
        if not name or not value:
            form = "FILE_OR_METHOD" if named_by_file else "NAME"
            raise ValueError(f"{option} must be {form}={what}, got {text!r}")
        values[name] = value
    return values


def _number(text: str) -> float | None:
    """The number of a text, without forms that only Python takes (`1_000`, spaces, other digits); None if none."""
    if not text.isascii() or "_" in text or text != text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        return None


def promised(slo: Sequence[str] | None) -> Promised:
    """Times by name, and by class and name; raises ValueError for a text of another form."""
    parts: dict[str, list[str]] = {}
    for text in slo or ():
        name, colon, _ = text.partition("=")[0].rpartition(":")
        if colon and not name:
            raise ValueError(f"--slo must be [CLASS:]NAME=SECONDS,..., got {text!r}")
        parts.setdefault(name, []).extend(text[len(name + colon) :].split(","))
    found = {name: named_texts(f"--slo {name}:" if name else "--slo", "SECONDS", of) for name, of in parts.items()}
    of_all = found.pop("", {})
    if both := sorted(of_all.keys() & found):
        raise ValueError(f"--slo cannot promise {both[0]} to all where a class has that name, got {both[0]} as both")
    return {**of_all, **found}


def _key(variable: str) -> str:
    """The value of an environment variable, which is never shown."""
    key = os.environ.get(variable, "")
    if not key:
        raise ArgumentError(f"`api_key_env` must name an environment variable that is set, got {variable!r}")
    if not (key.isascii() and key.isprintable()):
        raise ArgumentError(
            f"`api_key_env` must name a variable of printable ASCII, {variable!r} holds other characters"
        )
    return key


Parse = Callable[[str, str, Any], object]  # (flag, metavar, what was typed)


def _as_typed(_flag: str, _metavar: str, typed: object) -> object:
    return typed


def _named(flag: str, _metavar: str, typed: object) -> object:
    if typed == "":  # such as a shell variable that is not set; as a path it is the current folder
        raise ValueError(f"{flag} must name something, got ''")
    return typed


# By type of Python: the type that typer parses, and how it becomes the value. Other types are parsed as they are.
_TYPED: dict[object, tuple[object, Parse]] = {
    str | Path | None: (str | None, _named),
    str | Mapping[str, str] | None: (str | None, _as_typed),
    str | Mapping[str, Any] | None: (str | None, _as_typed),
    Sequence[str] | Mapping[str, str] | None: (list[str] | None, _as_typed),
    str | Sequence[str] | None: (list[str] | None, _as_typed),
    str | Path: (str, _as_typed),
    Start | str | None: (Start | None, _as_typed),
    Start | str: (Literal["prefill", "draft"], _as_typed),  # only a log can have another start
    Rollouts | str | None: (str | None, lambda _flag, _, text: rollouts_of(text)),
    OverTags | str: (OverTags, _as_typed),
    Secret | None: (str | None, lambda _flag, _, variable: _key(variable)),
    tuple[str, ...]: (str, lambda flag, _, text: words(flag, text)),
    tuple[int, ...] | None: (str | None, lambda flag, _, text: whole_numbers(flag, text)),
    tuple[float, ...]: (str, lambda flag, _, text: numbers(flag, text)),
    tuple[float, ...] | None: (str | None, lambda flag, _, text: numbers(flag, text)),
    Mapping[str, str] | None: (
        list[str] | None,
        lambda flag, metavar, texts: named_texts(flag, metavar.partition("=")[2], texts),
    ),
    Mapping[str, float] | None: (
        list[str] | None,
        lambda flag, metavar, texts: named_numbers(
            flag, metavar.partition("=")[2].partition(",")[0], [part for text in texts for part in text.split(",")]
        ),
    ),
    Promised | None: (list[str] | None, lambda _flag, _, texts: promised(texts)),
}


def typed_fields(record: Callable[..., object]) -> dict[str, tuple[Parameter, Callable[[Any], object]]]:
    """The fields of a record that are options, declared by `Opt` or by typer's own classes.

    Each as typer reads it, with a function from the typed text to the field's value; None, if not typed, is kept.
    """
    found = {}
    for name, (field, said) in declared(record).items():
        if said is not None:
            found[name] = _typed(field, said)
        elif get_origin(field.annotation) is Annotated:
            found[name] = field, lambda value: value
    return found


def _typed(field: Parameter, said: Opt) -> tuple[Parameter, Callable[[Any], object]]:
    kind, parse = _TYPED.get(field.annotation, (field.annotation, _as_typed))
    flag = _flag(field.name, said)
    default = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
    annotated: Any = Annotated
    typed = field.replace(annotation=annotated[kind, _option(field, said)], default=default)
    return typed, lambda value: None if value is None else parse(flag, said.metavar, value)


def spelled_out(command: Callable[..., None]) -> Callable[..., None]:
    """A command as typer reads it: `opt` among its defaults, and each field of a record, becomes an option.

    Its parameters are keywords; one whose type is a dataclass is a record.
    """
    own = signature(command).parameters.values()
    records: dict[str, Callable[..., object]] = {
        one.name: one.annotation for one in own if isinstance(one.annotation, type) and is_dataclass(one.annotation)
    }
    fields = {name: typed_fields(record) for name, record in records.items()}
    alone = {one.name: _typed(*told) for one in own if (told := as_option(one)) is not None}

    @wraps(command)
    def called(**given: Any) -> None:  # noqa: ANN401 - whatever the options are of
        for name, (_, parse) in alone.items():
            given[name] = parse(given[name])
        for name, record in records.items():
            given[name] = record(**{field: parse(given.pop(field)) for field, (_, parse) in fields[name].items()})
        command(**given)

    spelled = []
    for one in own:
        of_record = [option for option, _ in fields.get(one.name, {}).values()]
        spelled += of_record or [alone[one.name][0] if one.name in alone else one]
    # By keyword, so that one without a default may follow one with a default.
    options = [option.replace(kind=Parameter.KEYWORD_ONLY) for option in spelled]
    vars(called)["__signature__"] = Signature(options)
    return called


def option_of(record: Callable[..., object], name: str) -> Any:  # noqa: ANN401 - as typer's own
    """The typer option of one field, for a command that takes it without the record."""
    field, said = declared(record)[name]
    assert said is not None, name
    return _option(field, said)


def _flag(name: str, said: Opt) -> str:
    return said.flag or f"--{name.replace('_', '-')}"


def _option(field: Parameter, said: Opt) -> Any:  # noqa: ANN401 - as typer's own
    return typer.Option(
        _flag(field.name, said), help=said.words, metavar=said.metavar or None, min=said.least, max=said.most
    )
