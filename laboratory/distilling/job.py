"""A long part of a distillation, in words that a command line can carry."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a process does.

    Attributes:
        pool: pool file whose target teaches.
        work: folder of shards and checkpoints.
        recipe: its name.
        dtype: that products are computed in.
        student: drafter to train, or empty.
        restored: submodel of the target to train, or empty.
        first, every: shards to write: every so-manieth from the first; none if `every` is 0.
    """

    pool: str
    work: str
    recipe: str
    dtype: str
    student: str = ""
    restored: str = ""
    first: int = 0
    every: int = 0


def job_folder(work: Path) -> Path:
    """Where the shards lie in a work folder."""
    return work / "shards"
