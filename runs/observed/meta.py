"""What an observed run says of itself: `meta.json` of its folder."""

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from ...traces.meta import TITLE_PATTERN, Record, Version
from .request import ObservedRequest

Count = Annotated[int, Field(ge=0)]
Title = Annotated[str, Field(pattern=TITLE_PATTERN)]
# Who counted the tokens of a run.
BY_USAGE: Final = "usage"
BY_TOKENIZER: Final = "tokenizer"
UNCOUNTED: Final = "nobody"


class ObservedAcceptance(Record):
    """What a server tells of its speculative decoding during a run. None stands for what it does not tell.

    Attributes:
        source: who told it.
        drafts: rounds that had a draft.
        drafted: tokens.
        accepted: of those, how many stayed; own tokens are not among them.
        accepted_by_place: of each place of the draft, from the first on.
        accept_length: tokens a round, the target's own among them.
    """

    source: Title
    drafts: Count | None = None
    drafted: Count | None = None
    accepted: Count | None = None
    accepted_by_place: tuple[Count, ...] | None = None
    accept_length: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None

    @property
    def rate(self) -> float | None:
        """Accepted of drafted tokens; None where one is unknown, or nothing was drafted."""
        return None if self.accepted is None or not self.drafted else self.accepted / self.drafted


class ObservedMeta(Record):
    """`meta.json` of an observed run.

    Attributes:
        url: of the server, without any key.
        model: that was asked for.
        endpoint: below the address.
        workload, prompts: as they were named.
        loop: "open", by times of arrival, or "closed", by a number of requests at a time.
        concurrency: of a closed loop; None of an open one.
        warmup: requests that were sent before, and are not in the run.
        seed: of the workload, and the order of prompts; sent with each request.
        temperature: sent with each request; >= 0.
        ignore_eos: whether the server was asked to go on after an end of sequence.
        counted_by: who counted tokens: "usage" of the answers, the server's "tokenizer" afterwards, or "nobody".
        acceptance: of speculative decoding; None where it is unknown.
        acceptance_unknown: why it is; "" where it is known.
        notes: what a reader of its figures has to know, a line each.
        ended_at_ps: when the last request ended, or the run was stopped; picoseconds.
        stopped: why the run was stopped before all requests had ended; "" if it was not.
    """

    format: Literal["paceline-observed"] = "paceline-observed"
    version: Version = 1
    kind: Literal["observed"] = "observed"
    url: Title
    model: Title
    endpoint: Title
    workload: Title
    prompts: Title
    loop: Literal["open", "closed"]
    concurrency: Annotated[int, Field(ge=1)] | None = None
    warmup: Count = 0
    seed: Count = 0
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    ignore_eos: bool = False
    counted_by: Literal["usage", "tokenizer", "nobody"] = "usage"
    acceptance: ObservedAcceptance | None = None
    acceptance_unknown: Title = ""
    notes: tuple[Title, ...] = ()
    ended_at_ps: Count
    stopped: Title = ""

    @model_validator(mode="after")
    def _loop(self) -> "ObservedMeta":
        if (self.loop == "closed") != (self.concurrency is not None):
            raise ValueError(f"concurrency must be there of a closed loop alone, got {self.concurrency}")
        return self


class ObservedRun:
    """A run and all of its requests. Final.

    Args:
        meta: what was asked for.
        requests: in the order in which they were sent.

    Attributes:
        meta, requests: as given.
    """

    def __init__(self, meta: ObservedMeta, requests: tuple[ObservedRequest, ...]) -> None:
        self.meta, self.requests = meta, requests

    @property
    def finished(self) -> list[ObservedRequest]:
        """Requests that were answered to the end."""
        return [one for one in self.requests if one.finished]

    @property
    def failed(self) -> list[ObservedRequest]:
        """Requests that went wrong."""
        return [one for one in self.requests if one.failed]
