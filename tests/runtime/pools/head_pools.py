"""A pool whose drafter says a part of the vocabulary, by the embeddings of its target."""

import json

from safetensors.torch import load_file, save_file

from ...word_models import LLAMA, VOCABULARY, model, words
from .making import at, write

SAID = list(range(0, VOCABULARY, 3))
SHARES = 'embeddings_of = "target"\n'
PART = 'vocabulary = "said.json"\n'


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
