"""Lines that break their format: the first one ends the import, or all are skipped and counted if the user says so."""

from ...errors import TraceFormatError


class BadLines:
    """Refuses, or counts.

    Args:
        skip: whether to skip them.
    """

    def __init__(self, *, skip: bool) -> None:
        self._skip = skip
        self._first: TraceFormatError | None = None
        self._count = 0

    def refuse(self, error: TraceFormatError) -> None:
        """Raise the error, or count it."""
        if not self._skip:
            raise error
        self._first = self._first or error
        self._count += 1

    def check(self, *, any_sound: bool) -> None:
        """Raise TraceFormatError if lines were skipped and none was sound."""
        if self._first is not None and not any_sound:
            first = self._first
            raise TraceFormatError(first.path, first.field, f"{first.rule} (all lines are bad)", first.value)

    def notes(self) -> tuple[str, ...]:
        """How many were skipped, and the first of them."""
        if self._first is None:
            return ()
        counted = "1 bad line was" if self._count == 1 else f"{self._count:,} bad lines were"
        return (f"{counted} skipped (--skip-bad-lines); the first: {self._first}",)
