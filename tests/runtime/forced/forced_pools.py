"""Forced pools of tiny models, and the recording of a tiny pool for them."""

import json

from paceline.runtime.forced import ForcedPool

# Fewer tokens than the recording has, so that ids have to be brought within.
VOCABULARY = 40
MEMBERS = ("ngram", "draft", "mid", "slim", "target")


def write_tiny_forced_pool(folder, *, context_tokens=256, extra="", lookup="{ max_match = 3 }"):
    """`ngram`, `draft`, `mid`, `slim` and `target`, as `tiny_pool_of_four` has them but for the vocabulary."""
    folder.mkdir(exist_ok=True)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "max_position_embeddings": 256}
    for layers in (1, 2, 4):
        config = {"model_type": "llama", "vocab_size": VOCABULARY, "num_hidden_layers": layers, **sizes}
        (folder / f"{layers}.json").write_text(json.dumps(config), encoding="utf-8")
    members = {
        "ngram": f"ngram = {lookup}",
        "draft": 'config = "1.json"',
        "mid": 'config = "2.json"',
        "slim": 'submodel_of = "target"\nskip_layers = [2]',
        "target": 'config = "4.json"',
    }
    head = f'name = "tiny forced"\ncontext_tokens = {context_tokens}\n{extra}'
    text = "".join(f'\n[[members]]\nname = "{name}"\n{keys}\n' for name, keys in members.items())
    (folder / "pool.toml").write_text(head + text, encoding="utf-8")
    return folder


def tiny_forced_pool(folder, **changes) -> ForcedPool:
    return ForcedPool.load(write_tiny_forced_pool(folder, **changes))
