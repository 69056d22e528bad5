"""The whole way from a recipe to a pool of the arena on disk; the stages are those of the shipped pool."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel

from .....arguments import ArgumentError
from .....runtime.pools.pool_file import POOL_FILE_NAME, MemberEntry
from .....runtime.threads import use_threads
from .....whole_files import whole_folder, write_whole
from ....training.loop import TrainingRun
from ....training.pipeline import export_model
from ....training.recipe import TAGS, Recipe
from ....training.teacher import make_teacher
from ....training.text.corpus import MAX_PROMPT_TOKENS, build_corpus, held_out_items, pack_corpus, write_prompts
from ....training.text.item import Corpus, Item
from ....training.text.tokenizer import train_tokenizer
from ....training.trained_models import train_student, train_target
from .agreement import TargetTexts, joined, write_target_texts
from .card import make_card
from .recipe import TARGET, PoolRecipe, Student

# Optimizer steps between two looks at the agreement.
STEPS_BETWEEN_CHECKS = 10
# Of the documents that are read to find prompts short enough.
CANDIDATES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """What the models of a pool learn from.

    Attributes:
        corpus: documents by domain.
        tokenizer: learned from them.
        recorded: held-out documents whose prompts are recorded, by domain.
        checked: other held-out ones, whose prompts the target continues to measure agreement.
        written_from: documents whose prompts it continues to teach.
    """

    corpus: Corpus
    tokenizer: Tokenizer
    recorded: Mapping[str, list[Item]]
    checked: Mapping[str, list[Item]]
    written_from: Mapping[str, list[Item]]


def train_arena_pool(recipe: PoolRecipe, out: Path, work: Path) -> None:
    """Train a pool and write it to `out`, whole or not at all, with one thread.

    Args:
        recipe: what to train.
        out: folder of the pool; one that is there is replaced at the end.
        work: folder for the states of the training, of this recipe alone; a call that was cut short goes on from them
            and comes to the same pool.

    Raises:
        ArgumentError: this machine's texts hold too few prompts for the recipe.
    """
    use_threads(1)
    work.mkdir(parents=True, exist_ok=True)
    texts = _prepare(recipe)
    sequences = pack_corpus(texts.corpus, texts.tokenizer, recipe.training)
    target, run = train_target(sequences, recipe.training, work / "target.safetensors")
    checked = write_target_texts(target, texts.checked, texts.tokenizer, num_tokens=recipe.max_new_tokens)
    teachers: dict[tuple[str, ...], dict[str, Tensor]] = {}
    trained = {}
    for student in recipe.students:
        tags = student.tags or recipe.tags
        if tags not in teachers:
            teachers[tags] = _teacher(target, texts, recipe, tags, work)
        trained[student.name] = _train(student, teachers[tags], checked, recipe, work)
    with whole_folder(out) as folder:
        _write(recipe, texts, {**trained, TARGET: (target, run)}, checked, folder)


def write_recorded_prompts(recipe: PoolRecipe, pool: Path, out: Path) -> None:
    """Write the prompts that are recorded of a trained pool: its own, and as many further ones as the recipe says.

    Args:
        recipe: of the pool.
        pool: its folder.
        out: the file, as `prompts.jsonl` of the pool.

    Raises:
        ArgumentError: this machine's texts hold too few prompts for the recipe.
    """
    if not recipe.more_prompts:
        shutil.copyfile(pool / "prompts.jsonl", out)
        return
    tokenizer = Tokenizer.from_file(str(pool / "tokenizer.json"))
    held_out = _held_out(recipe, build_corpus(recipe.training), tokenizer)
    own = recipe.training.prompts_per_tag
    further = own + recipe.checked_texts
    write_prompts({tag: [*held_out[tag][:own], *held_out[tag][further:]] for tag in recipe.tags}, out)


def _prepare(recipe: PoolRecipe) -> Texts:
    training, count = recipe.training, recipe.training.prompts_per_tag
    corpus = build_corpus(training)
    tokenizer = train_tokenizer(corpus, training)
    held_out = _held_out(recipe, corpus, tokenizer)
    return Texts(
        corpus=corpus,
        tokenizer=tokenizer,
        recorded={tag: held_out[tag][:count] for tag in recipe.tags},
        checked={tag: held_out[tag][count : count + recipe.checked_texts] for tag in recipe.tags},
        written_from={tag: _fitting(corpus.train[tag], tokenizer, training.generated_rows) for tag in recipe.tags},
    )


def _held_out(recipe: PoolRecipe, corpus: Corpus, tokenizer: Tokenizer) -> dict[str, list[Item]]:
    """By domain the documents of the pool's own prompts, then those of measured ones, then those of further ones.

    In this order the pool's own are the same whatever is measured, and a pool is the same whatever else is recorded.
    """
    own, checked, more = recipe.training.prompts_per_tag, recipe.checked_texts, recipe.more_prompts
    held_out = held_out_items(corpus, tokenizer, replace(recipe.training, prompts_per_tag=own + checked + more))
    for tag in recipe.tags:
        if (found := len(held_out[tag])) < own + checked + more:
            rule = f"{own + more} held-out prompts to record and {checked} to measure agreement"
            raise ArgumentError(f"pool {recipe.name}: {tag} must have {rule}, has {found}")
    return held_out


def _fitting(items: Sequence[Item], tokenizer: Tokenizer, generated_rows: int) -> list[Item]:
    """The first documents with prompts no longer than recorded ones, as many as are taken of a domain."""
    count = generated_rows // len(TAGS)
    some = items[: CANDIDATES * count]
    lengths = [len(encoding.ids) for encoding in tokenizer.encode_batch([item.prompt for item in some])]
    return [item for item, length in zip(some, lengths, strict=True) if length <= MAX_PROMPT_TOKENS][:count]


def _teacher(
    target: PreTrainedModel, texts: Texts, recipe: PoolRecipe, tags: tuple[str, ...], work: Path
) -> dict[str, Tensor]:
    """Text of some domains by the target, with its probabilities."""
    training = _of_tags(recipe.training, tags)
    corpus = Corpus(train={tag: texts.corpus.train[tag] if tag in tags else [] for tag in TAGS}, held_out={})
    sequences = pack_corpus(corpus, texts.tokenizer, training)
    prompts = Corpus(train={tag: texts.written_from[tag] if tag in tags else [] for tag in TAGS}, held_out={})
    folder = work / f"teacher-{'-'.join(tags)}"
    folder.mkdir(exist_ok=True)
    return make_teacher(target, prompts, sequences, texts.tokenizer, training, folder)


def _of_tags(training: Recipe, tags: tuple[str, ...]) -> Recipe:
    """The same with the text of some domains only."""
    shares = [share if tag in tags else 0.0 for tag, share in zip(TAGS, training.shares, strict=True)]
    return replace(training, shares=tuple(share / sum(shares) for share in shares))


def _train(
    student: Student,
    teacher: dict[str, Tensor],
    checked: Mapping[str, TargetTexts],
    recipe: PoolRecipe,
    work: Path,
) -> tuple[PreTrainedModel, TrainingRun]:
    """Train a student until it agrees as far as it should, or its steps are used up."""
    texts = joined([checked[tag] for tag in student.tags or recipe.tags])
    return train_student(
        student.name,
        student.shape,
        student.schedule(recipe.training.target_schedule.num_rows),
        teacher,
        recipe.training,
        work / f"{student.name}.safetensors",
        partial(_agrees, student, texts),
    )


def _agrees(student: Student, texts: TargetTexts, model: PreTrainedModel, step: int) -> bool:
    return step % STEPS_BETWEEN_CHECKS == 0 and texts.agreement(model) >= student.agreement


def _write(
    recipe: PoolRecipe,
    texts: Texts,
    trained: Mapping[str, tuple[PreTrainedModel, TrainingRun]],
    checked: Mapping[str, TargetTexts],
    folder: Path,
) -> None:
    for name, (model, _) in trained.items():
        export_model(model, folder / name)
    write_whole(folder / "tokenizer.json", texts.tokenizer.to_str(pretty=True))
    write_prompts(texts.recorded, folder / "prompts.jsonl")
    write_whole(folder / POOL_FILE_NAME, _pool_file(recipe))
    write_whole(folder / "CARD.md", make_card(recipe, trained, checked))


def _pool_file(recipe: PoolRecipe) -> str:
    head = f'name = "{recipe.name}"\ntokenizer = "tokenizer.json"\ncontext_tokens = {recipe.training.context_tokens}\n'
    return "\n".join([head, *(_member(entry) for entry in recipe.members)])


def _member(entry: MemberEntry) -> str:
    lines = ["[[members]]", f'name = "{entry.name}"']
    if entry.ngram is not None:
        lookup = entry.ngram
        rule = f'max_match = {lookup.max_match}, min_match = {lookup.min_match}, occurrence = "{lookup.occurrence}"'
        lines.append(f"ngram = {{ {rule} }}")
    elif entry.submodel_of is not None:
        lines += [f'submodel_of = "{entry.submodel_of}"', f"skip_layers = {list(entry.skip_layers)}"]
    else:
        lines += [f'path = "{entry.path}"', f'dtype = "{entry.dtype}"', f'device = "{entry.device}"']
    return "\n".join(lines) + "\n"
