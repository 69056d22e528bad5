"""Models that learn from a target's own dialogues: small drafters, drafters from its states, restored submodels.

The target writes the questions too: it continues first words in the user's place, then answers, as for Magpie's
instructions (Xu et al. 2024, arXiv:2406.08464). Its answers are what a drafter has to predict. Texts are on disk in
shards, each whole or absent.

Drafters begin as layers of their target and read and write tokens by its embeddings. One that reads the target's states
reads its own beyond the judged tokens, so it learns from these too, as in HASS (Zhang et al. 2024, arXiv:2408.15766)
and the training-time test of EAGLE-3 (Li et al. 2025, arXiv:2503.01840). Pass d gives at every position the output at
depth d + 1: it reads the state of pass d - 1 one position before, and attends to keys and values as in decoding, those
of pass 0 up to d positions before, then one of each later pass.

Submodels learn to replace the layers that they leave out, by a product of small rank beside each weight, W + B A (LoRA,
Hu et al. 2021, arXiv:2106.09685). B is 0 at first, so that a submodel begins unchanged. The norms in its layers are
learned too; the target's weights and the final norm are fixed.

Letters: B texts of a batch, T tokens of the longest one or of a text, W width of the target, K tokens of the head or
learned, P positions of all texts of a batch; R rank, I and O inputs and outputs of a weight.
"""

import copy
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from paceline.base.terminal import tracked
from paceline.runtime.features import INPUT, give_input
from paceline.runtime.forward import cache_argument
from paceline.runtime.pools.chat_template import ChatTemplate
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError
from paceline.runtime.pools.submodels import LAYERS_PREFIX, make_submodel
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from .recipe import Distillation, Drafter, Schedule
from .training import TrainingRun, layers_of, run_training, write_tensors
from .writing import write_texts


def states_at_depths(student: PreTrainedModel, embedded: Tensor, states: Tensor, num_depths: int) -> Iterator[Tensor]:
    """A feature student's states `[B, T, W]` at depths 1, 2, ... of tokens and target's states `[B, T, W]`."""
    length = embedded.shape[1]
    cache: Any = DynamicCache()
    for depth in range(num_depths):
        before = functional.pad(states, (0, 0, 1, 0))[:, :-1]
        output = student.base_model(
            inputs_embeds=student.get_submodule(INPUT)(torch.cat([embedded, before], dim=-1)),
            position_ids=torch.arange(length, device=states.device)[None],
            attention_mask=_seen(length, depth, states.device)[None, None],
            use_cache=True, **{cache_argument(student): cache},
        )  # fmt: skip
        states = output.last_hidden_state
        yield states


def _seen(length: int, depth: int, device: torch.device) -> Tensor:
    """`[T, (depth + 1) T]` which keys of all passes the queries of this one attend to; each to its own at least."""
    places = torch.arange(length, device=device)
    rows, columns = places[:, None], places[None]
    own = [columns == rows - depth + number for number in range(1, depth + 1)]
    return torch.cat([columns <= rows - depth, *own], dim=-1)


def begin_student(target: PreTrainedModel, num_layers: int, intermediate_size: int | None = None) -> PreTrainedModel:
    """A model of some of the target's layers, evenly spaced from the first on, and its final norm.

    Narrower feed-forward layers have the target's units with the largest weights.
    """
    last = len(layers_of(target)) - 1
    sources = [place * last // max(1, num_layers - 1) for place in range(num_layers)]
    return _of_layers(target, sources, intermediate_size)


def begin_feature_student(target: PreTrainedModel, intermediate_size: int | None = None) -> PreTrainedModel:
    """A model of the target's last layer and final norm, whose input layer adds embedding and state."""
    student = _of_layers(target, [len(layers_of(target)) - 1], intermediate_size)
    one = torch.eye(int(target.config.hidden_size), device=target.device)
    give_input(student, torch.cat([one, one], dim=-1))
    student.get_submodule(INPUT).requires_grad_()
    return student


def drafter_config(target: PreTrainedModel, num_layers: int, intermediate_size: int | None = None) -> PreTrainedConfig:
    """The target's config with `num_layers` layers, perhaps narrower ones, and without embeddings of its own."""
    config: Any = copy.deepcopy(target.config)
    config.num_hidden_layers, config.tie_word_embeddings = num_layers, True
    config.intermediate_size = intermediate_size or config.intermediate_size
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[:num_layers]
    made: PreTrainedConfig = config
    return made


def _of_layers(target: PreTrainedModel, sources: list[int], intermediate_size: int | None) -> PreTrainedModel:
    config: Any = drafter_config(target, len(sources), intermediate_size)
    config.vocab_size, config.pad_token_id = 1, None
    student: PreTrainedModel = AutoModelForCausalLM.from_config(config).to(target.device)
    for layer, source in zip(layers_of(student), sources, strict=True):
        layer.load_state_dict(_narrowed(layers_of(target)[source].state_dict(), config.intermediate_size))
    student.base_model.norm.load_state_dict(target.base_model.norm.state_dict())
    return student


_UP, _GATE, _DOWN = "mlp.up_proj", "mlp.gate_proj", "mlp.down_proj"


def _narrowed(weights: Mapping[str, Tensor], num_units: int) -> dict[str, Tensor]:
    """A layer's weights with `num_units` units of its feed-forward layer: those with the largest products of norms."""
    norms = [weights[f"{_UP}.weight"].norm(dim=1), weights[f"{_GATE}.weight"].norm(dim=1)]
    size = norms[0] * norms[1] * weights[f"{_DOWN}.weight"].norm(dim=0)
    kept = size.topk(num_units).indices.sort().values
    return {
        name: weight[kept] if name.startswith((_UP, _GATE))
        else weight[:, kept] if name == f"{_DOWN}.weight" else weight
        for name, weight in weights.items()
    }  # fmt: skip


_MARK = "{question}"


@dataclass(frozen=True, slots=True)
class Text:
    """A dialogue to learn from."""

    tag: str  # kind of question
    question: str
    tokens: Tensor  # int64 `[T]`
    answer_at: int  # place of the answer's first token
    # float16 `[T - 1, W]`, the target's last hidden states (after the final norm), of all tokens except the last; the
    # state at i gives the distribution of token i + 1
    states: Tensor


def write_dialogues(pool: ModelPool, writer: PreTrainedModel, recipe: Distillation, shard: int) -> list[Text]:
    """The dialogues of shard number `shard`; questions that do not end in time, or are repeated, are left out.

    Raises:
        PoolFileError: a chat template that does not contain a question unchanged.
        ValueError: no question ended.
    """
    rng = random.Random(f"{recipe.seed}/{shard}")
    asked = _ask(pool, writer, recipe, rng)
    rng.shuffle(asked)
    # All in one batch, as wide products are faster.
    num_sampled = round(recipe.sampled_share * len(asked))
    temperatures = [recipe.answer_temperature] * num_sampled + [0.0] * (len(asked) - num_sampled)
    return _answer(pool, writer, recipe, asked, temperatures, seed=rng.randrange(2**31))


def _ask(pool: ModelPool, writer: PreTrainedModel, recipe: Distillation, rng: random.Random) -> list[tuple[str, str]]:
    """(tag, text) of different questions."""
    before = _before(pool.chat)
    tags = rng.choices(list(recipe.tasks), [task.share for task in recipe.tasks.values()], k=recipe.shard_rows)
    openings = [rng.choice(recipe.tasks[tag].openings) for tag in tags]
    begun = [list(pool.tokenizer.encode(before + opening, add_special_tokens=False).ids) for opening in openings]
    written = write_texts(
        writer, begun, num_tokens=recipe.question_tokens, temperature=recipe.question_temperature,
        seed=rng.randrange(2**31), end_token_ids=pool.eos_token_ids,
    )  # fmt: skip
    questions = {
        (opening + pool.decode(text[:-1])).strip(): tag
        for tag, opening, text in zip(tags, openings, written, strict=True)
        if text[-1] in pool.eos_token_ids
    }
    if not questions:
        raise ValueError(
            f"recipe {recipe.name}: no question of {recipe.shard_rows} ended in {recipe.question_tokens} tokens"
        )
    return [(tag, question) for question, tag in questions.items()]


def _before(chat: ChatTemplate | None) -> str:
    """The text before a question; raises PoolFileError for a template that does not contain it unchanged."""
    assert chat is not None  # the pool was loaded with one
    before, mark, after = chat.asked(_MARK).partition(_MARK)
    if not mark or _MARK in after:
        raise PoolFileError(chat.place, "chat template", "must hold a question once, as it is", f"{before}{after}")
    return before


def _answer(
    pool: ModelPool,
    writer: PreTrainedModel,
    recipe: Distillation,
    asked: list[tuple[str, str]],
    temperatures: list[float],
    seed: int,
) -> list[Text]:
    prompts = [pool.encode(question) for _, question in asked]
    answers = write_texts(
        writer, prompts, num_tokens=recipe.answer_tokens, temperature=temperatures, seed=seed,
        end_token_ids=pool.eos_token_ids,
    )  # fmt: skip
    tokens = [
        torch.tensor([*prompt, *answer], device=writer.device) for prompt, answer in zip(prompts, answers, strict=True)
    ]
    return [
        Text(tag, question, its, len(prompt), states)
        for (tag, question), prompt, its, states in zip(asked, prompts, tokens, states_of(writer, tokens), strict=True)
    ]


# Padded tokens of a forward at most, by kind of device: a GPU is fast with many, a CPU with what its caches hold.
SCORED_TOKENS = {"cpu": 4096, "cuda": 65536}


def write_shards(pool: ModelPool, writer: PreTrainedModel, recipe: Distillation, folder: Path, numbers: range) -> None:
    """Write the missing shards; `writer` is the pool's target in the dtype for writing."""
    missing = [shard for shard in numbers if not _path(folder, shard).exists()]
    for shard in tracked(missing, "writing", total=len(missing), unit="shards"):
        _write_shard(_path(folder, shard), write_dialogues(pool, writer, recipe, shard))


def read_shards(recipe: Distillation, folder: Path, device: str = "cpu") -> list[Text]:
    """All texts, in the order of the shards, on a device."""
    return [text for shard in range(recipe.num_shards) for text in _read_shard(_path(folder, shard), device)]


def split_texts(texts: list[Text], recipe: Distillation) -> tuple[list[Text], list[Text]]:
    """(texts to learn from, the last ones, which are held out); of equal questions only the first one is used.

    Raises ValueError if too few are left.
    """
    first: dict[str, Text] = {}
    for text in texts:
        first.setdefault(text.question, text)
    if len(first) <= recipe.held_out_rows:
        raise ValueError(
            f"recipe {recipe.name} must hold out fewer than {len(first)} texts, got {recipe.held_out_rows}"
        )
    different = list(first.values())
    return different[: -recipe.held_out_rows], different[-recipe.held_out_rows :]


def _path(folder: Path, shard: int) -> Path:
    return folder / f"shard{shard:03d}.safetensors"


def _write_shard(path: Path, dialogues: list[Text]) -> None:
    told = [
        {"tag": each.tag, "question": each.question, "answer_at": each.answer_at, "num_tokens": len(each.tokens)}
        for each in dialogues
    ]
    tokens = torch.cat([each.tokens.int() for each in dialogues])
    states = torch.cat([each.states for each in dialogues])
    write_tensors({"tokens": tokens, "states": states}, path, metadata={"dialogues": json.dumps(told)})


def _read_shard(path: Path, device: str) -> Iterator[Text]:
    with safe_open(path, framework="pt") as file:
        told = json.loads(file.metadata()["dialogues"])
        tokens, states = file.get_tensor("tokens").to(device).long(), file.get_tensor("states").to(device)
    first = 0
    for row, each in enumerate(told):
        last = first + each["num_tokens"]
        # A dialogue has one state less than tokens.
        own = states[first - row : last - row - 1]
        yield Text(each["tag"], each["question"], tokens[first:last], each["answer_at"], own)
        first = last


@torch.no_grad()
def states_of(writer: PreTrainedModel, texts: Sequence[Tensor]) -> list[Tensor]:
    """The target's last hidden states, each `[T - 1, W]`, of texts of similar length together."""
    found: dict[int, Tensor] = {}
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    while order:
        num_rows = max(1, SCORED_TOKENS[writer.device.type] // len(texts[order[-1]]))
        rows, order = order[-num_rows:], order[:-num_rows]
        tokens = pad_sequence([texts[row][:-1] for row in rows], batch_first=True)
        states = writer.base_model(input_ids=tokens, use_cache=False).last_hidden_state.half()
        found |= {row: own[: len(texts[row]) - 1] for row, own in zip(rows, states, strict=True)}
    return [found[row] for row in range(len(texts))]


def common_tokens(texts: Sequence[Text], num_tokens: int, ends: Sequence[int]) -> list[int]:
    """The most frequent tokens of the answers, at most `num_tokens`, ascending; including those that end a text."""
    counts = Counter(torch.cat([text.tokens[text.answer_at :] for text in texts]).tolist())
    ranked = [*ends, *(token for token, _ in counts.most_common() if token not in ends)]
    return sorted(ranked[:num_tokens])


def train_drafter(
    name: str, student: Drafter, target: PreTrainedModel, texts: Sequence[Text], head: Tensor, recipe: Distillation,
    checkpoint: Path, dtype: torch.dtype,
) -> tuple[PreTrainedModel, TrainingRun]:  # fmt: skip
    """Train a drafter to give the tokens of its head the target's probabilities.

    The target is not changed. `head` `[K, W]` has those rows of its output head, `checkpoint` a file for the state;
    products are computed in `dtype`, weights are float32.
    """
    size = student.intermediate_size
    if student.num_depths:
        model = begin_feature_student(target, size)
    else:
        model = begin_student(target, student.num_layers, size)
    table = target.get_input_embeddings().weight.detach()

    def own_states(picked: Sequence[Text]) -> Iterator[Tensor]:
        return drafter_states(model, student.num_depths, functional.embedding(_padded(picked), table), picked)

    loss_at = _loss(own_states, texts, head, dtype)
    return model, _run(model, loss_at, name, texts, student.course.schedule(len(texts)), recipe, checkpoint)


def _loss(
    own_states: Callable[[Sequence[Text]], Iterator[Tensor]], texts: Sequence[Text], head: Tensor, dtype: torch.dtype
) -> Callable[[int, Tensor], Tensor]:
    """The loss of a step: the mean over the texts of a batch, at each depth.

    Questions are used too: answers alone were too few (it got 79% of them right, and 40% of others).
    """

    def loss_at(_: int, rows: Tensor) -> Tensor:
        picked = [texts[row] for row in rows.tolist()]
        states = torch.cat([text.states for text in picked]).float()
        with torch.autocast(states.device.type, dtype=dtype, enabled=dtype != torch.float32):
            return torch.stack([distance(joined(own, picked), states, head) for own in own_states(picked)]).mean()

    return loss_at


def _run(
    model: PreTrainedModel | nn.ModuleList, loss_at: Callable[[int, Tensor], Tensor], name: str, texts: Sequence[Text],
    schedule: Schedule, recipe: Distillation, checkpoint: Path, optimizers: list[torch.optim.Optimizer] | None = None,
) -> TrainingRun:  # fmt: skip
    return run_training(
        model, loss_at, num_sequences=len(texts), schedule=schedule, recipe=recipe,
        sequence_tokens=round(sum(len(text.tokens) for text in texts) / len(texts)),
        checkpoint=checkpoint, stage=name, optimizers=optimizers,
    )  # fmt: skip


def _padded(texts: Sequence[Text]) -> Tensor:
    """`[B, T]`, all tokens except the last. Padding follows a text, so a causal model needs no mask."""
    return pad_sequence([text.tokens[:-1] for text in texts], batch_first=True)


def drafter_states(
    model: PreTrainedModel, num_depths: int, embedded: Tensor, texts: Sequence[Text]
) -> Iterator[Tensor]:
    """The states `[B, T, W]` from which a drafter predicts the next tokens, at every depth that it learns."""
    if num_depths:
        states = pad_sequence([text.states for text in texts], batch_first=True).float()
        yield from states_at_depths(model, embedded, states, num_depths)
    else:
        yield model.base_model(inputs_embeds=embedded, use_cache=False).last_hidden_state


def joined(own: Tensor, texts: Sequence[Text]) -> Tensor:
    """`[P, W]` of `[B, T, W]`, without padding."""
    lengths = torch.tensor([len(text.states) for text in texts])
    real = (torch.arange(own.shape[1]) < lengths[:, None]).flatten().nonzero().squeeze(-1)
    return own.flatten(0, 1)[real.to(own.device)]


def distance(own: Tensor, states: Tensor, head: Tensor) -> Tensor:
    """Cross-entropy in nats of states `[P, W]` to the target's `[P, W]` over a head `[K, W]`, averaged."""
    with torch.no_grad():
        probs = functional.linear(states, head).float().softmax(-1)
    return functional.cross_entropy(functional.linear(own, head).float(), probs)


def weights_of(model: PreTrainedModel) -> dict[str, Tensor]:
    """A drafter's weights in bfloat16 by name, without embeddings: they are the target's."""
    own = set(map(id, model.get_input_embeddings().parameters()))
    named = model.named_parameters()
    return {name: weight.detach().to(torch.bfloat16) for name, weight in named if id(weight) not in own}


def vocabulary_and_head(pool: ModelPool, texts: Sequence[Text], head_tokens: int) -> tuple[Tensor, Tensor]:
    """Ids `[K]` of the most frequent tokens, at most `head_tokens`, and the target's head for them `[K, W]`."""
    assert pool.target.model is not None
    vocabulary = torch.tensor(common_tokens(texts, head_tokens, pool.eos_token_ids))
    return vocabulary, pool.target.model.get_output_embeddings().weight.detach()[vocabulary]


def write_learned(path: Path, tensors: Mapping[str, Tensor], run: TrainingRun, dtype: torch.dtype) -> None:
    """Write tensors, the figures of their training, and the dtype of its products."""
    told = {"num_tokens": str(run.num_tokens), "seconds": str(run.seconds), "dtype": str(dtype).removeprefix("torch.")}
    write_tensors(dict(tensors), path, metadata=told)


def read_learned(path: Path) -> tuple[dict[str, Tensor], TrainingRun]:
    """The tensors, and the figures of their training."""
    with safe_open(path, framework="pt") as file:
        told = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no dict
    return tensors, TrainingRun(num_tokens=int(told["num_tokens"]), seconds=float(told["seconds"]))


BETAS = (0.9, 0.98)


class Restored(nn.Module):
    """A linear module with a fixed weight and learned A `[R, I]`, random at first, and B `[O, R]`, zeros at first."""

    def __init__(self, linear: nn.Linear, rank: int, *, dtype: torch.dtype, rng: torch.Generator) -> None:
        """Wrap `linear`, whose weight is kept in `dtype`; `rng` draws A."""
        super().__init__()
        self._fixed = (linear.weight.detach().to(dtype), linear.bias)  # a tuple, so that they are no parameters of this
        drawn = torch.randn(rank, linear.in_features, generator=rng) / sqrt(linear.in_features)
        self.A = nn.Parameter(drawn.to(linear.weight.device))
        self.B = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))

    def forward(self, inputs: Tensor) -> Tensor:
        """`[..., O]` of `[..., I]`."""
        weight, bias = self._fixed
        return functional.linear(inputs, weight, bias) + functional.linear(functional.linear(inputs, self.A), self.B)


def begin_restored(
    target: PreTrainedModel, skip_layers: Sequence[int], rank: int, *, dtype: torch.dtype, seed: int
) -> PreTrainedModel:
    """A submodel of the target whose layers can be trained, fixed weights in `dtype`; the target is not changed."""
    model = make_submodel(target, tuple(skip_layers))
    rng = torch.Generator().manual_seed(seed)
    for module in list(layers_of(model).modules()):
        for name, child in list(module.named_children()):
            weight = getattr(child, "weight", None)
            if type(child) is nn.Linear:
                setattr(module, name, Restored(child, rank, dtype=dtype, rng=rng))
            elif isinstance(weight, nn.Parameter):
                child.register_parameter("weight", nn.Parameter(weight.detach().clone()))
    return model


def train_restored(
    name: str, skip_layers: Sequence[int], target: PreTrainedModel, texts: Sequence[Text], head: Tensor,
    recipe: Distillation, checkpoint: Path, dtype: torch.dtype,
) -> tuple[dict[str, Tensor], TrainingRun]:  # fmt: skip
    """Train, as `train_drafter`, a submodel's weights beside the target's; returns them in bfloat16, pools' names."""
    model = begin_restored(target, skip_layers, recipe.restored.rank, dtype=dtype, seed=recipe.seed)
    layers = layers_of(model)
    optimizer = torch.optim.AdamW(layers.parameters(), betas=BETAS, weight_decay=0.0, fused=True)

    def own_states(picked: Sequence[Text]) -> Iterator[Tensor]:
        yield model.base_model(input_ids=_padded(picked), use_cache=False).last_hidden_state

    loss_at = _loss(own_states, texts, head, dtype)
    run = _run(
        layers, loss_at, name, texts, recipe.restored.course.schedule(len(texts)), recipe, checkpoint, [optimizer]
    )
    return learned_by(model, skip_layers), run


def learned_by(model: PreTrainedModel, skip_layers: Sequence[int]) -> dict[str, Tensor]:
    """The learned weights, in bfloat16, by the names of modules in the target."""
    kept = [layer for layer in range(len(layers_of(model)) + len(skip_layers)) if layer not in skip_layers]
    return {
        f"{LAYERS_PREFIX}{kept[place]}.{name}": parameter.detach().to(torch.bfloat16)
        for place, layer in enumerate(layers_of(model))
        for name, parameter in layer.named_parameters()
    }
