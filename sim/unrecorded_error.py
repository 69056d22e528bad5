"""What a replay without a fallback raises where the recording ends."""

from ..arguments import ArgumentError


class UnrecordedContextError(ArgumentError):
    """Replay without a fallback came to a context that the trace does not hold."""

    NEEDED = "a context outside the recording; record with a larger `reach` or `run`, or leave out `strict`"

    def __init__(self, request_id: str, position: int, what: str) -> None:
        # All are args, since SimPy builds the error of a process anew from its args.
        super().__init__(request_id, position, what)

    def __str__(self) -> str:
        request_id, position, what = self.args
        return f"request {request_id}: {what} at output position {position} needs {self.NEEDED}"


class UnrecordedTreeError(UnrecordedContextError):
    """A token tree needs branches that the trace does not hold."""

    NEEDED = "branches outside the recording; record with `trees` of its drafter, as wide and as deep"
