"""The recording that `agree` replays: one that is there, or one made now and as deep as the policies need."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from ...decoding.policy import Policy
from ...runtime.pools.pool import ModelPool
from ...runtime.prompts import Prompt
from ...runtime.recording.recorder import record
from ...traces.meta import Closure, Sampling
from ...traces.tries.recording import TrieRecording

LEAST_REACH = 16  # enough for a policy that does not say how many tokens it may have pending


def recording_made_now(
    pool: ModelPool, prompts: Sequence[Prompt], sampling: Sampling, closure: Closure, max_new_tokens: int
) -> TrieRecording:
    """A recording that is not kept on disk, without seconds; raises as `record`."""
    with TemporaryDirectory(prefix="paceline-agree-") as folder:
        return record(
            pool,
            prompts,
            sampling=sampling,
            closure=closure,
            max_new_tokens=max_new_tokens,
            out=Path(folder) / "agree.trace",
            name="made now",
        )


def closure_for(
    policies: Iterable[Policy], kind: Literal["monotone", "full"] | None, reach: int | None, run: int | None
) -> Closure:
    """The closure asked for; by default as deep as the most tokens that any policy says it may have pending."""
    if reach is None:
        reach = max([LEAST_REACH, *(getattr(policy, "most_pending", 0) for policy in policies)])
    return Closure(kind=kind or "monotone", reach=reach, run=reach if run is None else run)
