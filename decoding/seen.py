"""What a policy may see of one request, and how requests begin.

A view is live, the same in both worlds, and never an oracle. A request begins with the target's prefill, as in engines,
or with a draft on the bare prompt. All drafts of a request may have to wait for the prefill, none, or those of some
members: then the policy decides its first step once, and it is kept while the prefill runs.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from ..base.errors import ArgumentError
from .pool import Pool
from .results import OpRecord, made
from .rules import Signal
from .session import READER, Session
from .steps import Draft, Outcome, Overlap, Step, Verify
from .trees import DraftTree


def found_nothing(last: Outcome | None) -> bool:
    """Whether a step was a draft that came back empty; None is no step."""
    return last is not None and last.num_drafted == 0 and last.step.__class__ is Draft


class PendingToken(NamedTuple):
    """One pending token as a policy sees it."""

    token: int  # its id
    drafter: str  # the member that wrote it
    judge: str  # the highest member that endorses it: the last verifier that accepted it, else its drafter
    signal: Signal  # how sure the drafter was of it


class ServerLoad:
    """The state of the server, shared by all views. Mutated by the loop, and `num_waiting` by its caller.

    Attributes:
        num_running: requests admitted and not done.
        num_waiting: requests that have arrived and are not admitted, preempted ones included.
        context_tokens: prompt and committed tokens of the requests that run.
        free_kv_share: share of KV memory that is free, 0 to 1, of the member with the least; always 1 where memory has
            no limit, as in `simulate`.
        batch: per level, rows of that member's latest operation, 0 before the first.
        num_forwards: per level, forwards of that operation.
        new_tokens: per level, tokens that these were fed, all rows and forwards together.
        duration_s: per level, seconds of that operation.
        now_s: the clock, seconds since the run began.
    """

    __slots__ = (
        "batch",
        "context_tokens",
        "duration_s",
        "free_kv_share",
        "new_tokens",
        "now_s",
        "num_forwards",
        "num_running",
        "num_waiting",
    )

    def __init__(self, num_members: int) -> None:
        self.num_running = 0
        self.num_waiting = 0
        self.context_tokens = 0
        self.free_kv_share = 1.0
        self.batch = [0] * num_members
        self.num_forwards = [0] * num_members
        self.new_tokens = [0] * num_members
        self.duration_s = [0.0] * num_members
        self.now_s = 0.0

    def note_ran(self, record: OpRecord) -> None:
        """Take over the figures of an operation that has run."""
        level = record.level
        self.batch[level], self.duration_s[level] = record.num_rows, record.duration_s
        self.num_forwards[level], self.new_tokens[level] = record.num_forwards, record.new_tokens


class Observation:
    """A view of one request and its surroundings; valid during `decide` only, since all of it is live."""

    __slots__ = ("_session", "_signal", "load")

    def __init__(self, session: Session, load: ServerLoad, signal: Callable[[Session, int], Signal]) -> None:
        self._session = session
        self._signal = signal
        self.load = load

    @property
    def request_id(self) -> str:
        """Unique in the run."""
        return self._session.request_id

    @property
    def tag(self) -> str:
        """Task or domain of the request."""
        return self._session.tag

    @property
    def slo(self) -> str:
        """Name of the request's class of service levels; "" for none, as everywhere but in served workloads."""
        return ""

    @property
    def deadline_s(self) -> float | None:
        """When the next token is due by its class, on the clock of `load.now_s`; None without such a class."""
        return None

    @property
    def pool(self) -> Pool:
        """The members that steps may name."""
        return self._session.pool

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return self._session.num_prompt

    @property
    def prompt(self) -> tuple[int, ...]:
        """Ids of the prompt (`Observable.text`); in served workloads, that of the recording that is replayed."""
        return self._session.prompt

    @property
    def num_emitted(self) -> int:
        """Tokens committed after the prompt."""
        return len(self._session.emitted)

    def emitted_from(self, start: int) -> list[int]:
        """Ids of the committed tokens after the prompt from index `start` on, as a slice (`Observable.text`)."""
        return self._session.emitted[start:]

    @property
    def remaining(self) -> int:
        """Tokens of the budget not yet committed, >= 1."""
        return self._session.budget - len(self._session.emitted)

    @property
    def room(self) -> int:
        """Tokens that may still be drafted; at 0 only Verify and Commit are legal."""
        return self._session.room

    @property
    def has_room(self) -> bool:
        """Whether a token may still be drafted."""
        return self._session.room > 0

    @property
    def num_pending(self) -> int:
        """Tokens drafted or kept by a verifier, not yet committed."""
        return len(self._session.tokens)

    @property
    def pending(self) -> tuple[PendingToken, ...]:
        """The pending tokens, oldest first."""
        return self.pending_from(0)

    def pending_from(self, start: int) -> tuple[PendingToken, ...]:
        """The pending tokens from index `start` on, as a slice (-1: the last); cheaper than `pending` for a few."""
        session, signal = self._session, self._signal
        names, tokens, drafters, judges = session.pool.names, session.tokens, session.drafters, session.judges
        return tuple(
            [
                made(PendingToken, (tokens[i], names[drafters[i]], names[judges[i]], signal(session, i)))
                for i in range(len(tokens))[start:]
            ]
        )

    @property
    def parents(self) -> tuple[int, ...] | None:
        """Of a pending tree, the index of each token's parent, -1 below the root; None where there is no tree."""
        tree = self._session.tree
        return None if tree is None else tree.parents

    @property
    def last(self) -> Outcome | None:
        """The outcome of this request's previous step."""
        return self._session.last

    @property
    def found_nothing(self) -> bool:
        """Whether the previous step was a draft that came back empty (a model-free drafter had no match)."""
        return found_nothing(self._session.last)

    def waiting(self, model: str) -> int:
        """Pending tokens that `model` would judge: from the first that no member at or above it endorses."""
        session = self._session
        return len(session.tokens) - session.first_unjudged(session.pool.level(model))

    def cached(self, model: str) -> int:
        """Tokens of this context that the member's KV cache holds; the rest it must catch up on."""
        return self._session.cached[self._session.pool.level(model)]

    @property
    def context_tokens(self) -> int:
        """Prompt, committed and pending tokens."""
        return self._session.context_tokens


class Start(StrEnum):
    """Where a request's first token comes from."""

    prefill = "prefill"  # the target reads the prompt and writes the first token; drafts come after it, as in engines
    draft = "draft"  # a policy may draft on the bare prompt; the first verification reads the prompt as well
    recorded = "recorded"  # as each method of an imported log began


def start_of(given: str) -> Start:
    """A start by its name; raises ArgumentError for any other text."""
    if given not in set(Start):
        raise ArgumentError(f"`start` must be one of {', '.join(Start)}, got {given!r}")
    return Start(given)


def prefill_before(start: str, pool: Pool, *, what: str = "this run") -> tuple[bool, ...]:
    """`[L]` for the sessions of a pool of L members: whether a draft by each comes after the target's prefill.

    `start` is `prefill` or `draft`, for every member; `what` names the run in the error. Raises ArgumentError for
    `recorded`, which needs a log, and for `draft` with a member that reads the target's states.
    """
    begins = start_of(start)
    if begins is Start.recorded:
        raise ArgumentError(
            f"`start` must be prefill or draft for {what}, which holds no start of its own, got {begins}"
        )
    if begins is Start.draft and pool.feature_level is not None:
        reader = pool.names[pool.feature_level]
        raise ArgumentError(f"`start` must be prefill beside {reader}, {READER}, got {begins}")
    return (begins is Start.prefill,) * len(pool.members)


class Prefills:
    """The requests of a loop that have not begun yet.

    `step` is the prefill, compared by identity, so that no policy's step is taken for it; `undecided` holds the ids of
    requests whose first step decides whether a prefill comes before it.
    """

    __slots__ = ("_kept", "step", "undecided")

    def __init__(self, pool: Pool) -> None:
        self.step = Verify(pool.target)
        self.undecided: set[str] = set()
        self._kept: dict[str, Draft | DraftTree | Overlap] = {}

    def due_first(self, session: Session) -> bool:
        """Whether a new request begins with the prefill, before its policy decides; else its first step may wait."""
        if session.prefills_first:
            return True
        if any(session.prefill_before):
            self.undecided.add(session.request_id)
        return False

    def due_before(self, session: Session, step: Step, level: int) -> bool:
        """Whether a policy's step has to wait for the prefill, which is due then; the step is kept."""
        if session.request_id not in self.undecided:
            return False
        self.undecided.remove(session.request_id)
        if not (isinstance(step, Draft | DraftTree | Overlap) and session.prefills_before(step, level)):
            return False
        self._kept[session.request_id] = step
        return True

    def waiting(self, request_id: str) -> Draft | DraftTree | Overlap | None:
        """Remove and return the step that waited for the prefill that has just run, if any."""
        return self._kept.pop(request_id, None)

    def forget(self, request_id: str) -> None:
        """A request is done or failed."""
        self.undecided.discard(request_id)
        self._kept.pop(request_id, None)
