"""The models a chain may be built from, loaded and ready to run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedModel

from ...base.errors import ArgumentError, check_least, counted
from ..prompts import Prompt
from ..ranks import Ranks, ranks_of
from ..threads import use_threads
from .chat_template import ChatTemplate, read_chat_template
from .configs import (
    MemberConfig,
    check_configs,
    check_order,
    check_own_tokenizer,
    end_tokens_of_target,
    give_head,
    left_off_of_target,
    named_in,
    read_member_configs,
    submodel_of,
)
from .loading import load_model
from .members import LoadedMember, LoadedMembers, describe_entry, on_devices
from .pool_file import PoolFile, read_pool_file
from .published import fetched_origin
from .tokenizer_files import load_member_tokenizers, load_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPool(LoadedMembers):
    """A loaded pool file; `eos_token_ids`, one at least, are those at which the target's `generate()` stops."""

    name: str
    tokenizer: Tokenizer  # shared by all members but foreign ones
    tokenizer_sha256: str  # hash of the tokenizer file, or of the serialised tokenizer for a hub id
    chat: ChatTemplate | None = None  # renders prompts as questions of a dialogue; None: they are texts to continue
    # by member, the source of weights that `pool fetch` fetched, in words
    fetched: Mapping[str, str] = field(default_factory=dict)
    # options of the target's generation config that the pool file ignores, with their values
    left_off: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def load(
        path: Path, *, threads: int = 1, devices: Mapping[str, str] | None = None, chat: bool = False
    ) -> "ModelPool":
        """Load the pool at `path`, a pool file or its folder.

        Sets the number of CPU threads (>= 1) torch uses in this process. `devices` are of members by name, in place of
        the file's. `chat` renders prompts as questions, by the chat template of the pool's tokenizer.

        Raises:
            PoolFileError: with one line that names the file, the field, the rule and the value.
            RuntimeError: a process that should hold a part of a model does not start.
            ArgumentError: threads below 1, or devices that this machine lacks or of members without weights.
        """
        use_threads(threads)
        file, read = read_pool_file(path)
        content = on_devices(read, devices or {})
        tokenizer, tokenizer_sha256 = load_tokenizer(file, "tokenizer", content.tokenizer)
        template = read_chat_template(file, content.tokenizer) if chat else None
        configs = read_member_configs(file, content)
        check_configs(file, content, configs, tokenizer)
        end_tokens_of_target(content, configs)
        left_off = left_off_of_target(file, content, configs)
        ranks = ranks_of(file, content)
        members = _load_members(file, content, configs, ranks)
        check_order(file, [member.name for member in members], [member.num_parameters for member in members])
        pool = ModelPool(
            name=content.name,
            members=members,
            tokenizer=tokenizer,
            tokenizer_sha256=tokenizer_sha256,
            eos_token_ids=members[-1].eos_token_ids,
            context_tokens=content.context_tokens,
            ranks=ranks,
            chat=template,
            fetched=_fetched(content, configs),
            left_off=left_off,
        )
        for row, (entry, member) in enumerate(zip(content.members, members, strict=True)):
            if entry.tokenizer is not None and member.tokenizer is not None:
                target = content.members[-1].name
                check_own_tokenizer(file, row, entry, member.tokenizer, configs, target=target, tokenizer=tokenizer)
        return pool

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with the tokenizer's leading special tokens, if any; in a chat as a question."""
        if self.chat is not None:  # a template places special tokens itself
            return list(self.tokenizer.encode(self.chat.asked(text), add_special_tokens=False).ids)
        return list(self.tokenizer.encode(text).ids)

    def tokens_of(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[tuple[int, ...]]:
        """Token ids of prompts that are to be answered together.

        Raises:
            ArgumentError: `max_new_tokens` below 1, a repeated id, or a prompt that has no token to continue from, or
                does not fit into the pool's context with its answer.
        """
        check_least("`max_new_tokens`", max_new_tokens, 1)
        tokens: dict[str, tuple[int, ...]] = {}
        for prompt in prompts:
            name = prompt.request_id
            if name in tokens:
                raise ArgumentError(f"`prompts` must have unique ids, got {name!r} twice")
            tokens[name] = tuple(self.encode(prompt.text))
            if not tokens[name]:
                rule = "prompt must give at least one token, and the pool's tokenizer makes none"
                raise ArgumentError(f"request {name}: {rule} of {prompt.text!r}")
            if len(tokens[name]) + max_new_tokens > self.context_tokens:
                raise ArgumentError(
                    f"request {name}: prompt of {counted(len(tokens[name]), 'token')} and `max_new_tokens` "
                    f"{max_new_tokens} must fit into the pool's context of {self.context_tokens} tokens"
                )
        return list(tokens.values())

    def decode(self, ids: list[int]) -> str:
        """Text of token ids without special tokens."""
        return str(self.tokenizer.decode(ids))


def _fetched(content: PoolFile, configs: Mapping[str, MemberConfig]) -> dict[str, str]:
    found = {
        entry.name: fetched_origin(entry.path, configs[entry.name].location)
        for entry in content.members
        if entry.path is not None
    }
    return {name: origin for name, origin in found.items() if origin is not None}


def _load_members(
    file: Path, content: PoolFile, configs: Mapping[str, MemberConfig], ranks: Ranks | None
) -> tuple[LoadedMember, ...]:
    """Load the models first, as a submodel may come before its model."""
    models: dict[str, PreTrainedModel] = {}
    for row, entry in enumerate(content.members):
        if entry.name in configs:
            models[entry.name] = load_model(file, f"members[{row}]", entry, configs[entry.name], ranks)
    for row, entry in enumerate(content.members):
        if entry.name in models:
            owner = None if entry.shares is None else models[entry.shares[1]]
            give_head(file, row, entry, models[entry.name], owner)
    for row, entry in enumerate(content.members):
        if entry.submodel_of is not None:
            models[entry.name] = submodel_of(file, row, entry, models[entry.submodel_of])
    tokenizers = load_member_tokenizers(file, content)
    members = []
    for row, entry in enumerate(content.members):
        with named_in(file, f"members[{row}]", entry.path or entry.name):
            members.append(describe_entry(entry, models.get(entry.name), tokenizers.get(entry.name)))
    return tuple(members)
