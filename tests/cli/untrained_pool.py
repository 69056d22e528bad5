"""A pool of untrained models on disk, with prompts of its own: quick to make, and what it writes is nonsense."""

import json
from pathlib import Path

from paceline_laboratory.training.pool import export_model, write_pool_file
from paceline_laboratory.training.recipe import read_recipe
from paceline_laboratory.training.training import make_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

PROMPTS = ("Q: one", "Q: two and two", "Q: three")


def write_untrained_pool(folder: Path) -> None:
    """`ngram`, `draft`, `mid`, `slim` and `target`; the target has four layers and `slim` leaves one out."""
    recipe = read_recipe("tiny")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(PROMPTS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    for seed, (name, shape) in enumerate(recipe.shapes.items()):
        export_model(make_model(shape, recipe, seed=seed), folder / name)
    write_pool_file(recipe, folder / "pool.toml")
    rows = [{"id": f"r{index}", "prompt": text} for index, text in enumerate(PROMPTS)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
