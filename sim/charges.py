"""Seconds of operations: by forwards, by measured operations, by recorded rounds, or with prefix caches.

A world chooses one of these once. Letters: B requests of an operation.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from ..base.errors import ArgumentError
from ..decoding.pool import Pool
from ..decoding.prefix_cache import NO_COUNTS, PrefixCounts
from ..decoding.prefix_caches import PoolPrefixes
from ..decoding.results import Drafted, Forward
from ..decoding.session import READER, Session
from ..decoding.steps import Draft, Verify
from ..decoding.trees import DraftTree
from ..decoding.world import DraftItem, TreeItem, VerifyItem
from ..traces.profile import BatchShape, WeightsRead
from .cost.base import Beside, CostModel, DraftTerms, held_together

Charged = tuple[list[Forward], float]  # what ran, and seconds of the whole operation


class Charges:
    """Charges operations by their forwards, with catch-up, verification width and the rows still running.

    `pool` has the members in level order. The attribute `beside_s` has the seconds so far outside forwards, or None
    where the cost has none.
    """

    def __init__(self, cost: CostModel, pool: Pool) -> None:
        self.beside_s: float | None = None
        self._cost = cost
        self._names = pool.names
        self._reader = pool.feature_level

    def close(self, request_id: str) -> None:
        """Forget a request that has ended."""

    def counts(self, level: int) -> PrefixCounts:
        """Counts of a member's prefix cache in the operation that was charged last."""
        return NO_COUNTS

    def lookup_s(self, num_rows: int) -> float:
        """Seconds of prompt lookups for `num_rows` requests."""
        return self._cost.lookups_s(num_rows)

    def draft(self, level: int, items: Sequence[DraftItem], drafted: Sequence[Drafted]) -> Charged:
        """Of a Draft with `[B]` results."""
        forwards = draft_forwards(self._cost, self._names[level], items, drafted, level)
        return forwards, total_s(forwards)

    def check_trees(self, level: int) -> None:
        """Raises ValueError for a member whose drafts cost seconds by the round, which do not cover trees."""
        name = self._names[level]
        terms = self._cost.draft_terms(name)
        if terms is not None and (terms.per_token_s is not None or terms.block is not None or terms.seconds(0, 1)):
            raise ValueError(
                f"cost {self._cost.name} charges drafts by {name} by the round, which says nothing of trees"
            )

    def draft_trees(self, level: int, items: Sequence[TreeItem], drafted: Sequence[Drafted]) -> Charged:
        """Of a DraftTree: a forward that catches up, then one for each layer over the nodes that it grows from."""
        name = self._names[level]
        forwards = [fed_forward(self._cost, name, fed) for fed in tree_feeds(items, drafted, level)]
        return forwards, total_s(forwards)

    def verify(self, level: int, items: Sequence[VerifyItem]) -> Charged:
        """Of a Verify: one forward, except for a member that reads the target's states."""
        if level == self._reader:
            forwards = reading_forwards(self._cost, self._names[level], items, level, [1] * len(items))
            return forwards, total_s(forwards)
        forward = fed_forward(self._cost, self._names[level], [row.feed(level, verify=True) for row, _ in items])
        return [forward], forward[3]


def charges_of(cost: CostModel, pool: Pool, now_s: Callable[[], float] | None) -> Charges:
    """The charges for a cost; `now_s` as of `OperationCharges`.

    Raises:
        ArgumentError: a cost by operations in a pool with a member that reads the target's states.
    """
    if not cost.knows_operations:
        return Charges(cost, pool)
    if pool.feature_level is not None:
        reader = pool.names[pool.feature_level]
        raise ArgumentError(f"`cost` must charge forwards beside {reader}, {READER}, got {cost.name}, of operations")
    return OperationCharges(cost, pool, now_s)


class OperationCharges(Charges):
    """Charges operations whose forwards, and all outside them, were measured in decoding; mutated by each.

    A forward is charged by its rows: their padding, whether they are adjacent in the cache, and how long ago its
    weights were read last. So rows of caches are assigned here as in the runtime's caches, and the run's clock is read:
    anything between two forwards (lookups, other members' forwards, decisions) keeps weights away.

    `pool` has the members in level order. `now_s` reads the run's clock, at the beginning of an operation when that is
    charged; None outside a run, where only what is charged takes time.
    """

    def __init__(self, cost: CostModel, pool: Pool, now_s: Callable[[], float] | None) -> None:
        super().__init__(cost, pool)
        self.beside_s: float = 0.0
        self._charged_s = 0.0
        self._now_s = now_s or (lambda: self._charged_s)
        self._read = WeightsRead(cost.shares)
        self._rows: dict[int, dict[str, int]] = {}

    def close(self, request_id: str) -> None:
        """Free its rows."""
        for rows in self._rows.values():
            rows.pop(request_id, None)

    def lookup_s(self, num_rows: int) -> float:
        seconds = self._cost.lookups_s(num_rows)
        return self._charge(0.0, seconds)

    def check_trees(self, level: int) -> None:
        """See `Charges`; seconds outside the forwards of drafts are taken for those of trees."""

    def draft(self, level: int, items: Sequence[DraftItem], drafted: Sequence[Drafted]) -> Charged:
        """See `Charges`: one forward a token while any row still drafts."""
        writing = [(item[0], len(row.tokens)) for item, row in zip(items, drafted, strict=True) if row.tokens]
        rows = self._places(level, [session.request_id for session, _ in writing])
        fed = [session.feed(level, verify=False) for session, _ in writing]
        forwards: list[Forward] = []
        if writing:
            forwards.append(self._first(level, fed, rows))
            held = [new + kept for new, kept in fed]
            lengths = [length for _, length in writing]
            for done in range(1, max(lengths)):
                going = [place for place, length in enumerate(lengths) if length > done]
                shape = BatchShape(
                    len(going),
                    len(going),
                    1,
                    max(held[place] for place in going) + done,
                    _apart(rows[place] for place in going),
                )
                seconds = self._cost.batch_s(self._names[level], shape, first=False)
                forwards.append((shape.num_rows, shape.new_tokens, 1, seconds))
        kind: Beside = "stop" if any(step.stop is not None for _, step in items) else "draft"
        return forwards, self._whole(kind, level, len(items), sum(len(row.tokens) for row in drafted), forwards)

    def draft_trees(self, level: int, items: Sequence[TreeItem], drafted: Sequence[Drafted]) -> Charged:
        rows = self._places(level, [session.request_id for session, _ in items])
        feeds = list(tree_feeds(items, drafted, level))
        forwards = [self._first(level, feeds[0], rows)]
        widths = [row.tree.widths if row.tree is not None else () for row in drafted]
        for layer, fed in enumerate(feeds[1:]):
            standing = [rows[place] for place, by_layer in enumerate(widths) if len(by_layer) > layer]
            new, longest = sum(count for count, _ in fed), max(count for count, _ in fed)
            shape = BatchShape(len(fed), new, longest, max(count + held for count, held in fed), _apart(standing))
            forwards.append((len(fed), new, 1, self._cost.batch_s(self._names[level], shape, first=False)))
        return forwards, self._whole("draft", level, len(items), sum(len(row.tokens) for row in drafted), forwards)

    def verify(self, level: int, items: Sequence[VerifyItem]) -> Charged:
        rows = self._places(level, [session.request_id for session, _ in items])
        forward = self._first(level, [session.feed(level, verify=True) for session, _ in items], rows)
        judged = sum(len(session.tokens) - session.first_unjudged(level) + 1 for session, _ in items)
        return [forward], self._whole("verify", level, len(items), judged, [forward])

    def _first(self, level: int, fed: Sequence[tuple[int, int]], rows: Sequence[int]) -> Forward:
        """The first forward of an operation, whose weights were not read just before."""
        num_rows = len(fed)
        new_tokens = sum(new for new, _ in fed)
        longest, num_slots = max(new for new, _ in fed), max(new + held for new, held in fed)
        shape = BatchShape(num_rows, new_tokens, longest, num_slots, _apart(rows))
        name = self._names[level]
        away = self._read.away(name, self._now_s())
        seconds = self._cost.batch_s(name, shape, first=True) + self._cost.reloads_s(name, new_tokens, away)
        return (num_rows, new_tokens, 1, seconds)

    def _whole(self, kind: Beside, level: int, num_rows: int, num_tokens: int, forwards: Sequence[Forward]) -> float:
        """Seconds of an operation; those outside its forwards come after them."""
        name = self._names[level]
        beside_s = self._cost.beside_s(kind, name, num_forwards=len(forwards), num_rows=num_rows, num_tokens=num_tokens)
        forwards_s = sum(each_s for *_, each_s in forwards)
        if forwards:
            self._read.note(name, self._now_s() + forwards_s)
        return self._charge(forwards_s, beside_s)

    def _charge(self, forwards_s: float, beside_s: float) -> float:
        self.beside_s += beside_s
        seconds = forwards_s + beside_s
        self._charged_s += seconds
        return seconds

    def _places(self, level: int, request_ids: Iterable[str]) -> list[int]:
        """Rows of the member's cache; a new request takes the first free one."""
        rows = self._rows.setdefault(level, {})
        for request_id in request_ids:
            if request_id not in rows:
                taken = set(rows.values())
                rows[request_id] = next(row for row in range(len(taken) + 1) if row not in taken)
        return [rows[request_id] for request_id in request_ids]


Item = tuple[Session, Draft | DraftTree | Verify]


class PrefixCharges(Charges):
    """Charges forwards where members have prefix caches: cached tokens are not fed, and rows may wait for others.

    The logic is that of the runtime (`decoding.prefix_cache`), called at the same moments; blocks hold nothing here.
    Mutated by each operation. `pool` has the members in level order.

    Raises:
        ArgumentError: a pool with a member that reads the target's states.
    """

    def __init__(self, cost: CostModel, pool: Pool, prefixes: PoolPrefixes) -> None:
        super().__init__(cost, pool)
        if pool.feature_level is not None:
            raise ArgumentError(f"`prefix_cache` does not go with {pool.names[pool.feature_level]}, {READER}")
        self._prefixes = prefixes

    def close(self, request_id: str) -> None:
        """See `Charges`; the request's references are given up."""
        self._prefixes.release(request_id)

    def counts(self, level: int) -> PrefixCounts:
        return self._prefixes.take_counts(level)

    def verify(self, level: int, items: Sequence[VerifyItem]) -> Charged:
        """See `Charges`: a forward for each wave."""
        name, forwards = self._names[level], list[Forward]()
        for wave in self._prefixes.waves(level, [session for session, _ in items]):
            rows = [items[index] for index in wave]
            self._look_up(level, rows)
            forwards.append(fed_forward(self._cost, name, [row.feed(level, verify=True) for row, _ in rows]))
            self._enter(level, rows)
        return forwards, total_s(forwards)

    def draft(self, level: int, items: Sequence[DraftItem], drafted: Sequence[Drafted]) -> Charged:
        """See `Charges`: forwards that read, then one a token while any row still drafts."""
        name = self._names[level]
        rows = [(item, len(row.tokens)) for item, row in zip(items, drafted, strict=True) if row.tokens]
        terms = self._cost.draft_terms(name)
        if terms is not None and terms.per_token_s is not None:  # whole drafts: none has a first forward
            return super().draft(level, items, drafted)
        block = None if terms is None else terms.block
        if terms is not None and rows:
            terms.check_fits(name, max(length for _, length in rows))
        forwards: list[Forward] = [] if terms is None or block else [(len(items), 0, 1, terms.seconds(0, len(items)))]
        held: list[tuple[int, int]] = []
        for wave in self._prefixes.waves(level, [item[0] for item, _ in rows]):
            reading = [rows[index] for index in wave]
            self._look_up(level, [item for item, _ in reading])
            fed = [item[0].feed(level, verify=False) for item, _ in reading]
            held += [(new + kept, length) for (new, kept), (_, length) in zip(fed, reading, strict=True)]
            if block is not None:
                fed = [block.forward(*row, length) for row, (_, length) in zip(fed, reading, strict=True)]
            forwards.append(fed_forward(self._cost, name, fed))
            self._enter(level, [item for item, _ in reading])
        if block is None:
            forwards += later_forwards(self._cost, name, held)
        if terms is not None:
            forwards += stop_reads(terms, items, drafted)
        return forwards, total_s(forwards)

    def draft_trees(self, level: int, items: Sequence[TreeItem], drafted: Sequence[Drafted]) -> Charged:
        """See `Charges`: forwards that read, then one for each layer of all trees."""
        name, forwards = self._names[level], list[Forward]()
        held = [0] * len(items)
        for wave in self._prefixes.waves(level, [session for session, _ in items]):
            rows = [items[index] for index in wave]
            self._look_up(level, rows)
            fed = [session.feed(level, verify=False) for session, _ in rows]
            forwards.append(fed_forward(self._cost, name, fed))
            for index, (new, kept) in zip(wave, fed, strict=True):
                held[index] = new + kept
            self._enter(level, rows)
        forwards += [fed_forward(self._cost, name, fed) for fed in layer_feeds(held, drafted)]
        return forwards, total_s(forwards)

    def _look_up(self, level: int, items: Sequence[Item]) -> None:
        for session, _ in items:
            self._prefixes.look_up(level, session)

    def _enter(self, level: int, items: Sequence[Item]) -> None:
        for session, _ in items:
            self._prefixes.enter(level, session)


def reading_forwards(
    cost: CostModel, model: str, items: Sequence[DraftItem | VerifyItem], level: int, lengths: Sequence[int]
) -> list[Forward]:
    """The forwards of a drafter from the target's states, which reads tokens not judged yet one by one.

    `lengths` is `[B]` tokens drafted; 1 for a Verify, whose last forward writes its own token.
    """
    fed = []
    for (session, step), length in zip(items, lengths, strict=True):
        new, held = session.feed(level, verify=isinstance(step, Verify))
        first = session.at_once(level, new, held)
        fed.append((first, held, length and length + new - first))
    return rows_draft_forwards(cost, model, fed)


def draft_forwards(
    cost: CostModel, model: str, items: Sequence[DraftItem], drafted: Sequence[Drafted], level: int
) -> list[Forward]:
    """Seconds of a Draft: as a whole where the cost has that, else its forwards, after its seconds by the round.

    Seconds of its rows' stops come last.
    """
    forwards = _forwards_of(cost, model, items, drafted, level)
    terms = cost.draft_terms(model)
    return forwards if terms is None or not terms.stop_s else [*forwards, *stop_reads(terms, items, drafted)]


def stop_reads(terms: DraftTerms, items: Sequence[DraftItem], drafted: Sequence[Drafted]) -> list[Forward]:
    """Seconds of the stops of a Draft, outside forwards: by drafted token of the longest row with a stop."""
    lengths = [len(row.tokens) for (_, step), row in zip(items, drafted, strict=True) if step.stop is not None]
    if not any(lengths) or not terms.stop_s:
        return []
    return [(len(lengths), 0, 1, terms.stop_s * (max(lengths) if terms.block is None else 1))]  # a block is read once


def _forwards_of(
    cost: CostModel, model: str, items: Sequence[DraftItem], drafted: Sequence[Drafted], level: int
) -> list[Forward]:
    if items[0][0].pool.feature_level == level:
        return reading_forwards(cost, model, items, level, [len(row.tokens) for row in drafted])
    if len(items) == 1:  # the usual case in replay
        length = len(drafted[0].tokens)
        new_tokens, context_tokens = items[0][0].feed(level, verify=False) if length else (0, 0)
        return row_draft_forwards(cost, model, new_tokens, context_tokens, length)
    fed = [
        (*session.feed(level, verify=False), len(row.tokens)) for (session, _), row in zip(items, drafted, strict=True)
    ]
    return rows_draft_forwards(cost, model, fed)


def rows_draft_forwards(cost: CostModel, model: str, fed: Sequence[tuple[int, int, int]]) -> list[Forward]:
    """As `draft_forwards`, of several requests.

    `fed` is `[B]`: of each request, tokens fed to its first forward, tokens that its cache holds then, and tokens
    drafted, >= 0.
    """
    terms = cost.draft_terms(model)
    if terms is None:
        return _token_forwards(cost, model, fed)
    if terms.per_token_s is not None:
        return [_whole_draft(terms, [length for _, _, length in fed])]
    if terms.block is not None:
        terms.check_fits(model, max(length for _, _, length in fed))
        rows = [terms.block.forward(*row) for row in fed if row[2]]
        return [fed_forward(cost, model, rows)] if rows else []
    # Without tokens: seconds of the operation, not of a forward.
    return [(len(fed), 0, 1, terms.seconds(0, len(fed))), *_token_forwards(cost, model, fed)]


def row_draft_forwards(cost: CostModel, model: str, new_tokens: int, context_tokens: int, length: int) -> list[Forward]:
    """As `draft_forwards`, of one request, whose cache holds `context_tokens` and is fed `new_tokens` first."""
    terms = cost.draft_terms(model)
    if terms is None:
        return _row_forwards(cost, model, new_tokens, context_tokens, length)
    if terms.per_token_s is not None:
        return [_whole_draft(terms, [length])]
    if terms.block is not None:
        return rows_draft_forwards(cost, model, [(new_tokens, context_tokens, length)])
    return [(1, 0, 1, terms.seconds(0, 1)), *_row_forwards(cost, model, new_tokens, context_tokens, length)]


def fed_forward(cost: CostModel, model: str, fed: Sequence[tuple[int, int]]) -> Forward:
    """One forward; `fed` has by request the tokens fed, and those held."""
    if len(fed) == 1:  # the usual case in replay
        ((new_tokens, context_tokens),) = fed
    else:
        new_tokens, context_tokens = sum(new for new, _ in fed), held_together(cost, model, [held for _, held in fed])
    seconds = cost.forward_s(model, num_rows=len(fed), new_tokens=new_tokens, context_tokens=context_tokens)
    return len(fed), new_tokens, 1, seconds


def tree_feeds(items: Sequence[TreeItem], drafted: Sequence[Drafted], level: int) -> Iterator[list[tuple[int, int]]]:
    """For each forward of a DraftTree, by request in it: tokens fed, and tokens held."""
    fed = [session.feed(level, verify=False) for session, _ in items]
    yield fed
    yield from layer_feeds([new + kept for new, kept in fed], drafted)


def layer_feeds(held: Sequence[int], drafted: Sequence[Drafted]) -> Iterator[list[tuple[int, int]]]:
    """As `tree_feeds`, of the forwards after the first one, in which requests hold `held` tokens."""
    widths = [row.tree.widths if row.tree is not None else () for row in drafted]
    for layer in range(max(map(len, widths))):
        growing = [place for place, by_layer in enumerate(widths) if len(by_layer) > layer]
        yield [(widths[place][layer], held[place] + sum(widths[place][:layer])) for place in growing]


def around_middle(doubled_held: int, repeats: int) -> list[tuple[int, int]]:
    """(tokens held, forwards) that represent a run of `repeats` forwards, `doubled_held` / 2 tokens held in the middle.

    Cost models are linear in the tokens held between their corners, so the middle of a run represents all of it. A
    middle between two whole numbers is both, half of the forwards each: `repeats` is even then.
    """
    held, half = divmod(doubled_held, 2)
    return [(held, repeats // 2), (held + 1, repeats // 2)] if half else [(held, repeats)]


def total_s(forwards: Sequence[Forward]) -> float:
    """Seconds of forwards that run one after another."""
    seconds = 0.0
    for _, _, repeats, each_s in forwards:
        seconds += repeats * each_s
    return seconds


def _whole_draft(terms: DraftTerms, lengths: Sequence[int]) -> Forward:
    """A draft in one forward, as wide as the draft; rows are drafted in parallel, so the longest one counts."""
    return (len(lengths), sum(lengths), 1, terms.seconds(max(lengths), len(lengths)))


def _token_forwards(cost: CostModel, model: str, fed: Sequence[tuple[int, int, int]]) -> list[Forward]:
    """One forward per drafted token: the first also catches up, later ones run while any row still drafts."""
    # A recorded drafter that found nothing takes no forward.
    rows = [row for row in fed if row[2]]
    if not rows:
        return []
    num_rows, new_tokens = len(rows), sum([row[0] for row in rows])
    context_tokens = held_together(cost, model, [row[1] for row in rows])
    seconds = cost.forward_s(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)
    held = [(new + held, length) for new, held, length in rows]
    return [(num_rows, new_tokens, 1, seconds), *later_forwards(cost, model, held)]


def _row_forwards(cost: CostModel, model: str, new_tokens: int, context_tokens: int, length: int) -> list[Forward]:
    if not length:
        return []
    seconds = cost.forward_s(model, num_rows=1, new_tokens=new_tokens, context_tokens=context_tokens)
    if length == 1:
        return [(1, new_tokens, 1, seconds)]
    forwards = [(1, new_tokens, 1, seconds)]
    for held, repeats in around_middle(2 * (context_tokens + new_tokens) + length - 2, length - 1):
        later_s = cost.forward_s(model, num_rows=1, new_tokens=1, context_tokens=held)
        forwards.append((1, 1, repeats, later_s))
    return forwards


def later_forwards(cost: CostModel, model: str, held: Sequence[tuple[int, int]]) -> list[Forward]:
    """The forwards after the first one of a batched draft, grouped by which rows still run.

    `held` has by row the tokens of its context before the draft, and the length of the draft.
    """
    runs = later_runs([length for _, length in held], [tokens for tokens, _ in held], longest=model in cost.longest)
    return [
        (rows, rows, times, cost.forward_s(model, num_rows=rows, new_tokens=rows, context_tokens=middle))
        for rows, times, middle in runs
    ]


def later_runs(
    lengths: Sequence[int], contexts: Sequence[int], *, longest: bool = False
) -> Iterator[tuple[int, int, int]]:
    """(rows, forwards with these rows, tokens held) after the first forward of a draft with rows of several lengths.

    `lengths` has by row the tokens that it writes, >= 1, `contexts` its tokens before that; with `longest` each row
    counts as the longest of those that still run.
    """
    order = sorted(zip(lengths, contexts, strict=True))
    done, rows, held = 1, len(order), sum(contexts)
    for place, (length, context) in enumerate(order):
        if length != done:
            repeats = length - done
            together = rows * max(tokens for _, tokens in order[place:]) if longest else held
            # After `done` forwards a row's cache holds its context and `done - 1` drafted tokens.
            for middle, times in around_middle(2 * together + rows * (2 * done + repeats - 3), repeats):
                yield rows, times, middle
            done = length
        rows -= 1
        held -= context


def _apart(rows: Iterable[int]) -> bool:
    known = list(rows)
    return max(known) - min(known) >= len(known)
