"""From a pool with a target to the same pool with drafters and their card, stage by stage.

Texts are written in shards, then drafters and submodels are trained, both in several processes. Each writes its results
to files of the work folder.
"""

import copy
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from joblib import parallel_config
from paceline.base.errors import counted
from paceline.base.files import processor, write_whole
from paceline.base.terminal import tracked
from paceline.reports import tables
from paceline.runs.workers import called_together, end_with, kept_processes
from paceline.runtime.fused import FAMILIES
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import POOL_FILE_NAME, PoolFile, PoolFileError, read_pool_file
from paceline.runtime.slim import Mask, moved
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ..findings import markdown_table
from ..shared import with_slims
from .pool import members_table
from .recipe import Distillation, as_json, claim
from .students import (
    Text,
    drafter_config,
    drafter_states,
    read_learned,
    read_shards,
    split_texts,
    states_of,
    train_drafter,
    train_restored,
    vocabulary_and_head,
    weights_of,
    write_learned,
    write_shards,
)
from .training import TrainingRun, write_tensors
from .writing import attention_of_any_length

LOW_RANK = "low_rank.safetensors"


class JobFailedError(ValueError):
    """A process failed; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The common inputs of all parts of a distillation."""

    pool: Path  # pool file whose target teaches
    work: Path  # folder of checkpoints, and of shards in `shards`
    recipe: Distillation  # what to train
    dtype: torch.dtype  # in which products are computed
    device: str = "cpu"  # on which texts are written and drafters are trained

    @property
    def shards(self) -> Path:
        """The folder of the texts."""
        return self.work / "shards"

    def weights(self, name: str) -> Path:
        """The file of a member's learned weights."""
        return self.work / f"{name}.safetensors"

    def checkpoint(self, name: str) -> Path:
        """The file of its training state."""
        return self.work / f"{name}.checkpoint.safetensors"


def distil_pool(
    pool_path: Path, recipe: Distillation, out: Path, work: Path, *, processes: int, command: str, device: str = "cpu"
) -> None:
    """Train drafters for the target of a pool on its own answers, and write a pool of them.

    Every stage keeps its state in `work`; after a kill the same call continues.

    Args:
        pool_path: of the pool, whose tokenizer must have a chat template.
        recipe: what to train.
        out: folder of the new pool, made if missing.
        work: folder for texts and checkpoints; may be removed at the end.
        processes: at a time, of one thread each, >= 1.
        command: how this was called, for the card.
        device: on which texts are written and drafters are trained, `cpu` or one of CUDA. The card is measured on the
            CPU, in float32.

    Raises:
        PoolFileError: a pool that is broken or has no chat template, a target from which drafters cannot be made, or a
            submodel whose name or layers conflict with them.
        ValueError: `work` belongs to another recipe or target, or to submodels of other layers.
        JobFailedError: a process failed.
    """
    file, content = read_pool_file(pool_path)
    pool = ModelPool.load(file, chat=True)
    _check_target(file, content, pool, recipe)
    submodels = submodels_of_target(file, content, recipe)
    check_sizes(file, submodels, pool.target.num_layers, recipe)
    work.mkdir(parents=True, exist_ok=True)
    job = Job(pool=file, work=work, recipe=recipe, dtype=_claim(work, recipe, content, pool, device), device=device)
    job.shards.mkdir(exist_ok=True)
    for name, mask in submodels.items():  # raises for work of other layers before anything is written
        path, mine = work / f"{name}.submodel.json", {"skip_layers": list(mask), **as_json(recipe.restored)}
        claim(path, mine, f"work must hold the same layers and recipe of {name}, {path} holds others")
    parts = min(processes, recipe.num_shards)
    with side_by_side(processes) as do:
        do([partial(write_part, job, part, parts) for part in range(parts)])
        do(_trainings(job, submodels))
    exported = {name: _export(job, name, out, pool) for name in recipe.students}
    runs = {name: run for name, (run, _) in exported.items()}
    runs |= {name: _export_submodel(job, name, out) for name in submodels}
    listed = submodels_text(submodels, content.members[-1].name)
    sizes = {name: size for name, (_, size) in exported.items()}
    write_whole(out / POOL_FILE_NAME, _pool_text(file, content, recipe, out, listed, sizes))
    texts, held_out = split_texts(read_shards(recipe, job.shards), recipe)
    written = ModelPool.load(out, threads=torch.get_num_threads())
    held_out = restated(written, held_out)
    write_whole(out / "CARD.md", make_card(written, texts, held_out, runs, submodels, recipe=recipe, command=command))


def _trainings(job: Job, submodels: Mapping[str, Mask]) -> list[Callable[[], None]]:
    """Trainings that the work folder lacks, the longest first: submodels have most layers."""
    students = job.recipe.students
    missing = sorted(
        (name for name in students if not job.weights(name).exists()), key=lambda name: -students[name].num_layer_epochs
    )
    restoring = [
        partial(restore_part, job, name, mask) for name, mask in submodels.items() if not job.weights(name).exists()
    ]
    return [*restoring, *(partial(train_part, job, name) for name in missing)]


@contextmanager
def side_by_side(processes: int) -> Iterator[Callable[[Sequence[Callable[[], None]]], None]]:
    """A function that runs parts in `processes` processes at a time; a single one runs in this process.

    It raises JobFailedError if a process fails, and the others are ended.
    """
    if processes == 1:
        yield _one_by_one
        return

    def do(jobs: Sequence[Callable[[], None]]) -> None:
        try:
            list(called_together(partial(_done, job, os.getpid()) for job in jobs))
        except BrokenProcessPool:
            raise JobFailedError("a process of the distillation ended by itself") from None

    with kept_processes(), parallel_config("loky", n_jobs=processes):
        yield do


def _one_by_one(jobs: Sequence[Callable[[], None]]) -> None:
    for job in jobs:
        job()


def _done(job: Callable[[], None], parent: int) -> None:
    """Run a part; bad input becomes an error of one line that can be sent between processes."""
    end_with(parent)
    try:
        job()
    except (ValueError, OSError) as error:
        raise JobFailedError(str(error)) from None


@attention_of_any_length()
def write_part(job: Job, first: int, every: int) -> None:
    """Write every `every`th shard, from `first` on."""
    pool, target = _loaded(job)
    writer = copy.deepcopy(target).to(job.dtype).eval()
    write_shards(pool, writer, job.recipe, job.shards, range(first, job.recipe.num_shards, every))


@attention_of_any_length()
def train_part(job: Job, name: str) -> None:
    """Train a drafter, and write its weights into the work folder."""
    pool, target = _loaded(job)
    recipe, student = job.recipe, job.recipe.students[name]
    texts, _ = split_texts(read_shards(recipe, job.shards, job.device), recipe)
    vocabulary, head = vocabulary_and_head(pool, texts, student.head_tokens)
    model, run = train_drafter(name, student, target, texts, head, recipe, job.checkpoint(name), job.dtype)
    write_learned(job.weights(name), {**weights_of(model), "said": vocabulary.int()}, run, job.dtype)


@attention_of_any_length()
def restore_part(job: Job, name: str, mask: Mask) -> None:
    """Train a submodel, and write its weights into the work folder."""
    pool, target = _loaded(job)
    recipe = job.recipe
    texts, _ = split_texts(read_shards(recipe, job.shards, job.device), recipe)
    _, head = vocabulary_and_head(pool, texts, recipe.restored.head_tokens)
    tensors, run = train_restored(name, mask, target, texts, head, recipe, job.checkpoint(name), job.dtype)
    write_learned(job.weights(name), tensors, run, job.dtype)


def _loaded(job: Job) -> tuple[ModelPool, PreTrainedModel]:
    pool = ModelPool.load(job.pool, chat=True)
    model: Any = pool.target.model
    return pool, model.to(job.device)


def _check_target(file: Path, content: PoolFile, pool: ModelPool, recipe: Distillation) -> None:
    """Raise PoolFileError for targets it cannot learn: scaled embeddings or logits, device, dtype, short context."""
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


def submodels_of_target(file: Path, content: PoolFile, recipe: Distillation) -> dict[str, Mask]:
    """Layers that submodels of the target leave out, by name; their `low_rank` weights are learned again.

    Raises PoolFileError for a name that will be taken, or that would be another file of a work folder.
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


def check_sizes(file: Path, submodels: Mapping[str, Mask], num_layers: int, recipe: Distillation) -> None:
    """Submodels must have more layers than the drafters, which they will follow; raises PoolFileError."""
    most = max(student.num_layers for student in recipe.students.values())
    for name, mask in submodels.items():
        if num_layers - len(mask) <= most:
            rule = f"must keep more layers than the largest drafter has, {most}"
            raise PoolFileError(file, f"skip_layers of {name}", rule, list(mask))


def _claim(work: Path, recipe: Distillation, content: PoolFile, pool: ModelPool, device: str) -> torch.dtype:
    """Claim the work folder, so that no texts of another recipe or target leak in; returns the dtype of its work."""
    path = work / "recipe.json"
    mine = {**recipe.to_json(), "target": content.members[-1].path, "tokenizer": pool.tokenizer_sha256}
    if not path.exists():
        quick = quick_dtype() if device == "cpu" else torch.bfloat16
        mine["dtype"] = str(quick).removeprefix("torch.")
    found = claim(path, mine, f"work must belong to the same recipe and target, {work} holds another one")
    begun: torch.dtype = getattr(torch, found["dtype"])
    return begun


_ROWS, _WIDTH, _REPEATS = 256, 768, 9


def quick_dtype() -> torch.dtype:
    """bfloat16 or float32: the faster one for a product of usual size, measured now."""
    return min((torch.bfloat16, torch.float32), key=_seconds)


@torch.inference_mode()
def _seconds(dtype: torch.dtype) -> float:
    """The least of some runs; the first one warms up."""
    left, right = torch.ones(_ROWS, _WIDTH, dtype=dtype), torch.ones(_WIDTH, _WIDTH, dtype=dtype)
    found = []
    for _ in range(_REPEATS):
        started_s = time.perf_counter()
        functional.linear(left, right)
        found.append(time.perf_counter() - started_s)
    return min(found[1:])


def _export(job: Job, name: str, out: Path, pool: ModelPool) -> tuple[TrainingRun, int]:
    """Write config, weights without embeddings, and ids that it can write; also returns the number of parameters."""
    tensors, run = read_learned(job.weights(name))
    said = tensors.pop("said").tolist()
    assert pool.target.model is not None
    student = job.recipe.students[name]
    config: Any = drafter_config(pool.target.model, student.num_layers, student.intermediate_size)
    config.dtype = "bfloat16"
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "config.json", config.to_json_string())
    write_whole(folder / "vocabulary.json", json.dumps(said) + "\n")
    write_tensors(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return run, sum(map(Tensor.numel, tensors.values())) + len(said) * int(config.hidden_size)


def _export_submodel(job: Job, name: str, out: Path) -> TrainingRun:
    tensors, run = read_learned(job.weights(name))
    (out / name).mkdir(parents=True, exist_ok=True)
    write_tensors(tensors, out / name / LOW_RANK, metadata={"format": "pt"})
    return run


def _pool_text(
    file: Path, content: PoolFile, recipe: Distillation, out: Path, submodels: str, sizes: Mapping[str, int]
) -> str:
    """The new pool file: lookup, drafters from the smallest by parameters, submodels, the target."""
    target = content.members[-1]
    assert target.path is not None  # a target is a model
    quoted = {key: json.dumps(value, ensure_ascii=False) for key, value in {
        "name": content.name, "tokenizer": moved(file, content.tokenizer, out),
        "path": moved(file, target.path, out), "target": target.name,
    }.items()}  # fmt: skip
    ordered = sorted(recipe.students.items(), key=lambda item: sizes[item[0]])
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


def submodels_text(submodels: Mapping[str, Mask], target: str) -> str:
    """The submodels' part of a pool file, smallest first."""
    return "".join(
        f'\n[[members]]\nname = "{name}"\nsubmodel_of = {json.dumps(target, ensure_ascii=False)}\n'
        f'skip_layers = {list(mask)}\nlow_rank = "{name}/{LOW_RANK}"\n'
        for name, mask in sorted(submodels.items(), key=lambda item: -len(item[1]))
    )


def restated(pool: ModelPool, texts: Sequence[Text]) -> list[Text]:
    """Texts with states of the target in the dtype of decoding; those of training may be in a faster one."""
    assert pool.target.model is not None
    states = states_of(pool.target.model, [text.tokens for text in texts])
    return [replace(text, states=own) for text, own in zip(texts, states, strict=True)]


def make_card(
    pool: ModelPool,
    texts: Sequence[Text],
    held_out: Sequence[Text],
    runs: Mapping[str, TrainingRun],
    submodels: Mapping[str, Mask],
    *,
    recipe: Distillation,
    command: str,
) -> str:
    """Measure drafters and submodels on held-out dialogues; returns Markdown."""
    both = with_slims(pool, {f"{name}, untrained": mask for name, mask in submodels.items()})
    names = [*runs, *(member.name for member in both.members if member.name.endswith(", untrained"))]
    depths = {name: student.num_depths for name, student in recipe.students.items()}
    measured: dict[str, dict[str, tuple[float, float, float]]] = {}
    for name in tracked(names, "measuring", unit="members"):
        measured |= _measured(both, name, depths.get(name, 0), held_out)
    tags = [*recipe.tasks, "all"]
    sections = (
        f"# Drafters of {pool.name}",
        _origin(recipe, command, texts),
        *([_of_submodels(recipe, submodels)] if submodels else []),
        "## Members\n\n" + members_table(pool, runs, of_others="-"),
        "## Agreement with the target\n\nShare of equal greedy choices, teacher-forced on "
        f"{counted(len(held_out), 'held-out dialogue')} ({sum(map(_answer_tokens, held_out)):,} tokens of answers), "
        "over the whole vocabulary. At depth 1 a drafter from the target's states reads these alone, at depth d its "
        "own of the last d - 1 tokens.\n\n" + _table(measured, tags, 0, "{:.1%}"),
        "## Loss\n\nCross-entropy to the target's distribution over the tokens that the drafter can say, in nats per "
        "token, on the same dialogues.\n\n" + _table(measured, tags, 1, "{:.2f}"),
        "## Words\n\nShare of the target's greedy choices that the drafter can say at all.\n\n"
        + _table(measured, tags, 2, "{:.1%}"),
    )
    return "\n\n".join(sections) + "\n"


def _origin(recipe: Distillation, command: str, texts: Sequence[Text]) -> str:
    return (
        "Small Llama-like models that read and say tokens by the target's embeddings, begun as some of its layers and "
        "trained on its own answers to questions that it wrote itself, by\n\n"
        f"    {command}\n\n"
        f"with Python {platform.python_version()}, torch {torch.__version__}, {processor()}, seed {recipe.seed}: "
        f"{counted(len(texts), 'dialogue')}, {sum(map(_answer_tokens, texts)):,} tokens of answers. All numbers below "
        "were written by that command. Weights are stored in bfloat16, without embeddings."
    )


def _of_submodels(recipe: Distillation, submodels: Mapping[str, Mask]) -> str:
    named = "; ".join(f"`{name}` leaves out {list(mask)}" for name, mask in submodels.items())
    return (
        f"Submodels of the target ({named}) have its weights and, learned from the same texts, a product of rank "
        f"{recipe.restored.rank} beside each of them and norms of their own. `untrained` is without these."
    )


def _answer_tokens(text: Text) -> int:
    return len(text.tokens) - text.answer_at


def _table(
    measured: Mapping[str, Mapping[str, tuple[float, float, float]]], tags: Sequence[str], which: int, form: str
) -> str:
    rows = [
        {"member": name, **{tag: form.format(by_tag[tag][which]) for tag in tags if tag in by_tag}}
        for name, by_tag in measured.items()
    ]
    return markdown_table(tables.table(rows))


@torch.inference_mode()
def _measured(
    pool: ModelPool, name: str, num_depths: int, texts: Sequence[Text]
) -> dict[str, dict[str, tuple[float, float, float]]]:
    """By row, then by tag and for all: equal choices, loss, and choices within the head."""
    drafter, target = pool.member(name).model, pool.target.model
    assert drafter is not None
    assert target is not None
    sums: dict[str, dict[str, Tensor]] = {}
    for text in texts:
        first = text.answer_at - 1
        theirs = functional.linear(text.states[first:].float(), target.get_output_embeddings().weight)
        embedded = drafter.get_input_embeddings()(text.tokens[None, :-1])
        for row, states in zip(
            _rows(name, num_depths), drafter_states(drafter, num_depths, embedded, [text]), strict=True
        ):
            found = _compared(drafter.get_output_embeddings()(states[0, first:]), theirs)
            by_tag = sums.setdefault(row, {})
            for tag in (text.tag, "all"):
                by_tag[tag] = by_tag.get(tag, torch.zeros(4, dtype=torch.float64)) + found
    return {
        row: {tag: (float(s[1] / s[0]), float(s[2] / s[0]), float(s[3] / s[0])) for tag, s in by_tag.items()}
        for row, by_tag in sums.items()
    }


def _rows(name: str, num_depths: int) -> list[str]:
    """A row for each depth of a drafter that reads the target's states; else one."""
    return [name, *(f"{name}, depth {depth}" for depth in range(2, num_depths + 1))]


def _compared(logits: Tensor, theirs: Tensor) -> Tensor:
    """Sums over positions `[P]` of logits `[P, V]`: of one, of equal choices, losses and choices within the head."""
    said, choices = logits[0].isfinite(), theirs.argmax(-1)
    losses = functional.cross_entropy(logits[:, said], theirs[:, said].softmax(-1), reduction="none")
    equal = (logits.argmax(-1) == choices).double()
    return torch.stack([torch.ones_like(equal), equal, losses.double(), said[choices].double()], dim=-1).sum(0)
