"""Which errors are bad input, and their messages."""

import errno
from collections.abc import Mapping

import typer
from pydantic import ValidationError

from ..base.errors import ArgumentError, as_options
from ..base.toml import TomlFileError
from ..decoding.steps import PolicyError
from ..traces.errors import TraceFormatError

# Errors that bad input raises; any other is a defect of ours and shows its traceback.
BAD = (ValueError, OverflowError, PolicyError, OSError, MemoryError, ModuleNotFoundError)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def told(error: Exception, own: Mapping[str, str]) -> str:
    """The message of an error: the first wrong field of a record; of a file its name, without the error's number."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, ArgumentError):
            return as_options(str(cause), own=own)
        field = ".".join([error.title, *(str(part) for part in first["loc"])])
        return f"{field}: {first['msg']}, got {first['input']!r}"
    if isinstance(error, MemoryError):
        return f"out of memory: {error}" if str(error) else "out of memory"
    if isinstance(error, OSError) and error.strerror:
        # Errors of written files have names: without one, standard output is full.
        where = error.filename or ("standard output" if error.errno in FULL else None)
        return f"{where}: {error.strerror}" if where else error.strerror
    if isinstance(error, TomlFileError):
        rule = as_options(error.rule, rule=True)
        return str(type(error)(error.path, error.field, rule, error.value, told=error.told))
    if isinstance(error, TraceFormatError):
        return str(type(error)(error.path, error.field, as_options(error.rule, rule=True), error.value))
    return as_options(str(error), own=own) if isinstance(error, ArgumentError) else str(error)


def told_usage(error: typer.TyperException) -> str:
    """The message of a wrong option or argument, with what was typed: pydantic leaves it out of numbers and ranges."""
    message, cause = error.format_message().replace("Value error, ", "", 1), error.__cause__
    typed = repr(cause.errors()[0]["input"]) if isinstance(cause, ValidationError) else ""
    return message if typed in message else f"{message}, got {typed}"
