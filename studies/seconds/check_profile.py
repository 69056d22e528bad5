"""Say whether a profile still fits this machine: what `paceline profile --check` does."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...profiles.profile import Profile
from ...reports.tables.grid import Grid, table
from ...reports.tables.printed import Printed
from ...runtime.forced.forced_pool import ForcedPool
from ...runtime.pools.pool import ModelPool
from ..pool import load_models
from .freshness import Freshness, fitting_profile, measure_freshness, remarks_on_profile


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckedProfile(Printed):
    """A profile held against the machine as it is now; prints as `paceline profile --check` does.

    Attributes:
        profile: that was checked.
        freshness: how its seconds fare.
        remarks: what has changed since it was made, a line each.
    """

    profile: Profile
    freshness: Freshness
    remarks: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether its seconds still hold."""
        return self.freshness.fits

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/profiles.md)."""
        meta = self.profile.meta
        about = {"pool": meta.pool, "hardware": meta.hardware, "measured_at": meta.measured_at.isoformat()}
        return about | self.freshness.to_json() | {"notes": list(self.remarks)}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each member's forwards right after others, then one for its forwards after times away."""
        found = self.freshness.to_json()
        return [
            {"member": name, "after_away": part == "after_away", **pace}
            for part in ("members", "after_away")
            for name, pace in found[part].items()
        ]

    def tables(self) -> Sequence[Grid]:
        """Members, settled and after times away."""
        meta = self.profile.meta
        rows = [
            {
                "member": name,
                "forwards": which,
                "times as long": f"{pace.ratio:.3f}",
                "may differ by": f"{pace.limit:.1%}",
                "fits": "yes" if pace.fits else "no",
            }
            for which, paces in (("settled", self.freshness.members), ("after times away", self.freshness.after_away))
            for name, pace in paces.items()
        ]
        title = f"profile of pool {meta.pool} on {meta.hardware}, {meta.measured_at:%Y-%m-%d %H:%M} UTC"
        return [table(rows, texts=("forwards", "fits"), title=title)]

    def lines(self) -> Sequence[str]:
        """The verdict last."""
        return [*self.remarks, self.freshness.line]


def check_profile(
    pool: ModelPool | ForcedPool | Path | str | None = None,
    file: Path | str | None = None,
    *,
    threads: int = 1,
    debug: bool = False,
) -> CheckedProfile:
    """Measure a few forwards again, for some eight seconds, and compare them with a profile's.

    Args:
        pool: models, or where they are; None is the shipped pool (`load_models`).
        file: the profile; None is the newest of these models on this machine.
        threads: CPU threads of torch, where a pool is loaded.
        debug: say beforehand how models run.

    Raises:
        ValueError: no such profile, or one whose seconds cannot be right here.
    """
    models = load_models(pool, threads=threads, debug=debug)
    profile = fitting_profile(models, None if file is None else Path(file))
    remarks = remarks_on_profile(profile.meta, models, profile.meta.sampling)
    return CheckedProfile(profile=profile, freshness=measure_freshness(profile, models), remarks=tuple(remarks))
