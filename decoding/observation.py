"""What a policy may see of one request: a live view, the same in both worlds, never an oracle."""

from collections.abc import Callable
from typing import NamedTuple

from .contract import Draft, Outcome
from .ledger import OpRecord
from .pool import Pool
from .rules.signal import Signal
from .session import Session


def found_nothing(last: Outcome | None) -> bool:
    """Whether a step was a draft that came back empty; None is no step."""
    return last is not None and last.num_drafted == 0 and last.step.__class__ is Draft


class PendingToken(NamedTuple):
    """One pending token as a policy sees it.

    Attributes:
        token: its id.
        drafter: the member that wrote it.
        judge: the highest member that endorses it: the last verifier that accepted it, else its drafter.
        signal: what the drafter said of it.
    """

    token: int
    drafter: str
    judge: str
    signal: Signal


class Load:
    """The state of the server, shared by all views. Mutated by the loop, and `num_waiting` by whoever drives it.

    Attributes:
        num_running: requests admitted and not done.
        num_waiting: requests that are there and not admitted yet, those that were put back among them.
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
        """An operation has run."""
        _, level, num_rows, num_forwards, new_tokens, _, duration_s = record[:7]
        self.batch[level], self.duration_s[level] = num_rows, duration_s
        self.num_forwards[level], self.new_tokens[level] = num_forwards, new_tokens


class Observation:
    """A view of one request and its surroundings; valid during `decide` only, since all of it is live."""

    __slots__ = ("_session", "_signal", "load")

    def __init__(self, session: Session, load: Load, signal: Callable[[Session, int], Signal]) -> None:
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
        """When its class wants the next token, on the clock of `load.now_s`; None where there is no such class."""
        return None

    @property
    def pool(self) -> Pool:
        """The members steps may name."""
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
        """Ids of the committed tokens after the prompt from index `start` >= 0 on (`Observable.text`)."""
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
        """The pending tokens from index `start` >= 0 on: who needs the last ones only is spared the others."""
        session, signal = self._session, self._signal
        names, tokens, drafters, judges = session.pool.names, session.tokens, session.drafters, session.judges
        return tuple(
            [
                PendingToken(tokens[i], names[drafters[i]], names[judges[i]], signal(session, i))
                for i in range(start, len(tokens))
            ]
        )

    @property
    def parents(self) -> tuple[int, ...] | None:
        """Of a pending tree, the index of each token's parent, -1 below the root; None where the pending are a run."""
        tree = self._session.tree
        return None if tree is None else tree.parents

    @property
    def last(self) -> Outcome | None:
        """What came of this request's previous step."""
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
