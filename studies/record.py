"""What `paceline record` does: record every pool model's views for a list of prompts."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, cast, get_args

from ..base.errors import ArgumentError, check_within, counted
from ..base.terminal import in_words, tell
from ..decoding.trees import tree_shape
from ..runtime.pools.pool import ModelPool
from ..runtime.profiling.costs import NEW_TOKENS, MeasuredCosts, measure_costs, tables_of
from ..runtime.prompts import Prompt, prompts_of
from ..runtime.recording import recorder
from ..sim.cost.measured import HERE
from ..traces.contexts.recording import TrieRecording
from ..traces.meta import GREEDY, MOST, NAME_PATTERN, Closure, ProfileTaken, TreeClosure, check_title
from ..traces.profile import MOST_SPREAD, Profile
from .decode import load_pool
from .options import NO_PROFILE, ClosureKind, RecordOptions, checked, takes
from .profile_check import MOST_DRIFT, fitting_profile, measure_freshness

# Users who only want the contexts need not wait for it.
MEASURING = "measuring seconds (--no-costs leaves them out)"
MOST_S = 60.0  # after which the rounds of measuring end


@takes(RecordOptions)
def record(
    pool: ModelPool | Path | str | None,
    prompts: str | Path | Sequence[Prompt | str],
    out: str | Path,
    **options: Any,  # noqa: ANN401 - see `RecordOptions`
) -> TrieRecording:
    """Record every model's view of every context that a policy may reach; a killed recording continues.

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
        closure = closure_of(closure, 16 if asked.reach is None else asked.reach, asked.run, usual=8)
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
        seconds=partial(_seconds, models, profile, requests, folder) if asked.costs else recorder.no_seconds,
    )


def _seconds(
    models: ModelPool, profile: str, prompts: Sequence[Prompt], out: Path
) -> Callable[[], recorder.SecondsKept]:
    """A function that gives seconds per forward by kind of device: measured later, or read from a profile now."""
    target: Any = models.target.model
    if profile == NO_PROFILE:
        return partial(_measured, models, target.device.type, out)
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
    kept = recorder.SecondsKept({target.device.type: tables}, taken)
    return lambda: kept


def _measured(models: ModelPool, device: str, out: Path) -> recorder.SecondsKept:
    """Seconds measured now; prints their uncertainty. Raises ArgumentError where that takes too long."""
    try:
        found = measure_costs(models, most_s=MOST_S, stage=MEASURING)
    except TimeoutError as error:
        raise ArgumentError(
            f"`costs` cannot be measured on a machine that is so slow or so busy: {error}; contexts are kept in "
            f"{out}.part: --no-costs makes the recording of them, and --cost here has seconds of `paceline profile`"
        ) from None
    doubt = _doubt(found)
    tell(doubt or f"measured seconds: {_how_sure(found)}")
    return recorder.SecondsKept({device: found.tables}, costs_doubt=doubt)


def _how_sure(found: MeasuredCosts) -> str:
    rounds, took = counted(found.rounds, "round"), in_words(found.took_s)
    return f"{rounds}, drift {found.drift:.1%}, spread {found.spread:.1%}, {took}"


def _doubt(found: MeasuredCosts) -> str:
    """A warning for users of the seconds, kept in the recording; empty if they can be trusted."""
    if found.drift <= MOST_DRIFT and found.spread <= MOST_SPREAD:
        return ""
    return (
        "do not trust the seconds of this recording, something else kept the machine busy (`paceline profile` on a "
        f"quiet one measures others, which --cost here takes): {_how_sure(found)}"
    )


def _taken(profile: Profile) -> ProfileTaken:
    """A recording's metadata of the profile."""
    assert profile.file is not None  # it was read
    return ProfileTaken(
        file=profile.file.name,
        sha256=sha256(profile.file.read_bytes()).hexdigest(),
        hardware=profile.meta.hardware,
        measured_at=profile.meta.measured_at,
    )


def tree_of(text: str) -> TreeClosure:
    """A tree to record by its text, `draft:4x2x1`; raises ArgumentError for a bad one."""
    model, colon, shape = text.partition(":")
    if not (colon and re.fullmatch(NAME_PATTERN, model)):
        raise ArgumentError(f"`trees` must be a member and a shape, as draft:4x2x1, got {text!r}")
    try:
        return TreeClosure(model=model, shape=tree_shape(shape).text)
    except ArgumentError as error:
        raise ArgumentError(f"`trees` {text!r}: {error}") from error


def closure_of(kind: str | None, reach: int, run: int | None, *, usual: int) -> Closure:
    """The requested closure, monotone if None, its run `usual` if None; raises ArgumentError for a bad one."""
    if kind not in (None, *get_args(ClosureKind)):
        raise ArgumentError(f"`closure` must be one of {', '.join(get_args(ClosureKind))}, got {kind!r}")
    if kind == "full" and run is not None:
        raise ArgumentError(f"`run` goes with `closure` monotone, got {run} with full, which bounds none")
    run = usual if run is None else run
    for name, value in (("reach", reach), ("run", run)):
        check_within(f"`{name}`", value, f"[0, {MOST}]")
    return Closure(kind=cast(ClosureKind, kind or "monotone"), reach=reach, run=run)
