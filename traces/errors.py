"""The one error of files that hold recordings."""

from pathlib import Path

_LONGEST_VALUE = 120


class TraceFormatError(ValueError):
    """A file of a recording breaks its format; the message names file, field, rule and value in one line."""

    def __init__(self, path: Path | str, field: str, rule: str, value: object) -> None:
        # All four are args, so that the error can be pickled by a worker process.
        super().__init__(path, field, rule, value)
        self.path = path
        self.field = field
        self.rule = rule
        self.value = value

    def __str__(self) -> str:
        value = repr(self.value)
        if len(value) > _LONGEST_VALUE:
            value = f"{value[: _LONGEST_VALUE - 3]}..."
        return " ".join(f"{self.path}: {self.field}: {self.rule}, got {value}".split())
