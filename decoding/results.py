"""What a world answers: for one request what was drafted or judged, and for an operation what ran and how long."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeGuard, TypeVar

from .prefixes.counts import NO_COUNTS, PrefixCounts
from .trees.growth import Tree

# `made(Drafted, (...))`, all fields given, is `Drafted(...)` at half the price: for what replay makes in every step.
made = tuple.__new__


class Drafted(NamedTuple):
    """What a world drafted for one request.

    Attributes:
        tokens: in their order; of a tree parents before their children.
        places: the place after each.
        num_modelled: how many of them were modelled.
        tree: how they hang together, of a DraftTree.
    """

    tokens: list[int]
    places: list[int]
    num_modelled: int = 0
    tree: Tree | None = None


class Judged(NamedTuple):
    """What a world's verifier said of one request's pending tokens.

    Attributes:
        num_accepted: leading judged tokens that stay, escalated ones among them.
        own_token: the token the verifier writes after them.
        own_place: the place after `own_token`.
        tvd: per judged token up to and including the first refused one.
        num_modelled: decisions (judged tokens and the own token) that were modelled rather than replayed or run.
        escalated: indices of the tokens that stay and that this verifier does not endorse, ascending,
            < `num_accepted`.
        path: of a pending tree the nodes that stay, from the top; `num_accepted` is its length.
    """

    num_accepted: int
    own_token: int
    own_place: int
    tvd: Sequence[float] = ()
    num_modelled: int = 0
    escalated: tuple[int, ...] = ()
    path: tuple[int, ...] | None = None


class Failed(NamedTuple):
    """In place of a row's result: the request cannot go on. It leaves the loop; the others are not touched."""

    error: Exception


class Deferred(NamedTuple):
    """In place of a row's result: the row did not run, since memory was short. The same step is tried again later."""

    reason: str


# Forwards of one shape inside an operation: requests in each, tokens fed in each over all rows, how many in a row, and
# seconds of one. One without tokens is no forward: seconds that the operation takes once, besides its forwards. A
# drafter that writes its whole draft at once has one forward, as wide as the draft. A plain tuple: replay makes two for
# every step.
Forward = tuple[int, int, int, float]


# What came of the parts of one request's `Overlap`, in their order.
Parted = tuple[Drafted | Judged, ...]
Row = TypeVar("Row", Drafted, Judged, Parted)


# What came of the requests of one operation.
Rows: TypeAlias = Sequence[Row | Failed | Deferred]

SET_ASIDE = frozenset((Failed, Deferred))


def all_ran(rows: Rows[Row]) -> TypeGuard[Sequence[Row]]:
    """Whether no row failed or was deferred."""
    for row in rows:  # noqa: SIM110 - a generator costs as much as the rest
        if row.__class__ in SET_ASIDE:
            return False
    return True


class RowResults(NamedTuple, Generic[Row]):
    """What a world did in an operation for B requests.

    Attributes:
        rows: `[B]`, a result each, or that the row failed or was deferred.
        forwards: what ran, deferred rows left out.
        duration_s: of the operation, seconds.
        free_kv_share: share of KV memory that is free after the operation, 0 to 1.
        prefixes: what the member's prefix cache did.
    """

    rows: Rows[Row]
    forwards: list[Forward]
    duration_s: float
    free_kv_share: float = 1.0
    prefixes: PrefixCounts = NO_COUNTS


class DraftResults(RowResults[Drafted]):
    """What a world drafted."""

    __slots__ = ()


class VerifyResults(RowResults[Judged]):
    """What a world's verifier said."""

    __slots__ = ()


class PartRun(NamedTuple):
    """How one part of a batched `Overlap` ran.

    Attributes:
        after_s: seconds from the beginning of the operation to that of the part.
        forwards: what ran.
        duration_s: of the part, seconds.
        prefixes: what its member's prefix cache did.
    """

    after_s: float
    forwards: list[Forward]
    duration_s: float
    prefixes: PrefixCounts = NO_COUNTS


class OverlapResults(NamedTuple):
    """What a world did in an operation of P parts for B requests.

    Attributes:
        rows: `[B]`, what came of each part, or that the row failed or was deferred.
        parts: `[P]` how each ran.
        duration_s: of the operation, seconds.
        free_kv_share: as in `RowResults`.
    """

    rows: Rows[Parted]
    parts: list[PartRun]
    duration_s: float
    free_kv_share: float = 1.0

    @property
    def forwards(self) -> list[Forward]:
        """What ran, in all parts."""
        return [forward for part in self.parts for forward in part.forwards]

    @property
    def prefixes(self) -> PrefixCounts:
        """What the parts' prefix caches did, in all."""
        return PrefixCounts(*map(sum, zip(*(part.prefixes for part in self.parts), strict=True)))


Results = DraftResults | VerifyResults | OverlapResults
Ran = Results | PartRun  # whatever says what ran, and how long it took
