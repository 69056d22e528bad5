"""What an operation costs: its forwards, with catch-up, verification width and the rows still running."""

from collections.abc import Iterator, Sequence

from ..decoding.contract import Draft, Verify
from ..decoding.results import Drafted, Forward
from ..decoding.session import Session
from ..decoding.trees.world import TreeItem
from ..decoding.world import DraftItem, VerifyItem
from .cost.base import CostModel, DraftTerms


def verify_forward(cost: CostModel, model: str, items: Sequence[VerifyItem], level: int) -> Forward:
    """The one forward of a Verify: per row its pending tokens, the position before them, and what it must catch up."""
    num_rows = len(items)
    if num_rows == 1:
        new_tokens, context_tokens = items[0][0].feed(level, verify=True)
    else:
        new_tokens, context_tokens = _fed(items, level, verify=True)
    seconds = cost.forward_s(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)
    return (num_rows, new_tokens, 1, seconds)


def reading_forwards(
    cost: CostModel, model: str, items: Sequence[DraftItem | VerifyItem], level: int, lengths: Sequence[int]
) -> list[Forward]:
    """The forwards of a drafter from the target's states, which reads what that has not judged token by token.

    Args:
        cost: seconds.
        model: that reads.
        items: of the operation.
        level: of the member.
        lengths: `[B]` tokens drafted; 1 for a Verify, whose last forward gives its own token.
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
    """What a Draft costs: as a whole where the cost says so, else its forwards, after what it costs by the round."""
    if items[0][0].pool.feature_level == level:
        return reading_forwards(cost, model, items, level, [len(row.tokens) for row in drafted])
    if len(items) == 1:  # most of replay
        length = len(drafted[0].tokens)
        new_tokens, context_tokens = items[0][0].feed(level, verify=False) if length else (0, 0)
        return row_draft_forwards(cost, model, new_tokens, context_tokens, length)
    fed = [
        (*session.feed(level, verify=False), len(row.tokens)) for (session, _), row in zip(items, drafted, strict=True)
    ]
    return rows_draft_forwards(cost, model, fed)


def rows_draft_forwards(cost: CostModel, model: str, fed: Sequence[tuple[int, int, int]]) -> list[Forward]:
    """As `draft_forwards`, of several requests.

    Args:
        cost: seconds.
        model: that drafts.
        fed: `[B]` of each request, tokens that its first forward is fed, tokens that its cache holds then, and tokens
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
    # No tokens are fed in it: seconds of the operation, not of a forward.
    return [(len(fed), 0, 1, terms.per_round_s), *_token_forwards(cost, model, fed)]


def row_draft_forwards(cost: CostModel, model: str, new_tokens: int, context_tokens: int, length: int) -> list[Forward]:
    """As `draft_forwards`, of one request.

    Args:
        cost: seconds.
        model: that drafts.
        new_tokens: that its first forward is fed.
        context_tokens: that its cache holds then.
        length: tokens drafted, >= 0.
    """
    terms = cost.draft_terms(model)
    if terms is None:
        return _row_forwards(cost, model, new_tokens, context_tokens, length)
    if terms.per_token_s is not None:
        return [_whole_draft(terms, [length])]
    if terms.block is not None:
        return rows_draft_forwards(cost, model, [(new_tokens, context_tokens, length)])
    return [(1, 0, 1, terms.per_round_s), *_row_forwards(cost, model, new_tokens, context_tokens, length)]


def tree_forwards(
    cost: CostModel, model: str, items: Sequence[TreeItem], drafted: Sequence[Drafted], level: int
) -> list[Forward]:
    """What a DraftTree costs: a forward that catches up, then one for each layer over the nodes that it grows from."""
    return [fed_forward(cost, model, fed) for fed in tree_feeds(items, drafted, level)]


def fed_forward(cost: CostModel, model: str, fed: Sequence[tuple[int, int]]) -> Forward:
    """One forward; by request the tokens that it is fed, and those that it holds."""
    new_tokens, context_tokens = sum(new for new, _ in fed), sum(held for _, held in fed)
    seconds = cost.forward_s(model, num_rows=len(fed), new_tokens=new_tokens, context_tokens=context_tokens)
    return len(fed), new_tokens, 1, seconds


def tree_feeds(items: Sequence[TreeItem], drafted: Sequence[Drafted], level: int) -> Iterator[list[tuple[int, int]]]:
    """Of each forward of a DraftTree, by request that is in it: tokens that it is fed, and those that it holds."""
    fed = [session.feed(level, verify=False) for session, _ in items]
    yield fed
    yield from layer_feeds([new + kept for new, kept in fed], drafted)


def layer_feeds(held: Sequence[int], drafted: Sequence[Drafted]) -> Iterator[list[tuple[int, int]]]:
    """As `tree_feeds`, of the forwards after the first one, in which each request holds so many tokens."""
    widths = [row.tree.widths if row.tree is not None else () for row in drafted]
    for layer in range(max(map(len, widths))):
        growing = [place for place, by_layer in enumerate(widths) if len(by_layer) > layer]
        yield [(widths[place][layer], held[place] + sum(widths[place][:layer])) for place in growing]


def later_held(context_tokens: int, length: int) -> int:
    """Tokens held in the forwards after the first of a lone draft of `length` >= 2 tokens.

    Cost models are linear in the tokens held between their corners, so the middle of a run stands for it.

    Args:
        context_tokens: held after the first forward.
        length: of the draft.
    """
    return context_tokens + (length - 2) // 2


def total_s(forwards: Sequence[Forward]) -> float:
    """Seconds of forwards that run one after another."""
    seconds = 0.0
    for _, _, repeats, each_s in forwards:
        seconds += repeats * each_s
    return seconds


def _whole_draft(terms: DraftTerms, lengths: Sequence[int]) -> Forward:
    """A draft in one go, as wide as what it drafts; rows are drafted side by side, so the longest one counts."""
    return (len(lengths), sum(lengths), 1, terms.seconds(max(lengths)))


def _token_forwards(cost: CostModel, model: str, fed: Sequence[tuple[int, int, int]]) -> list[Forward]:
    """One forward per drafted token: the first also catches up, later ones run while any row still drafts."""
    # Where a recorded drafter found nothing, it takes no forward.
    rows = [row for row in fed if row[2]]
    if not rows:
        return []
    num_rows, new_tokens, context_tokens = len(rows), sum([row[0] for row in rows]), sum([row[1] for row in rows])
    seconds = cost.forward_s(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)
    held = [(new + held, length) for new, held, length in rows]
    return [(num_rows, new_tokens, 1, seconds), *later_forwards(cost, model, held)]


def _row_forwards(cost: CostModel, model: str, new_tokens: int, context_tokens: int, length: int) -> list[Forward]:
    """The forwards of one request's draft of `length` tokens."""
    if not length:
        return []
    seconds = cost.forward_s(model, num_rows=1, new_tokens=new_tokens, context_tokens=context_tokens)
    if length == 1:
        return [(1, new_tokens, 1, seconds)]
    held = later_held(context_tokens + new_tokens, length)
    later_s = cost.forward_s(model, num_rows=1, new_tokens=1, context_tokens=held)
    return [(1, new_tokens, 1, seconds), (1, 1, length - 1, later_s)]


def later_forwards(cost: CostModel, model: str, held: Sequence[tuple[int, int]]) -> list[Forward]:
    """The forwards after the first one of a batched draft, grouped by which rows still run.

    Args:
        cost: seconds.
        model: that drafts.
        held: by row, the tokens of its context before the draft, and the length of the draft.
    """
    forwards: list[Forward] = []
    done = 1
    for length in sorted({drafted for _, drafted in held}):
        running = [tokens for tokens, drafted in held if drafted >= length]
        repeats = length - done
        if repeats:
            rows = len(running)
            # As in `later_held`. After `done` forwards a row's cache holds its context and `done - 1` drafted tokens.
            mean_held = sum(running) + rows * (2 * done + repeats - 3) // 2
            seconds = cost.forward_s(model, num_rows=rows, new_tokens=rows, context_tokens=mean_held)
            forwards.append((rows, rows, repeats, seconds))
        done = length
    return forwards


def _fed(items: Sequence[tuple[Session, Draft | Verify]], level: int, *, verify: bool) -> tuple[int, int]:
    """(new tokens fed, tokens already in the caches), over all rows."""
    new_tokens = 0
    context_tokens = 0
    for session, _ in items:
        new, held = session.feed(level, verify=verify)
        new_tokens += new
        context_tokens += held
    return new_tokens, context_tokens
