"""One simulated run: a policy over a recording, on one device, with B requests at a time.

The device runs the loop's operations in turn; an oracle is shown the recording's future first.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import islice
from math import inf
from typing import Any

from ..base.errors import ArgumentError, check_within
from ..decoding.legal_steps import Policy
from ..decoding.loop import Loop, run_loop
from ..decoding.pool import Pool
from ..decoding.prefix_cache import PrefixCacheSize
from ..decoding.seen import Observation, Start
from ..decoding.session import READER
from ..policies.about import about_of
from ..policies.combined import OnlyLossless
from ..policies.oracles import Foresight, ForwardSeconds
from ..runs.log import RunLedger, RunLog, with_quality
from ..traces.meta import MOST_SECONDS
from ..traces.profile import DecideSeconds
from .contexts import ReplayWorld, TrieTables
from .cost.base import CostModel, CostRangeError
from .in_step import AskedInStep, InStepReplay, RunSetting
from .recorded import DevicePlacement
from .replay_tables import ReplayTables, check_observed
from .rounds_once import ByPendingView
from .world import RecordedWorld


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the cyclic garbage collector, if it runs, for the duration.

    Replay makes no cycles but keeps millions of list items; walking those again and again takes a third of the time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def grant_foresight(
    policy: Policy,
    name: str,
    recording: ReplayTables,
    cost: CostModel,
    prefill_before: tuple[bool, ...],
    *,
    seed: int = 0,
    strict: bool = False,
) -> None:
    """Show a policy the future if it is an oracle; any other is unchanged.

    `recording` holds the future; cost, prefill, seed and strictness are the run's; `name` is for errors.

    Raises:
        ValueError: an oracle that cannot be shown the future; ArgumentError with a member whose forwards in a round
            depend on tokens judged by the target.
    """
    about = about_of(policy)
    if about is None or not about.oracle:
        return
    if recording.pool.feature_level is not None:
        reader = recording.pool.names[recording.pool.feature_level]
        raise ArgumentError(f"policy {name} sees ahead, which rounds beside {reader} do not allow, {READER}")
    foresee = getattr(policy, "foresee", None)
    if foresee is None:
        raise ValueError(f"policy {name} says it is an oracle, but has no method foresee(foresight)")
    with paused_collector():
        foresee(foresight_of(recording, cost, prefill_before, seed=seed, strict=strict))


def foresight_of(
    recording: ReplayTables, cost: CostModel, prefill_before: tuple[bool, ...], *, seed: int = 0, strict: bool = False
) -> Foresight:
    """The future of a recording's requests, where recorded or drawn as in the run."""
    # A copy, as seconds of planning must not appear in the run's notes.
    cost = deepcopy(cost)
    foreseen = recording.foreseen(cost, seed=seed, strict=strict, prefill_before=prefill_before)
    return Foresight(recording.pool, foreseen, _forward_s(recording.pool, cost))


def _forward_s(pool: Pool, cost: CostModel) -> ForwardSeconds:
    @cache
    def forward_s(level: int, new_tokens: int, held_tokens: int) -> float:
        name = pool.names[level]
        terms = cost.draft_terms(name)
        if terms is not None and terms.per_token_s is not None:
            return 0.0  # its drafts do not depend on its cache, and it cannot judge
        try:
            return cost.forward_s(name, num_rows=1, new_tokens=new_tokens, context_tokens=held_tokens)
        except CostRangeError:
            return inf  # plans must not use a catch-up beyond the measured range

    return forward_s


MOST_BATCH = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario(RunSetting):
    """The fixed setting of a comparison of policies.

    Raises:
        ValueError: batch or decide_s out of range, a start that the recording does not hold, devices or prefix caches
            without recorded contexts, or these caches with a cost of more than forwards.
    """

    tables: ReplayTables  # the recording
    # seconds of a policy per step, 0 to 1e9; None: those of the cost, if it has any
    decide_s: float | None = None
    start: Start | None = None  # how requests begin; None for the recording's default
    # devices of members, which decide what runs at the same time in an `Overlap`
    placement: DevicePlacement = field(default_factory=DevicePlacement)
    prefixes: PrefixCacheSize | None = None  # of each member's prefix cache; None for none

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= MOST_BATCH:
            raise ArgumentError(f"`batch` must be a whole number from 1 to {MOST_BATCH:,}, got {self.batch}")
        if self.decide_s is not None:
            check_within("`decide_s`", self.decide_s, f"[0, {MOST_SECONDS:g}]")
        self.tables.prefill_before(self.begins)
        name = self.tables.trace.about.name
        if self.placement.devices and not isinstance(self.tables, TrieTables):
            raise ArgumentError(f"`devices` is for recordings of contexts: no member works ahead in a replay of {name}")
        if self.prefixes is not None:
            if not isinstance(self.tables, TrieTables):
                raise ArgumentError(f"`prefix_cache` goes with a recording of contexts, and {name} is none")
            if self.cost.knows_operations:
                raise ArgumentError(f"`prefix_cache` goes with a cost of forwards, got `cost` {self.cost.name}")

    @property
    def begins(self) -> Start:
        """How requests begin."""
        return self.tables.default_start if self.start is None else self.start

    def seconds_to_decide(self, policy: Policy) -> DecideSeconds:
        """Seconds that a policy is charged for each step."""
        return seconds_to_decide(policy, self.cost, self.decide_s)


def seconds_to_decide(policy: Policy, cost: CostModel, asked_s: float | None) -> DecideSeconds:
    """Seconds that a policy is charged for each step: `asked_s`, else those of the cost, if it has any.

    Raises ArgumentError for a cost that does not give `DecideSeconds`.
    """
    if asked_s is not None:
        return DecideSeconds.of_step(asked_s)
    made = policy.wrapped if isinstance(policy, OnlyLossless) else policy
    found: object = cost.decide_s(type(made).__name__)
    if not isinstance(found, DecideSeconds):
        raise ArgumentError(f"`decide_s` of cost {cost.name} must give DecideSeconds, got {found!r}")
    return found


def simulate(
    scenario: Scenario,
    policy: Policy,
    name: str,
    *,
    outputs: dict[str, list[int]] | None = None,
    stepwise: bool = False,
) -> RunLog:
    """Replay every request of the recording under `policy`.

    Args:
        scenario: what is replayed, and at what cost.
        policy: built for the pool of the recording; one object for all requests.
        name: of the policy, for errors and the log.
        outputs: takes the committed tokens of every request by its id; None drops them.
        stepwise: let the policy decide every step, even where rounds could be walked (`InStepReplay.why_looped`).

    Raises:
        PolicyError: the policy broke the contract.
        UnrecordedContextError: `strict`, and a decision is not recorded.
        CostRangeError: an operation outside the range of the cost model.
        ValueError: a policy that must see what the recording does not hold.
    """
    recording = scenario.tables
    check_observed(policy, name, recording)
    about = about_of(policy)
    if scenario.prefixes is not None and about is not None and about.oracle:
        raise ArgumentError(f"policy {name} is an oracle, which cannot foresee what a `prefix_cache` will hold")
    prefill_before = recording.prefill_before(scenario.begins)
    grant_foresight(policy, name, recording, scenario.cost, prefill_before, seed=scenario.seed, strict=scenario.strict)
    if scenario.prefixes is None and recording.in_step is not None and not stepwise:
        asked = AskedInStep(
            policy=policy,
            name=name,
            setting=scenario,
            prefill_before=prefill_before,
            decide_s=scenario.seconds_to_decide(policy),
        )
        log = None if recording.in_step.why_looped(asked) else _in_step(scenario, recording.in_step, asked, outputs)
        if log is not None:
            return log
    return _looped(scenario, policy, name, prefill_before, outputs)


def _in_step(
    scenario: Scenario, in_step: InStepReplay, asked: AskedInStep, outputs: dict[str, list[int]] | None
) -> RunLog | None:
    """The run without a loop; None where it needs one."""
    ledger = RunLedger()
    try:
        with paused_collector():
            played = in_step.run(asked, ledger, outputs)
    except Exception as error:  # noqa: BLE001 - a policy and a cost may raise anything
        failed = error
    else:
        if played is None:
            return None
        meta = _meta(scenario, asked.policy, asked.name) | {"drawn": played.drawn}
        log = ledger.finish(meta, reanchored={}, divergent=played.divergent)
        return with_quality(log, played.quality)
    # The loop names request and step.
    _looped(scenario, asked.policy, asked.name, asked.prefill_before, outputs, view=ByPendingView)
    raise failed


def _looped(
    scenario: Scenario,
    policy: Policy,
    name: str,
    prefill_before: tuple[bool, ...],
    outputs: dict[str, list[int]] | None,
    *,
    view: type[Observation] = Observation,
) -> RunLog:
    recording = scenario.tables
    world = run_world(scenario, lambda: loop.load.now_s)
    ledger = RunLedger()
    decide_s = scenario.seconds_to_decide(policy)
    loop = Loop(
        pool=recording.pool,
        policy=policy,
        name=name,
        world=world,
        ledger=ledger,
        decide_s=None if decide_s.is_free else decide_s.each_s,
        view=view,
    )
    waiting = world.sessions(prefill_before)

    def admit(count: int, now_s: float) -> None:
        for session in islice(waiting, count):
            ledger.note_admitted(
                session.request_id, tag=session.tag, num_prompt=session.num_prompt, arrived_at_s=now_s, now_s=now_s
            )
            loop.load.num_waiting -= 1
            loop.admit(session)

    def on_finished(now_s: float) -> None:
        done, loop.finished = loop.finished, []
        if outputs is not None:
            outputs.update((session.request_id, session.emitted) for session in done)
        admit(len(done), now_s)

    loop.load.num_waiting = len(recording.trace.requests)
    admit(scenario.batch, 0.0)
    with paused_collector():
        run_loop(loop, world, on_finished=on_finished)
    return _logged(scenario, policy, name, ledger, world, decided_s=None if decide_s.is_constant else loop.decided_s)


def run_world(scenario: Scenario, now_s: Callable[[], float]) -> RecordedWorld:
    """The world of a stepwise run; `now_s` reads its clock."""
    world = scenario.tables.world(scenario.cost, seed=scenario.seed, strict=scenario.strict, now_s=now_s)
    if isinstance(world, ReplayWorld):
        world.placement = scenario.placement
        if scenario.prefixes is not None:
            world.share_prefixes(scenario.prefixes)
    return world


def _logged(
    scenario: Scenario,
    policy: Policy,
    name: str,
    ledger: RunLedger,
    world: RecordedWorld,
    decided_s: float | None = None,
) -> RunLog:
    """The log; `decided_s` is the total of all decisions, None where each took the same."""
    meta = _meta(scenario, policy, name) | ({} if decided_s is None else {"policy_s": decided_s})
    if isinstance(world, ReplayWorld) and world.beside_s is not None:
        meta["beside_s"] = world.beside_s
    log = ledger.finish(meta, reanchored=world.num_reanchored, divergent=world.num_divergent)
    log.meta["drawn"] = world.was_drawn(log.steps["modelled"])
    about = about_of(policy)
    if isinstance(world, ReplayWorld) and (about is None or not about.oracle):  # which sees further draws
        log = replace(log, repeats=world.falls_alike)
    return with_quality(log, world.quality)


def _meta(scenario: Scenario, policy: Policy, name: str) -> dict[str, Any]:
    about, replayed = about_of(policy), scenario.tables.trace.about
    return {
        "world": "sim",
        "policy": name,
        "trace": replayed.name,
        "kind": replayed.kind,
        "cost": scenario.cost.name,
        "batch": scenario.batch,
        "seed": scenario.seed,
        "decide_s": scenario.seconds_to_decide(policy).each_s(scenario.batch),
        "start": scenario.begins.value,
        "devices": scenario.placement.name,
        "prefix_cache": None if scenario.prefixes is None else asdict(scenario.prefixes),
        "members": list(scenario.tables.pool.names),
        "lossless": None if about is None else about.lossless,
    }
