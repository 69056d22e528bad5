"""Random models of a few dozen words, untrained, and the tokenizer that spells them."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, WIDTH, INNER = 40, 32, 48
LLAMA = (LlamaForCausalLM, LlamaConfig)


def model(seed, *, num_layers, tied=True, family=LLAMA, **changes):
    torch.manual_seed(seed)
    cls, config = family
    options = {
        "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": num_layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.3,
        "tie_word_embeddings": tied, "eos_token_id": 0, "bos_token_id": None,
    }  # fmt: skip
    return cls(config(**{**options, **changes}))


def words(count=VOCABULARY, *, letter="w", unknown=0) -> Tokenizer:
    """The words w0, w1 and so on, between spaces; any other is word `unknown`."""
    known = {f"{letter}{token}": token for token in range(count)}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token=f"{letter}{unknown}"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer
