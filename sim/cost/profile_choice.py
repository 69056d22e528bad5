"""Which profile a cost is made of, and whether it may speak for a recording on this machine."""

from pathlib import Path

from ...arguments import ArgumentError
from ...machine import processor
from ...profiles.profile import ENDING, Profile, profiles_here, read_profile
from ...traces.forms import by_form
from ...traces.meta import ModelInfo
from ...traces.recording import Recording
from .profiled import ProfiledCost

HERE = "here"


def names_profile(name: str) -> bool:
    """Whether the name of a cost is that of a profile."""
    return name == HERE or name.endswith(ENDING)


def profiled_cost(name: str, recording: Recording, *, allow_foreign: bool) -> ProfiledCost:
    """The cost of a profile.

    Args:
        name: `here`, the newest of this machine and these models, or a file.
        recording: to be replayed.
        allow_foreign: take a profile of another machine, or of models of another size.

    Raises:
        ValueError: no such profile, or a foreign one; one line.
    """
    models: tuple[ModelInfo, ...] = by_form(
        recording, tries=lambda tries: tries.meta.models, rounds=lambda rounds: _refuse_log(rounds, name)
    )
    found = _newest_here(models) if name == HERE else read_profile(Path(name))
    foreign = _foreign(found, models)
    if foreign and not allow_foreign:
        raise ArgumentError(f"`cost` {name} is a foreign profile: {foreign[0]}; `allow_foreign_profile` takes it")
    called = f"{name}, FOREIGN: {'; '.join(foreign)}" if foreign else name
    return ProfiledCost(found, called, [model.name for model in models])


def _newest_here(models: tuple[ModelInfo, ...]) -> Profile:
    for path in profiles_here(processor()):
        profile = read_profile(path)
        if not _differences(profile, models):
            return profile
    names = ", ".join(model.name for model in models)
    raise ArgumentError(
        f"`cost` {HERE} needs a profile of {names} on this machine: make it with paceline profile, or name a file"
    )


def _foreign(profile: Profile, models: tuple[ModelInfo, ...]) -> list[str]:
    here = processor()
    other = [] if profile.meta.processor == here else [f"measured on {profile.meta.hardware}, this is {here}"]
    return other + _differences(profile, models)


def _differences(profile: Profile, models: tuple[ModelInfo, ...]) -> list[str]:
    """How the profiled members differ from the recorded models, in words."""
    members = {member.name: member for member in profile.meta.members}
    words = []
    for model in models:
        member = members.get(model.name)
        if member is None:
            words.append(f"it has no {model.name}")
        elif (member.parameters, member.dtype) != (model.parameters, model.dtype):
            words.append(
                f"its {model.name} has {member.parameters:,} parameters of {member.dtype}, the recorded one "
                f"{model.parameters:,} of {model.dtype}"
            )
    return words


def _refuse_log(recording: Recording, name: str) -> tuple[ModelInfo, ...]:
    raise ArgumentError(f"`cost` {name} is for recordings of a pool, {recording.about.name} is an imported log")
