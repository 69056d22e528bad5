"""What operations cost beside their forwards, how forwards fare among each other, and what policies take to decide."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from ...decoding.ledger import DRAFT, VERIFY
from ...decoding.policy import Policy
from ...decoding.prompt_lookup import prompt_lookup
from ...profiles.forwards import ProfiledForwards
from ...profiles.meta import BesideForwards, InDecoding
from ...progress import Progress
from ...traces.meta import Sampling
from ..pools.loaded_members import LoadedMembers
from ..prompts import Prompt
from .beside import fit_beside
from .forward_shapes import MOST_JUDGED
from .probe import ProbedOp, ProbedWorld, probe

# Requests at a time that operations are watched with.
_BATCHES = (1, 2, 3, 6, 12)
_TOKENS_EACH = 24
_LOOKUP_CONTEXT, _LOOKUPS = 150, 200

# Forwards that a ratio must rest on.
_LEAST_SEEN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What was measured.

    Attributes:
        draft, verify: seconds beside forwards.
        in_decoding: by member, how much longer its forwards took than on their own.
        decide_s: by the name of the policy's class, seconds for a step.
        lookup_s: of one prompt lookup.
    """

    draft: BesideForwards
    verify: BesideForwards
    in_decoding: dict[str, InDecoding]
    decide_s: dict[str, float]
    lookup_s: float


def measure_operations(
    pool: LoadedMembers,
    prompts: Sequence[Prompt],
    forwards: Mapping[str, ProfiledForwards],
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
        forwards: by member, as measured on their own.
        chains: policies that together run every member, for the operations at several batches.
        policies: those whose own seconds are wanted, by the name they will be looked up by.
        sampling: how tokens are chosen.
        world: where prompts are decoded; None makes one of the pool.
    """
    world = world or ProbedWorld(pool=pool, sampling=sampling)
    ops: list[ProbedOp] = []
    with Progress("profiling operations", (len(_BATCHES) + 1) * len(chains) + len(policies), unit="runs") as progress:
        for place, batch in enumerate((1, *_BATCHES)):
            for name, policy in chains.items():
                some = _several(prompts, max(4, batch))
                seen = probe(world, policy, some, name=name, batch=batch, max_new_tokens=_TOKENS_EACH)
                if place:  # the first round warms up
                    ops += seen
                progress.advance()
        decided: dict[str, list[float]] = defaultdict(list)
        for name, policy in policies.items():
            seen = probe(world, policy, _several(prompts, 4), name=name, batch=1, max_new_tokens=_TOKENS_EACH)
            decided[type(policy).__name__] += [op.policy_s / op.decisions for op in seen if op.decisions]
            progress.advance()
    return Operations(
        draft=fit_beside([op for op in ops if op.kind == DRAFT and op.forwards]),
        verify=fit_beside([op for op in ops if op.kind == VERIFY]),
        in_decoding=_in_decoding(ops, forwards, [member.name for member in pool.members]),
        decide_s={name: sum(seconds) / len(seconds) for name, seconds in decided.items() if seconds},
        lookup_s=_lookup_s(pool),
    )


def _several(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """So many prompts, under ids of their own."""
    return [
        Prompt(request_id=str(place), tag=prompts[place % len(prompts)].tag, text=prompts[place % len(prompts)].text)
        for place in range(count)
    ]


def _in_decoding(
    ops: Sequence[ProbedOp], forwards: Mapping[str, ProfiledForwards], names: Sequence[str]
) -> dict[str, InDecoding]:
    """Measured over expected seconds of forwards within the measured shapes, prompts not among them."""
    seen: dict[str, dict[bool, dict[int, list[tuple[float, float]]]]] = {
        name: {False: defaultdict(list), True: defaultdict(list)} for name in forwards
    }
    last: int | None = None
    for op in ops:
        for level, rows, new_tokens, context, seconds in op.forwards:
            expected = forwards[names[level]].measured(rows, new_tokens, context)
            if expected is not None and new_tokens <= MOST_JUDGED * rows:
                seen[names[level]][last not in (level, None)][rows].append((seconds, expected))
            last = level
    return {name: _ratios(by_order[False], by_order[True]) for name, by_order in seen.items()}


def _ratios(
    again: Mapping[int, Sequence[tuple[float, float]]], after_others: Mapping[int, Sequence[tuple[float, float]]]
) -> InDecoding:
    """By rows; where one order was seen too seldom, the other stands for it, and 1 for both."""
    rows = sorted(
        count for count in {*again, *after_others} if len([*again[count], *after_others[count]]) >= _LEAST_SEEN
    )
    found = [(_ratio(again[count]), _ratio(after_others[count])) for count in rows]
    pairs = [(ours or theirs or 1.0, theirs or ours or 1.0) for ours, theirs in found]
    if not rows:
        rows, pairs = [1], [(1.0, 1.0)]
    return InDecoding(rows=tuple(rows), again=tuple(a for a, _ in pairs), after_others=tuple(b for _, b in pairs))


def _ratio(seen: Sequence[tuple[float, float]]) -> float | None:
    """Of sums, without forwards that something else on the machine interrupted; None for too few."""
    if len(seen) < _LEAST_SEEN:
        return None
    middle = median(seconds / expected for seconds, expected in seen)
    kept = [(seconds, expected) for seconds, expected in seen if seconds <= 3 * middle * expected]
    return sum(seconds for seconds, _ in kept) / sum(expected for _, expected in kept)


def _lookup_s(pool: LoadedMembers) -> float:
    """Median seconds of a prompt lookup in a context without repeats, the slowest kind; 1e-5 without a lookup."""
    rules = [member.lookup for member in pool.members if member.lookup is not None]
    if not rules:
        return 1e-5
    context = list(range(_LOOKUP_CONTEXT))
    taken = []
    for _ in range(_LOOKUPS):
        start_s = perf_counter()
        prompt_lookup(context, num_tokens=8, rule=rules[0])
        taken.append(perf_counter() - start_s)
    return median(taken)
