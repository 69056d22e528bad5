"""The whole way from a recipe to a pool of the arena on disk; the stages are those of the shipped pool.

How far a student agrees with the target on the target's own greedy texts.

Letters: N texts, T tokens of the longest prompt and text.

The card of a pool of the arena: what was asked of its members and what came out, the same from run to run.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from paceline.base.errors import ArgumentError
from paceline.base.files import whole_folder, write_whole
from paceline.decoding.request_text import LookupRule, prompt_lookup
from paceline.reports import grid
from paceline.runtime.pools.pool_file import POOL_FILE_NAME, MemberEntry
from paceline.runtime.threads import use_threads
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel

from ..findings import markdown_table
from ..training.pool import export_model
from ..training.recipe import TAGS, Recipe
from ..training.texts import (
    END_TOKEN_ID,
    MAX_PROMPT_TOKENS,
    Corpus,
    Item,
    build_corpus,
    held_out_items,
    pack_corpus,
    train_tokenizer,
    write_prompts,
)
from ..training.training import (
    TrainingRun,
    layers_kept,
    make_teacher,
    slim_layers,
    train_student,
    train_target,
    write_texts,
)
from .recipe import SLIM, TARGET, PoolRecipe, Student


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTexts:
    """Texts that the target wrote greedily.

    Attributes:
        tokens: `[N, T]` prompt and text, padded on the right.
        written: `[N, T - 1]` whether the token after each is one that the target wrote.
    """

    tokens: torch.Tensor
    written: torch.Tensor

    @torch.no_grad()
    def agreement(self, model: PreTrainedModel) -> float:
        """Share of the target's tokens that are the model's likeliest one, in [0, 1]."""
        chosen = model(input_ids=self.tokens[:, :-1], use_cache=False).logits.argmax(-1)
        equal = (chosen == self.tokens[:, 1:])[self.written]
        return float(equal.float().mean())

    def lookup_agreement(self, rule: LookupRule) -> float:
        """Share of the target's tokens that a lookup would copy, in [0, 1]."""
        places: list[tuple[int, int]] = self.written.nonzero().tolist()
        rows: list[list[int]] = self.tokens.tolist()
        copied = (prompt_lookup(rows[row][: place + 1], num_tokens=1, rule=rule) for row, place in places)
        equal = (
            tokens == rows[row][place + 1 : place + 2] for tokens, (row, place) in zip(copied, places, strict=True)
        )
        return sum(equal) / len(places)


def write_target_texts(
    target: PreTrainedModel, items: Mapping[str, Sequence[Item]], tokenizer: Tokenizer, *, num_tokens: int
) -> dict[str, TargetTexts]:
    """Let the target continue the prompts of some documents greedily, by domain.

    Args:
        target: in eval mode.
        items: documents whose prompts it continues, at least one of each domain.
        tokenizer: of the target.
        num_tokens: most tokens of a text, >= 1.
    """
    return {tag: _written(target, some, tokenizer, num_tokens) for tag, some in items.items()}


def joined(texts: Sequence[TargetTexts]) -> TargetTexts:
    """All of them as one, at least one."""
    width = max(each.tokens.shape[1] for each in texts)
    tokens = torch.cat([_padded(each.tokens, width, END_TOKEN_ID) for each in texts])
    return TargetTexts(tokens=tokens, written=torch.cat([_padded(each.written, width - 1, 0) for each in texts]))


def _written(target: PreTrainedModel, items: Sequence[Item], tokenizer: Tokenizer, num_tokens: int) -> TargetTexts:
    prompts = [tokenizer.encode(item.prompt).ids for item in items]
    texts = write_texts(target, prompts, num_tokens=num_tokens, temperature=0.0, seed=0)
    width = max(len(prompt) + len(text) for prompt, text in zip(prompts, texts, strict=True))
    tokens = torch.full((len(prompts), width), END_TOKEN_ID)
    written = torch.zeros(len(prompts), width - 1, dtype=torch.bool)
    for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        length = len(prompt) + len(text)
        tokens[row, :length] = torch.tensor(prompt + text)
        written[row, len(prompt) - 1 : length - 1] = True
    return TargetTexts(tokens=tokens, written=written)


def _padded(rows: torch.Tensor, width: int, value: int) -> torch.Tensor:
    return torch.nn.functional.pad(rows, (0, width - rows.shape[1]), value=value)


SAID = "Share of the target's greedy tokens that a member chooses too, on texts that no member learned from."

Trained = Mapping[str, tuple[PreTrainedModel, TrainingRun]]  # by member; submodels and lookups have none
Checked = Mapping[str, TargetTexts]  # by domain


def make_card(recipe: PoolRecipe, trained: Trained, checked: Checked) -> str:
    """Markdown.

    Args:
        recipe: of the pool.
        trained: the models.
        checked: texts of the target.
    """
    goals = {student.name: f"{student.agreement:.0%}" for student in recipe.students}
    rows = [
        {
            "member": entry.name,
            **_training(*trained.get(entry.name, (None, None))),
            "goal": goals.get(entry.name, "-"),
            **_shares(_measure(recipe, entry.name, trained), checked),
        }
        for entry in recipe.members
        if entry.name != TARGET
    ]
    model, run = trained[TARGET]
    target = f"The target: {model.config.model_type}, {model.num_parameters():,} parameters, {run.num_tokens:,} tokens."
    return f"# {recipe.name}\n\n{recipe.what}\n\n{target} {SAID}\n\n{markdown_table(grid.table(rows))}\n"


def _training(model: PreTrainedModel | None, run: TrainingRun | None) -> dict[str, str]:
    if model is None or run is None:
        return {"architecture": "-", "parameters": "-", "tokens seen": "-"}
    sizes = {"parameters": f"{model.num_parameters():,}", "tokens seen": f"{run.num_tokens:,}"}
    return {"architecture": model.config.model_type, **sizes}


def _measure(recipe: PoolRecipe, name: str, trained: Trained) -> Callable[[TargetTexts], float]:
    """What measures a member's share of a text."""
    if name in trained:
        return lambda texts: texts.agreement(trained[name][0])
    if name == SLIM:
        return partial(_slim_agreement, trained[TARGET][0], slim_layers(recipe.training))
    assert recipe.lookup is not None
    rule = recipe.lookup.rule
    return lambda texts: texts.lookup_agreement(rule)


def _slim_agreement(target: PreTrainedModel, kept: tuple[int, ...], texts: TargetTexts) -> float:
    with layers_kept(target, kept):
        return texts.agreement(target)


def _shares(measure: Callable[[TargetTexts], float], checked: Checked) -> dict[str, str]:
    every = {**checked, "all": joined(list(checked.values()))}
    return {tag: f"{measure(texts):.1%}" for tag, texts in every.items()}


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
