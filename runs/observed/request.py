"""One request as its client saw it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRequest:
    """Times are whole picoseconds since the beginning of the run. None stands for what nobody told.

    Attributes:
        request_id: unique in the run.
        tag, slo: of the workload; "" for none.
        prompt_id: of the prompt that was sent.
        asked_tokens: most tokens of the answer, >= 1.
        due_at_ps: when the workload has it arrive; with a closed loop, when it was sent.
        sent_at_ps: >= `due_at_ps`.
        outputs_at_ps: when each chunk with text came, in order: chunks, which may hold any number of tokens.
        ended_at_ps: when the chunk came that says why the answer ended, or the request failed; None: it did not end.
        prompt_tokens, output_tokens: as the server counts them; tokens.
        cached_tokens: of the prompt, that the server had in its cache.
        drafted, accepted: drafted tokens and those that stayed, where the answer itself says so.
        finish_reason: "stop", "length", ...; "" where nothing was said.
        failed: what went wrong; "" for nothing.
    """

    request_id: str
    tag: str = ""
    slo: str = ""
    prompt_id: str
    asked_tokens: int
    due_at_ps: int
    sent_at_ps: int
    outputs_at_ps: tuple[int, ...] = ()
    ended_at_ps: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    finish_reason: str = ""
    failed: str = ""

    @property
    def finished(self) -> bool:
        """Whether it was answered to the end."""
        return self.ended_at_ps is not None and not self.failed
