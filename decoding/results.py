"""What a world returns for requests and operations, and the records that a loop writes of them.

The fields of the records, in their order, are the columns of a run log; every other form is derived from them.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeGuard, TypeVar

from .prefix_cache import NO_COUNTS, PrefixCounts
from .steps import Draft, Outcome
from .trees import DraftTree, Tree

# `made(Drafted, (...))`, all fields given, is `Drafted(...)` at half the price: for what replay makes in every step.
made = tuple.__new__


class Drafted(NamedTuple):
    """What a world drafted for one request."""

    tokens: list[int]  # in their order; of a tree parents before their children
    places: list[int]  # the place after each
    num_modelled: int = 0  # how many of them were modelled
    tree: Tree | None = None  # of a DraftTree


class Judged(NamedTuple):
    """A verifier's verdict on one request's pending tokens."""

    num_accepted: int  # leading judged tokens that are kept, escalated ones included
    own_token: int  # the token the verifier writes after them
    own_place: int  # the place after `own_token`
    tvd: Sequence[float] = ()  # per judged token up to and including the first rejected one
    num_modelled: int = 0  # decisions (judged tokens and the own token) that were modelled rather than replayed or run
    # indices of the kept tokens that this verifier does not endorse, ascending, < `num_accepted`
    escalated: tuple[int, ...] = ()
    # of a pending tree the nodes that are kept, from the top; `num_accepted` is its length
    path: tuple[int, ...] | None = None


class Failed(NamedTuple):
    """In place of a row's result: the request cannot continue. It leaves the loop; the others are not touched."""

    error: Exception


class Deferred(NamedTuple):
    """In place of a row's result: the row did not run, since memory was short. The same step is tried again later."""

    reason: str


# Forwards of one shape inside an operation: requests in each, tokens fed in each over all rows, how many in a row, and
# seconds of one. One without tokens is no forward: seconds that the operation takes once, in addition to its forwards.
# A drafter that writes its whole draft at once has one forward, as wide as the draft. A plain tuple: replay makes two
# for every step.
Forward = tuple[int, int, int, float]


# The results of the parts of one request's `Overlap`, in their order.
Parted = tuple[Drafted | Judged, ...]
Row = TypeVar("Row", Drafted, Judged, Parted)


# The results of the requests of one operation.
Rows: TypeAlias = Sequence[Row | Failed | Deferred]

SET_ASIDE = frozenset((Failed, Deferred))


def all_ran(rows: Rows[Row]) -> TypeGuard[Sequence[Row]]:
    """Whether no row failed or was deferred."""
    for row in rows:  # noqa: SIM110 - a generator costs as much as the rest
        if row.__class__ in SET_ASIDE:
            return False
    return True


class RowResults(NamedTuple, Generic[Row]):
    """What a world did in an operation for B requests."""

    rows: Rows[Row]  # `[B]`, a result each, or that the row failed or was deferred
    forwards: list[Forward]  # what ran, deferred rows left out
    duration_s: float  # of the operation, seconds
    free_kv_share: float = 1.0  # share of KV memory that is free after the operation, 0 to 1
    prefixes: PrefixCounts = NO_COUNTS  # what the member's prefix cache did


class DraftResults(RowResults[Drafted]):
    """What a world drafted."""

    __slots__ = ()


class VerifyResults(RowResults[Judged]):
    """A verifier's verdicts."""

    __slots__ = ()


class PartRun(NamedTuple):
    """How one part of a batched `Overlap` ran."""

    after_s: float  # seconds from the beginning of the operation to that of the part
    forwards: list[Forward]  # what ran
    duration_s: float  # of the part, seconds
    prefixes: PrefixCounts = NO_COUNTS  # what its member's prefix cache did


class OverlapResults(NamedTuple):
    """What a world did in an operation of P parts for B requests."""

    rows: Rows[Parted]  # `[B]`, the result of each part, or that the row failed or was deferred
    parts: list[PartRun]  # `[P]` how each ran
    duration_s: float  # of the operation, seconds
    free_kv_share: float = 1.0  # as in `RowResults`


Results = DraftResults | VerifyResults | OverlapResults
Ran = DraftResults | VerifyResults | PartRun  # with what ran, and how long it took


# Kinds of steps and operations.
DRAFT, VERIFY, COMMIT, TREE = range(4)


class OpRecord(NamedTuple):
    """An operation that finished; what its member's prefix cache did is counted as in `PrefixCounts`."""

    kind: int  # DRAFT, VERIFY or TREE (a draft of trees)
    level: int  # of the member that ran
    num_rows: int  # requests in it
    num_forwards: int  # of the member
    new_tokens: int  # fed in these, over all rows
    start_s: float  # seconds since the run began
    duration_s: float  # seconds
    asked_tokens: int = 0
    hit_tokens: int = 0
    entered_blocks: int = 0
    evicted_blocks: int = 0


class StepRecord(NamedTuple):
    """A step of one request that finished; tokens (drafted to emitted) are counted as in `steps.Outcome`."""

    request_id: str  # whose step it is
    kind: int  # DRAFT, VERIFY, TREE, or COMMIT, which is part of no operation
    level: int  # of the member that ran, the target's for a Commit
    asked: int  # tokens a Draft asked for, nodes of a whole tree
    drafted: int
    judged: int
    accepted: int
    own: int
    emitted: int
    modelled: int  # decisions that were modelled rather than replayed or run
    end_s: float  # seconds since the run began
    escalated: int = 0  # of the accepted tokens, how many the verifier left to the next one
    prefill: int = 0  # 1 for the loop's own step, in which the target wrote the first token
    part: int = 0  # index of this part in an `Overlap`, which has one record for each; 0 for all other steps
    # 1 if a Verify rejected a token: of a tree, all nodes beyond the kept path, if there were any
    refused: int = 0


def op_record(kind: int, level: int, num_rows: int, results: Ran, start_s: float) -> OpRecord:
    """Of an operation in which `num_rows` requests ran."""
    num_forwards = new_tokens = 0
    for _, new, repeats, _ in results.forwards:
        num_forwards += repeats if new else 0
        new_tokens += repeats * new
    seconds, prefixes = results.duration_s, results.prefixes
    return made(OpRecord, (kind, level, num_rows, num_forwards, new_tokens, start_s, seconds, *prefixes))


def drafted_record(
    level: int, step: Draft | DraftTree, outcome: Outcome, num_modelled: int, end_s: float
) -> StepRecord:
    """Of a Draft or a DraftTree by the member at `level`."""
    kind, asked = (DRAFT, step.tokens) if isinstance(step, Draft) else (TREE, step.shape.most_nodes)
    # fmt: off
    return made(StepRecord, (
        outcome.request_id, kind, level, asked, outcome.num_drafted, 0, 0, 0, 0, num_modelled, end_s, 0, 0, 0, 0,
    ))
    # fmt: on


def judged_record(level: int, outcome: Outcome, num_modelled: int, end_s: float, prefill: int) -> StepRecord:
    """Of a Verify by the member at `level`, or of the loop's own prefill (1)."""
    request_id, _, _, judged, accepted, own, emitted, refused_at, _, _, _, _, escalated = outcome
    refused = int(refused_at is not None)
    # fmt: off
    return made(StepRecord, (
        request_id, VERIFY, level, 0, 0, judged, accepted, own, emitted, num_modelled, end_s, escalated, prefill, 0,
        refused,
    ))
    # fmt: on


def part_record(level: int, part: int, outcome: Outcome, num_modelled: int, end_s: float) -> StepRecord:
    """Of the part of an Overlap at this index, by the member at `level`."""
    if isinstance(outcome.step, Draft):
        return drafted_record(level, outcome.step, outcome, num_modelled, end_s)._replace(part=part)
    return judged_record(level, outcome, num_modelled, end_s, 0)._replace(part=part)


def committed_record(level: int, outcome: Outcome, end_s: float) -> StepRecord:
    """Of a Commit; `level` is the target's."""
    return StepRecord(outcome.request_id, COMMIT, level, 0, 0, 0, 0, 0, outcome.num_emitted, 0, end_s)


class Ledger(Protocol):
    """Where a loop writes its records."""

    def note_op(self, record: OpRecord) -> None:
        """An operation finished."""

    def note_step(self, record: StepRecord) -> None:
        """A step finished; comes after `note_op` of its operation."""

    def note_failed(self, request_id: str, error: str, end_s: float) -> None:
        """A request failed, for the reason `error` (never empty), and left the loop unfinished."""

    def note_preempted(self, request_id: str) -> None:
        """A step of a request did not run, since memory was short; it will be tried again."""
