"""Recordings in which something changes in mid-run: a drafter goes stale, or the mix of tags turns over.

Each request is taken whole from a recording in which nothing changes, so what it holds stays exact. Changes come after
half of the requests.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ....arguments import ArgumentError
from ....traces.tries.recording import TrieRecording
from ....traces.tries.store import read_trace, write_trace
from ....traces.tries.trie import TrieRequest
from .joined import as_one, in_turn
from .source import Shelf, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleSource:
    """A drafter goes stale: the first half of the requests is from one recording, the rest from another.

    Attributes:
        fresh: recording of the catalogue.
        stale: makes one of the same prompts, by a pool that differs in what a drafter has learned.
    """

    fresh: str
    stale: Source

    @property
    def slow(self) -> bool:
        """Yes: so are the recordings that it needs."""
        return True

    @property
    def needs(self) -> tuple[str, ...]:
        """The fresh one."""
        return (self.fresh, *self.stale.needs)

    def recipe(self) -> object:
        """That of the stale one; raises as it does."""
        return {"stale": self.stale.recipe()}

    def make(self, out: Path, *, name: str, shelf: Shelf) -> None:
        """Record the stale one beside `out`, and put both together.

        Raises:
            ArgumentError: the recordings differ in more than views.
        """
        beside = out.with_name(f"{out.name}.stale")
        shutil.rmtree(beside, ignore_errors=True)
        self.stale.make(beside, name=f"{name}.stale", shelf=shelf)
        write_trace(gone_stale(read_trace(shelf.recording(self.fresh)), read_trace(beside), name=name), out)
        shutil.rmtree(beside)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnoverSource:
    """The mix of tags turns over: requests of some tags come first, those of the others after them.

    Attributes:
        recording: of the catalogue.
        phases: the tags of each phase; each tag of the recording in one of them.
    """

    recording: str
    phases: tuple[tuple[str, ...], ...]

    @property
    def slow(self) -> bool:
        """Yes: so are the recordings that it needs."""
        return True

    @property
    def needs(self) -> tuple[str, ...]:
        """The recording whose requests they are."""
        return (self.recording,)

    def recipe(self) -> object:
        """The tags."""
        return {"phases": [list(tags) for tags in self.phases]}

    def make(self, out: Path, *, name: str, shelf: Shelf) -> None:
        """Put the requests in order; raises ArgumentError where tags are not those of the recording."""
        write_trace(turned_over(read_trace(shelf.recording(self.recording)), self.phases, name=name), out)


def gone_stale(fresh: TrieRecording, stale: TrieRecording, *, name: str) -> TrieRecording:
    """The first half of the requests as the fresh recording has them, the rest as the stale one; tags take turns.

    Raises:
        ArgumentError: another target, other requests in one than in the other, or recordings that cannot be one.
    """
    if _texts(fresh) != _texts(stale):
        raise ArgumentError(
            f"recording {name}: {fresh.meta.name} and {stale.meta.name} must have the same requests, and the same "
            "text of the target for each"
        )
    origin = f"the first half of the requests from {fresh.meta.name}, the rest from {stale.meta.name}"
    half = (len(fresh.requests) + 1) // 2
    requests = (*tags_in_turn(fresh.requests)[:half], *tags_in_turn(stale.requests)[half:])
    return as_one([fresh, stale], requests, name=name, origin=origin)


def _texts(recording: TrieRecording) -> dict[str, tuple[tuple[int, ...], list[int]]]:
    """Prompt and trunk of each request by its id."""
    tries = ((request, request.trie) for request in recording.requests)
    return {one.request_id: (one.prompt, trie.token[trie.trunk[1:]].tolist()) for one, trie in tries}


def turned_over(recording: TrieRecording, phases: Sequence[Sequence[str]], *, name: str) -> TrieRecording:
    """The requests of each phase's tags after those of the phase before; within a phase tags take turns.

    Raises:
        ArgumentError: the phases do not name each tag of the recording once.
    """
    tags = sorted({request.tag for request in recording.requests})
    if sorted(tag for phase in phases for tag in phase) != tags:
        raise ArgumentError(f"recording {name}: phases must name each tag of {tags} once, got {phases}")
    origin = f"requests of {recording.meta.name}: {'; then '.join(', '.join(phase) for phase in phases)}"
    of_phases = [[one for one in recording.requests if one.tag in phase] for phase in phases]
    requests = tuple(request for phase in of_phases for request in tags_in_turn(phase))
    return as_one([recording], requests, name=name, origin=origin)


def tags_in_turn(requests: Sequence[TrieRequest]) -> tuple[TrieRequest, ...]:
    """One request of each tag after the other, in the order of their first ones."""
    by_tag: dict[str, list[TrieRequest]] = {}
    for request in requests:
        by_tag.setdefault(request.tag, []).append(request)
    return in_turn(list(by_tag.values()))
