"""Training documents of all domains, held-out prompts, and the packed token sequences."""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, islice, zip_longest
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from ....whole_files import write_whole
from ..recipe import TAGS, Recipe
from .dialogue import make_dialogue
from .edits import make_edit
from .item import Corpus, Item
from .stdlib_text import read_stdlib
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


def build_corpus(recipe: Recipe) -> Corpus:
    """Read and generate the documents; the same recipe gives the same corpus.

    Held out are candidates for the prompts; none of their prompts occurs in what is trained on.
    """
    stdlib = read_stdlib(recipe.seed)
    train, held_out = {}, {}
    for tag, share in zip(TAGS, recipe.shares, strict=True):
        if tag in GENERATORS:
            texts, others = (_generated(tag, f"{recipe.seed}/{side}/{tag}") for side in ("train", "held-out"))
        else:  # training reads them again where they end
            texts, others = cycle(stdlib.train[tag]), iter(stdlib.held_out[tag])
        num_characters = int(recipe.corpus_tokens * share * CHARACTERS_PER_TOKEN)
        train[tag] = list(_take_characters(texts, num_characters))
        seen = {item.prompt for item in train[tag]}
        candidates = islice(others, CANDIDATES_PER_PROMPT * recipe.prompts_per_tag)
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


def held_out_items(corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe) -> dict[str, list[Item]]:
    """By domain, the documents whose prompts are held out: neither too short nor too long, each prompt once."""
    return {tag: _fit_items(items, tokenizer)[: recipe.prompts_per_tag] for tag, items in corpus.held_out.items()}


def write_prompts(items: Mapping[str, Sequence[Item]], path: Path) -> None:
    """Write `prompts.jsonl`: one JSON object a line, round-robin over the domains."""
    rounds = enumerate(zip_longest(*items.values()), start=1)
    rows = [_row(item, number) for number, some in rounds for item in some if item is not None]
    write_whole(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))


def _fit_items(items: list[Item], tokenizer: Tokenizer) -> list[Item]:
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


def _generated(tag: str, seed: str) -> Iterator[Item]:
    """Endless."""
    rng = random.Random(seed)
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
