"""Lines that break their format: the first one ends the import, or all are skipped and counted if the user says so."""

from pathlib import Path

from ...errors import TraceFormatError


class BadLines:
    """Refuses, or counts.

    Args:
        skip: whether to skip them.
    """

    def __init__(self, *, skip: bool) -> None:
        self._skip = skip
        self._first: dict[Path, TraceFormatError] = {}
        self._count = 0

    def refuse(self, path: Path, error: TraceFormatError) -> None:
        """Raise the error of a file's line, or count it."""
        if not self._skip:
            raise error
        self._first.setdefault(path, error)
        self._count += 1

    def check(self, path: Path, *, any_sound: bool) -> None:
        """Raise TraceFormatError if lines of a file were skipped and none of it was sound."""
        first = self._first.get(path)
        if first is not None and not any_sound:
            raise TraceFormatError(first.path, first.field, f"{first.rule} (all lines are bad)", first.value)

    def notes(self) -> tuple[str, ...]:
        """How many were skipped, and the first of them."""
        if not self._count:
            return ()
        counted = "1 bad line was" if self._count == 1 else f"{self._count:,} bad lines were"
        return (f"{counted} skipped (--skip-bad-lines); the first: {next(iter(self._first.values()))}",)
