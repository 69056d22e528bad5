"""How a member below the target reads what its cache lacks: `engine.catch_up`, for requests without tokens."""

from .request_queue import RequestsOp
from .tabled_charges import TabledCharges
from .tabled_request import TabledRequest


def within_budget(op: RequestsOp, budget: int) -> tuple[RequestsOp, RequestsOp | None]:
    """An operation whose rows, all caught up, are fed at most `budget` tokens, or one row; and one with the others."""
    left, count = budget, 0
    for request in op.requests:
        left -= _least(request)
        if left < 0 and count:
            break
        count += 1
    if count == len(op.requests):
        return op, None
    return op._replace(requests=op.requests[:count]), op._replace(requests=op.requests[count:])


def catch_up(charges: TabledCharges, op: RequestsOp, budget: int) -> tuple[int, int]:
    """Run forwards of at most `budget` tokens until what the rows of an operation are still to be fed is no more.

    Requests learn what their caches hold now. Rows are served in their order.

    Returns:
        Picoseconds, and forwards.
    """
    level = op.level
    spare = {request: _spare(request, level) for request in op.requests}
    total = sum(spare.values()) + sum(_least(request) for request in op.requests)
    duration_ps = num_forwards = 0
    while total > budget and any(spare.values()):
        left, chunks = budget, []
        for request in op.requests:
            chunk = min(spare[request], left)
            if chunk:
                chunks.append((request, chunk))
                left -= chunk
        duration_ps += charges.read(level, chunks)
        for request, chunk in chunks:
            request.cached[level] += chunk
            spare[request] -= chunk
        num_forwards += 1
        total -= budget - left
    return duration_ps, num_forwards


def _least(request: TabledRequest) -> int:
    """Tokens that a caught up row is fed."""
    step = request.op
    return 1 if step.drafts else step.judged + 1


def _spare(request: TabledRequest, level: int) -> int:
    """Tokens that may be read before."""
    step = request.op
    needed = request.num_text + (step.pending if step.drafts else step.first) - 1
    return max(needed - request.cached[level], 0)
