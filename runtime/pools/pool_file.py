"""The pool file: which models a chain may be built from, as TOML, with the settings of prompt lookup."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...base.files import shipped_names
from ...base.toml import TomlFileError, checked_toml, read_toml
from ...decoding.prompt_lookup import LookupRule, Occurrence
from .published import TOKENIZER, fetched


class NgramEntry(BaseModel):
    """Model-free lookup of the latest tokens in the context itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_match: Annotated[int, Field(ge=1, strict=True)]  # longest run of newest tokens that is looked up
    min_match: Annotated[int, Field(ge=1, strict=True)] = 1  # shortest one, 1 to `max_match`
    occurrence: Occurrence = "last"  # which earlier occurrence is copied from (see `decoding.prompt_lookup`)

    @model_validator(mode="after")
    def _check_matches(self) -> Self:
        if self.min_match > self.max_match:
            raise ValueError(f"must have a min_match of at most max_match, {self.max_match}, not {self.min_match}")
        return self

    @property
    def rule(self) -> LookupRule:
        """How the lookup finds what to copy."""
        return LookupRule(max_match=self.max_match, min_match=self.min_match, occurrence=self.occurrence)


POOL_FILE_NAME = "pool.toml"
CONFIG = "config"  # the key by which a member makes its pool a forced one
NOT_BOTH = {
    "embeddings_of": ("tokenizer", "tp_plan"),
    "vocabulary": ("tokenizer", "tp_plan"),
    "features_of": ("tokenizer", "tp_plan", "embeddings_of"),
}
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class PoolFileError(TomlFileError):
    """One thing that is wrong with a pool file or with what it points to."""


class MemberEntry(BaseModel):
    """One member; exactly one of `path`, `config`, `submodel_of` and `ngram` is set.

    Files are relative to the pool file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    # unique in the pool; safe inside the chain notation `draft:4/target`
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    path: str | None = None  # folder, or a hub id
    # of a model with random weights, in a forced pool only: a preset's name, or a config.json or its folder
    config: Annotated[str, Field(min_length=1)] | None = None
    submodel_of: str | None = None  # name of the member whose weights this one shares
    # layers of that member which are left out; counted from 0
    skip_layers: tuple[Annotated[int, Field(ge=0, strict=True)], ...] = ()
    # of a submodel with changed weights: a safetensors file (`pools.low_rank`)
    low_rank: Annotated[str, Field(min_length=1)] | None = None
    ngram: NgramEntry | None = None  # settings of the model-free member
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"  # of the weights in memory
    device: str = "cpu"  # a torch device, such as `cpu` or `cuda:0`
    # `auto` splits the model over the processes of torchrun, by the plan that transformers has for it
    tp_plan: Literal["auto"] | None = None
    # name of the member whose token embeddings and output head a model uses, as its weights have none
    embeddings_of: str | None = None
    # name of the target, of a model that drafts from its last hidden states and uses its embeddings
    features_of: str | None = None
    # of a model that drafts only some tokens: a file, a JSON list of their ids
    vocabulary: Annotated[str, Field(min_length=1)] | None = None
    # of a model that does not share the pool's: a file or a hub id; it and its submodels draft, and cannot verify
    tokenizer: Annotated[str, Field(min_length=1)] | None = None

    @property
    def kind(self) -> Literal["model", "submodel", "ngram"]:
        """What it is."""
        return "ngram" if self.ngram is not None else "submodel" if self.submodel_of is not None else "model"

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        given = [kind for kind in ("path", CONFIG, "submodel_of", "ngram") if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"must have exactly one of path, config, submodel_of and ngram, not {len(given)}")
        for key in ("skip_layers", "low_rank"):
            if self.submodel_of is None and key in self.model_fields_set:
                raise ValueError(f"may have {key} only beside submodel_of")
        if self.submodel_of is not None and {"dtype", "device"} & self.model_fields_set:
            raise ValueError("takes dtype and device from submodel_of")
        for key in ("tokenizer", "tp_plan", "embeddings_of", "features_of", "vocabulary"):
            if self.path is None and getattr(self, key) is not None:
                raise ValueError(f"may have a {key} only beside path")
        for key, others in NOT_BOTH.items():
            for other in others:
                if getattr(self, key) is not None and getattr(self, other) is not None:
                    raise ValueError(f"may not have both {key} and {other}")
        return self

    @property
    def shares(self) -> tuple[str, str] | None:
        """The key that names the member whose embeddings this one uses, and its name; None where it has its own."""
        for key in ("embeddings_of", "features_of"):
            name: str | None = getattr(self, key)
            if name is not None:
                return key, name
        return None


class PoolContent(BaseModel):
    """The common content of pool files."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1)]
    context_tokens: Annotated[int, Field(ge=1, strict=True)]  # longest context the pool is used with
    members: tuple[MemberEntry, ...]  # smallest first, the target last


class PoolFile(PoolContent):
    """The content of a pool file."""

    tokenizer: Annotated[str, Field(min_length=1)]  # file relative to the pool file, or a hub id
    # of the target's generation_config.json; otherwise an option that changes texts is rejected
    ignore_generation_options: tuple[Annotated[str, Field(min_length=1)], ...] = ()


class ForcedPoolFile(PoolContent):
    """The content of the file of a forced pool, whose models have random weights."""

    seed: Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)] = 0  # of the weights
    # of all members; None: each config's
    vocab_size: Annotated[int, Field(ge=1, le=100_000_000, strict=True)] | None = None


Content = TypeVar("Content", bound=PoolContent)


def read_pool_file(path: Path) -> tuple[Path, PoolFile]:
    """Read the pool file at `path`, or in the folder `path`; returns the path of the file itself and its content.

    Raises:
        PoolFileError: if the file is missing, is no TOML, breaks a rule, or is that of a forced pool.
    """
    file, values = _read(path)
    for row, member in enumerate(_members_in(values)):
        if CONFIG in member:
            rule = "makes this a forced pool, of random weights, which only profile and validate run"
            raise PoolFileError(file, f"members[{row}].{CONFIG}", rule, member[CONFIG])
    return file, _checked(file, values, PoolFile)


def is_forced_pool(path: Path) -> bool:
    """Whether a member of the pool file at `path`, or in the folder `path`, has a config instead of weights.

    Raises:
        PoolFileError: the file is missing or no TOML.
    """
    return any(CONFIG in member for member in _members_in(_read(path)[1]))


def read_forced_pool_file(path: Path) -> tuple[Path, ForcedPoolFile]:
    """Read the file of a forced pool at `path`, or in the folder `path`; returns and raises as `read_pool_file`."""
    file, values = _read(path)
    return file, checked_forced_pool(file, values)


def checked_forced_pool(file: Path, values: dict[str, Any]) -> ForcedPoolFile:
    """The content for the file of a forced pool; raises PoolFileError where it breaks a rule."""
    content = _checked(file, values, ForcedPoolFile)
    for row, member in enumerate(content.members):
        for key in ("path", "low_rank"):
            if getattr(member, key) is not None:
                rule = "must not stand in a forced pool, whose other models have a config"
                raise PoolFileError(file, f"members[{row}].{key}", rule, getattr(member, key))
    return content


def _read(path: Path) -> tuple[Path, dict[str, Any]]:
    file = path / POOL_FILE_NAME if path.is_dir() else path
    if not file.is_file():
        named = ", ".join(shipped_names("pools"))
        rule = f"must be a folder with {POOL_FILE_NAME}, such a file, or the name of a shipped pool ({named})"
        raise PoolFileError(file, "pool", rule, str(path))
    return file, read_toml(file, "pool file", PoolFileError)


def _members_in(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The members of an unchecked file that are tables."""
    members = values.get("members")
    return [member for member in members if isinstance(member, dict)] if isinstance(members, list) else []


def _checked(file: Path, values: dict[str, Any], kind: type[Content]) -> Content:
    content = checked_toml(file, values, kind, PoolFileError)
    _check_members(file, content.members, CONFIG if isinstance(content, ForcedPoolFile) else "path")
    return content


def tokenizer_sha256(pool: Path) -> str:
    """Hash of a pool's tokenizer file, as recordings store it; no model is loaded.

    Raises:
        PoolFileError: the pool file is wrong, or its tokenizer is not a local file.
    """
    file, content = read_pool_file(pool)
    path, here = file.parent / content.tokenizer, fetched(content.tokenizer)
    if not path.is_file() and here is not None:
        path = here / TOKENIZER
    if not path.is_file():
        raise PoolFileError(file, "tokenizer", "must be a local file to be compared", content.tokenizer)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check_members(file: Path, members: tuple[MemberEntry, ...], weights: str) -> None:
    """The rules between members that need no model; `weights` is the key of a member with its own."""
    if not members:
        raise PoolFileError(file, "members", "must hold at least one member", [])
    for row, field, rule, value in chain(_broken_rules(members, weights), _broken_rules_of_heads(members)):
        raise PoolFileError(file, f"members[{row}]{field}", rule, value)


def _broken_rules(members: tuple[MemberEntry, ...], weights: str) -> Iterator[tuple[int, str, str, object]]:
    """(row, field, rule, value) of each broken one."""
    counts = Counter(member.name for member in members)
    for row, member in enumerate(members):
        if counts[member.name] > 1:
            yield row, ".name", "must be unique", member.name
        if member.ngram is not None and row > 0:
            yield row, ".ngram", "only the first member may be model-free", member.name
    named = {member.name: member for member in members}
    models = [member.name for member in members if member.kind == "model"]
    for row, member in enumerate(members):
        if member.submodel_of is not None and member.submodel_of not in models:
            yield row, ".submodel_of", f"must be a member with a {weights} ({', '.join(models)})", member.submodel_of
        if member.submodel_of is not None and named[member.submodel_of].vocabulary is not None:
            rule = "must not be a member that says only a part of the vocabulary"
            yield row, ".submodel_of", rule, member.submodel_of
        if member.low_rank is not None and member.submodel_of and named[member.submodel_of].tp_plan is not None:
            yield row, ".low_rank", "must not be given for a submodel of a member that is split", member.low_rank
        if len(set(member.skip_layers)) < len(member.skip_layers):
            yield row, ".skip_layers", "must not repeat a layer", member.skip_layers
    last, target = len(members) - 1, members[-1]
    if target.kind != "model":
        yield last, "", f"must be the target, a model with a {weights}", target.name
    if target.tokenizer is not None:
        yield last, ".tokenizer", "must not be given for the target, whose tokenizer is the pool's", target.tokenizer


def _broken_rules_of_heads(members: tuple[MemberEntry, ...]) -> Iterator[tuple[int, str, str, object]]:
    """As `_broken_rules`, for embeddings and states of another member, and for a part of the vocabulary."""
    for key in ("embeddings_of", "features_of", "vocabulary"):
        if (value := getattr(members[-1], key)) is not None:
            rule = "must not be given for the target, which says every token by weights of its own"
            yield len(members) - 1, f".{key}", rule, value
    whole = [entry.name for entry in members if entry.path and not (entry.shares or entry.vocabulary)]
    readers = [entry.name for entry in members if entry.features_of is not None]
    for row, entry in enumerate(members):
        if entry.embeddings_of is not None and entry.embeddings_of not in whole:
            rule = f"must be a member with a path and embeddings of its own ({', '.join(whole)})"
            yield row, ".embeddings_of", rule, entry.embeddings_of
        if entry.features_of is not None and entry.features_of != members[-1].name:
            yield row, ".features_of", f"must be the target ({members[-1].name})", entry.features_of
        if entry.features_of is not None and entry.name != readers[0]:
            yield row, ".features_of", f"must be given for one member, and {readers[0]} has it", entry.features_of
        if entry.submodel_of in readers:
            yield row, ".submodel_of", "must not be a member that drafts from the target's states", entry.submodel_of
