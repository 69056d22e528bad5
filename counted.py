"""Counts with their noun, as people write them: `1 request`, `2,215 tokens`."""


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`count` and the noun in its number.

    Args:
        count: >= 0, shown with commas.
        noun: of one thing.
        plural: of several; None: the noun with an s.
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
