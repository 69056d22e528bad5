"""Small drafters trained on the spot: one network, the same texts, in the pool's tokens or in tokens of its own."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer

from ..runtime.pools.loaded_members import LoadedMember, describe_model
from ..runtime.pools.pool import ModelPool
from .training.recipe import read_recipe
from .training.text.corpus import build_corpus, pack_corpus
from .training.text.tokenizer import train_tokenizer
from .training.trained_models import train_target

MOST_TOKENS = 2**15  # packed texts are 16-bit


class DrafterTraining:
    """Trains drafters for a pool, deterministically for a seed; reads its texts once.

    Args:
        pool: whose target they draft for.
        seed: of initial weights and batches; the texts are those the shipped pool was trained on, less in number.
    """

    def __init__(self, pool: ModelPool, *, seed: int) -> None:
        self._pool = pool
        recipe = read_recipe("drafter")
        self._recipe = replace(recipe, seed=recipe.seed + seed, context_tokens=pool.context_tokens)
        # With the plain seed, the held-out prompts of the shipped pool are held out here too.
        self._corpus = build_corpus(recipe)

    def same_vocabulary(self, name: str) -> LoadedMember:
        """A drafter in the pool's own tokens.

        Raises:
            ValueError: the pool's vocabulary is too large for a drafter of this size.
        """
        target: Any = self._pool.target.model
        size = int(target.config.vocab_size)
        if size > MOST_TOKENS:
            raise ValueError(f"pool {self._pool.name}: vocabulary must be <= {MOST_TOKENS} tokens, got {size}")
        return self._trained(name, self._pool.tokenizer, size, foreign=False)

    def foreign(self, name: str, vocabulary_size: int) -> LoadedMember:
        """A drafter with a byte-level tokenizer of its own, trained on the same texts."""
        recipe = replace(self._recipe, vocabulary_size=vocabulary_size)
        tokenizer = train_tokenizer(self._corpus, recipe)
        return self._trained(name, tokenizer, vocabulary_size, foreign=True)

    def _trained(self, name: str, tokenizer: Tokenizer, vocabulary_size: int, *, foreign: bool) -> LoadedMember:
        recipe = replace(self._recipe, vocabulary_size=vocabulary_size)
        sequences = pack_corpus(self._corpus, tokenizer, recipe)
        with TemporaryDirectory(prefix="paceline-drafter-") as folder:
            model, _ = train_target(sequences, recipe, Path(folder) / "state")
        model.requires_grad_(requires_grad=False)
        return describe_model(name, "model", model, tokenizer if foreign else None)
