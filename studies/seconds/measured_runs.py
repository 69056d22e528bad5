"""What a validation measures: prompts decoded by models, or a recording's decisions forced on models of random weights.

Either way there is a recording that says what the simulator replays, of which the models must be.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ...arguments import ArgumentError
from ...decoding.policy import Policy
from ...decoding.prefill import Start
from ...runs.log import RunLog
from ...runtime.decode import decode, whole
from ...runtime.forced.forced_pool import ForcedPool
from ...runtime.forced.forced_recording import forced_recording
from ...runtime.forced.forced_run import forced_run
from ...runtime.pools.loaded_members import LoadedMembers, loaded_pool
from ...runtime.pools.pool import ModelPool
from ...runtime.prompts import Prompt, prompts_of
from ...sim.tries.tables import TrieTables
from ...traces.tries.recording import TrieRecording
from ...traces.tries.store import read_trace
from ..both_worlds import made_up_cost
from ..named_policies import NamedPolicy
from ..pool import is_forced, load_models
from ..recording_to_agree import matching_trace
from .runnable_policies import check_runnable

Tokens = Mapping[str, Sequence[int]]


class MeasuredRuns(Protocol):
    """Runs of models whose decisions a recording knows.

    Attributes:
        name: of the pool.
        models: of the pool.
        recording: of them, for the simulator.
        forced: whether the decisions are the recording's and not the models'.
    """

    name: str
    models: LoadedMembers
    recording: TrieRecording
    forced: bool

    def build(self, policy: NamedPolicy) -> Policy:
        """A policy for a run; raises ValueError for one that cannot be run."""
        ...

    def run(self, policy: NamedPolicy, part: TrieRecording, batch: int) -> tuple[Tokens, RunLog]:
        """The committed tokens by request, and the log, of the requests of a part of the recording."""
        ...


class DecodedRuns:
    """Prompts decoded by models; see `MeasuredRuns`.

    Args:
        models: of the recording.
        prompts: of the recording, others among them.
        path: of the recording.

    Raises:
        ValueError: a recording that is not of the models and prompts.
    """

    forced = False

    def __init__(self, models: ModelPool, prompts: Sequence[Prompt], path: Path) -> None:
        stored = read_trace(path)
        known = {request.request_id for request in stored.requests}
        self.name = models.name
        self.models: LoadedMembers = models
        self._pool = models
        self._prompts = {prompt.request_id: prompt for prompt in prompts}
        self.recording = matching_trace(
            path,
            models,
            [prompt for prompt in prompts if prompt.request_id in known],
            sampling=stored.meta.sampling,
            max_new_tokens=stored.requests[0].max_new_tokens,
        )

    def build(self, policy: NamedPolicy) -> Policy:
        """See `MeasuredRuns`."""
        return _built(self, policy)

    def run(self, policy: NamedPolicy, part: TrieRecording, batch: int) -> tuple[Tokens, RunLog]:
        """See `MeasuredRuns`."""
        ran = decode(
            self._pool,
            self.build(policy),
            [self._prompts[request.request_id] for request in part.requests],
            sampling=part.meta.sampling,
            max_new_tokens=part.requests[0].max_new_tokens,
            name=policy.name,
            batch=batch,
        )
        outputs, log = whole(ran)
        return {output.request_id: output.tokens for output in outputs}, log


class ForcedRuns:
    """A recording's decisions on models of random weights; see `MeasuredRuns`.

    Args:
        models: as many as the recording is of.
        recording: as it was stored.

    Raises:
        ArgumentError: a recording that cannot be forced on these models.
    """

    forced = True

    def __init__(self, models: ForcedPool, recording: TrieRecording) -> None:
        self.name = models.name
        self.models: LoadedMembers = models
        self._pool = models
        self.recording = forced_recording(recording, models)
        self._tables: dict[tuple[str, ...], TrieTables] = {}

    def build(self, policy: NamedPolicy) -> Policy:
        """See `MeasuredRuns`; refuses policies that say that they are lossy, whose texts were not recorded."""
        return _built(self, policy)

    def run(self, policy: NamedPolicy, part: TrieRecording, batch: int) -> tuple[Tokens, RunLog]:
        """See `MeasuredRuns`."""
        asked = tuple(request.request_id for request in part.requests)
        if asked not in self._tables:
            self._tables[asked] = TrieTables(part)
        tables = self._tables[asked]
        # What the decisions would cost is nobody's business here.
        decisions = tables.world(made_up_cost(part.meta.model_names), seed=0, strict=False)
        sessions = list(decisions.sessions(tables.prefill_before(Start.prefill)))
        log = forced_run(
            self._pool,
            self.build(policy),
            sessions,
            decisions,
            sampling=part.meta.sampling,
            trace=part.meta.name,
            name=policy.name,
            batch=batch,
        )
        return {session.request_id: session.emitted for session in sessions}, log


def _built(runs: MeasuredRuns, policy: NamedPolicy) -> Policy:
    """The policy, made for the models; raises ValueError for one that cannot be made or run."""
    built = policy.build(loaded_pool(runs.models))
    meta = runs.recording.meta
    tags = (request.tag for request in runs.recording.requests)
    check_runnable(built, policy.name, forced=runs.forced, tags=tags, where=f"recording {meta.name}")
    return built


def measured_runs(
    pool: ModelPool | ForcedPool | Path | str | None,
    prompts: Path | Sequence[Prompt | str] | None,
    recording: Path | str,
    *,
    threads: int = 1,
    debug: bool = False,
    chat: bool = False,
) -> MeasuredRuns:
    """Runs of the models of a pool, forced ones if the pool is.

    Args:
        pool: models, or where they are; None is the shipped pool.
        prompts: of the recording; None with a forced pool, which needs no text.
        recording: of the pool and the prompts, or to be forced on the pool.
        threads: CPU threads of torch, where a pool is loaded.
        debug: say how the models will run.
        chat: put prompts as questions of a dialogue, as the recording did; not with a forced pool.

    Raises:
        ValueError: a pool, prompts or a recording that cannot be used together.
    """
    forced = is_forced(pool)
    if forced and prompts is not None:
        raise ArgumentError("`prompts` must be left out with a forced pool, whose requests are those of the recording")
    if not forced and prompts is None:
        raise ArgumentError("`prompts` must be given, those of the recording: only a forced pool needs none")
    models = load_models(pool, threads=threads, debug=debug, chat=chat)
    if isinstance(models, ForcedPool):
        return ForcedRuns(models, read_trace(Path(recording)))
    assert prompts is not None
    return DecodedRuns(models, prompts_of(prompts), Path(recording))
