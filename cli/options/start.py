"""Where a request's first token comes from, as options."""

from enum import StrEnum
from typing import Annotated

import typer

from ...decoding.prefill import Start


class LiveStart(StrEnum):
    """How a run of models may begin; only a log can have begun in a way of its own."""

    prefill = "prefill"
    draft = "draft"

    @property
    def start(self) -> Start:
        """The same, as sessions take it."""
        return Start(self.value)


LiveStartOption = Annotated[
    LiveStart,
    typer.Option("--start", help="How requests begin: the target's prefill writes the first token, or a draft does."),
]
