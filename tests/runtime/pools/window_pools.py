"""Pools of tiny random models whose layers look at the last few tokens only, on disk as a user would have them."""

import json
from pathlib import Path

import torch

from ..conftest import ALPHABET
from ..tiny_decoders import tiny_decoder

WINDOW = 4
ENDS = [7, 19]
FAMILIES = {
    "mistral-window": {},
    "gemma2": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "tie_word_embeddings": False,
    },
    "gemma3": {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
    "qwen2-window": {},
    "qwen3-window": {},
    "olmo3": {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "phi3-window": {},
}
POOL = """name = "windows"
tokenizer = "tokenizer.json"
context_tokens = 96

[[members]]
name = "ngram"
ngram = {{ max_match = 3 }}

[[members]]
name = "draft"
submodel_of = "target"
skip_layers = [1]

[[members]]
name = "target"
path = "target"
dtype = "{dtype}"
"""


def write_window_pool(folder: Path, family: str, tokenizer, *, dtype: str = "float32", seed: int = 1) -> Path:
    """`ngram`, `draft` (two layers of the target's three) and `target`, with two end tokens."""
    model = tiny_decoder(
        family, torch.float32, seed=seed, vocab_size=len(ALPHABET), num_hidden_layers=3, **FAMILIES[family]
    )
    model.generation_config.eos_token_id = ENDS
    model.generation_config.pad_token_id = None
    model.save_pretrained(folder / "target")
    assert json.loads((folder / "target" / "generation_config.json").read_text())["eos_token_id"] == ENDS
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "pool.toml").write_text(POOL.format(dtype=dtype), encoding="utf-8")
    return folder
