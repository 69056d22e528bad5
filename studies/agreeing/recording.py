"""The recording that `agree` replays: one that is there, or one made now and as deep as the policies need."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

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


def needed_reach(policies: Iterable[Policy]) -> int:
    """The most tokens that any of the policies says it may have pending."""
    return max([LEAST_REACH, *(getattr(policy, "most_pending", 0) for policy in policies)])
