"""Training documents of all domains, held-out prompts, and the packed token sequences."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from ....whole_files import write_whole
from ..recipe import TAGS, Recipe
from .dialogue import make_dialogue
from .edits import make_edit
from .item import Item
from .stdlib_text import StdlibText, read_stdlib
from .translation import make_translation
from .word_problems import make_word_problem

GENERATORS: dict[str, Callable[[random.Random], Item]] = {
    "math": make_word_problem,
    "translation": make_translation,
    "dialogue": make_dialogue,
    "edit": make_edit,
}
# A low guess, so that enough documents exist before a tokenizer does; unused ones are dropped.
CHARACTERS_PER_TOKEN = 3.6
CANDIDATES_PER_PROMPT = 20
MIN_PROMPT_TOKENS, MAX_PROMPT_TOKENS = 30, 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Documents before packing.

    Attributes:
        train: training items, by domain.
        held_out: candidates for the held-out prompts; none of their prompts occurs in `train`.
    """

    train: dict[str, list[Item]]
    held_out: dict[str, list[Item]]


def build_corpus(recipe: Recipe) -> Corpus:
    """Read and generate the documents; the same recipe gives the same corpus."""
    stdlib = read_stdlib(recipe.seed)
    train, held_out = {}, {}
    for tag, share in zip(TAGS, recipe.shares, strict=True):
        num_characters = int(recipe.corpus_tokens * share * CHARACTERS_PER_TOKEN)
        train[tag] = list(_take_characters(_train_items(tag, stdlib, recipe.seed), num_characters))
        seen = {item.prompt for item in train[tag]}
        candidates = islice(_held_out_items(tag, stdlib, recipe.seed), CANDIDATES_PER_PROMPT * recipe.prompts_per_tag)
        held_out[tag] = [item for item in candidates if item.prompt not in seen]
    return Corpus(train=train, held_out=held_out)


def pack_corpus(corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe) -> torch.Tensor:
    """Join the documents in random order, an end token after each, and cut them into sequences.

    Returns:
        Token ids, int16, `[N, sequence_tokens + 1]`; neighbours share one token, so that each token is
        predicted once.
    """
    documents: list[np.ndarray] = []
    for tag, share in zip(TAGS, recipe.shares, strict=True):
        documents.extend(_take_tokens(corpus.train[tag], tokenizer, int(recipe.corpus_tokens * share)))
    random.Random(f"{recipe.seed}/pack").shuffle(documents)
    flat = torch.from_numpy(np.concatenate(documents))
    return flat.unfold(0, recipe.sequence_tokens + 1, recipe.sequence_tokens).clone()


def held_out_rows(corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe) -> list[dict[str, str]]:
    """The rows of `prompts.jsonl`: prompts of a fit length, round-robin over the domains."""
    chosen = {tag: fit_items(items, tokenizer)[: recipe.prompts_per_tag] for tag, items in corpus.held_out.items()}
    return [
        _row(chosen[tag][number], number + 1)
        for number in range(recipe.prompts_per_tag)
        for tag in TAGS
        if number < len(chosen[tag])
    ]


def write_prompts(rows: list[dict[str, str]], path: Path) -> None:
    """Write one JSON object a line."""
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    write_whole(path, "\n".join(lines) + "\n")


def fit_items(items: list[Item], tokenizer: Tokenizer) -> list[Item]:
    """The items whose prompts are neither too short nor too long, each prompt once."""
    lengths = [len(tokenizer.encode(item.prompt).ids) for item in items]
    unique = {
        item.prompt: item
        for item, length in zip(items, lengths, strict=True)
        if MIN_PROMPT_TOKENS <= length <= MAX_PROMPT_TOKENS
    }
    return list(unique.values())


def _row(item: Item, number: int) -> dict[str, str]:
    row = {"id": f"{item.tag}-{number:04d}", "tag": item.tag, "prompt": item.prompt}
    return row if item.answer is None else {**row, "answer": item.answer}


def _train_items(tag: str, stdlib: StdlibText, seed: int) -> Iterator[Item]:
    """Endless items; the finite domains start again at their end."""
    if tag in GENERATORS:
        rng = random.Random(f"{seed}/train/{tag}")
        while True:
            yield GENERATORS[tag](rng)
    while stdlib.train[tag]:
        yield from stdlib.train[tag]


def _held_out_items(tag: str, stdlib: StdlibText, seed: int) -> Iterator[Item]:
    if tag not in GENERATORS:
        yield from stdlib.held_out[tag]
        return
    rng = random.Random(f"{seed}/held-out/{tag}")
    while True:
        yield GENERATORS[tag](rng)


def _take_characters(items: Iterator[Item], num_characters: int) -> Iterator[Item]:
    taken = 0
    for item in items:
        if taken >= num_characters:
            return
        taken += len(item.text)
        yield item


def _take_tokens(items: list[Item], tokenizer: Tokenizer, num_tokens: int) -> Iterator[np.ndarray]:
    """Encoded items with an end token until `num_tokens` are reached; starts again at the end."""
    encodings = tokenizer.encode_batch([f"{item.text}<|end|>" for item in items])
    taken = 0
    while taken < num_tokens:
        for encoding in encodings:
            taken += len(encoding.ids)
            yield np.asarray(encoding.ids, dtype=np.int16)
            if taken >= num_tokens:
                return
