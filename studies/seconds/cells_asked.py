"""Which cells may be asked of a validation: each once, or a policy would be its own rival."""

from collections.abc import Hashable, Sequence

from ...arguments import ArgumentError, repeated


def check_cells(batches: Sequence[int], tags: Sequence[str] | None, requests: int, runs: int) -> None:
    """Raise ArgumentError for counts below 1, and for batches or tags of which there are none or one twice."""
    for name, least in (("requests", requests), ("runs", runs), *(("batches", batch) for batch in batches)):
        if least < 1:
            raise ArgumentError(f"`{name}` must be >= 1, got {least}")
    _check_each_once("batches", batches)
    if tags is not None:
        _check_each_once("tags", tags)


def _check_each_once(name: str, values: Sequence[Hashable]) -> None:
    if not values:
        raise ArgumentError(f"`{name}` must hold one, got none")
    twice = repeated(values)
    if twice:
        raise ArgumentError(f"`{name}` {twice[0]} is given twice")
