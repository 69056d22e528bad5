"""What an operation costs: its forwards, with catch-up, verification width and the rows still running."""

from ..policies.loop import Forward, Item
from ..policies.session import Drafted
from .cost import CostModel


def verify_forward(cost: CostModel, model: str, items: list[Item], level: int) -> Forward:
    """The one forward of a Verify: per row its pending tokens, the position before them, and what it must catch up."""
    new_tokens, context_tokens = _fed(items, level, verify=True)
    num_rows = len(items)
    seconds = cost.forward_s(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)
    return (num_rows, new_tokens, 1, seconds)


def draft_forwards(cost: CostModel, model: str, items: list[Item], drafted: list[Drafted], level: int) -> list[Forward]:
    """One forward per drafted token: the first also catches up, later ones run while any row still drafts."""
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
    return forwards + _later_forwards(cost, model, drafted, context_tokens + new_tokens)


def _later_forwards(cost: CostModel, model: str, drafted: list[Drafted], held: int) -> list[Forward]:
    """The forwards behind the first one of a batched draft, grouped by how many rows still run."""
    num_rows = len(drafted)
    forwards: list[Forward] = []
    done = 1
    for finished, length in enumerate(sorted([len(row.tokens) for row in drafted])):
        repeats = length - done
        if repeats < 1:
            continue
        rows = num_rows - finished
        # Cost models are linear in the tokens held between their corners, so the middle of a run stands for it.
        mean_held = held * rows // num_rows + rows * (repeats - 1) // 2
        seconds = cost.forward_s(model, num_rows=rows, new_tokens=rows, context_tokens=mean_held)
        forwards.append((rows, rows, repeats, seconds))
        held += num_rows * repeats
        done = length
    return forwards


def _fed(items: list[Item], level: int, *, verify: bool) -> tuple[int, int]:
    """(new tokens fed, tokens already in the caches), over all rows."""
    if len(items) == 1:
        return items[0].session.feed(level, verify=verify)
    new_tokens = 0
    context_tokens = 0
    for session, _ in items:
        new, held = session.feed(level, verify=verify)
        new_tokens += new
        context_tokens += held
    return new_tokens, context_tokens
