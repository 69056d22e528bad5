"""A profile that was interrupted and is asked for again: whether it can go on where it was."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from json import dumps
from statistics import median

import torch

from ...machine import kept_folder, processor
from ...profiles.profile import Shape
from ...progress import in_words, tell
from ...runtime.forced.forced_pool import ForcedPool
from ...runtime.forward.model_forward import ModelForward
from ...runtime.pools.pool import ModelPool
from ...runtime.profiling.forward_shapes import Grid
from ...runtime.profiling.journal import Journal
from ...runtime.profiling.reference_shapes import measure_again
from .freshness import device_name

# What was measured longer ago is not gone on with.
MOST_AGE_S = 3600.0


def journal_of(
    models: ModelPool | ForcedPool,
    forwards: Mapping[str, ModelForward],
    grid: Grid,
    *,
    most_drift: float,
    restart: bool,
) -> Journal:
    """The journal of a profile, with what an interrupted one has measured; says what becomes of that.

    Begun anew is one that is older than an hour, or whose seconds are no longer these.

    Args:
        models: that are profiled.
        forwards: theirs, by member.
        grid: of shapes.
        most_drift: largest change of seconds since, as a share.
        restart: begin anew whatever there is.
    """
    about = _about(models, forwards, grid)
    digest = sha256(dumps(about, sort_keys=True).encode()).hexdigest()[:12]
    journal = Journal(kept_folder() / "unfinished" / f"{models.name}-{digest}.jsonl", about, resume=not restart)
    if journal.begun_at is None:
        return journal
    age_s = (datetime.now(UTC) - journal.begun_at).total_seconds()
    why_not = _why_not(journal, forwards, age_s, most_drift)
    if why_not:
        tell(f"an interrupted profile is begun anew: {why_not}")
        journal.forget()
    else:
        groups = f"{len(journal)} groups of shapes"
        tell(f"an interrupted profile is gone on with: {groups} of the last {in_words(age_s)} (--restart forgets them)")
    return journal


def _why_not(journal: Journal, forwards: Mapping[str, ModelForward], age_s: float, most_drift: float) -> str:
    """Why what was measured cannot be gone on with; empty where it can."""
    if not 0 <= age_s <= MOST_AGE_S:
        return f"it is {in_words(age_s)} old"
    shapes = [Shape(*key, seconds=median(seconds), spread=0.0) for key, seconds in journal.seconds().items()]
    ratios = {
        name: median(now.seconds / then.seconds for then, now in pairs)
        for name, pairs in measure_again(forwards, shapes).items()
    }
    off = [name for name, ratio in ratios.items() if abs(ratio - 1) > most_drift]
    return f"{off[0]}'s forwards take {ratios[off[0]]:.2f} times as long as then" if off else ""


def _about(models: ModelPool | ForcedPool, forwards: Mapping[str, ModelForward], grid: Grid) -> dict[str, object]:
    """All that seconds hold for."""
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
