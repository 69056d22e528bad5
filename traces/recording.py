"""A recording as its users see it, whichever its form: tries of contexts, or rounds of an engine's log."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from pydantic import BaseModel

from ..base.errors import ArgumentError, known_are, repeated
from .shapes import DecoderShape, Named


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutRecording:
    """What a recording says of itself, and what can be asked of it."""

    name: str  # shown in tables
    kind: str  # "recorded", "synthetic" or "imported"
    holds: str  # kind and size in words
    models: tuple[str, ...]  # names of the members that have forwards, in level order, the target last
    lookups: tuple[str, ...]  # names of the members that copy text (prompt lookup), which stand below the models
    drafts_only: bool  # whether members below the target have no verdicts of their own on record
    costs: tuple[str, ...]  # names of the costs that were measured with it
    # whether it must answer every policy compared on it by default; else those that it knows too little for are left
    # out
    all_defaults: bool
    hardware: str  # the machine that was recorded, in words; "" if unknown
    made_shapes: bool = False  # whether its models' shapes are a generator's own, of no real model
    tokenizer_sha256: str | None = None  # of the tokenizer of its token ids; None where no log says
    source: str | None = None  # format it was imported from; None if it was not
    trust: str | None = None  # what its log knew and what is drawn; None if it was not imported
    notes: tuple[str, ...] = ()  # what is exact and what is unknown
    sampling: str | None = None  # how tokens were chosen; None where no log says
    remarks: tuple[str, ...] = ()  # what the reader of its figures has to know, a line each
    # By drafter the most tokens that it drafted in a round, where a log says so: what was set when it was written.
    windows: Mapping[str, int] = field(default_factory=dict)
    # By drafter the longest draft of a log: of a longer one it does not know what is kept.
    longest: Mapping[str, int] = field(default_factory=dict)
    from_features: str = ""  # name of the member that drafts from the target's states; "" if none is recorded as such
    software: Mapping[str, str] = field(default_factory=dict)  # name to version, as far as a log says it
    # Members of which nobody says that they are models by themselves: heads on the target, trees, or anything else.
    unknown_kinds: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """The member that verifies last."""
        return self.models[-1]


Meta = TypeVar("Meta", bound=BaseModel)
Group = TypeVar("Group")
AnyRequest = TypeVar("AnyRequest", bound="Request")
AnyRecording = TypeVar("AnyRecording", bound="Recording")


class Request(Protocol):
    """A request of a recording; what was recorded of it depends on the form."""

    @property
    def request_id(self) -> str:
        """Unique in the recording."""
        ...

    @property
    def tag(self) -> str:
        """Task or domain."""
        ...

    @property
    def session(self) -> str:
        """Of which session it is a turn, as of a conversation; "" if of none, or if nobody says."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingSummary(Generic[Meta, Group]):
    """What a recording holds, counted and averaged: what `paceline trace inspect` prints."""

    meta: Meta  # what the recording says of itself
    total: Group  # over all requests
    by_tag: dict[str, Group]  # the same per tag, in order of first appearance
    size_bytes: int | None  # of the files on the disk; None if the recording came from memory

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return asdict(self) | {"meta": self.meta.model_dump(mode="json")}


def by_tag(requests: Sequence[AnyRequest]) -> dict[str, list[AnyRequest]]:
    """Requests of each tag, in order of first appearance."""
    groups: dict[str, list[AnyRequest]] = {}
    for request in requests:
        groups.setdefault(request.tag, []).append(request)
    return groups


def sessions_of(requests: Iterable[Request]) -> dict[str, str]:
    """By request, the session that it belongs to; without those that belong to none."""
    return {request.request_id: request.session for request in requests if request.session}


def by_session(requests: Iterable[AnyRequest]) -> list[list[AnyRequest]]:
    """Requests of each session, and each of the others by itself, in order of first appearance."""
    groups: dict[tuple[bool, str], list[AnyRequest]] = {}
    for request in requests:
        alone = not request.session
        groups.setdefault((alone, request.request_id if alone else request.session), []).append(request)
    return list(groups.values())


def chosen(name: str, requests: Sequence[AnyRequest], ids: Iterable[str]) -> tuple[AnyRequest, ...]:
    """The requests with these ids, in the order of the ids, of a recording called `name`.

    Raises ArgumentError for none, an id that no request has, or one that stands twice.
    """
    places = {request.request_id: place for place, request in enumerate(requests)}
    wanted = [ids] if isinstance(ids, str) else list(ids)
    if not wanted:
        raise ArgumentError(f"`ids` must name one request of {name} at least, got none")
    for one in wanted:
        if one not in places:
            raise ArgumentError(f"`ids` must be of requests of {name}, {known_are(one, places)}, got {one!r}")
    if twice := repeated(wanted):
        raise ArgumentError(f"`ids` must name each request of {name} once, got {twice[0]} twice")
    return tuple(requests[places[one]] for one in wanted)


def reordered(recording: AnyRecording, order: int, *, parts: int = 1) -> AnyRecording:
    """The same requests in another order, which `order` draws; at 0 the recorded one.

    Requests change places within each of so many equal `parts` of the recording: what changes in mid-run still does.
    """
    if order == 0:
        return recording
    rng = np.random.default_rng(order)
    places = [rng.permutation(part) for part in np.array_split(np.arange(len(recording.requests)), parts)]
    return recording[[recording.requests[place].request_id for place in np.concatenate(places).tolist()]]


def tagged(name: str, requests: Sequence[AnyRequest], tags: Sequence[str]) -> tuple[AnyRequest, ...]:
    """The requests with these tags, in their order; raises ArgumentError for none, or a tag that no request has."""
    known = dict.fromkeys(request.tag for request in requests)
    if not tags:
        raise ArgumentError(f"`tags` must name one tag of {name} at least, got none")
    for tag in tags:
        if tag not in known:
            raise ArgumentError(f"`tags` must be of requests of {name}, {known_are(tag, known)}, got {tag!r}")
    return tuple(request for request in requests if request.tag in tags)


class Recording(Protocol):
    """A recording of either form, as `open_recording` reads it. It is frozen; what changes it gives another one."""

    @property
    def requests(self) -> Sequence[Request]:
        """In file order."""
        ...

    @property
    def about(self) -> AboutRecording:
        """What it says of itself."""
        ...

    def __getitem__(self, ids: Iterable[str]) -> Self:
        """Of the requests with these ids alone, in the order of the ids; raises as `chosen`."""
        ...

    def of_tags(self, *tags: str) -> Self:
        """Of the requests with these tags alone, in their order; raises as `tagged`."""
        ...

    def known_shapes(self) -> Mapping[str, Named]:
        """Shapes for cost models by member, as recorded or else as names say; without members nothing is known of."""
        ...

    @property
    def decoders(self) -> tuple[DecoderShape, ...]:
        """What shapes that `with_shapes` gave it are made of, where that is known."""
        ...

    def with_shapes(self, texts: Sequence[str]) -> Self:
        """With shapes that its log does not hold, or, of a recording that holds them, in their place: what if.

        `texts` are as `given_shapes` takes them.

        Raises:
            ValueError: a member that it has not, or texts that are no shapes.
        """
        ...

    def shifted(self, shifts: Mapping[str, float], *, seed: int) -> Self:
        """What if drafters wrote the target's token more often, or less.

        In a recording of contexts, the decisions are those of the trunk. Only tokens change: whatever reads
        probabilities, entropies and distances (stop rules, lossy verification, policies that watch distances) sees the
        old ones. A new refusal is a token that no model writes there; what follows it is not recorded.

        In an imported recording, a round ends at its first new refusal. A round whose refusal turned over is kept whole
        there, and what follows is unknown unless another round of a token drafter says it. Measured seconds stay.

        Args:
            shifts: by drafter, change of its share of agreement; 0 changes nothing.
            seed: of the draws.

        Raises:
            ValueError: a name that is no drafter of the recording, a share that would leave [0, 1], no decision
                recorded, a vocabulary too small for a token that no model writes.
        """
        ...

    def summary(self, path: Path | None = None) -> RecordingSummary[Any, Any]:
        """Count and average it; `path` is where it was read from, if it was."""
        ...
