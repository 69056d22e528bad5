"""A pool whose models are made from configs, with random weights: nothing is read but shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from ...arguments import known_are
from ..forward.forward_choice import ForwardKind
from ..forward.layer_masks import attention_of
from ..forward.model_forward import ModelForward
from ..kv.device_memory import total_bytes
from ..kv.member_kv import KVShape, MemberKV
from ..kv.placement import Placement
from ..kv.slot_cache import SlotCache
from ..pools.configs.member_config import CONFIG as CONFIG_FILE
from ..pools.configs.member_config import MemberConfig, read_config
from ..pools.configs.pool_rules import check_configs, check_order, submodel_of
from ..pools.devices import a_device, usable_device
from ..pools.loaded_members import LoadedMember, LoadedMembers, describe_lookup, describe_model
from ..pools.loading.quiet_loading import quiet_loading
from ..pools.pool_file import CONFIG, ForcedPoolFile, MemberEntry, PoolFileError, read_forced_pool_file
from ..threads import use_threads
from .presets import preset_config, preset_names


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedPool(LoadedMembers):
    """Models of random weights; they write nothing of use, and what is fed to them may be any token id.

    Attributes:
        name: name of the pool.
    """

    name: str

    @property
    def vocab_size(self) -> int:
        """Of all members."""
        model: Any = self.target.model
        return int(model.config.vocab_size)

    @staticmethod
    def load(path: Path, *, threads: int = 1) -> "ForcedPool":
        """Make the models of the forced pool at `path`, a pool file or its folder, each on its device.

        Sets the number of CPU threads torch uses in this process.

        Raises:
            PoolFileError: with one line that names the file, the field, the rule and the value.
            ValueError: threads below 1.
        """
        use_threads(threads)
        file, content = read_forced_pool_file(path)
        configs = _configs(file, content)
        devices = {
            entry.name: _device(file, f"members[{row}].device", entry)
            for row, entry in enumerate(content.members)
            if entry.config is not None
        }
        _check_memory(file, devices, shapes_of(file, content, configs))
        members = _made(file, content, configs, devices)
        return ForcedPool(
            name=content.name,
            members=members,
            tokenizer=None,
            eos_token_ids=(),
            context_tokens=content.context_tokens,
        )

    def forward(self, level: int, kind: ForwardKind, *, share_weights: bool) -> ModelForward:
        """See `LoadedMembers`; token ids beyond the vocabulary are counted from its beginning again."""
        # A class with slots is made anew, which a bare super() does not know.
        return _AnyToken(LoadedMembers.forward(self, level, kind, share_weights=share_weights), self.vocab_size)


class _AnyToken:
    """A forward that takes the token ids of a recording: which row of the embedding is read costs the same."""

    def __init__(self, forward: ModelForward, vocab_size: int) -> None:
        self._forward = forward
        self._vocab_size = vocab_size

    @property
    def name(self) -> str:
        return self._forward.name

    @property
    def kv_shape(self) -> KVShape:
        return self._forward.kv_shape

    # Decisions are told forward by forward.
    whole_draft = None
    whole_verify = None

    def slot_cache(self, *, limit_bytes: int | None = None) -> SlotCache:
        return self._forward.slot_cache(limit_bytes=limit_bytes)

    def __call__(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice) -> Tensor:
        return self._forward(ids.remainder(self._vocab_size), placement, cache, keep)

    def with_states(
        self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice
    ) -> tuple[Tensor, Tensor]:
        return self._forward.with_states(ids.remainder(self._vocab_size), placement, cache, keep)


def shapes_of(
    file: Path, content: ForcedPoolFile, configs: Mapping[str, MemberConfig] | None = None
) -> tuple[LoadedMember, ...]:
    """The members without any weights, for their sizes; raises as `ForcedPool.load`, but for memory.

    Args:
        file: of the pool.
        content: of the file.
        configs: by name, of the members that have one; None reads them.
    """
    known = _configs(file, content) if configs is None else configs
    models = {}
    for entry in content.members:
        if entry.config is not None:
            with torch.device("meta"):
                models[entry.name] = _model(known[entry.name], entry)
    return _members(file, content, models)


def _configs(file: Path, content: ForcedPoolFile) -> dict[str, MemberConfig]:
    found = {}
    for row, entry in enumerate(content.members):
        if entry.config is not None:
            field = f"members[{row}].{CONFIG}"
            config, model_class, place = named_config(file, field, entry.config, content.context_tokens)
            if content.vocab_size is not None:
                config.vocab_size = content.vocab_size
            found[entry.name] = MemberConfig(
                location=place, config=config, model_class=model_class, eos_token_ids=(), generation_file=place
            )
    check_configs(file, content, found, None)
    return found


def named_config(
    file: Path, field: str, text: str, context_tokens: int
) -> tuple[PreTrainedConfig, type[PreTrainedModel], Path]:
    """The config that a pool file names, the class of its model, and the file that it stands in.

    Args:
        file: the pool file.
        field: what of the pool file names it.
        text: a preset, or a config.json or its folder relative to the pool file.
        context_tokens: longest text the model is used with.

    Raises:
        PoolFileError: there is none, or one that cannot be used.
    """
    preset = preset_config(text, context_tokens=context_tokens)
    if preset is not None:
        return preset, MODEL_FOR_CAUSAL_LM_MAPPING[type(preset)], file
    place = file.parent / text
    place = place / CONFIG_FILE if place.is_dir() else place
    if not place.is_file():
        known = known_are(text, preset_names(), where="docs/forced.md")
        raise PoolFileError(file, field, f"must be a {CONFIG_FILE}, its folder or a preset ({known})", text)
    return *read_config(place, context_tokens=context_tokens), place


def _device(file: Path, field: str, entry: MemberEntry) -> torch.device:
    device = usable_device(entry.device)
    if device is None:
        raise PoolFileError(file, field, f"must be {a_device()}", entry.device)
    return device


def _made(
    file: Path, content: ForcedPoolFile, configs: Mapping[str, MemberConfig], devices: Mapping[str, torch.device]
) -> tuple[LoadedMember, ...]:
    """The members with weights: as each model's class begins them, from the pool's seed."""
    models = {}
    for row, entry in enumerate(content.members):
        if entry.config is not None:
            device = devices[entry.name]
            with torch.random.fork_rng([device] if device.type == "cuda" else []), device:
                torch.manual_seed(content.seed + row)
                models[entry.name] = _model(configs[entry.name], entry)
    return _members(file, content, models)


def _model(found: MemberConfig, entry: MemberEntry) -> PreTrainedModel:
    made: Any = found.model_class
    with quiet_loading():
        model: PreTrainedModel = made._from_config(
            found.config, dtype=getattr(torch, entry.dtype), attn_implementation=attention_of(found.config)
        )
    return model.eval().requires_grad_(requires_grad=False)


def _members(file: Path, content: ForcedPoolFile, models: dict[str, PreTrainedModel]) -> tuple[LoadedMember, ...]:
    members = []
    for row, entry in enumerate(content.members):
        if entry.ngram is not None:
            members.append(describe_lookup(entry.name, entry.ngram.rule))
        elif entry.submodel_of is not None:
            slim = submodel_of(file, row, entry, models[entry.submodel_of])
            members.append(describe_model(entry.name, "submodel", slim, None))
        else:
            members.append(describe_model(entry.name, "model", models[entry.name], None))
    check_order(file, [member.name for member in members], [member.num_parameters for member in members])
    return tuple(members)


def _check_memory(file: Path, devices: Mapping[str, torch.device], shapes: Sequence[LoadedMember]) -> None:
    """Refuse weights that some device cannot hold, before any are made; what submodels share counts once."""
    needed: dict[torch.device, int] = {}
    for member in shapes:
        if member.name in devices:
            device = devices[member.name]
            needed[device] = needed.get(device, 0) + member.num_parameters * getattr(torch, member.dtype).itemsize
    for device, num_bytes in needed.items():
        if num_bytes > total_bytes(device):
            rule = f"must have {num_bytes:,} bytes for the weights"
            raise PoolFileError(file, f"device {device}", rule, total_bytes(device))
