"""A recording's metadata of its models: sizes, experts, and the rule of prompt lookup."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from ...base.errors import ArgumentError
from ...traces.meta import Experts, ModelInfo, NgramInfo, Windowed
from ..forward import layer_windows
from ..pools.heads import SubsetHead
from ..pools.members import LoadedMember, table_of_its_own

# Names in configs of the number of experts of a layer, and of those per token.
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts")
_LAYER = re.compile(r"\.(\d+)\.")


def model_info(member: LoadedMember, *, submodel_of: str | None = None) -> ModelInfo:
    """The metadata of a member with a model; `submodel_of` names the one whose weights it shares.

    Raises:
        ArgumentError: a mixture of experts whose sizes cannot be derived.
    """
    assert member.model is not None
    return ModelInfo(
        name=member.name,
        parameters=member.num_parameters,
        layers=member.num_layers,
        hidden_size=member.hidden_size,
        kv_bytes_per_token=member.kv_bytes_per_token,
        dtype=member.dtype,
        submodel_of=submodel_of,
        experts=experts_of(member.model, member.name),
        attention_size=_attention_size(member.model.config),
        kv_heads=member.kv_heads,
        embedding_parameters=_looked_up(member.model),
        windowed=_windowed(member.model.config),
    )


def _windowed(config: PreTrainedConfig) -> Windowed | None:
    windows = [window for window in layer_windows(config) if window is not None]
    return Windowed(layers=len(windows), tokens=windows[0]) if windows else None


def _attention_size(config: PreTrainedConfig) -> int | None:
    """Outputs of all heads where they are said not to be as wide as the hidden size; of plain attention alone."""
    heads, size = getattr(config, "num_attention_heads", None), getattr(config, "head_dim", None)
    if not isinstance(heads, int) or not isinstance(size, int) or getattr(config, "kv_lora_rank", None) is not None:
        return None
    return None if heads * size == config.hidden_size else heads * size


def _looked_up(model: PreTrainedModel) -> int | None:
    """Parameters that a forward only looks up, as `num_parameters` counts them: not those of another member."""
    table, head = table_of_its_own(model), model.get_output_embeddings()
    return None if table is None or (isinstance(head, SubsetHead) and head.is_of_another) else table.numel()


def experts_of(model: PreTrainedModel, name: str) -> Experts | None:
    """The experts of a model, counted in its weights; None where every token goes through all of them.

    Raises:
        ArgumentError: weights of experts whose layers differ or that are not known, for a member of this name.
    """
    number, per_token = (_count_in(model.config, names) for names in (_EXPERTS, _PER_TOKEN))
    if number is None or number < 2:
        return None
    by_layer: Counter[str] = Counter()
    for layer, count in _of_experts(model, number):
        by_layer[layer] += count
    if not by_layer and not _has_router(model, number):
        return None  # a family that has mixtures too
    sizes = sorted({count / number for count in by_layer.values()})
    if len(sizes) != 1 or per_token is None or not sizes[0].is_integer():
        rule = f"must have experts of one known size in {name}, of whose {number} a token goes through a known number"
        raise ArgumentError(f"a pool to record {rule}, got sizes {sizes} and {per_token} for a token")
    return Experts(number=number, per_token=per_token, layers=len(by_layer), parameters=int(sizes[0]))


def _count_in(config: PreTrainedConfig, names: Iterable[str]) -> int | None:
    """The count that a config has under one of these names, or its part for feed-forward layers; None without one."""
    for values in (config, getattr(config, "ffn_config", None)):
        for name in names:
            found: Any = getattr(values, name, None)
            same = found[0] if isinstance(found, list) and len(set(found)) == 1 else found
            if isinstance(same, int) and not isinstance(same, bool):
                return same
    return None


def _of_experts(model: PreTrainedModel, number: int) -> Iterator[tuple[str, int]]:
    """Layer and parameters of each weight of experts, which holds all experts of a layer one after the other."""
    for name, weight in model.named_parameters():
        parts, layer = name.split("."), _LAYER.search(name)
        if layer is None or any("shared" in part for part in parts):
            continue
        rows, own = weight.shape[0], parts[-2] == "experts" and weight.dim() > 1
        stacked = weight.dim() == 3 and rows == number and "conv" not in name
        flat = weight.dim() == 2 and "experts" in parts and rows > number and rows % number == 0
        if (own and rows == number) or stacked or flat:
            yield name[: layer.end()], weight.numel()


def _has_router(model: PreTrainedModel, number: int) -> bool:
    return any(
        weight.dim() == 2 and weight.shape[0] == number and _LAYER.search(name)
        for name, weight in model.named_parameters()
    )


def ngram_info(members: Iterable[LoadedMember]) -> NgramInfo | None:
    """Of the prompt lookup among them; None if there is none."""
    for member in members:
        rule = member.lookup
        if rule is not None:
            return NgramInfo(
                name=member.name, max_match=rule.max_match, min_match=rule.min_match, occurrence=rule.occurrence
            )
    return None
