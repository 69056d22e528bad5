"""The recording that `agree` replays: one that is there, or one made now and as deep as the policies need."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from ...decoding.contract import Policy
from ...runtime.pools.pool import ModelPool
from ...runtime.prompts import Prompt
from ...runtime.recording.recorder import record
from ...traces.meta import Closure, Sampling
from ...traces.tries.recording import TrieRecording
from .matching_recording import matching_trace

LEAST_REACH = 16  # enough for a policy that does not say how many tokens it may have pending


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingAsked:
    """Which recording the options ask for.

    Attributes:
        sampling: greedy or coupled.
        max_new_tokens: longest answer, >= 1.
        trace: one that is there; it has a closure of its own. None records now.
        closure: of one made now; None is monotone.
        reach: most tokens off the trunk, >= 0; None for what the policies need.
        run: most of them by a member after a larger one's, >= 0; None is `reach`.

    Raises:
        ValueError: a trace together with a closure.
    """

    sampling: Sampling
    max_new_tokens: int
    trace: Path | None = None
    closure: Literal["monotone", "full"] | None = None
    reach: int | None = None
    run: int | None = None

    def __post_init__(self) -> None:
        if self.trace is not None and (self.closure, self.reach, self.run) != (None, None, None):
            raise ValueError("--closure, --reach and --run belong to a recording made now; --trace has its own")


def recording_of(
    asked: RecordingAsked, pool: ModelPool, prompts: Sequence[Prompt], policies: Iterable[Policy]
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
        return record(
            pool,
            prompts,
            sampling=asked.sampling,
            closure=Closure(kind=asked.closure or "monotone", reach=reach, run=run),
            max_new_tokens=asked.max_new_tokens,
            out=Path(folder) / "agree.trace",
            name="made now",
        )


def _needed_reach(policies: Iterable[Policy]) -> int:
    """The most tokens that any of the policies says it may have pending."""
    return max([LEAST_REACH, *(getattr(policy, "most_pending", 0) for policy in policies)])
