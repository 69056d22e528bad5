"""What the small models learn from: text by the target and the target's distribution at each position.

Letters: N sequences, T = sequence_tokens, K = teacher_top.
"""

import copy
import random
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from ...progress import Progress
from .checkpoint import read_tensors, write_tensors
from .recipe import TAGS, Recipe
from .text.item import Corpus
from .trained_models import logits_of
from .writing import write_texts

SCORED_ROWS = 32


def make_teacher(
    target: PreTrainedModel,
    corpus: Corpus,
    sequences: torch.Tensor,
    tokenizer: Tokenizer,
    recipe: Recipe,
    work_dir: Path,
) -> dict[str, torch.Tensor]:
    """Write text with the target, add rows of the corpus and score all of it; read back where it exists.

    Returns:
        `tokens` int16 `[N, T + 1]`, `ids` int16 `[N, T, K]` and `log_probs` float16 `[N, T, K]` of the target's
        K likeliest next tokens.
    """
    path = work_dir / "teacher.safetensors"
    if not path.exists():
        generated = _generate_rows(target, corpus, tokenizer, recipe, work_dir)
        order = torch.randperm(len(sequences), generator=torch.Generator().manual_seed(recipe.seed + 1))
        tokens = torch.cat([generated, sequences[order[: recipe.corpus_rows]]])
        write_tensors({"tokens": tokens, **_score(target, tokens, recipe)}, path)
    return read_tensors(path)


def _generate_rows(
    target: PreTrainedModel, corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe, work_dir: Path
) -> torch.Tensor:
    """The target's own documents, packed like the corpus."""
    writer = copy.deepcopy(target).to(torch.bfloat16).eval()
    batches = _prompt_batches(corpus, recipe)
    documents: list[np.ndarray] = []
    with Progress("writing", len(batches), unit="batches") as progress:
        for number, batch in enumerate(batches):
            part = work_dir / f"written-{number:03d}.safetensors"
            if not part.exists():
                prompts = [tokenizer.encode(prompt).ids for prompt in batch]
                _write_batch(writer, prompts, number, recipe, part)
            documents.extend(tensor.numpy() for _, tensor in sorted(read_tensors(part).items()))
            progress.advance_to(number + 1)
    random.Random(f"{recipe.seed}/written").shuffle(documents)
    flat = torch.from_numpy(np.concatenate(documents))
    return flat.unfold(0, recipe.sequence_tokens + 1, recipe.sequence_tokens).clone()


def _prompt_batches(corpus: Corpus, recipe: Recipe) -> list[list[str]]:
    """Prompts of one domain each, as their texts have about the same length."""
    batches = []
    per_tag = recipe.generated_rows // len(TAGS)
    for tag in TAGS:
        prompts = [item.prompt for item in corpus.train[tag][:per_tag]]
        size = recipe.generated_batch
        batches += [prompts[first : first + size] for first in range(0, len(prompts), size)]
    return batches


def _write_batch(writer: PreTrainedModel, prompts: list[list[int]], number: int, recipe: Recipe, part: Path) -> None:
    """Write one batch to a file; the first rows by sampling, the others greedily."""
    num_sampled = round(len(prompts) * recipe.sampled_share)
    documents = {}
    for first, rows, temperature in (
        (0, prompts[:num_sampled], recipe.sampling_temperature),
        (num_sampled, prompts[num_sampled:], 0.0),
    ):
        if not rows:
            continue
        texts = write_texts(
            writer, rows, num_tokens=recipe.generated_tokens, temperature=temperature, seed=recipe.seed + number
        )
        for row, (prompt, text) in enumerate(zip(rows, texts, strict=True), first):
            documents[f"{row:05d}"] = torch.tensor(prompt + text, dtype=torch.int16)
    write_tensors(documents, part)


@torch.no_grad()
def _score(target: PreTrainedModel, tokens: torch.Tensor, recipe: Recipe) -> dict[str, torch.Tensor]:
    ids, log_probs = [], []
    with Progress("scoring", len(tokens), unit="sequences") as progress:
        for first in range(0, len(tokens), SCORED_ROWS):
            logits = logits_of(target, tokens[first : first + SCORED_ROWS, :-1].long())
            top = logits.log_softmax(-1).topk(recipe.teacher_top, dim=-1)
            ids.append(top.indices.to(torch.int16))
            log_probs.append(top.values.to(torch.float16))
            progress.advance_to(min(first + SCORED_ROWS, len(tokens)))
    return {"ids": torch.cat(ids), "log_probs": torch.cat(log_probs)}
