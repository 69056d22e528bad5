"""Answers of a recording of either form: its pool, its answers row by row, and their ends.

Also the device of each member, which decides what runs at the same time. Letters: P parts of an `Overlap`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..base.errors import ArgumentError
from ..decoding.pool import Member, Pool
from ..decoding.prompt_lookup import LookupRule
from ..decoding.request_text import Ending
from ..decoding.results import Drafted, Judged, OverlapResults
from ..decoding.rules import Signal
from ..decoding.session import Session
from ..decoding.steps import Draft, Verify
from ..traces.meta import NgramInfo
from ..traces.recording import Recording

ONE, EACH = "one", "each"


@dataclass(frozen=True, slots=True)
class DevicePlacement:
    """Members by device. Parts of an `Overlap` run in turn on one device, at once on several.

    All else is one operation at a time on any device: a chain gains nothing by a second device.
    """

    devices: tuple[str, ...] = ()  # names by level; empty for one device
    name: str = ONE  # as given

    def placed(self, levels: Sequence[int], results: OverlapResults) -> OverlapResults:
        """Results of parts run in turn, with their starts and seconds on these devices.

        `levels` has the `[P]` members of the parts; `results` are of the operation with its parts in turn.
        """
        if len(set(self.devices)) < 2:
            return results
        busy_s: dict[str, float] = {}
        parts = []
        for level, part in zip(levels, results.parts, strict=True):
            device = self.devices[level]
            start_s = busy_s.get(device, 0.0)
            busy_s[device] = start_s + part.duration_s
            parts.append(part._replace(after_s=start_s))
        return results._replace(parts=parts, duration_s=max(busy_s.values()))


def placement_of(text: str | Mapping[str, str] | None, pool: Pool) -> DevicePlacement:
    """Parse a placement of members.

    `text` is `one` device for all (None too), `each` on one of its own, or NAME=DEVICE separated by commas (or a
    mapping by name): all members that are not named share a device.

    Raises:
        ArgumentError: another text, an unknown member, one that is named twice, or an empty device.
    """
    if text is None or text == ONE:
        return DevicePlacement()
    if text == EACH:
        return DevicePlacement(pool.names, EACH)
    if isinstance(text, Mapping):
        pairs = list(text.items())
    else:
        pairs = []
        for part in text.split(","):
            name, equals, device = part.partition("=")
            if not equals:
                raise ArgumentError(f"`devices` must be {ONE}, {EACH} or NAME=DEVICE separated by commas, got {text!r}")
            pairs.append((name, device))
    named: dict[str, str] = {}
    for name, device in pairs:
        if name not in pool.names:
            raise ArgumentError(f"`devices` must name members of {', '.join(pool.names)}, got {name!r}")
        if name in named or not device:
            raise ArgumentError(f"`devices` must name each member once, with a device, got {name}={device}")
        named[name] = device
    devices = tuple([named.get(name, "") for name in pool.names])
    return DevicePlacement(devices, ",".join(f"{name}={device}" for name, device in named.items()))


class Replayed(NamedTuple):
    """The start of a session that replays a request of a recording."""

    tag: str  # of the request
    prompt: tuple[int, ...]  # its token ids, at least one; zeros where not logged
    budget: int  # tokens that its answer may have
    eos: frozenset[int]  # tokens that end its answer
    ending: Ending | None  # a further rule that ends it; None: none
    place: int  # of its prompt

    def session(self, pool: Pool, session_id: str, prefill_before: tuple[bool, ...] | None = None) -> Session:
        """A session that replays it; `prefill_before` as in `Session`."""
        session = Session(
            pool=pool,
            request_id=session_id,
            tag=self.tag,
            prompt=self.prompt,
            budget=self.budget,
            eos=self.eos,
            ending=self.ending,
            prefill_before=prefill_before,
        )
        session.place = self.place
        return session


class RecordedAnswers(Protocol):
    """Answers for sessions, each of which replays a request; several may replay the same one."""

    num_free: int  # model-free members, which come first in the pool

    def replay(self, session_id: str, request_id: str) -> Replayed:
        """Begin to replay a request of the recording in a session, in place of the one before, if any.

        Raises:
            KeyError: a request that the recording does not hold.
        """

    def release(self, session_id: str) -> None:
        """Forget a session; raises KeyError for one that replays nothing."""

    def drafted(self, session: Session, step: Draft, level: int) -> Drafted:
        """The draft of the model at `level`."""

    def looked_up(self, session: Session, step: Draft) -> Drafted:
        """The draft of prompt lookup."""

    def judged(self, session: Session, step: Verify, level: int) -> Judged:
        """The verdict of the model at `level` on the pending tokens."""

    def signal(self, session: Session, index: int) -> Signal:
        """How sure the drafter was of the pending token at `index`."""


def recorded_pool(recording: Recording) -> Pool:
    """Members in level order: prompt lookup where it can be replayed, then the models, smallest first."""
    about = recording.about
    free = (Member(name=name, model_free=True) for name in about.lookups)
    drafters = (
        Member(name=name, drafts_only=about.drafts_only, from_features=name == about.from_features)
        for name in about.models[:-1]
    )
    return Pool((*free, *drafters, Member(name=about.target)))


def recorded_rule(ngram: NgramInfo) -> LookupRule:
    """The rule of a recording's prompt lookup."""
    return LookupRule(max_match=ngram.max_match, min_match=ngram.min_match, occurrence=ngram.occurrence)


class UnrecordedContextError(ArgumentError):
    """Replay without a fallback reached a context that the trace does not hold."""

    NEEDED = "a context outside the recording; record with a larger `reach` or `run`, or leave out `strict`"

    def __init__(self, request_id: str, position: int, what: str) -> None:
        # All are args, since SimPy builds the error of a process again from its args.
        super().__init__(request_id, position, what)

    def __str__(self) -> str:
        request_id, position, what = self.args
        return f"request {request_id}: {what} at output position {position} needs {self.NEEDED}"


class UnrecordedTreeError(UnrecordedContextError):
    """A token tree needs branches that the trace does not hold."""

    NEEDED = "branches outside the recording; record with `trees` of its drafter, as wide and as deep"
