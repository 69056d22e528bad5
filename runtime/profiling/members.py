"""Everything that is measured of a pool's members by themselves."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...profiles.forward_terms import AfterAway, InDecoding, Reload, SmoothForward, UnevenRows
from ...profiles.forwards import ForwardsInDecoding, ProfiledForwards
from ..forward.model_forward import ModelForward
from ..pools.loaded_members import LoadedMembers
from ..slim.shared_weights import weight_shares
from .forward_shapes import Grid, MeasuredForwards
from .reloads import measure_after_away, reload_axes, reload_of
from .smooth import fit_smooth
from .uneven_rows import measure_uneven


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMembers:
    """What was measured, by members that have a model.

    Attributes:
        names: of them, in level order.
        even: forwards with rows of equal length.
        smooth, uneven, after_away, reloads, shares: by member, see `ProfiledMember`.
        forward_names: by member, how it runs.
    """

    names: tuple[str, ...]
    even: MeasuredForwards
    smooth: dict[str, SmoothForward]
    uneven: dict[str, UnevenRows]
    after_away: dict[str, tuple[AfterAway, ...]]
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
    pool: LoadedMembers, forwards: Mapping[str, ModelForward], even: MeasuredForwards, grid: Grid
) -> MeasuredMembers:
    """Time what even rows do not tell of the forwards of all members: uneven rows, and weights that were away.

    Args:
        pool: the models.
        forwards: by member.
        even: what was measured of rows of equal length.
        grid: of these.
    """
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
