"""First blocks of cached texts where what has run may not be written down yet."""

from collections.abc import Callable, Container


class SettledKeys(Container[int]):
    """Keys of first blocks. A prefill puts in a text's first block, but for a prompt that is shorter than that.

    Args:
        keys: those that are written down, as they are whenever one looks.
        settle: writes down what has run.

    Attributes:
        may_lag: whether a request has come whose prompt is shorter than a block.
    """

    def __init__(self, keys: Container[int], settle: Callable[[], None]) -> None:
        self._keys = keys
        self._settle = settle
        self.may_lag = False

    def __contains__(self, key: object) -> bool:
        """Whether there is such a text."""
        if self.may_lag:
            self._settle()
        return key in self._keys
