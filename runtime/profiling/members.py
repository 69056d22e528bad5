"""Everything that is measured of a pool's members by themselves."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...profiles.forward_terms import InDecoding, Reload, SmoothForward, UnevenRows
from ...profiles.forwards import ForwardsInDecoding, ProfiledForwards
from ..forward.model_forward import ModelForward
from ..pools.loaded_members import LoadedMembers
from ..slim.shared_weights import weight_shares
from .forward_shapes import Grid, MeasuredForwards, measure_forwards
from .journal import Journal
from .reloads import measure_reloads
from .smooth import fit_smooth
from .uneven_rows import measure_uneven


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMembers:
    """What was measured, by members that have a model.

    Attributes:
        names: of them, in level order.
        even: forwards with rows of equal length.
        smooth, uneven, reloads, shares: by member, see `ProfiledMember`.
        forward_names: by member, how it runs.
    """

    names: tuple[str, ...]
    even: MeasuredForwards
    smooth: dict[str, SmoothForward]
    uneven: dict[str, UnevenRows]
    reloads: dict[str, Reload]
    shares: dict[str, dict[str, float]]
    forward_names: dict[str, str]

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
    pool: LoadedMembers, forwards: Mapping[str, ModelForward], grid: Grid, *, repeats: int, journal: Journal
) -> MeasuredMembers:
    """Time forwards of all members: even rows by shape, uneven ones, and those whose weights were away.

    Args:
        pool: the models.
        forwards: by member.
        grid: of even shapes.
        repeats: rounds in which each of them is timed, >= 3.
        journal: of even shapes that were measured before; mutated.
    """
    models = {member.name: member.model for member in pool.members if member.model is not None}
    longest = pool.context_tokens
    even = measure_forwards(forwards, grid, longest=longest, repeats=repeats, journal=journal)
    smooth = {name: fit_smooth(even.of(name)) for name in models}
    priced = {name: ProfiledForwards(even.of(name), smooth[name]) for name in models}
    shares = weight_shares(models)
    return MeasuredMembers(
        names=tuple(models),
        even=even,
        smooth=smooth,
        uneven=measure_uneven(forwards, priced, longest=longest),
        reloads=measure_reloads(forwards, shares, grid, longest=longest),
        shares=shares,
        forward_names={name: forward.name for name, forward in forwards.items()},
    )
