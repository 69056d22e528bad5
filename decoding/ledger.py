"""What a loop tells whoever writes a run down."""

from typing import Protocol


class Ledger(Protocol):
    """Where a loop writes down what happened, in plain numbers."""

    def note_op(
        self,
        verify: bool,
        level: int,
        num_rows: int,
        num_forwards: int,
        new_tokens: int,
        start_s: float,
        duration_s: float,
    ) -> None:
        """An operation finished."""
        ...

    def note_step(
        self,
        request_id: str,
        verify: bool,
        level: int,
        asked: int,
        drafted: int,
        judged: int,
        accepted: int,
        own: int,
        emitted: int,
        modelled: int,
        end_s: float,
        escalated: int = 0,
    ) -> None:
        """A step of one request finished, behind the `note_op` it was part of."""
        ...

    def note_prefill(self, request_id: str, level: int, modelled: int, end_s: float) -> None:
        """The target, at `level`, wrote a request's first token, behind the `note_op` it was part of."""
        ...

    def note_commit(self, request_id: str, level: int, emitted: int, end_s: float) -> None:
        """A Commit took `emitted` pending tokens as they were."""
        ...

    def note_failed(self, request_id: str, error: str, end_s: float) -> None:
        """A request failed, for the reason `error` (never empty), and left the loop unfinished."""
        ...

    def note_preempted(self, request_id: str) -> None:
        """A step of a request did not run, since memory was short; it will be tried again."""
        ...
