"""Seconds of forwards by new tokens, as recordings hold them, from a profile instead of a measurement of their own."""

from ...arguments import ArgumentError
from ...profiles.forwards import ProfiledForwards
from ...profiles.profile import Profile
from ...traces.meta import CostTable
from .forward_seconds import CONTEXT_TOKENS, NEW_TOKENS, num_rows


def tables_of(profile: Profile) -> dict[str, CostTable]:
    """The points that `measure_costs` would measure, by member; those beyond the measured shapes are left out.

    Args:
        profile: of the models that are recorded.

    Raises:
        ArgumentError: a member none of whose shapes comes near such a point.
    """
    context = min(CONTEXT_TOKENS, max(shape.context_tokens for shape in profile.shapes))
    tables = {}
    for member in profile.meta.members:
        forwards = ProfiledForwards(profile.of(member.name), None)
        measured = {count: forwards.measured(num_rows(count), count, context * num_rows(count)) for count in NEW_TOKENS}
        known = {count: seconds for count, seconds in measured.items() if seconds is not None}
        if not known:
            raise ArgumentError(f"`profile` has no shapes of {member.name} that a recording could hold")
        tables[member.name] = CostTable(new_tokens=tuple(known), seconds=tuple(known.values()))
    return tables
