"""What operations cost beside their forwards, what policies take to decide, and all that is measured of members."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from ...base.terminal import Progress
from ...decoding.legal_steps import Policy
from ...decoding.prompt_lookup import LookupRule, prompt_lookup
from ...decoding.results import DRAFT, VERIFY
from ...traces.meta import Sampling
from ...traces.profile import (
    AfterAway,
    BesideForwards,
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
    """What was measured, by members that have a model; `ProfiledMember` explains what is by member."""

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
        """What is foreseen of their forwards."""
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
    """Time what even rows do not tell of the forwards of all members: uneven rows, and weights that were away."""
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


# Requests at a time that operations are watched with.
_BATCHES = (1, 2, 3, 6, 12)
_LEAST_REQUESTS = 4
# Tokens of a request at most and at least; as many as watching all takes about so many seconds with.
_MOST_TOKENS, _LEAST_TOKENS, _SECONDS = 64, 8, 150.0
_LOOKUP_CONTEXT, _LOOKUPS = 150, 200

# Operations that what is said of one member must rest on.
_LEAST_SEEN = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What was measured."""

    drafting: dict[str, BesideForwards]  # by member, seconds beside forwards
    verifying: dict[str, BesideForwards]  # likewise
    in_decoding: dict[str, InDecoding]  # by member, how much longer its forwards took than foreseen
    lookup: BesideForwards  # of drafts by prompt lookup, which have no forwards
    decide_s: dict[str, float]  # by the name of the policy's class, seconds for a step


def measure_operations(
    pool: LoadedMembers,
    prompts: Sequence[Prompt],
    measured: MeasuredMembers,
    chains: Mapping[str, Policy],
    policies: Mapping[str, Policy],
    sampling: Sampling,
    *,
    world: ProbedWorld | None = None,
) -> Operations:
    """Watch real decoding.

    Args:
        pool: the models.
        prompts: some to decode, at least one; they are taken in turn.
        measured: of the members by themselves.
        chains: policies that together run every member, for the operations at several batches.
        policies: those whose own seconds are wanted, by the name they will be looked up by.
        sampling: how tokens are chosen.
        world: where prompts are decoded; None makes one of the pool.

    Raises:
        ArgumentError: a prompt that leaves no room for an answer.
    """
    world = world or ProbedWorld(pool=pool, sampling=sampling)
    longest = max(session.num_prompt for session in world.sessions(_several(prompts, len(prompts)), 1))
    tokens_each = min(_tokens_each(measured, len(chains)), pool.context_tokens - longest)
    with Progress(
        "profiling operations (stage 4 of 4)", (len(_BATCHES) + 1) * len(chains) + len(policies), unit="runs"
    ) as progress:
        ops = _watched(world, prompts, chains, tokens_each, progress)
        decide_s = _decided(world, prompts, policies, tokens_each, progress)
    return Operations(
        drafting=_by_member(pool, [op for op in ops if op.kind == DRAFT and op.forwards]),
        verifying=_by_member(pool, [op for op in ops if op.kind == VERIFY]),
        in_decoding=longer_in_decoding(
            ops,
            [measured.forwards.get(member.name) for member in pool.members],
            [member.name for member in pool.members],
            WeightsRead(measured.shares),
        ),
        lookup=_lookups([op for op in ops if op.kind == DRAFT and not op.forwards]),
        decide_s=decide_s,
    )


def _watched(
    world: ProbedWorld, prompts: Sequence[Prompt], chains: Mapping[str, Policy], tokens_each: int, progress: Progress
) -> list[ProbedOp]:
    """Operations of all chains at several batches; a first round warms up."""
    ops: list[ProbedOp] = []
    for place, batch in enumerate((1, *_BATCHES)):
        for name, policy in chains.items():
            some = _several(prompts, max(_LEAST_REQUESTS, batch))
            seen = probe(world, policy, some, name=name, batch=batch, max_new_tokens=tokens_each)
            if place:
                ops += seen
            progress.advance()
    return ops


def _decided(
    world: ProbedWorld, prompts: Sequence[Prompt], policies: Mapping[str, Policy], tokens_each: int, progress: Progress
) -> dict[str, float]:
    decided: dict[str, list[float]] = defaultdict(list)
    some = _several(prompts, _LEAST_REQUESTS)
    for name, policy in policies.items():
        seen = probe(world, policy, some, name=name, batch=1, max_new_tokens=tokens_each)
        decided[type(policy).__name__] += [op.policy_s / op.decisions for op in seen if op.decisions]
        progress.advance()
    return {name: sum(seconds) / len(seconds) for name, seconds in decided.items() if seconds}


def _tokens_each(measured: MeasuredMembers, num_chains: int) -> int:
    """Tokens of a request, fewer where models are slow, as if each of them ran once for every token."""
    token_s = sum(min(shape.seconds for shape in measured.even.of(name)) for name in measured.names)
    rounds = num_chains * sum(max(_LEAST_REQUESTS, batch) / batch for batch in (1, *_BATCHES))
    return max(_LEAST_TOKENS, min(_MOST_TOKENS, int(_SECONDS / (token_s * rounds))))


def _several(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """So many prompts, under ids of their own."""
    return [
        Prompt(request_id=str(place), tag=prompts[place % len(prompts)].tag, text=prompts[place % len(prompts)].text)
        for place in range(count)
    ]


def _by_member(pool: LoadedMembers, ops: Sequence[ProbedOp]) -> dict[str, BesideForwards]:
    """What operations of one kind cost beside forwards; for a member that was seen too seldom, those of all members."""
    found = {}
    for level, member in enumerate(pool.members):
        own = [op for op in ops if op.level == level]
        found[member.name] = fit_beside(own if len(own) >= _LEAST_SEEN else ops)
    return found


def _lookups(ops: Sequence[ProbedOp]) -> BesideForwards:
    """Of drafts by prompt lookup; of a pool without any the bare lookup, in a context without repeats, the slowest."""
    if ops:
        return fit_beside([op._replace(num_tokens=0) for op in ops])
    context, taken = list(range(_LOOKUP_CONTEXT)), []
    for _ in range(_LOOKUPS):
        start_s = perf_counter()
        prompt_lookup(context, num_tokens=8, rule=LookupRule(max_match=3))
        taken.append(perf_counter() - start_s)
    return BesideForwards(per_row_s=median(taken))
