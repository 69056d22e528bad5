"""One answer that is wanted: what the HTTP side hands to the engine, and what it is told of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..decoding.request_text import Ending
from ..traces.meta import Sampling

# Told what a request has more: its new tokens, and how it ended, if it did. Called in the engine's thread.
Deliver = Callable[["Job", Sequence[int], "End | None"], None]


@dataclass(frozen=True, slots=True)
class End:
    """How a request ended."""

    reason: str  # "eos", "stop" or "length"; "" if it failed
    error: str = ""  # why it failed
    left: bool = False  # whether the client went before its end


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """One answer that is wanted, and what became of it; written by the engine once it was submitted."""

    request_id: str  # unique
    policy: str  # by name
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling  # greedy or coupled
    noise_name: str  # with the seed, the key of its noise
    eos: frozenset[int]
    ending: Ending | None
    deliver: Deliver
    tag: str = ""
    text: str = ""  # of the prompt, where it was asked as one
    arrived_at_ps: int = 0  # on the engine's clock, as all times
    first_token_at_ps: int | None = None
    ended_at_ps: int | None = None
    tokens: list[int] = field(default_factory=list)  # committed so far
    steps: list[tuple[int, int]] = field(default_factory=list)  # (drafted, accepted) of each step of the target
