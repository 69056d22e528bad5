"""Seconds of operations beside their forwards, seconds of policies' decisions, and all measurements of members."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import NamedTuple

from ...base.terminal import Progress
from ...decoding.legal_steps import Policy
from ...decoding.prompt_lookup import LookupRule, prompt_lookup
from ...decoding.results import DRAFT, VERIFY
from ...traces.meta import Sampling
from ...traces.profile import (
    AfterAway,
    BesideForwards,
    DecideSeconds,
    ForwardsInDecoding,
    InDecoding,
    ProfiledForwards,
    Reload,
    SmoothForward,
    UnevenRows,
    WeightsRead,
)
from ..forward import ModelForward
from ..pools.members import LoadedMembers
from ..prompts import Prompt
from ..slim import weight_shares
from .forwards import (
    MeasuredForwards,
    ShapeGrid,
    fit_smooth,
    measure_after_away,
    measure_uneven,
    reload_axes,
    reload_of,
)
from .probe import ProbedOp, ProbedWorld, fit_beside, longer_in_decoding, probe


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMembers:
    """The measurements, for members with a model; `ProfiledMember` explains those by member."""

    names: tuple[str, ...]  # in level order
    even: MeasuredForwards  # forwards with rows of equal length
    smooth: dict[str, SmoothForward]
    uneven: dict[str, UnevenRows]
    after_away: dict[str, tuple[AfterAway, ...]]
    reloads: dict[str, Reload]
    shares: dict[str, dict[str, float]]
    forward_names: dict[str, str]  # by member, how it runs

    @property
    def forwards(self) -> dict[str, ForwardsInDecoding]:
        """The predicted seconds of their forwards."""
        return {
            name: ForwardsInDecoding(
                ProfiledForwards(self.even.of(name), self.smooth[name]),
                self.uneven[name],
                self.reloads[name],
                InDecoding(),
            )
            for name in self.names
        }


def measure_members(
    pool: LoadedMembers, forwards: Mapping[str, ModelForward], even: MeasuredForwards, grid: ShapeGrid
) -> MeasuredMembers:
    """Time what even rows do not show of all members' forwards: uneven rows, and weights that were away."""
    models = {member.name: member.model for member in pool.members if member.model is not None}
    longest = pool.context_tokens
    smooth = {name: fit_smooth(even.of(name)) for name in models}
    priced = {name: ProfiledForwards(even.of(name), smooth[name]) for name in models}
    shares = weight_shares(models)
    uneven = measure_uneven(forwards, priced, longest=longest)
    after_away = measure_after_away(forwards, shares, *reload_axes(grid, longest), longest=longest)
    return MeasuredMembers(
        names=tuple(models),
        even=even,
        smooth=smooth,
        uneven=uneven,
        after_away=after_away,
        reloads={name: reload_of(cells) for name, cells in after_away.items()},
        shares=shares,
        forward_names={name: forward.name for name, forward in forwards.items()},
    )


# Requests at a time at which operations are watched and policies timed.
_BATCHES = (1, 2, 3, 6, 12)
# Requests of a run, at least, and per place of the batch: it stays full while new ones replace those that end.
_LEAST_REQUESTS, _REQUESTS_EACH = 6, 2
# Tokens of a request, at most and at least; their number is chosen so that watching and timing all takes about
# `_SECONDS`.
_MOST_TOKENS, _LEAST_TOKENS, _SECONDS = 64, 8, 150.0
_LOOKUP_CONTEXT, _LOOKUPS = 150, 200

# Least operations behind a figure of one member.
_LEAST_SEEN = 40
# The share of a run after which a policy is warm: its estimates, and its code.
_WARM_UP = 0.5
# The share of a policy's longest operations, at least one, that may be interruptions.
_INTERRUPTED = 0.01

MakePolicy = Callable[[], Policy]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """The measurements."""

    drafting: dict[str, BesideForwards]  # by member, seconds beside forwards
    verifying: dict[str, BesideForwards]  # by member, of verifications
    stopping: dict[str, BesideForwards]  # by member, of drafts with a stop; empty where no policy has any
    in_decoding: dict[str, InDecoding]  # by member, how much longer its forwards took than predicted
    lookup: BesideForwards  # of drafts by prompt lookup, which have no forwards
    decide_s: dict[str, DecideSeconds]  # by the name of the policy's class


class _Watched(NamedTuple):
    policy: str  # the name of its class
    batch: int  # requests running at a time
    ops: list[ProbedOp]


def measure_operations(
    pool: LoadedMembers,
    prompts: Sequence[Prompt],
    measured: MeasuredMembers,
    chains: Mapping[str, MakePolicy],
    policies: Mapping[str, MakePolicy],
    sampling: Sampling,
    *,
    world: ProbedWorld | None = None,
) -> Operations:
    """Watch real decoding.

    Args:
        pool: the models.
        prompts: some to decode, at least one; used in turn.
        measured: of the members alone.
        chains: policies that together run every member, for the operations at several batches.
        policies: those whose own seconds are measured as well.
        sampling: how tokens are chosen.
        world: where prompts are decoded; None makes one of the pool.

    Raises:
        ArgumentError: a prompt that leaves no room for an answer.
    """
    world = world or ProbedWorld(pool=pool, sampling=sampling)
    longest = max(session.num_prompt for session in world.sessions(_several(prompts, len(prompts)), 1))
    most_tokens = pool.context_tokens - longest
    total = (len(_BATCHES) + 1) * len(chains) + len(_BATCHES) * len(policies)
    with Progress("stage 4 of 4, operations", total, unit="runs", of_several=True) as progress:
        # A first round warms up.
        watched = _watched(
            world, prompts, chains, (1, *_BATCHES), _tokens_each(measured, chains, most_tokens), progress
        )
        watched = watched[len(chains) :]
        others = _watched(world, prompts, policies, _BATCHES, _tokens_each(measured, policies, most_tokens), progress)
    ops = [op for run in watched for op in run.ops]
    stopped = [op for run in others for op in run.ops if op.stops and op.forwards]
    return Operations(
        drafting=_by_member(pool, [op for op in ops if op.kind == DRAFT and op.forwards]),
        verifying=_by_member(pool, [op for op in ops if op.kind == VERIFY]),
        stopping=_by_member(pool, stopped) if len(stopped) >= _LEAST_SEEN else {},
        in_decoding=longer_in_decoding(
            ops,
            [measured.forwards.get(member.name) for member in pool.members],
            [member.name for member in pool.members],
            WeightsRead(measured.shares),
        ),
        lookup=_lookups([op for op in ops if op.kind == DRAFT and not op.forwards]),
        decide_s=_decided([*watched, *others]),
    )


def _watched(
    world: ProbedWorld,
    prompts: Sequence[Prompt],
    policies: Mapping[str, MakePolicy],
    batches: Sequence[int],
    tokens_each: int,
    progress: Progress,
) -> list[_Watched]:
    """Run every policy at every batch, built again each time: answers are the same, and it might copy kept ones."""
    watched = []
    for batch in batches:
        for name, make in policies.items():
            policy, some = make(), _several(prompts, _num_requests(batch))
            ops = probe(world, policy, some, name=name, batch=batch, max_new_tokens=tokens_each)
            watched.append(_Watched(type(policy).__name__, batch, ops))
            progress.advance()
    return watched


def _decided(runs: Sequence[_Watched]) -> dict[str, DecideSeconds]:
    """By class, the mean over steps with a full batch, without the warm-up."""
    taken: dict[str, dict[int, list[ProbedOp]]] = defaultdict(lambda: defaultdict(list))
    for policy, batch, ops in runs:
        full = [op for op in ops if op.num_running == batch]
        taken[policy][batch] += full[int(_WARM_UP * len(full)) :]
    found = {}
    for policy, by_batch in taken.items():
        totals = {
            batch: batch * _thought_s(ops) / decisions
            for batch, ops in by_batch.items()
            if (decisions := sum(op.decisions for op in ops))
        }
        if totals:
            found[policy] = DecideSeconds(batches=tuple(totals), seconds=tuple(totals.values()))
    return found


def _thought_s(ops: Sequence[ProbedOp]) -> float:
    """Seconds of a policy in all operations, of which the longest `_INTERRUPTED` count as the next longest.

    What it computes at some steps only is longer than others, too, but comes more often.
    """
    seconds = sorted(op.policy_s for op in ops)
    longest = max(1, int(_INTERRUPTED * len(seconds)))
    kept = seconds[:-longest]
    return sum(kept) + longest * kept[-1] if kept else sum(seconds)


def _num_requests(batch: int) -> int:
    return max(_LEAST_REQUESTS, _REQUESTS_EACH * batch)


def _tokens_each(measured: MeasuredMembers, policies: Mapping[str, MakePolicy], most: int) -> int:
    """Tokens of a request, fewer where models are slow, assuming one forward of each per token; at most `most`."""
    token_s = sum(min(shape.seconds for shape in measured.even.of(name)) for name in measured.names)
    rounds = max(1, len(policies)) * sum(_num_requests(batch) / batch for batch in (1, *_BATCHES))
    return min(most, max(_LEAST_TOKENS, min(_MOST_TOKENS, int(_SECONDS / (token_s * rounds)))))


def _several(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """`count` prompts with new ids, spread over those given."""
    apart = max(1, len(prompts) // count)
    some = [prompts[place * apart % len(prompts)] for place in range(count)]
    return [Prompt(request_id=str(place), tag=one.tag, text=one.text) for place, one in enumerate(some)]


def _by_member(pool: LoadedMembers, ops: Sequence[ProbedOp]) -> dict[str, BesideForwards]:
    """What operations of one kind cost beside forwards; for a member with too few operations, those of all members."""
    found = {}
    for level, member in enumerate(pool.members):
        own = [op for op in ops if op.level == level]
        found[member.name] = fit_beside(own if len(own) >= _LEAST_SEEN else ops)
    return found


def _lookups(ops: Sequence[ProbedOp]) -> BesideForwards:
    """Seconds of drafts by prompt lookup; for a pool without it of a lookup in a text without repeats, the slowest."""
    if ops:
        return fit_beside([op._replace(num_tokens=0) for op in ops])
    context, taken = list(range(_LOOKUP_CONTEXT)), []
    for _ in range(_LOOKUPS):
        start_s = perf_counter()
        prompt_lookup(context, num_tokens=8, rule=LookupRule(max_match=3))
        taken.append(perf_counter() - start_s)
    return BesideForwards(per_row_s=median(taken))
