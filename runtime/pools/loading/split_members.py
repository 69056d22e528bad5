"""Members that are split over the processes of torchrun (tensor parallel): what must hold, and how they are loaded."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers.distributed import DistributedConfig

from ....installing import install_hint
from ...ranks.launched import launched
from ...ranks.ranks import Ranks, join
from ..configs.member_config import MemberConfig
from ..pool_file import MemberEntry, PoolFile, PoolFileError

_HEADS = ("num_attention_heads", "num_key_value_heads")


def ranks_of(file: Path, content: PoolFile) -> Ranks | None:
    """The processes that hold the pool together, this one among them; None if no member is split.

    Raises:
        PoolFileError: a single process, or devices that are not each process's own.
        ModuleNotFoundError: transformers lacks what it splits models with.
        ValueError, RuntimeError: as `ranks.join`.
    """
    split = [row for row, entry in enumerate(content.members) if entry.tp_plan is not None]
    if not split:
        return None
    own = launched()
    if own.num_ranks == 1:
        rule = "needs two processes or more (torchrun --nproc-per-node 2 -m paceline run ...)"
        raise PoolFileError(file, f"members[{split[0]}].tp_plan", rule, own.num_ranks)
    if find_spec("accelerate") is None:
        raise ModuleNotFoundError(f"tp_plan needs accelerate: {install_hint('parallel')}")
    here = "cuda" if torch.cuda.is_available() else "cpu"
    for row, entry in enumerate(content.members):
        wanted = (here,) if entry.tp_plan is not None else ("cpu", here)
        if entry.kind == "model" and entry.device not in wanted:
            rule = f"must be {' or '.join(dict.fromkeys(wanted))} in several processes, each of which has its own"
            raise PoolFileError(file, f"members[{row}].device", rule, entry.device)
    return join(own)


def check_split(file: Path, field: str, found: MemberConfig, num_ranks: int) -> None:
    """Raises PoolFileError for a model that cannot be split over so many processes with its keys and values."""
    config: Any = found.config
    plan: dict[str, str] = getattr(config, "base_model_tp_plan", None) or {}
    if not any(name.endswith(".k_proj") and style == "colwise" for name, style in plan.items()):
        rule = "must be left out for a model whose own plan does not split attention by heads"
        raise PoolFileError(file, f"{field}.tp_plan", rule, config.model_type)
    for name in _HEADS:
        if getattr(config, name) % num_ranks:
            rule = f"needs a model whose {name} can be divided by {num_ranks} processes"
            raise PoolFileError(file, f"{field}.tp_plan", rule, getattr(config, name))


def split_options(entry: MemberEntry, ranks: Ranks | None) -> dict[str, object]:
    """What `from_pretrained` needs to know of a member that is split; nothing of others."""
    if entry.tp_plan is None or ranks is None:
        return {}
    return {"distributed_config": DistributedConfig(tp_size=ranks.num_ranks, tp_plan=entry.tp_plan)}
