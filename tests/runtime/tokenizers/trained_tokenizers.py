"""Tokenizers of several families, trained here in milliseconds, and texts to spell with them."""

import random
from functools import lru_cache
from itertools import chain

from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

END = "<|end|>"
_TEXT = (
    "the a line of riders each drafting behind next model target verifies tokens and keeps those that it would have "
    "written itself so text never changes only speed does naïve café über déjà vu Ångström 日本語 中文 です 🙂 👩‍💻 "
    "The Quick BROWN fox it's they'll don't 12 345 6789 return self value = (y[0]) {1: 'z'} ; # , . ? ! -- <no> & c|d"
)
WORDS = tuple(_TEXT.split())


@lru_cache
def corpus() -> tuple[str, ...]:
    rng = random.Random(0)
    return tuple("".join(_some_words(rng)) for _ in range(400))


def _some_words(rng: random.Random):
    for _ in range(rng.randint(3, 30)):
        yield rng.choice(WORDS)
        yield rng.choice((" ", " ", " ", " ", "  ", "\n", ""))


@lru_cache
def byte_level(size: int) -> Tokenizer:
    """Byte-level BPE, as GPT-2's: a token may be part of a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


@lru_cache
def unigram() -> Tokenizer:
    """Unigram with `▁` for spaces, byte fallback and a start token, as T5's or Llama's: drops a text's first space."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=500, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator((text for text in corpus() if text.isascii()), trainer)
    scores = dict.fromkeys(("<unk>", "<s>", "</s>"), 0.0)
    scores |= {f"<0x{byte:02X}>": -20.0 for byte in range(256)}
    scores |= {piece: -5.0 - len(scores) * 1e-4 for piece in sorted(tokenizer.get_vocab()) if piece not in scores}
    fallback = Tokenizer(models.Unigram(list(scores.items()), unk_id=0, byte_fallback=True))
    fallback.add_special_tokens(["<unk>", "<s>", "</s>"])
    fallback.pre_tokenizer = pre_tokenizers.Metaspace()
    fallback.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    fallback.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        special_tokens=[("<s>", fallback.token_to_id("<s>")), ("</s>", fallback.token_to_id("</s>"))],
    )
    return fallback


@lru_cache
def stripping() -> Tokenizer:
    """The Unigram with Llama's chain of decoders: bytes, fused, without the first space."""
    tokenizer = Tokenizer.from_str(unigram().to_str())
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


@lru_cache
def word_piece() -> Tokenizer:
    """WordPiece, as BERT's: spaces are written by the decoder."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def lower_casing() -> Tokenizer:
    tokenizer = Tokenizer.from_str(byte_level(600).to_str())
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


FAMILIES = {
    "byte-level": lambda: byte_level(600),
    "unigram": unigram,
    "stripping": stripping,
    "word-piece": word_piece,
}


def texts(**sizes):
    """Words of the corpus and any characters, run together or apart."""
    parts = st.sampled_from([*WORDS, " ", " ", "  ", "\n"]) | st.text(
        st.characters(exclude_categories=["Cs"]), max_size=3
    )
    return st.lists(parts, **sizes).map("".join)


def token_sequences(tokenizer: Tokenizer, **sizes):
    """Any tokens, byte pieces of characters and special tokens often among them."""
    bytes_of = [tokenizer.encode(text, add_special_tokens=False).ids for text in ("日", "🙂", "\u0301")]
    special = list(tokenizer.get_added_tokens_decoder())
    single = st.integers(0, tokenizer.get_vocab_size() - 1) | st.sampled_from(sorted({*chain(*bytes_of), *special}))
    return st.lists(single.map(lambda token: [token]) | st.sampled_from(bytes_of), **sizes).map(
        lambda runs: list(chain(*runs))
    )
