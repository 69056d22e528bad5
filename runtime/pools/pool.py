"""The models a chain may be built from, loaded and ready to run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from ..threads import use_threads
from .end_tokens import EOS_FIELD, GENERATION_CONFIG_NAME, EndTokenError
from .loaded_members import LoadedMember, LoadedMembers, describe_model
from .pool_file import HUB_ID, MemberEntry, PoolFile, PoolFileError, read_pool_file
from .submodel import make_submodel
from .tokenizer_loading import load_member_tokenizers, load_tokenizer

# What transformers, safetensors and the hub client raise for files that are missing, cut short or unfit.
LOAD_ERRORS = (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPool(LoadedMembers):
    """A loaded pool file.

    Attributes:
        name: name of the pool.
        tokenizer: shared by all members but foreign ones.
        tokenizer_sha256: hash of the tokenizer file, or of the serialised tokenizer for a hub id.
        eos_token_ids: tokens that end a text, one at least: those that the target's `generate()` stops at.
    """

    name: str
    tokenizer: Tokenizer
    tokenizer_sha256: str

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
        tokenizer, tokenizer_sha256 = load_tokenizer(file, "tokenizer", content.tokenizer)
        members = _load_members(file, content)
        _check_sizes(file, content, members, tokenizer)
        pool = ModelPool(
            name=content.name,
            members=members,
            tokenizer=tokenizer,
            tokenizer_sha256=tokenizer_sha256,
            eos_token_ids=_end_tokens(file, content, members),
            context_tokens=content.context_tokens,
        )
        _check_alignments(file, content, pool)
        return pool

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
    tokenizers = load_member_tokenizers(file, content)
    return tuple(_describe(entry, models.get(entry.name), tokenizers.get(entry.name)) for entry in content.members)


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
                ignore_mismatched_sizes=True,  # refused below, with their names
            )
    except LOAD_ERRORS as error:
        reason = " ".join(str(error).split())
        raise PoolFileError(file, f"{field}.path", f"cannot be loaded ({reason})", location) from error
    if info["missing_keys"]:
        rule = f"must hold every weight ({min(info['missing_keys'])} is missing)"
        raise PoolFileError(file, f"{field}.path", rule, location)
    for name, found, expected in sorted(info["mismatched_keys"]):
        rule = f"must hold weights of the shapes its config names ({name} is {_shape(found)}, not {_shape(expected)})"
        raise PoolFileError(file, f"{field}.path", rule, location)
    loaded: PreTrainedModel = model.to(device).eval().requires_grad_(requires_grad=False)
    return loaded


def _shape(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


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


def _describe(entry: MemberEntry, model: PreTrainedModel | None, tokenizer: Tokenizer | None) -> LoadedMember:
    if model is None:
        return LoadedMember(
            name=entry.name,
            kind="ngram",
            model=None,
            lookup=entry.ngram.rule if entry.ngram else None,
            num_parameters=0,
            num_layers=0,
            hidden_size=0,
            kv_bytes_per_token=0,
            dtype="none",
        )
    return describe_model(entry.name, "model" if entry.submodel_of is None else "submodel", model, tokenizer)


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
        if member.tokenizer is None and config.vocab_size != vocabulary_size:
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


def _check_alignments(file: Path, content: PoolFile, pool: ModelPool) -> None:
    """Every foreign member must fit its own tokenizer, and that the target's."""
    for row, (entry, member) in enumerate(zip(content.members, pool.members, strict=True)):
        if member.tokenizer is None or member.model is None or entry.tokenizer is None:
            continue
        field, config = f"members[{row}].tokenizer", cast("Any", member.model.config)
        if member.tokenizer.get_vocab_size() > config.vocab_size:
            rule = f"must not have more tokens than {member.name} ({config.vocab_size})"
            raise PoolFileError(file, field, rule, member.tokenizer.get_vocab_size())
        try:
            pool.alignment(member.name)
        except ValueError as error:
            raise PoolFileError(file, field, f"cannot be aligned ({error})", entry.tokenizer) from error


def _end_tokens(file: Path, content: PoolFile, members: tuple[LoadedMember, ...]) -> tuple[int, ...]:
    """The target's, one at least; those of every member must be ids of its vocabulary."""
    found: tuple[int, ...] = ()
    for row, (entry, member) in enumerate(zip(content.members, members, strict=True)):
        if entry.path is None:
            continue
        field = f"members[{row}].path"
        try:
            found = member.eos_token_ids
        except EndTokenError as error:
            where = _end_token_file(file.parent / entry.path)
            raise PoolFileError(file, field, f"must hold sound end tokens ({where}: {error})", entry.path) from error
    target = content.members[-1].path or ""
    if not found:
        where = _end_token_file(file.parent / target)
        rule = f"must name the tokens that end a text ({EOS_FIELD} in {where}, where generate() looks)"
        raise PoolFileError(file, f"members[{len(members) - 1}].path", rule, target)
    return found


def _end_token_file(folder: Path) -> str:
    return GENERATION_CONFIG_NAME if (folder / GENERATION_CONFIG_NAME).is_file() else "config.json"
