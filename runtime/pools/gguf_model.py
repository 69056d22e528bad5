"""Weights of a GGUF file, written as transformers reads them: safetensors, config, tokenizer and chat template."""

from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from .loading import LOAD_ERRORS
from .parts import quiet_loading
from .published import FetchError


def convert(gguf: Path, folder: Path, *, architecture: str) -> None:
    """Write the model of a GGUF file, which must be of `architecture`, into an empty folder.

    Weights that the file holds in few bits (Q4_1: one of 16 steps from the least of 32 weights to the greatest) are
    written as float32, in which they are unpacked.

    Raises:
        FetchError: a file that is cut short, no GGUF, or of another architecture.
        OSError: no room.
    """
    found = _architecture(gguf)
    if found != architecture:
        raise FetchError(f"{gguf}: general.architecture must be {architecture}, got {found!r}")
    try:
        # What transformers unpacks it shows on a bar of its own, whatever it is told.
        with quiet_loading(), redirect_stderr(StringIO()):
            where: dict[str, Any] = {"gguf_file": gguf.name, "trust_remote_code": False}
            tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), **where)
            model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), dtype=torch.float32, **where)
    except LOAD_ERRORS as error:
        raise FetchError(f"{gguf}: cannot be read ({' '.join(str(error).split())})") from error
    # What is written is no GGUF any more.
    model.config.__dict__.pop("quantization_config", None)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tied = set(model.all_tied_weights_keys)
    weights = {name: weight.contiguous() for name, weight in model.state_dict().items() if name not in tied}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _architecture(gguf: Path) -> object:
    try:
        field = GGUFReader(gguf).fields.get("general.architecture")
    except (ValueError, IndexError, OverflowError) as error:
        raise FetchError(f"{gguf}: must be a whole GGUF file ({' '.join(str(error).split())})") from None
    return None if field is None else field.contents()
