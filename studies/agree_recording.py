"""The recording that `paceline agree` replays: one that is there, or one made now and as deep as the policies need."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from ..cli.options.closure import ClosureKind, closure_of
from ..decoding.contract import Policy
from ..runtime.prompts import Prompt
from ..traces.meta import Sampling
from ..traces.tries.recording import TrieRecording
from .matching_recording import matching_trace
from .runtime_door import runtime_module

if TYPE_CHECKING:
    from ..runtime.pools.pool import ModelPool

LEAST_REACH = 16  # enough for a policy that does not say how many tokens it may have pending

GivenTraceOption = Annotated[
    Path | None,
    typer.Option("--trace", help="A .trace folder of these prompts and this pool; default: recorded now."),
]
GivenClosureOption = Annotated[
    ClosureKind | None,
    typer.Option(
        "--closure", help="Of the recording: monotone (the default) or full (holds more of what lossy policies do)."
    ),
]
GivenReachOption = Annotated[
    int | None,
    typer.Option(
        "--reach",
        help="Most tokens off the trunk that are recorded; a policy needs as many as it ever has pending, a chain "
        f"the sum of its windows. Default: the most that any policy says it needs, at least {LEAST_REACH}.",
        min=0,
    ),
]
GivenRunOption = Annotated[
    int | None,
    typer.Option("--run", help="Most of them by a member behind a larger one's; default: as --reach.", min=0),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingAsked:
    """Which recording the options ask for.

    Attributes:
        sampling: greedy or coupled.
        max_new_tokens: longest answer, >= 1.
        trace: one that is there; it has a closure of its own. None records now.
        closure: of one made now; None is monotone.
        reach: most tokens off the trunk, >= 0; None for what the policies need.
        run: most of them by a member behind a larger one's, >= 0; None is `reach`.

    Raises:
        ValueError: a trace together with a closure.
    """

    sampling: Sampling
    max_new_tokens: int
    trace: Path | None = None
    closure: ClosureKind | None = None
    reach: int | None = None
    run: int | None = None

    def __post_init__(self) -> None:
        if self.trace is not None and (self.closure, self.reach, self.run) != (None, None, None):
            raise ValueError("--closure, --reach and --run belong to a recording made now; --trace has its own")


def recording_of(
    asked: RecordingAsked, pool: "ModelPool", prompts: Sequence[Prompt], policies: Iterable[Policy]
) -> TrieRecording:
    """The recording; one made now is not kept on disk.

    Args:
        asked: which one.
        pool: the models.
        prompts: that are recorded.
        policies: that will be replayed on it.

    Raises:
        TraceFormatError: as `matching_trace`.
    """
    if asked.trace is not None:
        return matching_trace(asked.trace, pool, prompts, sampling=asked.sampling, max_new_tokens=asked.max_new_tokens)
    reach = _needed_reach(policies) if asked.reach is None else asked.reach
    run = reach if asked.run is None else asked.run
    with TemporaryDirectory(prefix="paceline-agree-") as folder:
        trace: TrieRecording = runtime_module("recording.recorder").record(
            pool,
            prompts,
            sampling=asked.sampling,
            closure=closure_of(asked.closure or ClosureKind.monotone, reach=reach, run=run),
            max_new_tokens=asked.max_new_tokens,
            out=Path(folder) / "agree.trace",
            name="made now",
        )
    return trace


def _needed_reach(policies: Iterable[Policy]) -> int:
    """The most tokens that any of the policies says it may have pending."""
    return max([LEAST_REACH, *(getattr(policy, "most_pending", 0) for policy in policies)])
