"""Weights of a GGUF file, written as transformers reads them: safetensors, config, tokenizer and chat template."""

import json
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, TokenType
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GenerationConfig

from .loading import LOAD_ERRORS
from .published import TOKENIZER, FetchError
from .tokenizer_files import quiet_loading

_OF_TOKENIZER = (
    *(f"tokenizer.ggml.{name}" for name in ("model", "pre", "tokens", "token_type", "merges")),
    *(f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos", "unknown", "padding")),
    "tokenizer.chat_template",
)


def convert(gguf: Path, folder: Path, *, architecture: str) -> None:
    """Write the model of a GGUF file, which must be of `architecture`, into an empty folder.

    Weights that the file holds in few bits (Q4_1: one of 16 steps from the least of 32 weights to the greatest) are
    written as float32, in which they are unpacked.

    Raises:
        FetchError: a file that is cut short, no GGUF, or of another architecture.
        OSError: no room.
    """
    fields = _fields(gguf)
    found = fields.get("general.architecture")
    if found != architecture:
        raise FetchError(f"{gguf}: general.architecture must be {architecture}, got {found!r}")
    tokenizer = _tokenizer(gguf, fields)
    try:
        # transformers shows a bar while it unpacks, whatever is set.
        with quiet_loading(), redirect_stderr(StringIO()):
            where: dict[str, Any] = {"gguf_file": gguf.name, "trust_remote_code": False}
            model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), dtype=torch.float32, **where)
    except LOAD_ERRORS as error:
        raise FetchError(f"{gguf}: cannot be read ({' '.join(str(error).split())})") from error
    # The written model is not a GGUF file.
    model.config.__dict__.pop("quantization_config", None)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    eos, pad = (fields[f"tokenizer.ggml.{name}_token_id"] for name in ("eos", "padding"))
    GenerationConfig(eos_token_id=eos, pad_token_id=pad).save_pretrained(folder)
    (folder / TOKENIZER).write_text(json.dumps(tokenizer, indent=2, ensure_ascii=False), encoding="utf-8")
    _write_config_of_tokenizer(fields, folder)
    tied = set(model.all_tied_weights_keys)
    weights = {name: weight.contiguous() for name, weight in model.state_dict().items() if name not in tied}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _fields(gguf: Path) -> dict[str, Any]:
    try:
        return {name: field.contents() for name, field in GGUFReader(gguf).fields.items()}
    except (ValueError, IndexError, OverflowError) as error:
        raise FetchError(f"{gguf}: must be a whole GGUF file ({' '.join(str(error).split())})") from None


def _tokenizer(gguf: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """The file of a byte-level BPE tokenizer, the same bytes under any installed transformers.

    A recording holds the hash of this file, and transformers' own conversion changes from release to release: that of
    5.17 even takes another token for the end of a text. Digits are not split one by one, as `smollm` would have it:
    transformers never did so, and the recordings and drafters were made with it.
    """
    missing = [name for name in _OF_TOKENIZER if name not in fields]
    if missing:
        raise FetchError(f"{gguf}: {missing[0]} must be there, got none")
    for name, known in (("model", "gpt2"), ("pre", "smollm")):
        if fields[f"tokenizer.ggml.{name}"] != known:
            raise FetchError(f"{gguf}: tokenizer.ggml.{name} must be {known}, got {fields[f'tokenizer.ggml.{name}']!r}")
    other = set(fields["tokenizer.ggml.token_type"]) - {TokenType.NORMAL, TokenType.CONTROL}
    if other:
        raise FetchError(f"{gguf}: tokenizer.ggml.token_type must be 1 or 3 for each token, got {min(other)}")
    tokens = fields["tokenizer.ggml.tokens"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    one, two = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": tokens[number], **flags}
            for number, of_kind in enumerate(fields["tokenizer.ggml.token_type"])
            if of_kind == TokenType.CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": bytes_only,
        "post_processor": {"type": "TemplateProcessing", "single": [one], "pair": [one, two], "special_tokens": {}},
        "decoder": bytes_only | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [pair.split(" ") for pair in fields["tokenizer.ggml.merges"]],
        },
    }


def _write_config_of_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    tokens = fields["tokenizer.ggml.tokens"]
    named = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    config = {f"{ours}_token": tokens[fields[f"tokenizer.ggml.{theirs}_token_id"]] for ours, theirs in named.items()}
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"], encoding="utf-8")
