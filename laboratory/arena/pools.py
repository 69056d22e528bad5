"""Pools of the arena: trained until students reach the wanted agreement with the target, and described by a card.

Letters: N texts, T tokens of the longest prompt and text.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from paceline.base.errors import ArgumentError
from paceline.base.files import whole_folder, write_whole
from paceline.decoding.prompt_lookup import LookupRule, prompt_lookup
from paceline.reports import tables
from paceline.runtime.pools.pool_file import POOL_FILE_NAME
from paceline.runtime.threads import use_threads
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ..findings import markdown_table
from ..training.pool import export_model, write_pool_file
from ..training.recipe import SLIM, TAGS, TARGET, Recipe, Student
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
from ..training.training import TrainingRun, layers_kept, make_teacher, train_student, train_target
from ..training.writing import write_texts
from .recipe import PoolRecipe

STEPS_BETWEEN_CHECKS = 10  # optimizer steps between two measurements of the agreement
CANDIDATES = 4  # times as many documents are read, to find prompts that are short enough
SAID = "Share of the target's greedy tokens that a member chooses too, on texts that no member learned from."


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTexts:
    """Texts that the target wrote greedily."""

    tokens: Tensor  # `[N, T]` prompt and text, padded on the right
    written: Tensor  # `[N, T - 1]` whether the token after each is one that the target wrote

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


Trained = Mapping[str, tuple[PreTrainedModel, TrainingRun]]  # by member; submodels and lookups have none
Checked = Mapping[str, TargetTexts]  # by domain


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The texts that the models of a pool learn from."""

    corpus: Corpus  # documents by domain
    tokenizer: Tokenizer  # learned from them
    recorded: Mapping[str, list[Item]]  # held-out documents whose prompts are recorded, by domain
    checked: Mapping[str, list[Item]]  # other held-out ones; the target continues their prompts to measure agreement
    written_from: Mapping[str, list[Item]]  # documents whose prompts it continues as training text


def train_arena_pool(recipe: PoolRecipe, out: Path, work: Path) -> None:
    """Train a pool and write it to `out`, replacing an existing one, whole or not at all, with one thread.

    `work` is for this recipe only: a call that was cut short continues from its states, to the same pool. Raises
    ArgumentError if this machine's texts have too few prompts.
    """
    use_threads(1)
    work.mkdir(parents=True, exist_ok=True)
    texts = _prepare(recipe)
    sequences = pack_corpus(texts.corpus, texts.tokenizer, recipe.training)
    target, run = train_target(sequences, recipe.training, work / "target.safetensors")
    checked = {
        tag: write_target_texts(target, items, texts.tokenizer, recipe.max_new_tokens)
        for tag, items in texts.checked.items()
    }
    teachers: dict[tuple[str, ...], dict[str, Tensor]] = {}
    trained = {}
    for student in recipe.training.students:
        tags = student.tags or recipe.training.tags
        if tags not in teachers:
            teachers[tags] = _teacher(target, texts, recipe, tags, work)
        trained[student.name] = _train(student, teachers[tags], checked, recipe, work)
    with whole_folder(out) as folder:
        _write(recipe, texts, {**trained, TARGET: (target, run)}, checked, folder)


def write_recorded_prompts(recipe: PoolRecipe, pool: Path, out: Path) -> None:
    """Write the prompts to record with a trained pool: its own, and the recipe's number of further ones."""
    if not recipe.more_prompts:
        shutil.copyfile(pool / "prompts.jsonl", out)
        return
    tokenizer = Tokenizer.from_file(str(pool / "tokenizer.json"))
    held_out = _held_out(recipe, build_corpus(recipe.training), tokenizer)
    own = recipe.training.prompts_per_tag
    further = own + recipe.checked_texts
    write_prompts({tag: [*held_out[tag][:own], *held_out[tag][further:]] for tag in recipe.training.tags}, out)


def _prepare(recipe: PoolRecipe) -> Texts:
    training, count, tags = recipe.training, recipe.training.prompts_per_tag, recipe.training.tags
    corpus = build_corpus(training)
    tokenizer = train_tokenizer(corpus, training)
    held_out = _held_out(recipe, corpus, tokenizer)
    return Texts(
        corpus=corpus,
        tokenizer=tokenizer,
        recorded={tag: held_out[tag][:count] for tag in tags},
        checked={tag: held_out[tag][count : count + recipe.checked_texts] for tag in tags},
        written_from={tag: _fitting(corpus.train[tag], tokenizer, training.generated_rows) for tag in tags},
    )


def _held_out(recipe: PoolRecipe, corpus: Corpus, tokenizer: Tokenizer) -> dict[str, list[Item]]:
    """By domain the documents of the pool's own prompts, then of prompts for measuring, then of further ones.

    In this order the pool's own do not depend on the measured ones, and a pool not on further recorded ones.
    """
    own, checked, more = recipe.training.prompts_per_tag, recipe.checked_texts, recipe.more_prompts
    held_out = held_out_items(corpus, tokenizer, replace(recipe.training, prompts_per_tag=own + checked + more))
    for tag in recipe.training.tags:
        if (found := len(held_out[tag])) < own + checked + more:
            rule = f"{own + more} held-out prompts to record and {checked} to measure agreement"
            raise ArgumentError(f"pool {recipe.name}: {tag} must have {rule}, has {found}")
    return held_out


def _fitting(items: Sequence[Item], tokenizer: Tokenizer, generated_rows: int) -> list[Item]:
    """The first documents with prompts no longer than recorded ones, as many as a domain needs."""
    count = generated_rows // len(TAGS)
    some = items[: CANDIDATES * count]
    lengths = [len(encoding.ids) for encoding in tokenizer.encode_batch([item.prompt for item in some])]
    return [item for item, length in zip(some, lengths, strict=True) if length <= MAX_PROMPT_TOKENS][:count]


def _teacher(
    target: PreTrainedModel, texts: Texts, recipe: PoolRecipe, tags: tuple[str, ...], work: Path
) -> dict[str, Tensor]:
    shares = [share if tag in tags else 0.0 for tag, share in zip(TAGS, recipe.training.shares, strict=True)]
    training = replace(recipe.training, shares=tuple(share / sum(shares) for share in shares), students=())
    corpus = Corpus(train={tag: texts.corpus.train[tag] if tag in tags else [] for tag in TAGS}, held_out={})
    sequences = pack_corpus(corpus, texts.tokenizer, training)
    prompts = Corpus(train={tag: texts.written_from[tag] if tag in tags else [] for tag in TAGS}, held_out={})
    folder = work / f"teacher-{'-'.join(tags)}"
    folder.mkdir(exist_ok=True)
    return make_teacher(target, prompts, sequences, texts.tokenizer, training, folder)


def _train(
    student: Student, teacher: dict[str, Tensor], checked: Checked, recipe: PoolRecipe, work: Path
) -> tuple[PreTrainedModel, TrainingRun]:
    texts = joined([checked[tag] for tag in student.tags or recipe.training.tags])

    def agrees(model: PreTrainedModel, step: int) -> bool:
        goal = student.agreement
        return goal is not None and step % STEPS_BETWEEN_CHECKS == 0 and texts.agreement(model) >= goal

    return train_student(student, teacher, recipe.training, work / f"{student.name}.safetensors", agrees)


def _write(recipe: PoolRecipe, texts: Texts, trained: Trained, checked: Checked, folder: Path) -> None:
    for name, (model, _) in trained.items():
        export_model(model, folder / name)
    write_whole(folder / "tokenizer.json", texts.tokenizer.to_str(pretty=True))
    write_prompts(texts.recorded, folder / "prompts.jsonl")
    write_pool_file(recipe.training, folder / POOL_FILE_NAME)
    write_whole(folder / "CARD.md", make_card(recipe, trained, checked))


def write_target_texts(
    target: PreTrainedModel, items: Sequence[Item], tokenizer: Tokenizer, num_tokens: int
) -> TargetTexts:
    """Let the target, in eval mode, continue prompts of some documents greedily, for at most `num_tokens` tokens."""
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


def joined(texts: Sequence[TargetTexts]) -> TargetTexts:
    """The texts as one; at least one."""
    width = max(each.tokens.shape[1] for each in texts)
    tokens = torch.cat([_padded(each.tokens, width, END_TOKEN_ID) for each in texts])
    return TargetTexts(tokens=tokens, written=torch.cat([_padded(each.written, width - 1, 0) for each in texts]))


def _padded(rows: Tensor, width: int, value: int) -> Tensor:
    return functional.pad(rows, (0, width - rows.shape[1]), value=value)


def make_card(recipe: PoolRecipe, trained: Trained, checked: Checked) -> str:
    """The wanted and reached agreement of the members, as Markdown."""
    goals = {each.name: f"{each.agreement:.0%}" for each in recipe.training.students if each.agreement is not None}
    rows = [
        {
            "member": entry.name,
            **_training(*trained.get(entry.name, (None, None))),
            "goal": goals.get(entry.name, "-"),
            **_shares(_measure(recipe.training, entry.name, trained), checked),
        }
        for entry in recipe.training.members
        if entry.name != TARGET
    ]
    model, run = trained[TARGET]
    target = f"The target: {model.config.model_type}, {model.num_parameters():,} parameters, {run.num_tokens:,} tokens."
    return f"# {recipe.name}\n\n{recipe.what}\n\n{target} {SAID}\n\n{markdown_table(tables.table(rows))}\n"


def _training(model: PreTrainedModel | None, run: TrainingRun | None) -> dict[str, str]:
    if model is None or run is None:
        return {"architecture": "-", "parameters": "-", "tokens seen": "-"}
    sizes = {"parameters": f"{model.num_parameters():,}", "tokens seen": f"{run.num_tokens:,}"}
    return {"architecture": model.config.model_type, **sizes}


def _measure(recipe: Recipe, name: str, trained: Trained) -> Callable[[TargetTexts], float]:
    if name in trained:
        return lambda texts: texts.agreement(trained[name][0])
    if name == SLIM:
        return partial(_slim_agreement, trained[TARGET][0], recipe.slim_layers)
    assert recipe.lookup is not None
    rule = recipe.lookup.rule
    return lambda texts: texts.lookup_agreement(rule)


def _slim_agreement(target: PreTrainedModel, kept: tuple[int, ...], texts: TargetTexts) -> float:
    with layers_kept(target, kept):
        return texts.agreement(target)


def _shares(measure: Callable[[TargetTexts], float], checked: Checked) -> dict[str, str]:
    every = {**checked, "all": joined(list(checked.values()))}
    return {tag: f"{measure(texts):.1%}" for tag, texts in every.items()}
