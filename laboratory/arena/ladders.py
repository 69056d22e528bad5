"""Ladders of costs: seconds of forwards of a recording's members, whatever their names.

A ladder has a price for each of four roles. A member named `draft`, `mid`, `slim` or `target`, or by one of these and a
hyphen (`draft-code`), has that role. The last member is the target. The others take, in level order, the remaining
roles among draft, mid and slim: of two the first is the draft and the second the mid. More members than roles are
spread evenly over them. A member that copies text has no forwards: it costs a lookup on any ladder.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial

from paceline.base.errors import ArgumentError
from paceline.base.files import shipped
from paceline.sim.cost.base import LOOKUP_S, CostModel, DraftTerms
from paceline.sim.cost.files import CostLine, DrafterFigures, Figures, FileCost
from paceline.sim.cost.what_if import Price, PricedAsCost
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.recording import Recording

from ..replays import Family, families, submodel

UNIT_S = 1e-3  # of a price in the ladders of ratios
# A further token in a forward, in any row, takes this share of a forward of one token: about as on devices of the sheet
# (on an A100, arithmetic of 153 tokens takes as long as reading bfloat16 weights).
TOKEN_SHARE = 1 / 128
DEAR_LOOKUP_S = 4 * UNIT_S  # with which `ngram:6/draft:4/target` spends 13% of its seconds on lookups, on pico
SLIM_SHARE = 6 / 11  # of the target's layers, as in the shipped pool
MEASURED, LOOKUP = "cpu", "lookup"


class PriceRole(StrEnum):
    """The role that a member is priced as."""

    draft = "draft"
    mid = "mid"
    slim = "slim"
    target = "target"


BELOW = (PriceRole.draft, PriceRole.mid, PriceRole.slim)


Ladder = Callable[[Recording], CostModel]  # seconds of a recording's members


def ladders() -> Mapping[str, Ladder]:
    """By name: ratios draft : mid : slim : target, seconds measured on a CPU, and rooflines of published models."""
    small, large = families()[:2]
    return {
        "flat": _ratios("flat", (1, 1, 1, 4)),
        "even": _ratios("even", (1, 3, 6, 10)),
        "steep": _ratios("steep", (1, 10, 50, 100)),
        "far": _ratios("far", (1, 30, 300, 1000)),
        "near": _ratios("near", (1, 3, 10, 50), lookup_s=DEAR_LOOKUP_S),
        "cpu": _measured,
        "h100-7b": partial(_roofline, small),
        "h100-70b": partial(_roofline, large),
    }


def ladder(name: str) -> Ladder:
    """The ladder of a name; raises ArgumentError for an unknown one."""
    known = ladders()
    if name not in known:
        raise ArgumentError(f"the ladder of a cell must be one of {', '.join(known)}, got {name!r}")
    return known[name]


def roles_of(members: Sequence[str]) -> dict[str, PriceRole]:
    """The role of each member with forwards; `members` in level order, the target last."""
    roles = {members[-1]: PriceRole.target}
    called = {name: role for name in members[:-1] for role in BELOW if name == role or name.startswith(f"{role}-")}
    others = [name for name in members[:-1] if name not in called]
    left = [role for role in BELOW if role not in called.values()] or BELOW
    for place, name in enumerate(others):
        roles[name] = left[place if len(others) <= len(left) else place * len(left) // len(others)]
    return roles | called


def _ratios(name: str, prices: Sequence[float], *, lookup_s: float = LOOKUP_S) -> Ladder:
    lines = {
        role: CostLine(intercept_s=price * UNIT_S * (1 - TOKEN_SHARE), per_new_token_s=price * UNIT_S * TOKEN_SHARE)
        for role, price in zip(PriceRole, prices, strict=True)
    }
    return partial(_by_role, name, lines, lookup_s=lookup_s)


def _measured(recording: Recording) -> CostModel:
    tables = read_trace(shipped("recordings", "pico.trace")).meta.costs[MEASURED]
    return _by_role(MEASURED, {role: tables[role] for role in PriceRole}, recording)


def _by_role(
    name: str, figures: Mapping[PriceRole, Figures], recording: Recording, *, lookup_s: float = LOOKUP_S
) -> CostModel:
    """A cost with the figures of roles for members; tables continue with their last slope in large batches."""
    copying, lookup = _copying(recording), _lookup_figures(lookup_s)
    roles = roles_of(recording.about.models)
    of_members = {member: lookup if member in copying else figures[role] for member, role in roles.items()}
    return FileCost(name, of_members, extrapolate=True, lookup_s=lookup_s)


def _roofline(family: Family, recording: Recording) -> CostModel:
    """A draft, a middle model and a target of a family; slim is a part of the target's layers."""
    draft, mid, target = (
        family.price(model, count) for model, count in zip(family.models, family.devices, strict=True)
    )
    slim = family.price(submodel(family.target, SLIM_SHARE), family.devices[-1])
    prices = {PriceRole.draft: draft, PriceRole.mid: mid, PriceRole.slim: slim, PriceRole.target: target}
    lookup = Price(cost=FileCost(LOOKUP, {LOOKUP: _lookup_figures(LOOKUP_S)}), model=LOOKUP)
    copying, roles = _copying(recording), roles_of(recording.about.models)
    of_members = {member: lookup if member in copying else prices[role] for member, role in roles.items()}
    return PricedAsCost(family.name, of_members)


def _lookup_figures(seconds: float) -> DrafterFigures:
    return DrafterFigures(terms=DraftTerms(seconds, 0.0), forwards=None)


def _copying(recording: Recording) -> set[str]:
    """Members of an imported log that copy text: they have a name among the models but no weights."""
    return {name for name, known in recording.known_shapes().items() if known.shape is None}
