"""The whole way from a pool with a target to the same pool with drafters, one stage after another.

The card of distilled drafters: what they can do, measured on dialogues that nothing was trained on.

A long part of a distillation, in words that a command line can carry.

The number format in which this machine multiplies sooner: bfloat16 may be four times as quick, or slow.

Submodels of a pool's target on their way through a distillation: what is claimed, trained, written and named.

A process of a distillation: `python -m paceline_laboratory.training.distilling JOB`, JOB as JSON.

The long parts of a distillation, one process each: shards are written side by side, then drafters trained.
"""

import copy
import json
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from paceline.base.errors import counted
from paceline.base.files import processor, write_whole
from paceline.base.terminal import tracked
from paceline.reports import grid
from paceline.runtime.fused import FAMILIES
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import POOL_FILE_NAME, PoolFile, PoolFileError, read_pool_file
from paceline.runtime.slim import Mask, moved
from torch import Tensor
from torch.nn import functional

from ..findings import markdown_table
from ..shared import with_slims
from .pool import members_table
from .students import (
    Recipe,
    Text,
    drafter_config,
    parted,
    read_learned,
    read_recipe,
    read_shards,
    said_and_head,
    said_of,
    train_restored,
    train_student,
    weights_of,
    write_learned,
    write_shards,
)
from .training import TrainingRun, write_tensors


def make_card(
    pool: ModelPool,
    texts: Sequence[Text],
    held_out: Sequence[Text],
    runs: Mapping[str, TrainingRun],
    submodels: Mapping[str, Mask],
    *,
    recipe: Recipe,
    command: str,
) -> str:
    """Measure the drafters and write the card as Markdown.

    Args:
        pool: of the target and its drafters.
        texts: that they learned from.
        held_out: that they did not.
        runs: what the training of each drafter and submodel took.
        submodels: layers that submodels of the target leave out, by name.
        recipe: how they were trained.
        command: the command that did it.
    """
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


def _origin(recipe: Recipe, command: str, texts: Sequence[Text]) -> str:
    return (
        "Small Llama-like models that read and say tokens by the target's embeddings, begun as some of its layers and "
        "trained on its own answers to questions that it wrote itself, by\n\n"
        f"    {command}\n\n"
        f"with Python {platform.python_version()}, torch {torch.__version__}, {processor()}, seed {recipe.seed}: "
        f"{counted(len(texts), 'dialogue')}, {sum(map(_answer_tokens, texts)):,} tokens of answers. All numbers below "
        "were written by that command. Weights are stored in bfloat16, without embeddings."
    )


def _of_submodels(recipe: Recipe, submodels: Mapping[str, Mask]) -> str:
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
    return markdown_table(grid.table(rows))


@torch.inference_mode()
def _measured(
    pool: ModelPool, name: str, num_depths: int, texts: Sequence[Text]
) -> dict[str, dict[str, tuple[float, float, float]]]:
    """By row, then by tag and of all: equal choices, loss, and choices that can be said."""
    drafter, target = pool.member(name).model, pool.target.model
    assert drafter is not None
    assert target is not None
    sums: dict[str, dict[str, Tensor]] = {}
    for text in texts:
        first = text.answer_at - 1
        theirs = functional.linear(text.states[first:].float(), target.get_output_embeddings().weight)
        embedded = drafter.get_input_embeddings()(text.tokens[None, :-1])
        for row, states in zip(_rows(name, num_depths), said_of(drafter, num_depths, embedded, [text]), strict=True):
            found = _compared(drafter.get_output_embeddings()(states[0, first:]), theirs)
            by_tag = sums.setdefault(row, {})
            for tag in (text.tag, "all"):
                by_tag[tag] = by_tag.get(tag, torch.zeros(4, dtype=torch.float64)) + found
    return {
        row: {tag: (float(s[1] / s[0]), float(s[2] / s[0]), float(s[3] / s[0])) for tag, s in by_tag.items()}
        for row, by_tag in sums.items()
    }


def _rows(name: str, num_depths: int) -> list[str]:
    """A row of each depth, of a drafter that reads the target's states; else one."""
    return [name, *(f"{name}, depth {depth}" for depth in range(2, num_depths + 1))]


def _compared(logits: Tensor, theirs: Tensor) -> Tensor:
    """Sums over positions `[P]` of logits `[P, V]`: of one, of equal choices, losses and choices that can be said."""
    said, choices = logits[0].isfinite(), theirs.argmax(-1)
    losses = functional.cross_entropy(logits[:, said], theirs[:, said].softmax(-1), reduction="none")
    equal = (logits.argmax(-1) == choices).double()
    return torch.stack([torch.ones_like(equal), equal, losses.double(), said[choices].double()], dim=-1).sum(0)


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


_ROWS, _WIDTH, _REPEATS = 256, 768, 9


def quick_dtype() -> torch.dtype:
    """bfloat16 or float32, whichever a product of usual size was quicker in just now."""
    return min((torch.bfloat16, torch.float32), key=_seconds)


@torch.inference_mode()
def _seconds(dtype: torch.dtype) -> float:
    """The least of some goes; the first one warms up."""
    left, right = torch.ones(_ROWS, _WIDTH, dtype=dtype), torch.ones(_WIDTH, _WIDTH, dtype=dtype)
    found = []
    for _ in range(_REPEATS):
        started_s = time.perf_counter()
        functional.linear(left, right)
        found.append(time.perf_counter() - started_s)
    return min(found[1:])


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
        _claim_restored(work / f"{name}.submodel.json", name, mask, recipe)
    return [replace(job, restored=name) for name in submodels if not _weights(work, name).exists()]


def _claim_restored(path: Path, name: str, mask: Mask, recipe: Recipe) -> None:
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


POLL_S = 0.1


class JobFailedError(ValueError):
    """A process ended before its job was done."""


def run_jobs(jobs: Sequence[Job], *, processes: int) -> None:
    """Run jobs in so many processes at a time; one alone is done in this process.

    Raises:
        JobFailedError: a process failed; its own lines say why. The others are ended.
    """
    if processes == 1 or len(jobs) == 1:
        for job in jobs:
            do(job)
        return
    waiting = list(jobs)
    running: list[subprocess.Popen[bytes]] = []
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                running.append(_started(waiting.pop(0)))
            ended = _first_ended(running)
            if ended.returncode:
                raise JobFailedError(f"a process of the distillation ended with {ended.returncode}")
            running.remove(ended)
    finally:
        for process in running:
            process.kill()  # what it has not written whole it does not leave behind
            process.wait()


def _first_ended(running: Sequence[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Whichever ends first, so that its place is free for another job."""
    while True:
        for process in running:
            if process.poll() is not None:
                return process
        time.sleep(POLL_S)


def _started(job: Job) -> subprocess.Popen[bytes]:
    # In a session of its own: Ctrl-C is for whoever asked, who ends it.
    return subprocess.Popen([sys.executable, "-P", "-m", __name__, json.dumps(asdict(job))], start_new_session=True)


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
