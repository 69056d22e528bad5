"""The models a chain may be built from, loaded and ready to run."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from .pool_file import MemberEntry, PoolFile, PoolFileError, read_pool_file
from .submodel import make_submodel
from .threads import use_threads

# What transformers, safetensors and the hub client raise for files that are missing, cut short or unfit.
LOAD_ERRORS = (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError)
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedMember:
    """One member of a pool.

    Attributes:
        name: name in the pool file.
        kind: a model of its own, some layers of another member, or model-free lookup.
        model: the network; None for `ngram`.
        max_match: longest run that is looked up; None unless `ngram`.
        num_parameters: parameters, tied ones once; a submodel counts what it uses. 0 for `ngram`.
        num_layers: decoder layers; 0 for `ngram`.
        hidden_size: width of the residual stream; 0 for `ngram`.
        kv_bytes_per_token: bytes of keys and values that one context token takes.
        dtype: number format in memory; `none` for `ngram`.
    """

    name: str
    kind: Literal["model", "submodel", "ngram"]
    model: PreTrainedModel | None
    max_match: int | None
    num_parameters: int
    num_layers: int
    hidden_size: int
    kv_bytes_per_token: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPool:
    """A loaded pool file.

    Attributes:
        name: name of the pool.
        members: smallest first, the target last.
        tokenizer: shared by all members.
        tokenizer_sha256: hash of the tokenizer file, or of the serialised tokenizer for a hub id.
        eos_token_id: token that ends a text; the first one where the target's config names several.
        context_tokens: longest context the pool is used with.
    """

    name: str
    members: tuple[LoadedMember, ...]
    tokenizer: Tokenizer
    tokenizer_sha256: str
    eos_token_id: int
    context_tokens: int

    @staticmethod
    def load(path: Path, *, threads: int = 1) -> "ModelPool":
        """Load the pool at `path`, a pool file or its folder.

        Sets the number of CPU threads torch uses in this process.

        Raises:
            PoolFileError: with one line that names the file, the field, the rule and the value.
            ValueError: threads below 1.
        """
        use_threads(threads)
        file, content = read_pool_file(path)
        tokenizer, tokenizer_sha256 = _load_tokenizer(file, content.tokenizer)
        members = _load_members(file, content)
        _check_sizes(file, content, members, tokenizer)
        return ModelPool(
            name=content.name,
            members=members,
            tokenizer=tokenizer,
            tokenizer_sha256=tokenizer_sha256,
            eos_token_id=_eos_token_id(file, members[-1]),
            context_tokens=content.context_tokens,
        )

    @property
    def target(self) -> LoadedMember:
        """The last and largest member."""
        return self.members[-1]

    def member(self, name: str) -> LoadedMember:
        """The member called `name`; raises ValueError if there is none."""
        for member in self.members:
            if member.name == name:
                return member
        known = ", ".join(member.name for member in self.members)
        raise ValueError(f"member must be one of {known}, got {name!r}")

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with the special tokens the tokenizer puts in front, if any."""
        return list(self.tokenizer.encode(text).ids)

    def decode(self, ids: list[int]) -> str:
        """Text of token ids without special tokens."""
        return str(self.tokenizer.decode(ids))


def _load_members(file: Path, content: PoolFile) -> tuple[LoadedMember, ...]:
    """Load the models first, as a submodel may stand before the model it is part of."""
    models: dict[str, PreTrainedModel] = {}
    for row, entry in enumerate(content.members):
        if entry.path is not None:
            models[entry.name] = _load_model(file, f"members[{row}]", entry, entry.path)
    for row, entry in enumerate(content.members):
        if entry.submodel_of is not None:
            try:
                models[entry.name] = make_submodel(models[entry.submodel_of], entry.skip_layers)
            except ValueError as error:
                raise PoolFileError(
                    file, f"members[{row}].skip_layers", str(error).partition(", got ")[0], entry.skip_layers
                ) from error
    return tuple(_describe(entry, models.get(entry.name)) for entry in content.members)


def _load_model(file: Path, field: str, entry: MemberEntry, location: str) -> PreTrainedModel:
    folder = _resolve(file, f"{field}.path", location)
    device = _usable_device(file, f"{field}.device", entry.device)
    try:
        with _quiet_loading():
            model, info = AutoModelForCausalLM.from_pretrained(
                str(folder),
                dtype=getattr(torch, entry.dtype),
                attn_implementation="sdpa",
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except LOAD_ERRORS as error:
        reason = " ".join(str(error).split())
        raise PoolFileError(file, f"{field}.path", f"cannot be loaded ({reason})", location) from error
    if info["missing_keys"]:
        rule = f"must hold every weight ({min(info['missing_keys'])} is missing)"
        raise PoolFileError(file, f"{field}.path", rule, location)
    loaded: PreTrainedModel = model.to(device).eval().requires_grad_(requires_grad=False)
    return loaded


@contextmanager
def _quiet_loading() -> Iterator[None]:
    """Keep transformers from drawing a bar or a report of its own; what fails to load is said in one line."""
    was_enabled, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if was_enabled:
            logging.enable_progress_bar()


def _resolve(file: Path, field: str, location: str) -> Path | str:
    """A folder with a config beside the pool file, or else a hub id."""
    folder = file.parent / location
    if folder.is_dir():
        for needed in ("config.json", "model.safetensors"):
            sharded = folder / f"{needed}.index.json"
            if not (folder / needed).is_file() and not sharded.is_file():
                raise PoolFileError(file, field, f"must be a folder that holds {needed}", location)
        return folder
    if not HUB_ID.fullmatch(location):
        raise PoolFileError(file, field, "must be an existing folder or a hub id (owner/name)", location)
    return location


def _usable_device(file: Path, field: str, name: str) -> torch.device:
    """Fails for unknown devices, absent ones, and for `meta`, which holds no values."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        raise PoolFileError(file, field, "must be a device of this machine", name) from error
    return device


def _load_tokenizer(file: Path, location: str) -> tuple[Tokenizer, str]:
    local = file.parent / location
    if not local.is_file() and (location.endswith(".json") or not HUB_ID.fullmatch(location)):
        raise PoolFileError(file, "tokenizer", "must be an existing file or a hub id (owner/name)", location)
    try:
        if local.is_file():
            return Tokenizer.from_file(str(local)), hashlib.sha256(local.read_bytes()).hexdigest()
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(location, trust_remote_code=False).backend_tokenizer
    # The tokenizers package raises bare Exception for a file it cannot read.
    except Exception as error:
        raise PoolFileError(file, "tokenizer", f"cannot be loaded ({error})", location) from error
    return tokenizer, hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


def _describe(entry: MemberEntry, model: PreTrainedModel | None) -> LoadedMember:
    if model is None:
        return LoadedMember(
            name=entry.name,
            kind="ngram",
            model=None,
            max_match=entry.ngram.max_match if entry.ngram else None,
            num_parameters=0,
            num_layers=0,
            hidden_size=0,
            kv_bytes_per_token=0,
            dtype="none",
        )
    return LoadedMember(
        name=entry.name,
        kind="model" if entry.submodel_of is None else "submodel",
        model=model,
        max_match=None,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        num_layers=int(model.config.num_hidden_layers),
        hidden_size=int(model.config.hidden_size),
        kv_bytes_per_token=_kv_bytes_per_token(model),
        dtype=str(model.dtype).removeprefix("torch."),
    )


def _kv_bytes_per_token(model: PreTrainedModel) -> int:
    """Keys and values of every layer; grouped heads are stored once per group."""
    config: Any = model.config
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    num_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return int(2 * config.num_hidden_layers * num_heads * head_size * model.dtype.itemsize)


def _check_sizes(file: Path, content: PoolFile, members: tuple[LoadedMember, ...], tokenizer: Tokenizer) -> None:
    """The rules between members that need the models."""
    target: Any = members[-1].model
    vocabulary_size = int(target.config.vocab_size)
    if tokenizer.get_vocab_size() > vocabulary_size:
        rule = f"must not have more tokens than the target ({vocabulary_size})"
        raise PoolFileError(file, "tokenizer", rule, tokenizer.get_vocab_size())
    largest = 0
    for row, member in enumerate(members):
        if member.model is None:
            continue
        config: Any = member.model.config
        if config.vocab_size != vocabulary_size:
            rule = f"must have the target's vocabulary size ({vocabulary_size})"
            raise PoolFileError(file, f"members[{row}]", rule, int(config.vocab_size))
        if content.context_tokens > config.max_position_embeddings:
            rule = f"must be <= {config.max_position_embeddings}, the positions of {member.name}"
            raise PoolFileError(file, "context_tokens", rule, content.context_tokens)
    for row, member in enumerate(members):
        if member.num_parameters < largest:
            rule = f"must stand in order of parameters ({largest} before {member.num_parameters})"
            raise PoolFileError(file, f"members[{row}]", rule, member.name)
        largest = member.num_parameters


def _eos_token_id(file: Path, target: LoadedMember) -> int:
    config: Any = target.model.config if target.model is not None else None
    eos = config.eos_token_id
    first = eos[0] if isinstance(eos, list) and eos else eos
    if not isinstance(first, int):
        raise PoolFileError(file, f"members: {target.name}", "must name an eos_token_id in config.json", eos)
    return first
