"""Commit steps by length, each made once: a policy is called too often to build its steps anew."""

from ...decoding.contract import Commit


class WholeCommits:
    """Keeps the steps it has handed out; as many as the longest block has tokens."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: dict[int, Commit] = {}

    def of(self, tokens: int) -> Commit:
        """Commit the first `tokens` pending tokens, >= 1."""
        step = self._steps.get(tokens)
        if step is None:
            step = self._steps[tokens] = Commit(tokens)
        return step
