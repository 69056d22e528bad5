"""A recording as its users see it, of either form: tries of contexts, or rounds of an engine's log."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from pydantic import BaseModel

from ..base.errors import ArgumentError, known_are, repeated
from .meta import NgramInfo
from .shapes import DecoderShape, Named


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutRecording:
    """Facts of a recording, and what it can answer."""

    name: str  # shown in tables
    kind: str  # "recorded", "synthetic" or "imported"
    holds: str  # kind and size in words
    models: tuple[str, ...]  # names of the members that have forwards, in level order, the target last
    lookups: Mapping[str, NgramInfo]  # by name how members copy text (prompt lookup), below the models
    drafts_only: bool  # whether members below the target have no verdicts of their own on record
    costs: tuple[str, ...]  # names of its measured costs
    # whether it must support every policy compared on it by default; else policies for which it holds too little are
    # left out
    all_defaults: bool
    hardware: str  # the machine that was recorded, in words; "" if unknown
    made_shapes: bool = False  # whether its models' shapes are a generator's, of no real model
    tokenizer_sha256: str | None = None  # of the tokenizer of its token ids; None where unknown
    source: str | None = None  # format it was imported from; None if it was not
    trust: str | None = None  # what its log holds and what is drawn; None if it was not imported
    notes: tuple[str, ...] = ()  # what is exact and what is unknown
    sampling: str | None = None  # how tokens were chosen; None where unknown
    remarks: tuple[str, ...] = ()  # what readers of its figures must know, a line each
    # By drafter the most tokens drafted in a round, where a log has the setting.
    windows: Mapping[str, int] = field(default_factory=dict)
    # By drafter the longest draft of a log: acceptance of longer ones is unknown.
    longest: Mapping[str, int] = field(default_factory=dict)
    drafted: Mapping[str, int] = field(default_factory=dict)  # of these drafters, the most tokens of any one round
    from_features: str = ""  # name of the member that drafts from the target's states; "" if none is recorded as such
    software: Mapping[str, str] = field(default_factory=dict)  # name to version, where known
    # Members not known to be models by themselves: perhaps heads on the target, trees, or anything else.
    unknown_kinds: tuple[str, ...] = ()
    drafts_by: str = ""  # what drafted in the engine that its log came from, as `RoundsMeta` has it; "" if unknown

    @property
    def target(self) -> str:
        """The member that verifies last."""
        return self.models[-1]


Meta = TypeVar("Meta", bound=BaseModel)
Group = TypeVar("Group")
AnyRequest = TypeVar("AnyRequest", bound="Request")
AnyRecording = TypeVar("AnyRecording", bound="Recording")


class Request(Protocol):
    """A request of a recording; the rest depends on the form."""

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
        """The session of which it is a turn, such as a conversation; "" if none or unknown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingSummary(Generic[Meta, Group]):
    """Counts and means of a recording, which `paceline trace inspect` prints."""

    meta: Meta  # of the recording
    total: Group  # over all requests
    by_tag: dict[str, Group]  # the same per tag, in order of first appearance
    size_bytes: int | None  # of the files on the disk; None if the recording is in memory only

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
    """By request its session; without requests of none."""
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

    Raises ArgumentError for no ids, an unknown one, or a repeated one.
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
    """The same requests in another order, drawn by the seed `order`; at 0 the recorded one.

    Requests are permuted within each of `parts` equal parts of the recording, so that a change in mid-run remains one.
    """
    if order == 0:
        return recording
    rng = np.random.default_rng(order)
    places = [rng.permutation(part) for part in np.array_split(np.arange(len(recording.requests)), parts)]
    return recording[[recording.requests[place].request_id for place in np.concatenate(places).tolist()]]


def tagged(name: str, requests: Sequence[AnyRequest], tags: Sequence[str]) -> tuple[AnyRequest, ...]:
    """The requests with these tags, in their order; raises ArgumentError for no tags, or one that no request has."""
    known = dict.fromkeys(request.tag for request in requests)
    if not tags:
        raise ArgumentError(f"`tags` must name one tag of {name} at least, got none")
    for tag in tags:
        if tag not in known:
            raise ArgumentError(f"`tags` must be of requests of {name}, {known_are(tag, known)}, got {tag!r}")
    return tuple(request for request in requests if request.tag in tags)


class Recording(Protocol):
    """A recording of either form, as `open_recording` reads it. It is frozen; changes return another one."""

    @property
    def requests(self) -> Sequence[Request]:
        """In file order."""
        ...

    @property
    def about(self) -> AboutRecording:
        """Its facts."""
        ...

    def __getitem__(self, ids: Iterable[str]) -> Self:
        """Only the requests with these ids, in the order of the ids; raises as `chosen`."""
        ...

    def of_tags(self, *tags: str) -> Self:
        """Only the requests with these tags, in their order; raises as `tagged`."""
        ...

    def known_shapes(self) -> Mapping[str, Named]:
        """Shapes for cost models by member, as recorded or else by name; without members whose shape is unknown."""
        ...

    @property
    def decoders(self) -> tuple[DecoderShape, ...]:
        """Decoders of the shapes given by `with_shapes`, where known."""
        ...

    def with_shapes(self, texts: Sequence[str]) -> Self:
        """What if: with shapes that its log lacks, or in place of recorded ones.

        `texts` are as for `given_shapes`.

        Raises:
            ValueError: an unknown member, or texts that are no shapes.
        """
        ...

    def shifted(self, shifts: Mapping[str, float], *, seed: int) -> Self:
        """What if drafters wrote the target's token more often, or less.

        In a recording of contexts, the decisions are those of the trunk. Only tokens change: stop rules, lossy
        verification and policies that read probabilities, entropies and distances see the old ones. A new rejection is
        a token that no model writes there; nothing after it is recorded.

        In an imported recording, a round ends at its first new rejection. A round whose rejection is flipped is kept
        whole there, and the rest is unknown unless another round of a token drafter has it. Measured seconds do not
        change.

        Args:
            shifts: by drafter, change of its share of agreement; 0 changes nothing.
            seed: of the draws.

        Raises:
            ValueError: an unknown drafter, a share outside [0, 1], no decision recorded, a vocabulary too small for a
                token that no model writes.
        """
        ...

    def summary(self, path: Path | None = None) -> RecordingSummary[Any, Any]:
        """Count and average it; `path` is where it was read from, if it was."""
        ...
