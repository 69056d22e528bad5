"""What a process of a distillation learned, as a file of the work folder; and the words that it was learned for.

Letters: W width of the target, K tokens whose probabilities are learned.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from ....runtime.pools.pool import ModelPool
from ...training.checkpoint import write_tensors
from ...training.loop import TrainingRun
from ..shards import Text
from .students import common_tokens


def said_and_head(pool: ModelPool, texts: Sequence[Text], head_tokens: int) -> tuple[Tensor, Tensor]:
    """Ids `[K]` of the commonest tokens, as many as `head_tokens` at most, and the target's head for them `[K, W]`."""
    assert pool.target.model is not None
    said = torch.tensor(common_tokens(texts, head_tokens, pool.eos_token_ids))
    return said, pool.target.model.get_output_embeddings().weight.detach()[said]


def write_learned(path: Path, tensors: Mapping[str, Tensor], run: TrainingRun, dtype: str) -> None:
    """Write tensors, what their training took, and the dtype of its products."""
    told = {"num_tokens": str(run.num_tokens), "seconds": str(run.seconds), "dtype": dtype}
    write_tensors(dict(tensors), path, metadata=told)


def read_learned(path: Path) -> tuple[dict[str, Tensor], TrainingRun]:
    """The tensors, and what their training took."""
    with safe_open(path, framework="pt") as file:
        told = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no dict
    return tensors, TrainingRun(num_tokens=int(told["num_tokens"]), seconds=float(told["seconds"]))
