"""Counts among the options of policies: a wrong one is named as the user wrote it, before anything is built from it."""

from ...decoding.contract import MOST_TOKENS


def check_count(name: str, value: int, *, most: int = MOST_TOKENS) -> None:
    """Raise ValueError unless option `name` is 1 to `most`; the default is the most that one step may draft."""
    if not 1 <= value <= most:
        raise ValueError(f"{name} must be in [1, {most:,}], got {value}")
