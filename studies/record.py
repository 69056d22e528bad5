"""Record what every model of a pool says of a list of prompts: what `paceline record` does."""

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args

from ..base.errors import ArgumentError, check_within
from ..base.terminal import tell
from ..decoding.trees import tree_shape
from ..runtime.pools.pool import ModelPool
from ..runtime.prompts import Prompt, prompts_of
from ..runtime.recording import recorder
from ..runtime.timing import NEW_TOKENS, measure_costs, tables_of
from ..sim.cost.measured import HERE
from ..traces.contexts.recording import TrieRecording
from ..traces.meta import MOST, NAME_PATTERN, Closure, ProfileTaken, Sampling, TreeClosure, check_title
from ..traces.profile import Profile
from .decode import load_pool
from .profile_check import fitting_profile, measure_freshness

# It takes a minute, and those who only want the contexts need not wait for it.
MEASURING = "measuring seconds (costs=False or --no-costs leaves them out)"

NO_PROFILE = "none"

ClosureKind = Literal["monotone", "full"]


def record(
    pool: ModelPool | Path | str | None,
    prompts: str | Path | Sequence[Prompt | str],
    out: str | Path,
    *,
    sampling: Sampling | None = None,
    max_new_tokens: int = 64,
    closure: Closure | ClosureKind | None = None,
    reach: int | None = None,
    run: int | None = None,
    trees: Sequence[str] = (),
    name: str | None = None,
    costs: bool = True,
    profile: Path | str = NO_PROFILE,
    threads: int = 1,
    chat: bool = False,
    debug: bool = False,
) -> TrieRecording:
    """Record what every model says at every context that a policy may ask about; a killed recording continues.

    Args:
        pool: models, or where they are; None is the shipped pool (`load_pool`).
        prompts: a JSONL file by its path, or texts.
        out: the .trace folder to write; what is finished is kept in `OUT.part` beside it.
        sampling: greedy or coupled; greedy if None.
        max_new_tokens: longest trunk, >= 1.
        closure: which contexts off the trunk are kept: those of Exact chains (`monotone`, also None) or those of lossy
            rules too (`full`); or a `Closure`, which has a reach and a run of its own.
        reach: most tokens off the trunk, 0 to 2**31 - 1; 16 if None.
        run: most of them by a member after a larger one's, 0 to 2**31 - 1; 8 if None.
        trees: token trees whose contexts are kept too, each a member and a shape as `draft:4x2x1`, `draft:0+0.0+1` or
            `draft:beam=4,depth=5`; see docs/policies.md.
        name: of the recording; the name of `out` without its suffix if None.
        costs: also keep seconds per forward on this machine.
        profile: where they come from: "none" measures them now, "here" is the newest profile of these models on this
            machine, or a profile's file.
        threads: CPU threads of torch, where a pool is loaded.
        chat: put prompts as questions of a dialogue, by the chat template of the pool's tokenizer.
        debug: first say how models run.

    Raises:
        ArgumentError: prompts, a pool, a closure or a name that cannot be recorded, or a profile of other models or
            another machine; nothing is written then.
        FileExistsError: `out` exists.
    """
    requests = prompts_of(prompts)
    folder = Path(out)
    if not isinstance(closure, Closure):
        closure = closure_of(closure, 16 if reach is None else reach, 8 if run is None else run)
    elif (reach, run) != (None, None):
        raise ArgumentError(f"`closure` has a reach and a run; `reach` and `run` must be None, got {reach}, {run}")
    closure = closure.model_copy(update={"trees": (*closure.trees, *map(tree_of, trees))})
    check_title(folder.stem if name is None else name)
    if not costs and str(profile) != NO_PROFILE:
        raise ArgumentError(f"`profile` goes with `costs`, got `profile` {profile} without them")
    models = load_pool(pool, threads=threads, debug=debug, chat=chat)
    return recorder.record(
        models,
        requests,
        sampling=Sampling(mode="greedy") if sampling is None else sampling,
        closure=closure,
        max_new_tokens=max_new_tokens,
        out=folder,
        name=name,
        seconds=(lambda: _seconds(models, str(profile), requests)) if costs else recorder.no_seconds,
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


def closure_of(kind: ClosureKind | None, reach: int, run: int) -> Closure:
    """The closure asked for, monotone if None; raises ArgumentError for what is none."""
    if kind not in (None, *get_args(ClosureKind)):
        raise ArgumentError(f"`closure` must be one of {', '.join(get_args(ClosureKind))}, got {kind!r}")
    for name, value in (("reach", reach), ("run", run)):
        if not isinstance(value, int):
            raise ArgumentError(f"`{name}` must be a whole number, got {value!r}")
        check_within(f"`{name}`", value, f"[0, {MOST}]")
    return Closure(kind=kind or "monotone", reach=reach, run=run)
