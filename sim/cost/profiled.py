"""Seconds from a profile: measured forwards, interpolated, and what operations cost beside them."""

from collections.abc import Iterable, Sequence
from typing import get_args

from ...profiles.batch_shape import BatchShape
from ...profiles.forwards import forwards_of
from ...profiles.profile import Profile
from .base import Beside, CostRangeError, DraftTerms


class ProfiledCost:
    """What a machine was measured to take.

    A forward's seconds lie between those of the measured shapes around it: linear in the new tokens and the tokens
    held of a row, then linear in rows. Beyond the measured shapes the profile's smooth model answers, and `notes` say
    so. Operations are charged for uneven rows too, and for weights that were not read just before.

    Args:
        profile: of the pool that is replayed.
        name: shown in tables.
        models: that it will be asked for.

    Attributes:
        profile: as given.

    Raises:
        CostRangeError: a model that was not profiled.
    """

    def __init__(self, profile: Profile, name: str, models: Sequence[str]) -> None:
        self.name = name
        self.profile = profile
        meta = profile.meta
        self.lookup_s = meta.lookup.seconds(0, 1, 0)
        self._meta = meta
        self._unmeasured: set[str] = set()
        known = {member.name: member for member in profile.meta.members}
        missing = [model for model in models if model not in known]
        if missing:
            raise CostRangeError(f"cost {name}: {missing[0]} was not profiled; it has {', '.join(known)}")
        self._members = {model: forwards_of(profile, known[model]) for model in models}
        self.shares = {model: known[model].shares for model in models}
        self._beside = {(kind, model): known[model].beside(kind) for model in models for kind in get_args(Beside)}

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward; see `CostModel`."""
        return self._members[model].forwards.seconds(num_rows, new_tokens, context_tokens)

    def draft_terms(self, model: str) -> DraftTerms | None:
        """See `CostModel`: drafts cost their forwards."""
        return None

    def batch_s(self, model: str, shape: BatchShape, *, first: bool) -> float:
        """See `OperationCost`."""
        return self._members[model].seconds(shape, first=first)

    def reloads_s(self, model: str, new_tokens: int, away: Iterable[tuple[float, float]]) -> float:
        """See `OperationCost`."""
        return self._members[model].reloads_s(new_tokens, away)

    def lookups_s(self, num_rows: int) -> float:
        """See `OperationCost`."""
        return self._meta.lookup.seconds(0, num_rows, 0)

    def beside_s(self, kind: Beside, model: str, *, num_forwards: int, num_rows: int, num_tokens: int) -> float:
        """See `OperationCost`."""
        return self._beside[kind, model].seconds(num_forwards, num_rows, num_tokens)

    def decide_s(self, policy: str) -> float:
        """See `OperationCost`; of a policy that was not measured the mean of those that were."""
        known = self._meta.decide_s
        if policy in known:
            return known[policy]
        self._unmeasured.add(policy)
        return sum(known.values()) / len(known)

    def notes(self) -> tuple[str, ...]:
        """See `CostModel`."""
        beyond = [
            f"{member.name} ({_said(member.smooth.held_out_error)})"
            for member in self._meta.members
            if member.name in self._members and self._members[member.name].forwards.beyond
        ]
        meta = self._meta
        when = f"{meta.measured_at:%Y-%m-%d %H:%M} UTC"
        forced = f", of forced pool {meta.pool}" if meta.forced else ""
        notes = [f"seconds measured on {meta.hardware}, with {meta.sampling} sampling, at {when}{forced}"]
        if beyond:
            notes.append(f"shapes beyond the profile's, by its smooth model (median error): {', '.join(beyond)}")
        if self._unmeasured:
            notes.append(f"deciding was not measured, the others' mean is taken: {', '.join(sorted(self._unmeasured))}")
        return tuple(notes)


def _said(error: float | None) -> str:
    return "unknown" if error is None else f"{error:.0%}"
