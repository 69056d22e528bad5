"""What an operation costs: its forwards, with catch-up, verification width and the rows still running."""

from collections.abc import Sequence

from ..decoding.contract import Draft, Verify
from ..decoding.results import Drafted, Forward
from ..decoding.session import Session
from ..decoding.world import DraftItem, VerifyItem
from .cost.base import CostModel, DraftTerms


def verify_forward(cost: CostModel, model: str, items: Sequence[VerifyItem], level: int) -> Forward:
    """The one forward of a Verify: per row its pending tokens, the position before them, and what it must catch up."""
    new_tokens, context_tokens = _fed(items, level, verify=True)
    num_rows = len(items)
    seconds = cost.forward_s(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)
    return (num_rows, new_tokens, 1, seconds)


def draft_forwards(
    cost: CostModel, model: str, items: Sequence[DraftItem], drafted: list[Drafted], level: int
) -> list[Forward]:
    """What a Draft costs: as a whole where the cost says so, else its forwards, after what it costs by the round."""
    terms = cost.draft_terms(model)
    if terms is None:
        return _token_forwards(cost, model, items, drafted, level)
    if terms.per_token_s is not None:
        return [_whole_draft(terms, drafted)]
    # No tokens are fed in it: seconds of the operation, not of a forward.
    return [(len(items), 0, 1, terms.per_round_s), *_token_forwards(cost, model, items, drafted, level)]


def _whole_draft(terms: DraftTerms, drafted: list[Drafted]) -> Forward:
    """A draft in one go, as wide as what it drafts; rows are drafted side by side, so the longest one counts."""
    lengths = [len(row.tokens) for row in drafted]
    return (len(drafted), sum(lengths), 1, terms.seconds(max(lengths)))


def _token_forwards(
    cost: CostModel, model: str, items: Sequence[DraftItem], drafted: list[Drafted], level: int
) -> list[Forward]:
    """One forward per drafted token: the first also catches up, later ones run while any row still drafts."""
    if [row for row in drafted if not row.tokens]:  # where a recorded drafter found nothing, it takes no forward
        items = [item for item, row in zip(items, drafted, strict=True) if row.tokens]
        drafted = [row for row in drafted if row.tokens]
        if not items:
            return []
    new_tokens, context_tokens = _fed(items, level, verify=False)
    num_rows = len(items)
    seconds = cost.forward_s(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)
    forwards = [(num_rows, new_tokens, 1, seconds)]
    if num_rows == 1:
        repeats = len(drafted[0].tokens) - 1
        if repeats:
            held = context_tokens + new_tokens + (repeats - 1) // 2
            forwards.append((1, 1, repeats, cost.forward_s(model, num_rows=1, new_tokens=1, context_tokens=held)))
        return forwards
    return forwards + _later_forwards(cost, model, items, drafted)


def _later_forwards(cost: CostModel, model: str, items: Sequence[DraftItem], drafted: list[Drafted]) -> list[Forward]:
    """The forwards after the first one of a batched draft, grouped by which rows still run."""
    held = [session.context_tokens for session, _ in items]
    forwards: list[Forward] = []
    done = 1
    for length in sorted({len(row.tokens) for row in drafted}):
        running = [tokens for tokens, row in zip(held, drafted, strict=True) if len(row.tokens) >= length]
        repeats = length - done
        if repeats:
            rows = len(running)
            # Cost models are linear in the tokens held between their corners, so the middle of a run stands for it.
            # After `done` forwards a row's cache holds its context and `done - 1` drafted tokens.
            mean_held = sum(running) + rows * (2 * done + repeats - 3) // 2
            seconds = cost.forward_s(model, num_rows=rows, new_tokens=rows, context_tokens=mean_held)
            forwards.append((rows, rows, repeats, seconds))
        done = length
    return forwards


def _fed(items: Sequence[tuple[Session, Draft | Verify]], level: int, *, verify: bool) -> tuple[int, int]:
    """(new tokens fed, tokens already in the caches), over all rows."""
    if len(items) == 1:
        return items[0][0].feed(level, verify=verify)
    new_tokens = 0
    context_tokens = 0
    for session, _ in items:
        new, held = session.feed(level, verify=verify)
        new_tokens += new
        context_tokens += held
    return new_tokens, context_tokens
