"""Picoseconds of operations of requests whose rounds are known: those of `engine.charges`, from numbers alone."""

from collections.abc import Sequence

from ....decoding.pool import Pool
from ...cost.base import CostModel, DraftTerms
from ...cost.context_line import LinedCost, why_unlined
from ..clock import to_ps
from ..forward_ps import MOST_KEPT, ForwardLines, PsLine
from .request_queue import RequestsOp
from .tabled_request import TabledRequest


class TabledCharges:
    """Charges operations.

    Args:
        cost: seconds; not by operations (`OperationCost`).
        pool: its members in level order.
        num_free: model-free members, which come first in the pool.

    Attributes:
        names: of the members.
        num_free: see above.
        lookup_ps: of one prompt lookup.
        known: the latest line that was asked for, by level, rows and new tokens; not of all that ever were.
        drafts_are_forwards: whether a draft costs its forwards and nothing else.
    """

    def __init__(self, cost: CostModel, pool: Pool, num_free: int) -> None:
        self._cost = cost
        self.names = pool.names
        self.num_free = num_free
        self._target = pool.target_level
        self.lookup_ps = to_ps(cost.lookup_s)
        self.drafts_are_forwards = all(cost.draft_terms(name) is None for name in pool.names[num_free:])
        self._lines = ForwardLines(cost) if isinstance(cost, LinedCost) and not why_unlined(cost) else None
        self.known: dict[tuple[int, int, int], PsLine] = {}

    @property
    def is_lined(self) -> bool:
        """Whether the cost has lines."""
        return self._lines is not None

    def forward(self, level: int, num_rows: int, new_tokens: int, context_tokens: int) -> int:
        """Of one forward; arguments and errors as of `CostModel.forward_s`."""
        if self._lines is None:
            # fmt: off
            return to_ps(self._cost.forward_s(
                self.names[level], num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens,
            ))
            # fmt: on
        return self.line(level, num_rows, new_tokens, context_tokens).ps(context_tokens)

    def line(self, level: int, num_rows: int, new_tokens: int, context_tokens: int) -> PsLine:
        """The line that a forward lies on, of a cost that has lines."""
        key = level, num_rows, new_tokens
        known = self.known.get(key)
        if known is not None and known.start <= context_tokens < known.end:
            return known
        assert self._lines is not None
        found = self._lines.line(self.names[level], num_rows, new_tokens, context_tokens)
        if len(self.known) >= MOST_KEPT:
            self.known.clear()
        self.known[key] = found
        return found

    def read(self, level: int, chunks: Sequence[tuple[TabledRequest, int]]) -> int:
        """Of a forward that feeds each request so many tokens, and judges nothing."""
        new_tokens = sum(tokens for _, tokens in chunks)
        held = sum(request.cached[level] for request, _ in chunks)
        return self.forward(level, len(chunks), new_tokens, held)

    def judged(self, op: RequestsOp) -> int:
        """Of the one forward of a verification below the target."""
        level, new_tokens, held = op.level, 0, 0
        for request in op.requests:
            step = request.op
            before = min(request.cached[level], request.num_text + step.first - 1)
            new_tokens += request.num_text + step.pending - before
            held += before
        return self.forward(level, len(op.requests), new_tokens, held)

    def stepped(self, rows: Sequence[TabledRequest], reading: Sequence[tuple[TabledRequest, int]]) -> int:
        """Of a step of the target: verifications, and requests that are fed so many tokens of their texts."""
        new_tokens = held = 0
        for request in rows:
            before = min(request.cached[-1], request.num_text - 1)
            new_tokens += request.num_text + request.op.pending - before
            held += before
        for request, tokens in reading:
            new_tokens += tokens
            held += request.cached[-1]
        return self.forward(self._target, len(rows) + len(reading), new_tokens, held)

    def drafted(self, op: RequestsOp) -> tuple[int, int]:
        """Of a draft: (picoseconds, forwards)."""
        if op.level < self.num_free:
            return len(op.requests) * self.lookup_ps, 0
        terms = self._cost.draft_terms(self.names[op.level])
        if terms is None:
            return self._tokens_drafted(op)
        if terms.per_token_s is not None:
            lengths = [request.op.drafted for request in op.requests]
            return to_ps(terms.seconds(max(lengths))), 1 if any(lengths) else 0
        if terms.block is not None:
            return self._block_drafted(op, terms)
        duration_ps, forwards = self._tokens_drafted(op)
        return to_ps(terms.per_round_s) + duration_ps, forwards

    def _block_drafted(self, op: RequestsOp, terms: DraftTerms) -> tuple[int, int]:
        """The one forward of a whole draft."""
        level, block, fed = op.level, terms.block, []
        assert block is not None
        for request in op.requests:
            step, held = request.op, request.cached[level]
            if step.drafted:
                terms.check_fits(self.names[level], step.drafted)
                fed.append(block.forward(request.num_text + step.pending - held, held, step.drafted))
        if not fed:
            return 0, 0
        return self.forward(level, len(fed), sum(new for new, _ in fed), sum(held for _, held in fed)), 1

    def _tokens_drafted(self, op: RequestsOp) -> tuple[int, int]:
        """One forward per token: the first also catches up, later ones run while any row still drafts."""
        level, new_tokens, held = op.level, 0, 0
        running: list[tuple[int, int]] = []  # length of the draft, tokens before it
        for request in op.requests:
            step = request.op
            if step.drafted:
                context = request.num_text + step.pending
                new_tokens += context - request.cached[level]
                held += request.cached[level]
                running.append((step.drafted, context))
        if not running:
            return 0, 0
        duration_ps = self.forward(level, len(running), new_tokens, held)
        return duration_ps + self.later(level, running), max(running)[0]

    def later(self, level: int, running: list[tuple[int, int]]) -> int:
        """Of the forwards of a draft after its first one.

        Args:
            level: of the drafter.
            running: length of each row's draft, >= 1, and tokens of its text and pending ones before it.
        """
        duration_ps, done = 0, 1
        for length in sorted({length for length, _ in running}):
            repeats = length - done
            if repeats:
                held = [context for drafted, context in running if drafted >= length]
                rows = len(held)
                middle = sum(held) + rows * (2 * done + repeats - 3) // 2
                duration_ps += repeats * self.forward(level, rows, rows, middle)
            done = length
        return duration_ps
