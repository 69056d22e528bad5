"""Whether a profile still fits the machine: some of its forwards measured again, and what it was measured under."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ...arguments import ArgumentError
from ...counted import counted
from ...machine import processor
from ...profiles.forward_terms import AfterAway
from ...profiles.meta import CPU, ProfileMeta
from ...profiles.profile import Profile, Shape, read_profile
from ...progress import in_words
from ...runtime.pools.loaded_members import LoadedMembers
from ...runtime.profiling.reference_shapes import measure_after_away_again, measure_again
from ...sim.cost.profile_choice import differences, newest_here

# A change of seconds by less than this share is not worth a word.
LEAST_CHANGE = 0.02

# A member's seconds have changed if they differ by what they drifted while they were measured and so many spreads.
_SPREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPace:
    """How a member's forwards take now what they took then.

    Attributes:
        ratio: seconds now over those of the profile, median over the shapes measured again.
        limit: share by which they may differ either way, by the spread and the drift that the profile measured.
    """

    ratio: float
    limit: float

    @property
    def fits(self) -> bool:
        """Whether they take as long as they did."""
        return 1 / (1 + self.limit) <= self.ratio <= 1 + self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """What measuring some of a profile again said.

    Attributes:
        age_s: of the profile, when it was measured again.
        members: by name, forwards right after others.
        after_away: by name, forwards whose weights were not read just before.
    """

    age_s: float
    members: Mapping[str, MemberPace]
    after_away: Mapping[str, MemberPace]

    @property
    def fits(self) -> bool:
        """Whether every member takes as long as it did, after times away too."""
        return all(pace.fits for pace in (*self.members.values(), *self.after_away.values()))

    @property
    def line(self) -> str:
        """The verdict, and what it rests on."""
        ago = f"as long as {in_words(self.age_s)} ago"
        if self.fits:
            settled, away = (_range(paces) for paces in (self.members, self.after_away))
            return f"the profile fits: forwards take {settled} times, after times away {away} times {ago}"
        told = [("", name, pace) for name, pace in self.members.items()]
        told += [(" after times away", name, pace) for name, pace in self.after_away.items()]
        off = sorted((pace.ratio, f"{name}'s forwards{which}") for which, name, pace in told if not pace.fits)
        words = [f"{whose} take {ratio:.2f} times" for ratio, whose in reversed(off)]
        return f"the profile no longer fits: {', '.join(words)} {ago}; profile anew"

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/validation.md)."""
        members, after_away = (
            {name: asdict(pace) | {"fits": pace.fits} for name, pace in paces.items()}
            for paces in (self.members, self.after_away)
        )
        return {"age_s": self.age_s, "fits": self.fits, "members": members, "after_away": after_away}


def _range(paces: Mapping[str, MemberPace]) -> str:
    ratios = [pace.ratio for pace in paces.values()]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def measure_freshness(profile: Profile, models: LoadedMembers) -> Freshness:
    """Measure a few forwards of every profiled member again, for some eight seconds, half of it after times away.

    Args:
        profile: of these models, with `mismatches` against none that matters.
        models: that are to be run.
    """
    forwards = {
        member.name: models.forward(level, "auto", share_weights=True)
        for level, member in enumerate(models.members)
        if member.model is not None and profile.of(member.name)
    }
    age_s = max(0.0, (datetime.now(UTC) - profile.meta.measured_at).total_seconds())
    again = measure_again(forwards, [shape for shape in profile.shapes if shape.member in forwards])
    known = {member.name: member for member in profile.meta.members if member.name in forwards}
    again_after_away = measure_after_away_again(
        forwards,
        {name: member.shares for name, member in known.items()},
        {name: member.after_away for name, member in known.items()},
        longest=models.context_tokens,
    )
    drift = profile.meta.drift
    return Freshness(
        age_s=age_s,
        members={name: _pace(pairs, drift) for name, pairs in again.items()},
        after_away={name: _pace(pairs, drift) for name, pairs in again_after_away.items()},
    )


def _pace(pairs: Sequence[tuple[Shape, Shape]] | Sequence[tuple[AfterAway, AfterAway]], drift: float) -> MemberPace:
    spread = median(then.spread for then, _ in pairs)
    return MemberPace(
        ratio=median(now.seconds / then.seconds for then, now in pairs),
        limit=max(LEAST_CHANGE, drift + _SPREADS * spread),
    )


def fitting_profile(models: LoadedMembers, file: Path | None) -> Profile:
    """A profile of these models as they run here: the newest of this machine, or a file.

    Raises:
        TraceFormatError: no such file, or one that breaks the format.
        ArgumentError: there is no profile, or it is of a machine, members or a setting whose seconds cannot be right.
    """
    given = None if file is None else read_profile(file)
    own = {member.name: (member.num_parameters, member.dtype) for member in models.members if member.model is not None}
    profile = newest_here(own, torch.get_num_threads(), device_name(models)) if given is None else given
    for words in mismatches(profile, models):
        raise ArgumentError(f"the profile does not fit these models: {words}; profile anew")
    return profile


def mismatches(profile: Profile, models: LoadedMembers) -> list[str]:
    """In what a profile differs from the models as they run now, so that its seconds cannot be right; in words."""
    meta = profile.meta
    own = {member.name: (member.num_parameters, member.dtype) for member in models.members if member.model is not None}
    words = differences(meta, own)
    if meta.processor != processor():
        words.append(f"it was measured on {meta.hardware}, this is {processor()}")
    device = device_name(models)
    if meta.device != device:
        words.append(f"it was measured on {meta.device}, these models are on {device}")
    if meta.threads != torch.get_num_threads():
        words.append(f"it was measured with {counted(meta.threads, 'thread')}, torch has {torch.get_num_threads()}")
    if not words:
        runs = models.forward_names("auto")
        words += [
            f"its {member.name} ran {member.forward}, here it runs {runs[member.name]}"
            for member in meta.members
            if runs.get(member.name, member.forward) != member.forward
        ]
    return words


def remarks_on_profile(meta: ProfileMeta, models: LoadedMembers, sampling: str) -> list[str]:
    """What has changed since a profile was made and may have changed seconds with it, a line each.

    Args:
        meta: of the profile.
        models: that are to be run.
        sampling: how they are to choose tokens.
    """
    lines = [
        f"the profile was made with {name} {then}, this is {now}"
        for name, then, now in (
            ("torch", meta.torch, torch.__version__),
            ("transformers", meta.transformers, version("transformers")),
            ("paceline", meta.paceline, version("paceline")),
        )
        if then != now
    ]
    if meta.sampling != sampling:
        lines.append(f"the profile was made with {meta.sampling} sampling, this is {sampling}, which chooses otherwise")
    others = set(meta.products) ^ set(models.product_lines("auto"))
    if others:
        shapes = sorted({line.partition(":")[0] for line in others})
        lines.append(f"products were chosen otherwise since the profile was made: {', '.join(shapes)}")
    return lines


def device_name(models: LoadedMembers) -> str:
    """What the models run on: the target's `cpu` or accelerator by its name, and the members that are elsewhere."""
    devices: dict[str, torch.device] = {
        member.name: member.model.device for member in models.members if member.model is not None
    }
    main = devices[models.target.name]
    name = CPU if main.type == CPU else torch.cuda.get_device_name(main)
    return ", ".join([name, *(f"{member} on {device}" for member, device in devices.items() if device != main)])
