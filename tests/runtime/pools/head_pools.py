"""A pool whose drafter says a part of the vocabulary, by the embeddings of its target."""

import json

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from .making import at, write

VOCABULARY, WIDTH, INNER = 40, 32, 48
SAID = list(range(0, VOCABULARY, 3))
SHARES = 'embeddings_of = "target"\n'
PART = 'vocabulary = "said.json"\n'
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


def words() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({f"w{token}": token for token in range(VOCABULARY)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def written(
    folder, *, draft_keys=SHARES + PART, said=SAID, tied=True, has_embeddings=False, family=LLAMA, more="", **changes
):
    """A pool of `draft`, without embeddings unless it `has_embeddings`, `more` and `target`."""
    target = model(1, num_layers=3, tied=tied, family=family)
    draft = model(2, num_layers=1, tied=tied, family=family, **changes)
    write(folder, words(), at("draft") + draft_keys + more + at("target"), draft=draft, target=target)
    weights = folder / "draft" / "model.safetensors"
    held = load_file(weights)
    if not has_embeddings:
        held = {name: tensor for name, tensor in held.items() if "embed_tokens" not in name and "lm_head" not in name}
    save_file(held, weights, metadata={"format": "pt"})
    (folder / "said.json").write_text(said if isinstance(said, str) else json.dumps(said), encoding="utf-8")
    return folder
