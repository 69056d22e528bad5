"""Which profile a cost is made of, and whether it may speak for a recording on this machine."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from ...arguments import ArgumentError
from ...machine import processor
from ...profiles.meta import CPU, ProfileMeta
from ...profiles.profile import ENDING, Profile, profiles_here, read_profile
from ...progress import tell
from ...traces.errors import TraceFormatError
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


def profiled_cost(
    name: str,
    recording: Recording,
    *,
    allow_foreign: bool,
    threads: int | None = None,
    device: str | None = None,
) -> ProfiledCost:
    """The cost of a profile.

    Args:
        name: `here`, the newest of this machine and these models, or a file.
        recording: to be replayed.
        allow_foreign: take a profile of another machine, or of models of another size.
        threads: of `here`, one that was measured with as many goes before newer ones; None is content with any.
        device: of `here`, only one that was measured on it counts, as a profile calls it; None is content with any.

    Raises:
        ValueError: no such profile, or a foreign one; one line.
    """
    meta = by_form(recording, tries=lambda tries: tries.meta, rounds=lambda rounds: _refuse_log(rounds, name))
    models = {model.name: (model.parameters, model.dtype) for model in meta.models}
    found = newest_here(models, threads, device) if name == HERE else read_profile(Path(name))
    foreign = _foreign(found, models)
    if foreign and not allow_foreign:
        raise ArgumentError(f"`cost` {name} is a foreign profile: {foreign[0]}; `allow_foreign_profile` takes it")
    called = f"{name}, FOREIGN: {'; '.join(foreign)}" if foreign else name
    return ProfiledCost(found, called, list(models))


def newest_here(models: Models, threads: int | None = None, device: str | None = None) -> Profile:
    """The newest profile of these models on this machine, of those measured with so many threads if there are any.

    Files that cannot be read are passed over, which standard error is told.

    Args:
        models: that it must be of.
        threads: that were measured with before others; None is content with any.
        device: that it was measured on, as profiles call it; None is content with any.

    Raises:
        ArgumentError: there is none; names what was passed over.
    """
    spoiled: list[TraceFormatError] = []
    found = list(_fitting(models, device, threads, spoiled))
    if not found:
        on = "this machine" if device in (None, CPU) else f"{device} here"
        passed = "".join(f"; {error}" for error in spoiled)
        raise ArgumentError(
            f"`cost` {HERE} needs a profile of {', '.join(models)} on {on}: make it with paceline profile, or name a "
            f"file{passed}"
        )
    for error in spoiled:
        tell(f"a profile is passed over: {error}")
    return next((profile for profile in found if profile.meta.threads == threads), found[0])


def _fitting(
    models: Models, device: str | None, threads: int | None, spoiled: list[TraceFormatError]
) -> Iterator[Profile]:
    """Profiles of the models on the device, newest first up to one with the threads; adds to `spoiled`."""
    for path, said in profiles_here(processor()):
        if isinstance(said, TraceFormatError):
            spoiled.append(said)
            continue
        if differences(said, models) or device not in (None, said.device):
            continue
        try:
            yield read_profile(path)
        except TraceFormatError as error:
            spoiled.append(error)
            continue
        if threads in (None, said.threads):
            return


def _foreign(profile: Profile, models: Models) -> list[str]:
    here = processor()
    other = [] if profile.meta.processor == here else [f"measured on {profile.meta.hardware}, this is {here}"]
    return other + differences(profile.meta, models)


def differences(meta: ProfileMeta, models: Models) -> list[str]:
    """How the profiled members differ from models, in words."""
    members = {member.name: member for member in meta.members}
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
