"""Results of `vllm bench serve --save-detailed`: one object, with the lengths and starts of all requests."""

from collections.abc import Iterator, Mapping
from typing import Any

from ....strict_json import kind_of_json
from ..arrival import Arrival
from .format import Reading, WorkloadFormat
from .objects import count_of, objects_of, time_of

_LISTS = ("input_lens", "output_lens", "start_times")
# vLLM's pull request 32667 has them saved; those of other programs of this form, such as SGLang's, have none.
_SAVED = "vllm bench serve writes it with --save-result --save-detailed"
_SAVED_NOW = f"{_SAVED} since January 2026, and nothing else says when requests were sent"


def read_details(reading: Reading) -> Iterator[tuple[int, Arrival]]:
    """The requests of a file by their starts, called by their number; the first start is 0."""
    for line, found in objects_of(reading):
        if line != 1:
            raise reading.error(line, "file", "must hold one result", "another line")
        rows = list(zip(*(_list(reading, line, found, key) for key in _LISTS), strict=True))
        starts = [time_of(reading, line, f"start_times[{number}]", start) for number, (_, _, start) in enumerate(rows)]
        for number in sorted(range(len(rows)), key=lambda one: (starts[one], one)):
            fields = tuple(f"{key}[{number}]" for key in _LISTS[:2])
            prompt, output = (
                count_of(reading, line, field, value) for field, value in zip(fields, rows[number], strict=False)
            )
            tokens = reading.lengths(line, prompt, output, names=fields)
            if tokens is not None:
                yield line, Arrival(str(number + 1), starts[number] - min(starts), *tokens)


def _list(reading: Reading, line: int, found: Mapping[str, Any], key: str) -> list[Any]:
    values = found.get(key)
    if values is None:
        rule = f"must be there: {_SAVED_NOW if key == 'start_times' else _SAVED}"
        raise reading.error(line, key, rule, "nothing")
    if not isinstance(values, list):
        raise reading.error(line, key, "must be a list", kind_of_json(values))
    if len(values) != len(found["input_lens"]):
        rule = f"must hold one entry for each of the {len(found['input_lens'])} requests"
        raise reading.error(line, key, rule, len(values))
    return values


BENCH_DETAILS = WorkloadFormat(
    name="vllm-bench",
    keys=_LISTS,
    sees=lambda keys: bool({"input_lens", "output_lens", "total_input_tokens"} & keys) and "completed" in keys,
    read=read_details,
    notes=("starts are those of the benchmark's own load, seconds of answers and texts are not used",),
    is_json=True,
)
