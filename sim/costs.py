"""From the name a user gives to a cost model."""

import json
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ..traces.errors import TraceFormatError
from ..traces.meta import CostTable, TraceMeta
from .cost import CostModel, TableCost
from .devices import device_sheet
from .roofline import RooflineCost


def make_cost(name: str, meta: TraceMeta) -> CostModel:
    """The cost model called `name`: one measured with the trace, a device of the sheet, or a JSON file.

    Args:
        name: a key of `meta.costs` ("cpu" for recordings made here), a device name, or a path to a file
            `{"MODEL": {"new_tokens": [...], "seconds": [...]}, ...}`.
        meta: of the trace to be replayed.

    Raises:
        ValueError: unknown name, or a file that breaks the format; one line.
    """
    if name in meta.costs:
        return TableCost(name, meta.costs[name])
    sheet = device_sheet()
    if name in sheet:
        return RooflineCost(sheet[name], meta.models)
    if name.endswith(".json"):
        return TableCost(name, _read_tables(Path(name), meta))
    known = sorted({*meta.costs, *sheet})
    raise ValueError(f"unknown cost {name!r}: this trace knows {', '.join(known)}, or a FILE.json")


def _read_tables(path: Path, meta: TraceMeta) -> dict[str, CostTable]:
    try:
        tables = TypeAdapter(dict[str, CostTable]).validate_python(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "content"
        rule = first["msg"].removeprefix("Value error, ")
        raise TraceFormatError(path, field, rule[:1].lower() + rule[1:], first["input"]) from None
    missing = [name for name in meta.model_names if name not in tables]
    if missing:
        raise ValueError(f"{path}: no table for model {missing[0]!r} of the trace")
    return tables
