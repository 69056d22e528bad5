"""Forced pools of tiny models, and the recording of a tiny pool for them."""

import json

from paceline.runtime.forced import ForcedPool

# Fewer tokens than the recording has, so that ids have to be brought within.
VOCABULARY = 40
MEMBERS = ("ngram", "draft", "mid", "slim", "target")


def write_tiny_forced_pool(folder, *, context_tokens=256, extra="", lookup="{ max_match = 3 }"):
    """`ngram`, `draft`, `mid`, `slim` and `target`, as `tiny_pool_of_four` has them but for the vocabulary."""
    folder.mkdir(exist_ok=True)
    for layers in (1, 2, 4):
        config = {
            "model_type": "llama",
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "max_position_embeddings": 256,
        }
        (folder / f"{layers}.json").write_text(json.dumps(config), encoding="utf-8")
    models = "".join(
        f'\n[[members]]\nname = "{name}"\nconfig = "{layers}.json"\n'
        for name, layers in (("draft", 1), ("mid", 2), ("target", 4))
    )
    slim = '\n[[members]]\nname = "slim"\nsubmodel_of = "target"\nskip_layers = [2]\n'
    head = f'name = "tiny forced"\ncontext_tokens = {context_tokens}\n{extra}'
    ngram = f'\n[[members]]\nname = "ngram"\nngram = {lookup}\n'
    before, target = models.split('\n[[members]]\nname = "target"')
    text = f'{head}{ngram}{before}{slim}\n[[members]]\nname = "target"{target}'
    (folder / "pool.toml").write_text(text, encoding="utf-8")
    return folder


def tiny_forced_pool(folder, **changes) -> ForcedPool:
    return ForcedPool.load(write_tiny_forced_pool(folder, **changes))
