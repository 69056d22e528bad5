"""What `paceline profile --check` does: check whether a profile still fits this machine, as `validate` does first.

Some of its forwards are measured again, and its conditions are compared. Also: which policies may run where seconds are
studied, whether an interrupted profile can continue, and chains that run every member in all its parts.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from json import dumps
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ..base.errors import ArgumentError, counted
from ..base.files import kept_folder, processor
from ..base.terminal import in_words, tell
from ..decoding.legal_steps import Policy
from ..decoding.pool import Pool
from ..policies.about import about_of, check_tags
from ..policies.chain_text import BASELINE
from ..reports.tables import Grid, Printed, table
from ..runtime.forced import ForcedPool
from ..runtime.forward import ModelForward
from ..runtime.pools.members import LoadedMembers
from ..runtime.pools.pool import ModelPool
from ..runtime.profiling.forwards import ShapeGrid, measure_after_away_again, measure_again, median_and_spread
from ..runtime.profiling.probe import Journal
from ..runtime.refusals import refuse_oracle
from ..sim.cost.measured import differences, newest_here
from ..traces.profile import CPU, AfterAway, MeasuredForward, Profile, ProfileMeta, read_profile
from .decode import load_models

# Most drift of seconds during a measurement; beyond it the machine is not steady.
MOST_DRIFT = 0.1

# A change of seconds by less than this share is not reported.
LEAST_CHANGE = 0.02

# If seconds may differ by more than this share, they varied too much to be checked.
MOST_LIMIT = 1.0

# A member's seconds have changed if they differ by more than their drift in the measurement and this many spreads.
_SPREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPace:
    """A member's seconds of forwards now, relative to the profile."""

    ratio: float  # seconds now over those of the profile, median over the shapes measured again
    limit: float  # share by which they may differ either way, by the spread and the drift that the profile measured

    @property
    def fits(self) -> bool:
        """Whether they take as long as in the profile."""
        return 1 / (1 + self.limit) <= self.ratio <= 1 + self.limit

    @property
    def verdict(self) -> str:
        """The verdict in a word or two."""
        return "no" if not self.fits else "yes" if self.limit <= MOST_LIMIT else "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """The result of measuring parts of a profile again."""

    age_s: float  # of the profile, when it was measured again
    members: Mapping[str, MemberPace]  # by name, forwards right after others
    after_away: Mapping[str, MemberPace]  # by name, forwards whose weights were not read just before

    @property
    def fits(self) -> bool:
        """Whether every member takes as long as in the profile, after times away too."""
        return all(pace.fits for pace in (*self.members.values(), *self.after_away.values()))

    def _is_steady(self, name: str) -> bool:
        paces = (paces.get(name) for paces in (self.members, self.after_away))
        return all(pace is None or pace.limit <= MOST_LIMIT for pace in paces)

    @property
    def line(self) -> str:
        """The verdict, with its figures."""
        ago = f"as long as {in_words(self.age_s)} ago"
        told = [(f"{name}'s forwards", pace) for name, pace in self.members.items()]
        told += [(f"{name}'s forwards after times away", pace) for name, pace in self.after_away.items()]
        if self.fits:
            steady = [name for name in self.members if self._is_steady(name)]
            take = ""
            if steady:
                settled, away = (_range(paces, steady) for paces in (self.members, self.after_away))
                take = f": forwards take {settled} times, after times away {away} times {ago}"
            unsteady = ", ".join(name for name in self.members if name not in steady)
            if not unsteady:
                return f"the profile fits{take}"
            fit = f"; {', '.join(steady)} {'fits' if len(steady) == 1 else 'fit'}{take}" if steady else ""
            return f"whether the profile fits cannot be told of {unsteady}, whose seconds varied too much{fit}"
        off = sorted((pace.ratio, whose) for whose, pace in told if not pace.fits)
        words = [f"{whose} take {ratio:.2f} times" for ratio, whose in reversed(off)]
        return f"the profile no longer fits: {', '.join(words)} {ago}; profile again"

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/validation.md)."""
        members, after_away = (
            {name: asdict(pace) | {"fits": pace.fits} for name, pace in paces.items()}
            for paces in (self.members, self.after_away)
        )
        return {"age_s": self.age_s, "fits": self.fits, "members": members, "after_away": after_away}


def _range(paces: Mapping[str, MemberPace], names: Collection[str]) -> str:
    ratios = [pace.ratio for name, pace in paces.items() if name in names]
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return low if low == high else f"{low} to {high}"


def measure_freshness(profile: Profile, models: LoadedMembers, runs: Collection[str] | None = None) -> Freshness:
    """Measure a few forwards of every profiled member again, for about eight seconds, half of it after times away.

    `profile` must be of these models, without any of `mismatches`. `runs` are the members that count; None: all.
    """
    forwards = forwards_here(models, profile.of)
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

    def counts(name: str) -> bool:
        return runs is None or name in runs

    return Freshness(
        age_s=age_s,
        members={name: _pace(pairs, drift) for name, pairs in again.items() if counts(name)},
        after_away={name: _pace(pairs, drift) for name, pairs in again_after_away.items() if counts(name)},
    )


def _pace(
    pairs: Sequence[tuple[MeasuredForward, MeasuredForward]] | Sequence[tuple[AfterAway, AfterAway]], drift: float
) -> MemberPace:
    spread = median(then.spread for then, _ in pairs)
    return MemberPace(
        ratio=median(now.seconds / then.seconds for then, now in pairs),
        limit=max(LEAST_CHANGE, drift + _SPREADS * spread),
    )


def forwards_here(models: LoadedMembers, among: Callable[[str], object] = bool) -> dict[str, ModelForward]:
    """The forwards of models as they run here, by member for whose name `among` is true."""
    return {
        member.name: models.forward(level, "auto", share_weights=True)
        for level, member in enumerate(models.members)
        if member.model is not None and among(member.name)
    }


def _own_of(models: LoadedMembers) -> dict[str, tuple[int, str]]:
    """(parameters, dtype) by member with a model."""
    return {member.name: (member.num_parameters, member.dtype) for member in models.members if member.model is not None}


def fitting_profile(models: LoadedMembers, file: Path | None) -> Profile:
    """A profile of these models as they run here: the newest of this machine, or a file.

    Raises:
        TraceFormatError: no such file, or one that breaks the format.
        ArgumentError: there is no profile, or its seconds are of another machine, members or setting.
    """
    threads, device = torch.get_num_threads(), device_name(models)
    profile = newest_here(_own_of(models), threads, device) if file is None else read_profile(file)
    for words in mismatches(profile, models):
        raise ArgumentError(f"the profile does not fit these models: {words}; profile again")
    return profile


def mismatches(profile: Profile, models: LoadedMembers) -> list[str]:
    """Differences between a profile and the models as they run now that make its seconds wrong; in words."""
    meta = profile.meta
    words = differences(meta, _own_of(models))
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
    """Changes since a profile was measured that may change seconds of these models and `sampling`, a line each."""
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
    """The devices of the models: the target's `cpu` or accelerator by its name, and members on others."""
    devices: dict[str, torch.device] = {
        member.name: member.model.device for member in models.members if member.model is not None
    }
    main = devices[models.target.name]
    name = CPU if main.type == CPU else torch.cuda.get_device_name(main)
    return ", ".join([name, *(f"{member} on {device}" for member, device in devices.items() if device != main)])


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckedProfile(Printed):
    """A profile compared with the machine as it is now; prints as `paceline profile --check` does."""

    profile: Profile  # that was checked
    freshness: Freshness
    remarks: tuple[str, ...]  # what has changed since it was measured, a line each

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
        meta = self.profile.meta
        rows = [
            {
                "member": name,
                "forwards": which,
                "times as long": f"{pace.ratio:.3f}",
                "may differ by": f"{pace.limit:.1%}",
                "fits": pace.verdict,
            }
            for which, paces in (("settled", self.freshness.members), ("after times away", self.freshness.after_away))
            for name, pace in paces.items()
        ]
        title = f"profile of pool {meta.pool} on {meta.hardware}, {meta.measured_at:%Y-%m-%d %H:%M} UTC"
        return [table(rows, texts=("forwards", "fits"), title=title)]

    def lines(self) -> Sequence[str]:
        return [*self.remarks, self.freshness.line]


def check_profile(
    pool: ModelPool | ForcedPool | Path | str | None = None,
    file: Path | str | None = None,
    *,
    threads: int = 1,
    debug: bool = False,
) -> CheckedProfile:
    """Measure a few forwards again, for about eight seconds, and compare them with a profile's.

    `file` None is the newest profile of these models on this machine; the rest is as for `load_models`.

    Raises:
        ValueError: no such profile, or one whose seconds cannot hold here.
    """
    models = load_models(pool, threads=threads, debug=debug)
    profile = fitting_profile(models, None if file is None else Path(file))
    remarks = remarks_on_profile(profile.meta, models, profile.meta.sampling)
    return CheckedProfile(profile=profile, freshness=measure_freshness(profile, models), remarks=tuple(remarks))


def check_runnable(policy: Policy, name: str, *, forced: bool, tags: Iterable[str], where: str) -> None:
    """Raise for a built policy that cannot run on these models and requests; `where` names them, as "the prompts".

    `forced`: a recording decides what is accepted, and holds no text but the target's. `tags` are the requests'. Raises
    ArgumentError if it sees ahead, names a tag that no request has, or is declared lossy on a forced pool.
    """
    refuse_oracle(policy, name)
    about = about_of(policy)
    if forced and about is not None and not about.lossless:
        raise ArgumentError(f"`policies` must be lossless on a forced pool, got {name}")
    check_tags(policy, name, tags, where)


# Older measurements are not continued.
MOST_AGE_S = 3600.0


def journal_of(
    models: ModelPool | ForcedPool,
    forwards: Mapping[str, ModelForward],
    grid: ShapeGrid,
    *,
    most_drift: float,
    restart: bool,
) -> Journal:
    """The journal of a profile, with the measurements of one that was interrupted or refused; prints if they are used.

    A journal is started again with `restart`, if it is older than an hour, if its profile was refused for a drift above
    `most_drift`, or if seconds have changed since by more than that share and their usual variation (`MemberPace`).
    `forwards` are the models', by member.
    """
    about = _about(models, forwards, grid)
    digest = sha256(dumps(about, sort_keys=True).encode()).hexdigest()[:12]
    journal = Journal(kept_folder() / "unfinished" / f"{models.name}-{digest}.jsonl", about, resume=not restart)
    if journal.begun_at is None:
        return journal
    age_s = (datetime.now(UTC) - journal.begun_at).total_seconds()
    why_not = _why_not(journal, forwards, age_s, most_drift)
    groups = f"{counted(len(journal), 'group')} of shapes"
    which = "an interrupted" if journal.refused_drift is None else "a refused"
    if why_not:
        tell(f"{which} profile begins again, and its {groups} are measured again: {why_not}")
        journal.forget()
    else:
        tell(f"{which} profile continues: {groups} of the last {in_words(age_s)} (--restart forgets them)")
    return journal


def left_of(journal: Journal) -> float:
    """Seconds for which the same command still continues with the journal's measurements; 0 if there are none."""
    if journal.begun_at is None:
        return 0.0
    return max(0.0, MOST_AGE_S - (datetime.now(UTC) - journal.begun_at).total_seconds())


@contextmanager
def kept_for_another(journal: Journal) -> Iterator[None]:
    """Around the measurements of a profile: an interrupt prints what the same command then does, and is raised."""
    try:
        yield
    except KeyboardInterrupt:
        if left_s := left_of(journal):
            kept = counted(len(journal), "group")
            tell(
                f"{kept} of shapes kept: the same command within {in_words(left_s)} continues, unless the machine has "
                "become slower or faster"
            )
        raise


def _why_not(journal: Journal, forwards: Mapping[str, ModelForward], age_s: float, most_drift: float) -> str:
    """Why earlier measurements cannot be continued; empty if they can."""
    if not 0 <= age_s <= MOST_AGE_S:
        return f"it is {in_words(age_s)} old"
    if journal.refused_drift is not None and journal.refused_drift > most_drift:
        return f"its seconds drifted by {journal.refused_drift:.0%}, and {_allowed(most_drift)} allows less"
    # The first round warms up.
    shapes = [
        MeasuredForward(*key, *median_and_spread(seconds[1:] or seconds)) for key, seconds in journal.seconds().items()
    ]
    paces = {
        # For a shape that was timed once, only its seconds now have a spread.
        name: _pace([(then._replace(spread=max(then.spread, now.spread)), now) for then, now in pairs], most_drift)
        for name, pairs in measure_again(forwards, shapes).items()
    }
    off = [(name, pace) for name, pace in paces.items() if not pace.fits]
    if not off:
        return ""
    words = [
        f"{name}'s forwards take {pace.ratio:.2f} times as long as then ({1 / (1 + pace.limit):.2f} to "
        f"{1 + pace.limit:.2f} would continue)"
        for name, pace in off
    ]
    return f"{', '.join(words)}; a larger one than {_allowed(most_drift)} allows more"


def _allowed(most_drift: float) -> str:
    return f"--most-drift {most_drift:g} ({most_drift:.0%})"


def _about(models: ModelPool | ForcedPool, forwards: Mapping[str, ModelForward], grid: ShapeGrid) -> dict[str, object]:
    """All conditions of the seconds."""
    members = [member for member in models.members if member.name in forwards]
    return {
        "pool": models.name,
        "members": [[one.name, one.num_parameters, one.dtype, forwards[one.name].name] for one in members],
        "context_tokens": models.context_tokens,
        "products": models.product_lines("auto"),
        "grid": asdict(grid),
        "processor": processor(),
        "device": device_name(models),
        "threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__} | {name: version(name) for name in ("transformers", "paceline")},
    }


def watched_chains(pool: Pool) -> list[str]:
    """The target alone, short and long drafts of every member, judged by the target or by a member in between."""
    target = pool.target
    free = [member.name for member in pool.members if member.model_free]
    below = [member.name for member in pool.members[:-1] if not member.model_free]
    names = [BASELINE, *(f"{name}:{count}/{target}" for name in below for count in (2, 6))]
    names += [f"{below[0]}:2/{judge}:5/{target}" for judge in below[1:]]
    names += [f"{lookup}:3/{target}" for lookup in free]
    return names + [f"{lookup}:5/{judge}:2/{target}" for lookup in free for judge in below[:1]]
