"""Record what every model of a pool says of a list of prompts: what `paceline record` does."""

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, cast, get_args

from ..base.errors import ArgumentError, check_within
from ..base.terminal import tell
from ..decoding.trees import tree_shape
from ..runtime.pools.pool import ModelPool
from ..runtime.prompts import Prompt, prompts_of
from ..runtime.recording import recorder
from ..runtime.timing import NEW_TOKENS, measure_costs, tables_of
from ..sim.cost.measured import HERE
from ..traces.contexts.recording import TrieRecording
from ..traces.meta import GREEDY, MOST, NAME_PATTERN, Closure, ProfileTaken, TreeClosure, check_title
from ..traces.profile import Profile
from .decode import load_pool
from .options import NO_PROFILE, ClosureKind, RecordOptions, checked, takes
from .profile_check import fitting_profile, measure_freshness

# It takes a minute, and those who only want the contexts need not wait for it.
MEASURING = "measuring seconds (costs=False or --no-costs leaves them out)"


@takes(RecordOptions)
def record(
    pool: ModelPool | Path | str | None,
    prompts: str | Path | Sequence[Prompt | str],
    out: str | Path,
    **options: Any,  # noqa: ANN401 - see `RecordOptions`
) -> TrieRecording:
    """Record what every model says at every context that a policy may ask about; a killed recording continues.

    Args:
        pool: models, or where they are; None is the shipped pool (`load_pool`).
        prompts: a JSONL file by its path, or texts.
        out: the .trace folder to write; what is finished is kept in `OUT.part` beside it.
        options: see `RecordOptions`.

    Raises:
        ArgumentError: prompts, a pool, a closure or a name that cannot be recorded, or a profile of other models or
            another machine; nothing is written then.
        FileExistsError: `out` exists.
    """
    asked = checked(RecordOptions, options)
    requests = prompts_of(prompts)
    folder, closure, profile = Path(out), asked.closure, str(asked.profile)
    if not isinstance(closure, Closure):
        closure = closure_of(closure, 16 if asked.reach is None else asked.reach, 8 if asked.run is None else asked.run)
    elif (asked.reach, asked.run) != (None, None):
        given = f"{asked.reach}, {asked.run}"
        raise ArgumentError(f"`closure` has a reach and a run; `reach` and `run` must be None, got {given}")
    closure = closure.model_copy(update={"trees": (*closure.trees, *map(tree_of, asked.trees))})
    check_title(folder.stem if asked.name is None else asked.name)
    if not asked.costs and profile != NO_PROFILE:
        raise ArgumentError(f"`profile` goes with `costs`, got `profile` {profile} without them")
    models = load_pool(pool, threads=asked.threads, debug=asked.debug, chat=asked.chat)
    return recorder.record(
        models,
        requests,
        sampling=asked.sampling or GREEDY,
        closure=closure,
        max_new_tokens=asked.max_new_tokens,
        out=folder,
        name=asked.name,
        seconds=(lambda: _seconds(models, profile, requests)) if asked.costs else recorder.no_seconds,
    )


def _seconds(models: ModelPool, profile: str, prompts: Sequence[Prompt]) -> recorder.SecondsKept:
    """Seconds per forward by kind of device, measured now or a profile's."""
    target: Any = models.target.model
    if profile == NO_PROFILE:
        return recorder.SecondsKept({target.device.type: measure_costs(models, stage=MEASURING)})
    found = fitting_profile(models, None if profile == HERE else Path(profile))
    taken, tables = _taken(found), tables_of(found)
    longest = min(NEW_TOKENS[-1], max(len(models.encode(prompt.text)) for prompt in prompts))
    for name, table in tables.items():
        if table.new_tokens[-1] < longest:
            raise ArgumentError(
                f"`profile` {taken.file} must reach forwards of {longest} tokens, those of the longest prompt, and for "
                f"{name} it reaches {table.new_tokens[-1]}: profile with more --rows (of 16 tokens each), or leave "
                "--profile out"
            )
    tell(measure_freshness(found, models).line)
    return recorder.SecondsKept({target.device.type: tables}, taken)


def _taken(profile: Profile) -> ProfileTaken:
    """What a recording says of the profile."""
    assert profile.file is not None  # it was read
    return ProfileTaken(
        file=profile.file.name,
        sha256=sha256(profile.file.read_bytes()).hexdigest(),
        hardware=profile.meta.hardware,
        measured_at=profile.meta.measured_at,
    )


def tree_of(text: str) -> TreeClosure:
    """A tree to record by its text, `draft:4x2x1`; raises ArgumentError for what is none."""
    model, colon, shape = text.partition(":")
    if not (colon and re.fullmatch(NAME_PATTERN, model)):
        raise ArgumentError(f"`trees` must be a member and a shape, as draft:4x2x1, got {text!r}")
    try:
        return TreeClosure(model=model, shape=tree_shape(shape).text)
    except ArgumentError as error:
        raise ArgumentError(f"`trees` {text!r}: {error}") from error


def closure_of(kind: str | None, reach: int, run: int) -> Closure:
    """The closure asked for, monotone if None; raises ArgumentError for what is none."""
    if kind not in (None, *get_args(ClosureKind)):
        raise ArgumentError(f"`closure` must be one of {', '.join(get_args(ClosureKind))}, got {kind!r}")
    for name, value in (("reach", reach), ("run", run)):
        check_within(f"`{name}`", value, f"[0, {MOST}]")
    return Closure(kind=cast(ClosureKind, kind or "monotone"), reach=reach, run=run)
