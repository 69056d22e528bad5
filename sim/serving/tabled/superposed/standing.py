"""Where requests stand that were superposed: their numbers, as if every operation had run by itself."""

from ...engine.replica_memory import ReplicaMemory
from ..tabled_books import TabledBooks
from .round_shapes import RoundShapes
from .superposed_rows import SuperposedRow, SuperposedRows


class Standing:
    """Tells requests, memory and books how far rows have come.

    Args:
        memory: of the replica.
        books: of the replica.
        rows: of the replica.
        shapes: of the rounds.
    """

    def __init__(self, memory: ReplicaMemory, books: TabledBooks, rows: SuperposedRows, shapes: RoundShapes) -> None:
        self._memory = memory
        self._books = books
        self._shapes = shapes
        self._rows = rows

    def between_rounds(self, row: SuperposedRow, place: int, began_ps: int) -> None:
        """Let a request stand before a round.

        Args:
            row: of the request.
            place: of the round that comes next; 0: nothing has changed.
            began_ps: when the round before was over.
        """
        if not place:
            return
        request, shape = row.request, self._shapes.shapes[row.shapes[place - 1]]
        text, position = row.texts[place], row.positions[place]
        request.num_text, request.position = text, position
        request.budget = min(request.most_answer, request.most_tokens - text + position)
        request.out_at_ps = began_ps
        for level, lacks in enumerate(shape.after):
            if lacks is not None:
                request.cached[level] = text - lacks
        self._hold(row, place - 1)
        self._books.note_tokens(request)
        self._memory.commit(request)

    def before_target(self, row: SuperposedRow, place: int) -> None:
        """Let a request stand before the last operation of a round; it stands before the round."""
        request = row.request
        request.round, request.step = self._shapes.shapes[row.shapes[place]].round, 0
        for op in request.round.ops[:-1]:
            self._books.num_modelled += op.modelled
            if op.drafts:
                request.draft(op, keeps=self._memory.members[op.level] is not None)
            else:
                self._books.judged(op.level, op.judged, op.accepted, op.own, 1)
                request.judge(op)
        self._hold(row, place)

    def _hold(self, row: SuperposedRow, place: int) -> None:
        """Tell memory which of the blocks that were taken are a request's."""
        held = row.blocks[:, -1, place].tolist()
        for level, blocks in zip(self._rows.levels, held, strict=True):
            self._memory.hold(row.request, level, blocks)
