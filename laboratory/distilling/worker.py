"""A process of a distillation: `python -m paceline.laboratory.distilling.worker JOB`, JOB as JSON."""

import copy
import json
import sys
from pathlib import Path

import torch

from ...runtime.pools.pool import ModelPool
from .job import Job, job_folder
from .learning.learned import said_and_head, write_learned
from .learning.students import train_student, weights_of
from .recipe import read_recipe
from .restored_members import train_submodel
from .shards import parted, read_shards, write_shards


def do(job: Job) -> None:
    """Do a job in this process."""
    pool = ModelPool.load(Path(job.pool), chat=True)
    dtype: torch.dtype = getattr(torch, job.dtype)
    recipe, work = read_recipe(job.recipe), Path(job.work)
    folder = job_folder(work)
    target = pool.target.model
    assert target is not None
    if job.every:
        writer = copy.deepcopy(target).to(dtype).eval()
        write_shards(pool, writer, recipe, folder, range(job.first, recipe.num_shards, job.every))
    if job.student:
        student = recipe.students[job.student]
        texts, _ = parted(read_shards(recipe, folder), recipe)
        said, head = said_and_head(pool, texts, student.head_tokens)
        checkpoint = work / f"{job.student}.checkpoint.safetensors"
        model, run = train_student(job.student, student, target, texts, head, recipe, checkpoint, dtype)
        learned = {**weights_of(model), "said": said.int()}
        write_learned(work / f"{job.student}.safetensors", learned, run, job.dtype)
    if job.restored:
        train_submodel(job, pool, recipe)


if __name__ == "__main__":
    try:
        do(Job(**json.loads(sys.argv[1])))
    except (ValueError, OSError) as error:  # bad input is a line, as of any command
        sys.exit(f"paceline: error: {error}")
