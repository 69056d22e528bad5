"""The texts that drafters learn from, in parts on disk that are each whole or not there.

Letters: N dialogues of a shard, T tokens of all of them together, W width of the target.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel

from ...progress import tracked
from ...runtime.pools.pool import ModelPool
from ..training.checkpoint import write_tensors
from .dialogues import Dialogue, write_dialogues
from .recipe import Recipe

SCORED_TOKENS = 4096  # padded tokens of a forward at most


@dataclass(frozen=True, slots=True)
class Text:
    """A dialogue to learn from.

    Attributes:
        tag: kind of question.
        question: its text.
        tokens: int64 `[T]`.
        answer_at: place of the answer's first token.
        states: float16 `[T - 1, W]`, the target's last hidden states (after the final norm), of all tokens but the
            last; the state at i gives the distribution of token i + 1.
    """

    tag: str
    question: str
    tokens: Tensor
    answer_at: int
    states: Tensor


def write_shards(pool: ModelPool, writer: PreTrainedModel, recipe: Recipe, folder: Path, numbers: range) -> None:
    """Write what shards are missing.

    Args:
        pool: loaded for a chat.
        writer: its target, in the dtype that it writes in.
        recipe: how many and how.
        folder: of the shards.
        numbers: of those to write.
    """
    missing = [shard for shard in numbers if not _path(folder, shard).exists()]
    for shard in tracked(missing, "writing", total=len(missing), unit="shards"):
        _write_shard(_path(folder, shard), writer, write_dialogues(pool, writer, recipe, shard))


def read_shards(recipe: Recipe, folder: Path) -> list[Text]:
    """All texts, in the order of the shards."""
    return [text for shard in range(recipe.num_shards) for text in _read_shard(_path(folder, shard))]


def parted(texts: list[Text], recipe: Recipe) -> tuple[list[Text], list[Text]]:
    """Texts to learn from, and the last ones, which are held out; raises ValueError where too few are left."""
    if len(texts) <= recipe.held_out_rows:
        raise ValueError(
            f"recipe {recipe.name} must hold out fewer than {len(texts)} texts, got {recipe.held_out_rows}"
        )
    return texts[: -recipe.held_out_rows], texts[-recipe.held_out_rows :]


def _path(folder: Path, shard: int) -> Path:
    return folder / f"shard{shard:03d}.safetensors"


def _write_shard(path: Path, writer: PreTrainedModel, dialogues: list[Dialogue]) -> None:
    told = [
        {"tag": each.tag, "question": each.question, "answer_at": each.answer_at, "num_tokens": len(each.tokens)}
        for each in dialogues
    ]
    tensors = {
        "tokens": torch.tensor([token for each in dialogues for token in each.tokens], dtype=torch.int32),
        "states": torch.cat(_states(writer, [each.tokens for each in dialogues])),
    }
    write_tensors(tensors, path, metadata={"dialogues": json.dumps(told)})


def _read_shard(path: Path) -> Iterator[Text]:
    with safe_open(path, framework="pt") as file:
        told = json.loads(file.metadata()["dialogues"])
        tokens, states = file.get_tensor("tokens").long(), file.get_tensor("states")
    first = 0
    for row, each in enumerate(told):
        last = first + each["num_tokens"]
        # A dialogue has a state less than tokens.
        own = states[first - row : last - row - 1]
        yield Text(each["tag"], each["question"], tokens[first:last], each["answer_at"], own)
        first = last


@torch.no_grad()
def _states(writer: PreTrainedModel, texts: list[tuple[int, ...]]) -> list[Tensor]:
    """The target's last hidden states, each `[T - 1, W]`, of texts of similar length together."""
    found: dict[int, Tensor] = {}
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    while order:
        longest = len(texts[order[-1]])
        rows, order = order[-max(1, SCORED_TOKENS // longest) :], order[: -max(1, SCORED_TOKENS // longest)]
        # Padding stands behind a text, so that a causal model needs no mask.
        tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(texts[row][:-1]) for row in rows], batch_first=True)
        states = writer.base_model(input_ids=tokens, use_cache=False).last_hidden_state.half()
        found |= {row: own[: len(texts[row]) - 1] for row, own in zip(rows, states, strict=True)}
    return [found[row] for row in range(len(texts))]
