"""Options that go together are the fields of a record: declared once, taken by several commands, handed on as one."""

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any


def spelled_out(command: Callable[..., None]) -> Callable[..., None]:
    """A command as typer reads it: each field of a record among its parameters is a parameter in the record's place.

    Args:
        command: takes everything by keyword; a parameter whose type is a dataclass is a record.
    """
    own = signature(command).parameters.values()
    records = {
        one.name: one.annotation for one in own if isinstance(one.annotation, type) and is_dataclass(one.annotation)
    }
    fields = {name: signature(record).parameters for name, record in records.items()}

    @wraps(command)
    def called(**given: Any) -> None:  # noqa: ANN401 - whatever the options are of
        for name, record in records.items():
            given[name] = record(**{field: given.pop(field) for field in fields[name]})
        command(**given)

    spelled = [option for one in own for option in fields.get(one.name, {one.name: one}).values()]
    # By keyword, so that one without a default may stand behind one that has it.
    options = [option.replace(kind=Parameter.KEYWORD_ONLY) for option in spelled]
    vars(called)["__signature__"] = Signature(options)
    return called
