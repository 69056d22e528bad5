"""Drafters that read and say tokens by the target's embeddings, so that only their layers are learned.

Letters: B texts of a batch, T tokens of the longest one, W width of the target, K tokens that a drafter can say, P
positions of all texts of a batch.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from ...training.loop import TrainingRun, run_training
from ..recipe import Recipe, Student
from ..shards import Text
from .depths import states_at_depths
from .first_weights import begin_feature_student, begin_student


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
        head: `[K, W]`, rows of the target's output head.
        recipe: its seed, and how often the state is written.
        checkpoint: file for the state.
        dtype: that products are computed in; weights are float32.
    """
    model = begin_feature_student(target) if student.num_depths else begin_student(target, student.num_layers)
    table = target.get_input_embeddings().weight.detach()

    def loss_at(_: int, rows: Tensor) -> Tensor:
        picked = [texts[row] for row in rows.tolist()]
        embedded = functional.embedding(pad_sequence([text.tokens[:-1] for text in picked], batch_first=True), table)
        states = torch.cat([text.states.float() for text in picked])
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            # Questions are learned from, too: answers alone were too few (it got 79% of them right, and 40% of others).
            said = said_of(model, student.num_depths, embedded, picked)
            return torch.stack([distance(joined(own, picked), states, head) for own in said]).mean()

    run = run_training(
        model, loss_at, num_sequences=len(texts), schedule=student.schedule, seed=recipe.seed,
        sequence_tokens=round(sum(len(text.tokens) for text in texts) / len(texts)),
        checkpoint_every_s=recipe.checkpoint_every_s, checkpoint=checkpoint, stage=name,
    )  # fmt: skip
    return model, run


def said_of(model: PreTrainedModel, num_depths: int, embedded: Tensor, texts: Sequence[Text]) -> Iterator[Tensor]:
    """The states `[B, T, W]` by which a drafter says the next tokens, at every depth that it learns at.

    Args:
        model: the drafter.
        num_depths: that it learns at; 0 if it reads tokens alone.
        embedded: `[B, T, W]` of all tokens but the last.
        texts: B of them.
    """
    if num_depths:
        states = pad_sequence([text.states.float() for text in texts], batch_first=True)
        yield from states_at_depths(model, embedded, states, num_depths)
    else:
        yield model.base_model(inputs_embeds=embedded, use_cache=False).last_hidden_state


def joined(own: Tensor, texts: Sequence[Text]) -> Tensor:
    """`[P, W]` of `[B, T, W]`, without padding."""
    return torch.cat([row[: len(text.states)] for text, row in zip(texts, own, strict=True)])


def distance(said: Tensor, states: Tensor, head: Tensor) -> Tensor:
    """Cross-entropy in nats to the target's distribution over the head's tokens, in the mean.

    Args:
        said: `[P, W]`, the drafter's states.
        states: `[P, W]`, the target's.
        head: `[K, W]`.
    """
    with torch.no_grad():
        probs = functional.linear(states, head).float().softmax(-1)
    return functional.cross_entropy(functional.linear(said, head).float(), probs)


def weights_of(model: PreTrainedModel) -> dict[str, Tensor]:
    """A drafter's weights in bfloat16 by name, without embeddings: they are the target's."""
    own = set(map(id, model.get_input_embeddings().parameters()))
    named = model.named_parameters()
    return {name: weight.detach().to(torch.bfloat16) for name, weight in named if id(weight) not in own}
