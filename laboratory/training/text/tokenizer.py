"""A byte-level BPE tokenizer that is trained on the corpus."""

import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ..recipe import Recipe
from .item import Corpus

END_TOKEN = "<|end|>"
END_TOKEN_ID = 0
MAX_DOCUMENTS_PER_TAG = 2500


def train_tokenizer(corpus: Corpus, recipe: Recipe) -> Tokenizer:
    """Learn the merges from an equal number of documents of each domain; deterministic."""
    tokenizer = Tokenizer(models.BPE())
    # Single digits make column arithmetic learnable for a small model.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary_size,
        special_tokens=[END_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [item.text for items in corpus.train.values() for item in items[:MAX_DOCUMENTS_PER_TAG]]
    random.Random(f"{recipe.seed}/tokenizer").shuffle(texts)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
