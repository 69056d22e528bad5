"""Synthetic recordings of any number of requests, made in parts: `make_trace` holds its whole recording in memory."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import overload

from paceline.traces import SyntheticSpec, TrieRecording, TrieRequest, make_trace, write_trace

PART = 25  # requests made at a time


class MadeRequests(Sequence[TrieRequest]):
    """The requests of a large recording, made in parts on access.

    Args:
        spec: of the whole recording; its parts differ in names and seeds.
    """

    def __init__(self, spec: SyntheticSpec) -> None:
        self._spec = spec
        self._part: tuple[int, Sequence[TrieRequest]] = (-1, ())

    def __len__(self) -> int:
        return self._spec.requests

    @overload
    def __getitem__(self, index: int) -> TrieRequest: ...

    @overload
    def __getitem__(self, index: slice) -> list[TrieRequest]: ...

    def __getitem__(self, index: int | slice) -> TrieRequest | list[TrieRequest]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if index >= len(self):
            raise IndexError(index)
        number, place = divmod(index, PART)
        if self._part[0] != number:
            part = replace(self._spec, name=f"{self._spec.name}-{number}", requests=PART, seed=number)
            self._part = (number, make_trace(part).requests)
        return self._part[1][place]


def write_recording(requests: int, tokens: int, path: Path) -> None:
    """Write a recording of three models with windows of up to 11 tokens."""
    spec = SyntheticSpec(
        name="made",
        requests=requests,
        tokens=tokens,
        models=("draft", "mid", "target"),
        acceptance=(0.8, 0.9),
        reach=11,
        run=3,
    )
    write_trace(TrieRecording(meta=spec.meta(), requests=MadeRequests(spec)), path)
