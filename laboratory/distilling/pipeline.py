"""The whole way from a pool with a target to the same pool with drafters, one stage after another."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from ...runtime.forward.fused_support import FAMILIES
from ...runtime.pools.pool import ModelPool
from ...runtime.pools.pool_file import POOL_FILE_NAME, PoolFile, PoolFileError, read_pool_file
from ...runtime.slim.pool_text import moved
from ...whole_files import write_whole
from ..training.checkpoint import write_tensors
from ..training.loop import TrainingRun
from .card import make_card
from .job import Job, job_folder
from .jobs import run_jobs
from .learning.first_weights import drafter_config
from .learning.learned import read_learned
from .quick_dtype import quick_dtype
from .recipe import Recipe
from .restored_members import check_sizes, export_submodel, restoring_jobs, submodels_of_target, submodels_text
from .shards import parted, read_shards


def distil_pool(pool_path: Path, recipe: Recipe, out: Path, work: Path, *, processes: int, command: str) -> None:
    """Train drafters for the target of a pool on its own answers, and write a pool of them.

    Every stage keeps its state in `work`; after a kill the same call continues.

    Args:
        pool_path: of the pool, whose tokenizer must have a chat template.
        recipe: what to train.
        out: folder of the new pool, made where needed.
        work: folder for texts and checkpoints; may be removed at the end.
        processes: at a time, of one thread each, >= 1.
        command: how this was called, for the card.

    Raises:
        PoolFileError: a pool that is broken or has no chat template, a target that drafters cannot be made of,
            or a submodel whose name or layers have no place beside them.
        ValueError: `work` belongs to another recipe or target, or to submodels of other layers.
        JobFailedError: a process ended before its job was done.
    """
    file, content = read_pool_file(pool_path)
    pool = ModelPool.load(file, chat=True)
    _check_target(file, content, pool, recipe)
    submodels = submodels_of_target(file, content, recipe)
    check_sizes(file, submodels, pool.target.num_layers, recipe)
    job_folder(work).mkdir(parents=True, exist_ok=True)
    dtype = _claim(work, recipe, content, pool)
    job = Job(pool=str(file), work=str(work), recipe=recipe.name, dtype=dtype)
    restoring = restoring_jobs(job, submodels, recipe)  # refuses work of other layers before anything is written
    parts = min(processes, recipe.num_shards)
    run_jobs([replace(job, first=part, every=parts) for part in range(parts)], processes=processes)
    missing = [name for name in recipe.students if not (work / f"{name}.safetensors").exists()]
    # What takes longest goes first; submodels have most of the target's layers.
    missing.sort(key=lambda name: -recipe.students[name].num_layer_rows)
    training = [replace(job, student=name) for name in missing]
    run_jobs([*restoring, *training], processes=processes)
    runs = {name: _export(name, recipe, work, out, pool) for name in recipe.students}
    runs |= {name: export_submodel(name, work, out) for name in submodels}
    write_whole(
        out / POOL_FILE_NAME,
        _pool_text(file, content, recipe, out, submodels_text(submodels, content.members[-1].name)),
    )
    texts, held_out = parted(read_shards(recipe, job_folder(work)), recipe)
    written = ModelPool.load(out, threads=torch.get_num_threads())
    write_whole(out / "CARD.md", make_card(written, texts, held_out, runs, submodels, recipe=recipe, command=command))


def _check_target(file: Path, content: PoolFile, pool: ModelPool, recipe: Recipe) -> None:
    """Refuse what would be learned wrong: scaled embeddings or logits, other devices and dtypes, a short context."""
    field, entry, model = f"members[{len(content.members) - 1}]", content.members[-1], pool.target.model
    if not isinstance(model, FAMILIES):
        names = ", ".join(family.__name__ for family in FAMILIES)
        raise PoolFileError(file, field, f"must be one of {names} to be distilled", type(model).__name__)
    for key, needed in (("device", "cpu"), ("dtype", "float32")):
        if getattr(entry, key) != needed:
            raise PoolFileError(file, f"{field}.{key}", f"must be {needed} to be distilled", getattr(entry, key))
    openings = (opening for task in recipe.tasks.values() for opening in task.openings)
    longest = max(len(pool.encode(opening)) for opening in openings) + recipe.question_tokens + recipe.answer_tokens
    if content.context_tokens < longest:
        rule = f"must hold a dialogue of recipe {recipe.name} ({longest} tokens)"
        raise PoolFileError(file, "context_tokens", rule, content.context_tokens)


def _claim(work: Path, recipe: Recipe, content: PoolFile, pool: ModelPool) -> str:
    """Texts of another recipe or target must not leak in; returns the dtype that the work was begun in."""
    path = work / "recipe.json"
    # What is learned beside submodels has a claim of its own.
    mine: dict[str, Any] = {
        **asdict(replace(recipe, checkpoint_every_s=0.0)),
        "target": content.members[-1].path,
        "tokenizer": pool.tokenizer_sha256,
    }
    del mine["restored"]
    if not path.exists():
        dtype = str(quick_dtype()).removeprefix("torch.")
        write_whole(path, json.dumps({**mine, "dtype": dtype}, indent=1, sort_keys=True) + "\n")
    found = json.loads(path.read_text(encoding="utf-8"))
    dtype = str(found.pop("dtype"))
    if found != json.loads(json.dumps(mine)):
        raise ValueError(f"work must belong to the same recipe and target, {work} holds another one")
    return dtype


def _export(name: str, recipe: Recipe, work: Path, out: Path, pool: ModelPool) -> TrainingRun:
    """Write a drafter's folder: config, weights without embeddings, and the ids that it can say."""
    tensors, run = read_learned(work / f"{name}.safetensors")
    said = tensors.pop("said").tolist()
    assert pool.target.model is not None
    config: Any = drafter_config(pool.target.model, recipe.students[name].num_layers)
    config.dtype = "bfloat16"
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "config.json", config.to_json_string())
    write_whole(folder / "vocabulary.json", json.dumps(said) + "\n")
    write_tensors(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return run


def _pool_text(file: Path, content: PoolFile, recipe: Recipe, out: Path, submodels: str) -> str:
    """The new pool file: lookup, drafters from the smallest by what they compute, submodels, the target."""
    target = content.members[-1]
    assert target.path is not None  # a target is a model
    quoted = {key: json.dumps(value, ensure_ascii=False) for key, value in {
        "name": content.name, "tokenizer": moved(file, content.tokenizer, out),
        "path": moved(file, target.path, out), "target": target.name,
    }.items()}  # fmt: skip
    ordered = sorted(recipe.students.items(), key=lambda item: (item[1].num_layers, item[1].num_depths))
    place = f'dtype = "{target.dtype}"\ndevice = "{target.device}"\n'
    drafters = "".join(
        f'\n[[members]]\nname = "{name}"\npath = "{name}"\nvocabulary = "{name}/vocabulary.json"\n'
        f"{'features_of' if student.num_depths else 'embeddings_of'} = {quoted['target']}\n{place}"
        for name, student in ordered
    )
    return (
        f"name = {quoted['name']}\ntokenizer = {quoted['tokenizer']}\ncontext_tokens = {content.context_tokens}\n"
        f'\n[[members]]\nname = "ngram"\nngram = {{ max_match = 3 }}\n{drafters}{submodels}'
        f"\n[[members]]\nname = {quoted['target']}\npath = {quoted['path']}\n{place}"
    )
