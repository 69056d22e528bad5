"""Drafters that read and say tokens by the target's embeddings, so that only their layers are learned.

Letters: B texts of a batch, T tokens of the longest one, H width of the target, K tokens that a drafter can say, P
positions of all texts of a batch.
"""

import copy
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from ..training.architectures import layers_of
from ..training.loop import TrainingRun, run_training
from .recipe import Recipe, Student
from .shards import Text


def common_tokens(texts: Sequence[Text], num_tokens: int, ends: Sequence[int]) -> list[int]:
    """The tokens commonest in the answers, ascending; those that end a text are among them.

    Args:
        texts: to count in.
        num_tokens: how many, fewer where answers hold fewer.
        ends: tokens that end a text.
    """
    counts = Counter(token for text in texts for token in text.tokens[text.answer_at :].tolist())
    ranked = [*ends, *(token for token, _ in counts.most_common() if token not in ends)]
    return sorted(ranked[:num_tokens])


def begin_student(target: PreTrainedModel, num_layers: int) -> PreTrainedModel:
    """A model of some of the target's layers, evenly from the first on, and its final norm, without embeddings."""
    config: Any = drafter_config(target, num_layers)
    config.vocab_size, config.pad_token_id = 1, None
    student: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    last = len(layers_of(target)) - 1
    for place, layer in enumerate(layers_of(student)):
        layer.load_state_dict(layers_of(target)[place * last // max(1, num_layers - 1)].state_dict())
    student.base_model.norm.load_state_dict(target.base_model.norm.state_dict())
    return student


def drafter_config(target: PreTrainedModel, num_layers: int) -> PreTrainedConfig:
    """The target's config with so many layers and without embeddings of its own."""
    config: Any = copy.deepcopy(target.config)
    config.num_hidden_layers, config.tie_word_embeddings = num_layers, True
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[:num_layers]
    made: PreTrainedConfig = config
    return made


def train_student(
    name: str, student: Student, target: PreTrainedModel, texts: Sequence[Text], head: Tensor, recipe: Recipe,
    checkpoint: Path, dtype: torch.dtype,
) -> tuple[PreTrainedModel, TrainingRun]:  # fmt: skip
    """Train a drafter to give the tokens that it can say the probabilities that the target gives them.

    Args:
        name: of the member, for the progress.
        student: its size and schedule.
        target: whose embeddings it uses; not changed.
        texts: to learn from.
        head: `[K, H]`, rows of the target's output head.
        recipe: its seed, and how often the state is written.
        checkpoint: file for the state.
        dtype: that products are computed in; weights are float32.
    """
    model = begin_student(target, student.num_layers)
    table = target.get_input_embeddings().weight.detach()

    def loss_at(_: int, rows: Tensor) -> Tensor:
        picked = [texts[row] for row in rows.tolist()]
        tokens = torch.nn.utils.rnn.pad_sequence([text.tokens[:-1] for text in picked], batch_first=True)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            hidden = model.base_model(inputs_embeds=functional.embedding(tokens, table), use_cache=False)
            # Questions are learned from, too: answers alone were too few (it got 79% of them right, and 40% of others).
            rows_said = zip(picked, hidden.last_hidden_state, strict=True)
            said = torch.cat([own[: len(text.tokens) - 1] for text, own in rows_said])
            states = torch.cat([text.states.float() for text in picked])
            return distance(said, states, head)

    run = run_training(
        model, loss_at, num_sequences=len(texts), schedule=student.schedule, seed=recipe.seed,
        sequence_tokens=round(sum(len(text.tokens) for text in texts) / len(texts)),
        checkpoint_every_s=recipe.checkpoint_every_s, checkpoint=checkpoint, stage=name,
    )  # fmt: skip
    return model, run


def distance(said: Tensor, states: Tensor, head: Tensor) -> Tensor:
    """Cross-entropy in nats to the target's distribution over the head's tokens, in the mean.

    Args:
        said: `[P, H]`, the drafter's states.
        states: `[P, H]`, the target's.
        head: `[K, H]`.
    """
    with torch.no_grad():
        probs = functional.linear(states, head).float().softmax(-1)
    return functional.cross_entropy(functional.linear(said, head).float(), probs)


def weights_of(model: PreTrainedModel) -> dict[str, Tensor]:
    """A drafter's weights in bfloat16 by name, without embeddings: they are the target's."""
    own = set(map(id, model.get_input_embeddings().parameters()))
    named = model.named_parameters()
    return {name: weight.detach().to(torch.bfloat16) for name, weight in named if id(weight) not in own}
