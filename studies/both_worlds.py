"""The same policy on a recording and on the models that made it, as `agree` compares them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..arguments import ArgumentError
from ..decoding.policy import Policy
from ..decoding.prefill import Start
from ..policies.step_watch import StepWatch, WatchedPolicy
from ..progress import Progress
from ..runs.agreement import Agreement, joined
from ..runs.log import RunLog
from ..runs.same_steps import compare_runs
from ..runtime.ahead.pace import AheadKind
from ..runtime.decode import decode, whole
from ..runtime.memory import Memory
from ..runtime.pools.loaded_members import loaded_pool
from ..runtime.pools.pool import ModelPool
from ..runtime.prompts import Prompt
from ..sim.cost.cost_file import FileCost
from ..sim.cost.figures import CostLine
from ..sim.simulate import Scenario, simulate
from ..sim.tries.tables import TrieTables
from ..sim.unrecorded_error import UnrecordedContextError, UnrecordedTreeError
from ..traces.tries.recording import TrieRecording
from .named_policies import NamedPolicy

PER_NEW_TOKEN = 2.0**-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replay: its log, and the committed tokens by request."""

    log: RunLog
    tokens: dict[str, list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BothWorlds:
    """What a policy is run on in either world. Both tell it the same made-up seconds.

    Attributes:
        pool: the models.
        recording: of the prompts, made from the pool.
        prompts: in the order of the recording.
        batch: requests running at a time.
        memory: how the runtime keeps keys and values; its prefix caches are those of the replay, too.
        start: how requests begin.
        lossless: whether only lossless policies were asked for.
        overlap: how members of the runtime work at the same time.
    """

    pool: ModelPool
    recording: TrieRecording
    prompts: Sequence[Prompt]
    batch: int
    memory: Memory
    start: Start
    lossless: bool
    overlap: AheadKind = "auto"

    def replay(self, policy: NamedPolicy) -> Replay | None:
        """A replay that stays on record; None for a policy whose lossy steps take it out.

        Raises:
            ValueError: the policy took none such and left the record all the same.
        """
        try:
            return self._replay(policy, strict=True)
        except _LeftRecordError as left:
            if left.watch.inexact:
                return None
            request_id, position, _ = left.cause.args
            raise ArgumentError(
                f"policy {policy.name} leaves the recording (request {request_id}, output position {position}), and "
                f"what is modelled cannot agree: it was recorded with {_what_was_recorded(self.recording, left.cause)}"
            ) from left.cause

    def agreement(self, policy: NamedPolicy, decider: Policy, replay: Replay | None, progress: Progress) -> Agreement:
        """How far the policy takes the same steps in both worlds.

        One that leaves the record is run anew for each batch of requests: what it learns beyond the record's end must
        not reach the next ones.

        Args:
            policy: to be built anew where it leaves the record.
            decider: the same, built for the runtime.
            replay: by `replay`.
            progress: over policies; told which requests are run.
        """
        if replay is not None:
            return self._compared(policy.name, decider, replay)
        parts = []
        for start in range(0, len(self.prompts), self.batch):
            progress.note(f"{policy.name}, request {start + 1} of {len(self.prompts)}")
            parts.append(self._part(start)._lossy_agreement(policy))
        return joined(parts)

    def _part(self, start: int) -> "BothWorlds":
        part = slice(start, start + self.batch)
        recording = replace(self.recording, requests=self.recording.requests[part])
        return replace(self, recording=recording, prompts=self.prompts[part])

    def _lossy_agreement(self, policy: NamedPolicy) -> Agreement:
        decider = policy.build(loaded_pool(self.pool))
        return self._compared(policy.name, decider, self._replay(policy, strict=False))

    def _replay(self, policy: NamedPolicy, *, strict: bool) -> Replay:
        tables = TrieTables(self.recording)
        cost = made_up_cost(self.recording.meta.model_names)
        scenario = Scenario(
            tables=tables, cost=cost, batch=self.batch, strict=strict, start=self.start, prefixes=self.memory.prefixes
        )
        decider = policy.admitted(tables.pool, lossless=self.lossless)
        watch = StepWatch(tables.pool.target)
        tokens: dict[str, list[int]] = {}
        try:
            log = simulate(scenario, WatchedPolicy(decider, watch), policy.name, outputs=tokens)
        except UnrecordedContextError as error:
            raise _LeftRecordError(watch, error) from error
        return Replay(log=log, tokens=tokens)

    def _compared(self, name: str, policy: Policy, replay: Replay) -> Agreement:
        found = decode(
            self.pool,
            policy,
            self.prompts,
            sampling=self.recording.meta.sampling,
            max_new_tokens=self.recording.requests[0].max_new_tokens,
            name=name,
            batch=self.batch,
            start=self.start,
            memory=self.memory,
            overlap=self.overlap,
            prices=made_up_cost(self.recording.meta.model_names),
        )
        outputs, ran = whole(found)  # half a run proves nothing
        ran_tokens = {output.request_id: output.tokens for output in outputs}
        return compare_runs(replay.log, ran, replayed_tokens=replay.tokens, ran_tokens=ran_tokens)


class _LeftRecordError(Exception):
    """A strict replay came to the end of its record."""

    def __init__(self, watch: StepWatch, cause: UnrecordedContextError) -> None:
        super().__init__(str(cause))
        self.watch = watch
        self.cause = cause


def _what_was_recorded(recording: TrieRecording, cause: UnrecordedContextError) -> str:
    """And what to do, as the end of a message."""
    closure = recording.meta.closure
    if isinstance(cause, UnrecordedTreeError):
        return f"`trees` {closure.words}; record with trees as wide and as deep"
    return f"`closure` {closure.kind} `reach` {closure.reach} `run` {closure.run}; record deeper"


def made_up_cost(names: Sequence[str]) -> FileCost:
    """One second for a forward of the target, half of the next larger one's for each smaller model.

    Each further new token adds a 64th. All are binary fractions, so that sums are exact in whatever order they are
    taken, and no time is spent on the context, which the runtime's prices do not know.

    Args:
        names: of the models, smallest first.
    """
    seconds = {name: 2.0**-below for below, name in enumerate(reversed(names))}
    lines = {
        name: CostLine(intercept_s=each * (1 - PER_NEW_TOKEN), per_new_token_s=each * PER_NEW_TOKEN)
        for name, each in seconds.items()
    }
    return FileCost("made up", lines)
