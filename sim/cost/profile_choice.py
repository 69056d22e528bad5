"""Which profile a cost is made of, and whether it may speak for a recording on this machine."""

from collections.abc import Mapping
from pathlib import Path

from ...arguments import ArgumentError
from ...machine import processor
from ...profiles.profile import ENDING, Profile, profiles_here, read_profile
from ...traces.forms import by_form
from ...traces.recording import Recording
from ...traces.tries.meta import TrieMeta
from .profiled import ProfiledCost

HERE = "here"

# By name, the number of parameters and the number format.
Models = Mapping[str, tuple[int, str]]


def names_profile(name: str) -> bool:
    """Whether the name of a cost is that of a profile."""
    return name == HERE or name.endswith(ENDING)


def profiled_cost(name: str, recording: Recording, *, allow_foreign: bool, threads: int | None = None) -> ProfiledCost:
    """The cost of a profile.

    Args:
        name: `here`, the newest of this machine and these models, or a file.
        recording: to be replayed.
        allow_foreign: take a profile of another machine, or of models of another size.
        threads: of `here`, one that was measured with as many goes before newer ones; None is content with any.

    Raises:
        ValueError: no such profile, or a foreign one; one line.
    """
    meta = by_form(recording, tries=lambda tries: tries.meta, rounds=lambda rounds: _refuse_log(rounds, name))
    models = {model.name: (model.parameters, model.dtype) for model in meta.models}
    found = newest_here(models, threads) if name == HERE else read_profile(Path(name))
    foreign = _foreign(found, models)
    if foreign and not allow_foreign:
        raise ArgumentError(f"`cost` {name} is a foreign profile: {foreign[0]}; `allow_foreign_profile` takes it")
    called = f"{name}, FOREIGN: {'; '.join(foreign)}" if foreign else name
    return ProfiledCost(found, called, list(models))


def newest_here(models: Models, threads: int | None = None) -> Profile:
    """The newest profile of these models on this machine, of those measured with so many threads if there are any.

    Raises:
        ArgumentError: there is none.
    """
    fitting = []
    for path in profiles_here(processor()):
        profile = read_profile(path)
        if not differences(profile, models):
            if threads in (None, profile.meta.threads):
                return profile
            fitting.append(profile)
    if not fitting:
        raise ArgumentError(
            f"`cost` {HERE} needs a profile of {', '.join(models)} on this machine: make it with paceline profile, or "
            "name a file"
        )
    return fitting[0]


def _foreign(profile: Profile, models: Models) -> list[str]:
    here = processor()
    other = [] if profile.meta.processor == here else [f"measured on {profile.meta.hardware}, this is {here}"]
    return other + differences(profile, models)


def differences(profile: Profile, models: Models) -> list[str]:
    """How the profiled members differ from models, in words."""
    members = {member.name: member for member in profile.meta.members}
    words = []
    for name, (parameters, dtype) in models.items():
        member = members.get(name)
        if member is None:
            words.append(f"it has no {name}")
        elif (member.parameters, member.dtype) != (parameters, dtype):
            words.append(
                f"its {name} has {member.parameters:,} parameters of {member.dtype}, this one {parameters:,} of {dtype}"
            )
    return words


def _refuse_log(recording: Recording, name: str) -> TrieMeta:
    raise ArgumentError(f"`cost` {name} is for recordings of a pool, {recording.about.name} is an imported log")
