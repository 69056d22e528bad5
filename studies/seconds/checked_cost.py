"""The cost of seconds that are held against models at hand, and whether its profile still fits them."""

from dataclasses import dataclass

from ...arguments import ArgumentError
from ...progress import tell
from ...runtime.pools.loaded_members import LoadedMembers
from ...sim.cost.base import CostModel
from ...sim.cost.make import make_cost
from ...sim.cost.profile_choice import names_profile, profiled_cost
from ...sim.cost.profiled import ProfiledCost
from ...traces.tries.recording import TrieRecording
from .freshness import Freshness, device_name, measure_freshness, mismatches, remarks_on_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCost:
    """A cost, and what is known of it before anything is run.

    Attributes:
        cost: model of seconds.
        freshness: of its profile; None of a cost that is no profile's.
        remarks: what a reader of its seconds has to know, a line each.
    """

    cost: CostModel
    freshness: Freshness | None = None
    remarks: tuple[str, ...] = ()


def checked_cost(
    name: str, recording: TrieRecording, models: LoadedMembers, *, threads: int, allow_foreign: bool
) -> CheckedCost:
    """The cost called `name`; says whether its profile fits, of which some is measured again, and what changed since.

    Args:
        name: as `make_cost` takes it.
        recording: of the models.
        models: that are to be run.
        threads: that they are to be run with.
        allow_foreign: take a profile that cannot be right here, and label it.

    Raises:
        ValueError: no such cost, or a profile that cannot be right here.
    """
    if not names_profile(name):
        return CheckedCost(cost=make_cost(name, recording, allow_foreign_profile=allow_foreign))
    device = device_name(models)
    cost = profiled_cost(name, recording, allow_foreign=allow_foreign, threads=threads, device=device)
    if not allow_foreign:
        _refuse_foreign(cost, models, threads)
    foreign = [f"FOREIGN profile: {words}" for words in mismatches(cost.profile, models)]
    remarks = [*foreign, *remarks_on_profile(cost.profile.meta, models, recording.meta.sampling.mode)]
    freshness = measure_freshness(cost.profile, models)
    for line in (freshness.line, *remarks):
        tell(line)
    return CheckedCost(cost=cost, freshness=freshness, remarks=tuple(remarks))


def _refuse_foreign(cost: ProfiledCost, models: LoadedMembers, threads: int) -> None:
    """Raise ArgumentError where the seconds of a profile cannot be right here."""
    measured = cost.profile.meta.threads
    advice = "profile anew, or `allow_foreign_profile` takes it"
    if measured != threads:
        raise ArgumentError(f"`threads` must be {measured}, as {cost.name} was measured with, got {threads}: {advice}")
    for words in mismatches(cost.profile, models):
        raise ArgumentError(f"`cost` {cost.name} does not fit these models: {words}; {advice}")
