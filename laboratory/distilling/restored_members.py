"""Submodels of a pool's target on their way through a distillation: what is claimed, trained, written and named."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch

from ...runtime.pools.pool import ModelPool
from ...runtime.pools.pool_file import PoolFile, PoolFileError, read_pool_file
from ...runtime.slim.masks import Mask
from ...whole_files import write_whole
from ..training.checkpoint import write_tensors
from ..training.loop import TrainingRun
from .job import Job, job_folder
from .learning.learned import read_learned, said_and_head, write_learned
from .learning.restoring import train_restored
from .recipe import Recipe
from .shards import parted, read_shards

LOW_RANK = "low_rank.safetensors"


def submodels_of_target(file: Path, content: PoolFile, recipe: Recipe) -> dict[str, Mask]:
    """Layers that submodels of the target leave out, by name; what `low_rank` gave them is learned anew.

    Raises:
        PoolFileError: a name that will be taken, or that would name another file of a work folder.
    """
    found: dict[str, Mask] = {}
    for row, entry in enumerate(content.members):
        if entry.submodel_of != content.members[-1].name:
            continue
        if entry.name in (*recipe.students, "ngram"):
            raise PoolFileError(file, f"members[{row}].name", "must not be that of a member to be trained", entry.name)
        if "." in entry.name:
            raise PoolFileError(file, f"members[{row}].name", "must hold no dot, as files are named by it", entry.name)
        found[entry.name] = tuple(sorted(entry.skip_layers))
    return found


def check_sizes(file: Path, submodels: Mapping[str, Mask], num_layers: int, recipe: Recipe) -> None:
    """Submodels must have more layers than the drafters, after which they will stand; raises PoolFileError."""
    most = max(student.num_layers for student in recipe.students.values())
    for name, mask in submodels.items():
        if num_layers - len(mask) <= most:
            rule = f"must keep more layers than the largest drafter has, {most}"
            raise PoolFileError(file, f"skip_layers of {name}", rule, list(mask))


def restoring_jobs(job: Job, submodels: Mapping[str, Mask], recipe: Recipe) -> list[Job]:
    """One for each submodel that the work folder does not have yet; raises ValueError for one of another recipe."""
    work = Path(job.work)
    for name, mask in submodels.items():
        _claim(work / f"{name}.submodel.json", name, mask, recipe)
    return [replace(job, restored=name) for name in submodels if not _weights(work, name).exists()]


def _claim(path: Path, name: str, mask: Mask, recipe: Recipe) -> None:
    """What is trained for other layers or by another recipe must not be taken for this."""
    mine = json.loads(json.dumps({"skip_layers": mask, **asdict(recipe.restored)}))
    if not path.exists():
        write_whole(path, json.dumps(mine, indent=1, sort_keys=True) + "\n")
    elif json.loads(path.read_text(encoding="utf-8")) != mine:
        raise ValueError(f"work must hold the same layers and recipe of {name}, {path} holds others")


def train_submodel(job: Job, pool: ModelPool, recipe: Recipe) -> None:
    """Train the submodel that a job names, and write what it learned into the work folder."""
    target, name, work = pool.target.model, job.restored, Path(job.work)
    assert target is not None
    file, content = read_pool_file(Path(job.pool))
    mask = submodels_of_target(file, content, recipe)[name]
    texts, _ = parted(read_shards(recipe, job_folder(work)), recipe)
    _, head = said_and_head(pool, texts, recipe.restored.head_tokens)
    checkpoint, dtype = work / f"{name}.checkpoint.safetensors", getattr(torch, job.dtype)
    tensors, run = train_restored(name, mask, target, texts, head, recipe, checkpoint, dtype)
    write_learned(_weights(work, name), tensors, run, job.dtype)


def export_submodel(name: str, work: Path, out: Path) -> TrainingRun:
    """Write what a pool file names; returns what its training took."""
    tensors, run = read_learned(_weights(work, name))
    (out / name).mkdir(parents=True, exist_ok=True)
    write_tensors(tensors, out / name / LOW_RANK, metadata={"format": "pt"})
    return run


def submodels_text(submodels: Mapping[str, Mask], target: str) -> str:
    """Their part of a pool file, from the smallest."""
    return "".join(
        f'\n[[members]]\nname = "{name}"\nsubmodel_of = {json.dumps(target, ensure_ascii=False)}\n'
        f'skip_layers = {list(mask)}\nlow_rank = "{name}/{LOW_RANK}"\n'
        for name, mask in sorted(submodels.items(), key=lambda item: -len(item[1]))
    )


def _weights(work: Path, name: str) -> Path:
    return work / f"{name}.safetensors"
