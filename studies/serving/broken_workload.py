"""A workload of which a row ended the run: what was served until then is kept."""

from ...reports.tables.printed import Printed
from ...runs.serving.log import ServingLog


class BrokenWorkloadError(ValueError):
    """A row of a workload cannot be read or served; the message is that of the error.

    Attributes:
        log: of the run until that row would have come, marked partial; the error is among its notes.
        error: what is wrong with the row.
        run: the same with its figures, a `Simulated`, where `simulate` raises it; else None.
    """

    def __init__(self, log: ServingLog, error: ValueError) -> None:
        super().__init__(str(error))
        self.log = log
        self.error = error
        self.run: Printed | None = None
