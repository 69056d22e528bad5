"""Loads the weights of a pool's member, whose config was checked before."""

import re
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from ..features import give_input, read_input_weight
from ..forward import attention_of, check_masks
from ..ranks import Ranks, check_split, split_options
from ..refusals import in_one_line, in_words
from .configs import MemberConfig, named_in
from .heads import embedding_names, own_embeddings
from .members import device_of
from .pool_file import MemberEntry, PoolFileError
from .tokenizer_files import quiet_loading

# What transformers, safetensors and the hub client raise for files that are missing, cut short or unfit.
LOAD_ERRORS = (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError)
# Names of a wrapper's weights, and of its text part's.
_LAYER = re.compile(r"^(?:model|transformer)\.(?:layers|h)\.(\d+)\.")
_TEXT_PART = {r"^language_model\.lm_head\.": "lm_head.", r"^(model\.)?language_model\.(model\.)?": "model."}


def load_model(
    file: Path, field: str, entry: MemberEntry, config: MemberConfig, ranks: Ranks | None = None
) -> PreTrainedModel:
    """The model of a member, in evaluation mode on its device.

    `field` of the pool file is the member. Each of the processes `ranks`, over which a member with a `tp_plan` is
    split, calls this.

    Raises:
        PoolFileError: no such device, weights that cannot be loaded or are not those that the config names, or a model
            that does not take masks.
    """
    device = device_of(file, field, entry)
    if entry.tp_plan is not None and ranks is not None:
        check_split(file, field, config, ranks.num_ranks)
    try:
        with quiet_loading():
            model, info = config.model_class.from_pretrained(
                str(config.location),
                config=config.config,
                key_mapping=_TEXT_PART if config.is_text_part else None,
                dtype=getattr(torch, entry.dtype),
                attn_implementation=attention_of(config.config),
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # rejected below, with their names
                **split_options(entry, ranks),
            )
    except LOAD_ERRORS as error:
        raise PoolFileError(file, f"{field}.path", f"cannot be loaded ({in_one_line(error)})", entry.path) from error
    _check_held(file, field, entry, model, set(info["missing_keys"]))
    for name, found, expected in sorted(info["mismatched_keys"]):
        other = f"{name} is {in_words(found)}, not {in_words(expected)}"
        rule = f"must hold weights of the shapes its config names ({other})"
        raise PoolFileError(file, f"{field}.path", rule, entry.path)
    _check_all_layers(file, field, entry, model, info["unexpected_keys"])
    if entry.features_of is not None:
        with named_in(file, f"{field}.path", entry.path):
            give_input(model, read_input_weight(config.location))
    # Each rank has its part on its own device already.
    whole = model if entry.tp_plan is not None else model.to(device)
    loaded: PreTrainedModel = whole.eval().requires_grad_(requires_grad=False)
    with named_in(file, f"{field}.path", entry.path):
        check_masks(loaded)
    return loaded


def _check_held(file: Path, field: str, entry: MemberEntry, model: PreTrainedModel, missing: set[str]) -> None:
    """The weights must be complete, except for embeddings that are another member's; raises PoolFileError."""
    if entry.shares is not None:
        key, owner = entry.shares
        held = own_embeddings(model) - missing
        if held:
            rule = f"must be absent where the weights have embeddings of their own ({min(held)})"
            raise PoolFileError(file, f"{field}.{key}", rule, owner)
        missing = missing - embedding_names(model)
    if missing:
        rule = f"must hold every weight ({min(missing)} is missing)"
        raise PoolFileError(file, f"{field}.path", rule, entry.path)


def _check_all_layers(
    file: Path, field: str, entry: MemberEntry, model: PreTrainedModel, unexpected: Iterable[str]
) -> None:
    """The config must name all layers that the weights have; raises PoolFileError."""
    named = int(model.config.num_hidden_layers)
    beyond = [name for name in unexpected if (layer := _LAYER.search(name)) and int(layer[1]) >= named]
    if beyond:
        rule = f"must be weights whose config names all layers, {named} and not more ({min(beyond)} is there)"
        raise PoolFileError(file, f"{field}.path", rule, entry.path)
