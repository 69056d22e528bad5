"""A trained model as the folder of a pool member."""

import copy
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from ...whole_files import write_whole
from .checkpoint import write_tensors
from .recipe import Recipe


def export_model(model: LlamaForCausalLM, folder: Path) -> None:
    """Write `config.json` and the weights in bfloat16; the tied output matrix is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.dtype = "bfloat16"
    write_whole(folder / "config.json", config.to_json_string())
    tensors = {name: tensor.detach().to(torch.bfloat16) for name, tensor in model.named_parameters()}
    write_tensors(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_pool_file(recipe: Recipe, path: Path) -> None:
    """Write `pool.toml`: lookup, draft, mid, slim, target."""
    members = "".join(
        f'\n[[members]]\nname = "{name}"\npath = "{name}"\ndtype = "float32"\ndevice = "cpu"\n'
        if name != "slim"
        else f'\n[[members]]\nname = "slim"\nsubmodel_of = "target"\nskip_layers = {list(recipe.skip_layers)}\n'
        for name in ("draft", "mid", "slim", "target")
    )
    head = f'name = "{recipe.name}"\ntokenizer = "tokenizer.json"\ncontext_tokens = {recipe.context_tokens}\n'
    lookup = '\n[[members]]\nname = "ngram"\nngram = { max_match = 3 }\n'
    write_whole(path, head + lookup + members)
