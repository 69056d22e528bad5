"""Models made ready once for many calls of `generate()`, and the drafters of a pool for a model of your own."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput

from ..base.errors import ArgumentError
from ..base.files import pool_path
from ..runs.log import RunLog
from .forward_choice import CHECKED_POSITIONS
from .forward_kinds import CacheKind
from .generate import (
    Marks,
    PolicyLike,
    SamplingMode,
    SkipLayers,
    answered,
    check_autocast,
    marks_of,
    read_call,
    read_slims,
    shown,
    streamer_of,
)
from .pools.configs import end_tokens, give_head, read_member_config
from .pools.loading import load_model
from .pools.members import NGRAM, LoadedMembers, describe_lookup, live_pool, loaded_pool
from .pools.pool_file import MemberEntry, PoolFile, read_pool_file


def load_assistants(
    pool: Path | str, model: PreTrainedModel, *, names: Sequence[str] | None = None
) -> dict[str, PreTrainedModel]:
    """Load a pool's drafters as `assistant_models` for a model like the pool's target.

    Args:
        pool: a pool file, its folder, or the name of a pool that comes with the package.
        model: in place of the target: drafters that use the target's embeddings use the model's, and all are of its
            dtype and on its device. Not changed.
        names: of the drafters; None for all that `generate()` can take: models with the pool's tokenizer that read
            tokens alone.

    Returns:
        By name, smallest first as in the pool file.

    Raises:
        ArgumentError: a name that is none of these, or a model that is not like the pool's target.
        PoolFileError: as of `ModelPool.load`.
    """
    if not isinstance(pool, str | Path):
        raise ArgumentError(f"`pool` must be a path or a name, got {type(pool).__name__}")
    if not isinstance(model, PreTrainedModel):
        raise ArgumentError(f"`model` must be one of transformers, got {type(model).__name__}")
    file, content = read_pool_file(pool_path(pool))
    fitting = {row: entry for row, entry in enumerate(content.members[:-1]) if _fits(entry, content)}
    known = [entry.name for entry in fitting.values()]
    if isinstance(names, str):
        raise ArgumentError(f"`names` must be a list of names, got {names!r}")
    for name in () if names is None else names:
        if name not in known:
            raise ArgumentError(
                f"`names` must be drafters of {file} ({', '.join(known) or 'there are none'}), got {name!r}"
            )
    _check_target(file, content, model)
    return {
        entry.name: _loaded(file, row, entry, content.context_tokens, model)
        for row, entry in fitting.items()
        if names is None or entry.name in names
    }


def _fits(entry: MemberEntry, content: PoolFile) -> bool:
    """Whether it is a whole model that reads tokens only, with its own or the target's embeddings."""
    foreign = entry.tokenizer is not None or entry.tp_plan is not None or entry.features_of is not None
    return entry.path is not None and not foreign and entry.embeddings_of in (None, content.members[-1].name)


def _check_target(file: Path, content: PoolFile, model: PreTrainedModel) -> None:
    target = content.members[-1]
    assert target.path is not None  # a target is a model
    config = read_member_config(
        file, f"members[{len(content.members) - 1}].path", target.path, context_tokens=content.context_tokens
    ).config
    for size in ("vocab_size", "hidden_size", "num_hidden_layers"):
        expected, found = getattr(config, size), getattr(model.config, size, None)
        if found != expected:
            raise ArgumentError(f"`model` must have the {size} of the target of {file}, {expected}, got {found}")


def _loaded(file: Path, row: int, entry: MemberEntry, context_tokens: int, model: PreTrainedModel) -> PreTrainedModel:
    assert entry.path is not None
    field, dtype = f"members[{row}]", str(model.dtype).removeprefix("torch.")
    placed = entry.model_copy(update={"dtype": dtype, "device": str(model.device)})
    config = read_member_config(file, f"{field}.path", entry.path, context_tokens=context_tokens)
    drafter = load_model(file, field, placed, config)
    give_head(file, row, placed, drafter, None if entry.embeddings_of is None else model)
    return drafter


# Positions prepared at first, if the models have as many; calls that need more double them.
_FIRST_CONTEXT = 2048


def prepare(
    model: PreTrainedModel,
    assistant_models: Sequence[PreTrainedModel] | Mapping[str, PreTrainedModel] = (),
    *,
    skip_layers: SkipLayers | None = None,
    assistant_names: Sequence[str] | None = None,
    assistant_tokenizers: Sequence[object] | None = None,
    target_tokenizer: object = None,
    copy_weights: bool = True,
) -> "Prepared":
    """Check models and choose how they run, once: the result goes into `generate()` as `custom_generate`.

    Every call of `generate(custom_generate=paceline.generate)` makes its pool again. No model is changed here either.

    Args:
        model: the target, whose `generate()` will be called.
        assistant_models: smaller models in any order, or by the names that policies call them (as `load_assistants`
            gives them); none is needed.
        skip_layers: layers of the model that a submodel of it, `slim`, leaves out; or such lists by name.
        assistant_names: of a list of assistants; default `assistant0` ... from the smallest.
        assistant_tokenizers: tokenizers of assistants that do not share the model's, None for the others.
        target_tokenizer: the model's; for stop strings and foreign assistants.
        copy_weights: keep copies of weights on CPUs in the layouts that are quickest there, as much memory again as the
            models take at most; without, only products of the weights as they are laid out are used.

    Raises:
        ValueError: models or options that are not honoured.
    """
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"model must be one of transformers, got {type(model).__name__}")
    if not isinstance(copy_weights, bool):
        raise ValueError(f"copy_weights must be True or False, got {shown(copy_weights)}")
    check_autocast(model)
    listed = assistant_models.values() if isinstance(assistant_models, Mapping) else assistant_models
    listed = listed if isinstance(listed, Iterable) else ()
    models = [one for one in (model, *listed) if isinstance(one, PreTrainedModel)]  # `live_pool` rejects others
    slims = read_slims(skip_layers)

    def make(context_tokens: int) -> LoadedMembers:
        return live_pool(
            model,
            assistant_models,
            slims=slims,
            context_tokens=context_tokens,
            eos_token_ids=end_tokens(model),
            names=assistant_names,
            target_tokenizer=target_tokenizer,
            assistant_tokenizers=assistant_tokenizers,
            copy_weights=copy_weights,
        )

    return Prepared(models, make, target_tokenizer)


class Prepared:
    """The result of `prepare`; called by `generate()`.

    Mutated by calls: if models were changed, or a text is longer than any before, they are prepared again.

    Args:
        models: the target first.
        make: makes the pool for contexts of a number of tokens.
        tokenizer: of the target, for stop strings; None: there is none.

    Raises:
        ValueError: models that cannot be used.
    """

    def __init__(
        self, models: Sequence[PreTrainedModel], make: Callable[[int], LoadedMembers], tokenizer: object
    ) -> None:
        self._models, self._make, self._tokenizer = tuple(models), make, tokenizer
        self._pool: LoadedMembers | None = None
        self._marks: Marks = []
        self._make_ready(CHECKED_POSITIONS)

    def __repr__(self) -> str:
        names = [] if self._pool is None else [member.name for member in self._pool.members]
        return f"models prepared for generate(): {', '.join(names)}"

    def __reduce__(self) -> NoReturn:
        raise TypeError("prepared models cannot be copied or pickled: paceline.prepare makes them of the copied models")

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        *,
        logits_processor: Sequence[object],
        stopping_criteria: Sequence[object],
        generation_config: GenerationConfig,
        policy: PolicyLike | None = None,
        target_tokenizer: object = None,
        stop_strings: str | Sequence[str] | None = None,
        sampling: SamplingMode | None = None,
        kv_cache: CacheKind = "slots",
        kv_limit_bytes: int | None = None,
        on_log: Callable[[RunLog], None] | None = None,
        **inputs: object,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """See `generate`, whose options these are.

        Raises:
            ValueError: as of `generate`, and for the `generate()` of another model.
            PolicyError: the policy broke the contract.
        """
        if model is not self._models[0]:
            raise ValueError(f"custom_generate must be prepared for the model that generates, got {shown(model)}")
        check_autocast(model)
        call = read_call(
            input_ids,
            generation_config,
            inputs,
            streamer=streamer_of(inspect.currentframe()),
            processors=logits_processor,
            criteria=stopping_criteria,
            stop_strings=stop_strings,
            tokenizer=self._tokenizer if target_tokenizer is None else target_tokenizer,
            policy=policy,
            sampling=sampling,
            kv_cache=kv_cache,
            kv_limit_bytes=kv_limit_bytes,
            on_log=on_log,
        )
        lookup = None if call.lookup is None else describe_lookup(NGRAM, call.lookup)
        pool = self._ready(call.longest_context)
        return answered(call, pool.for_texts(eos_token_ids=call.eos, lookup=lookup))

    def _ready(self, context_tokens: int) -> LoadedMembers:
        """The models with room for a context: those prepared before, if they still fit."""
        unchanged = self._marks == marks_of(self._models)
        if self._pool is not None and unchanged and context_tokens <= self._pool.context_tokens:
            return self._pool
        return self._make_ready(context_tokens)

    def _make_ready(self, context_tokens: int) -> LoadedMembers:
        try:
            pool = self._make(_room(context_tokens, self._models))
        except ValueError:  # some models have fewer positions than their config names first
            pool = self._make(context_tokens)
        loaded_pool(pool)  # checks that names differ
        self._pool = None  # frees its copies of weights before new ones are made
        for level, member in enumerate(pool.members):
            if member.model is not None:
                pool.forward(level, "auto", share_weights=False)
        self._pool, self._marks = pool, marks_of(self._models)
        return pool


def _room(context_tokens: int, models: Iterable[PreTrainedModel]) -> int:
    """Positions to prepare for a context: a power of two, at most the models' positions."""
    most = min(getattr(model.config, "max_position_embeddings", None) or math.inf for model in models)
    room = _FIRST_CONTEXT
    while room < context_tokens:
        room *= 2
    return int(max(context_tokens, min(room, most)))
