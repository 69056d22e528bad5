"""Models that are checked and laid out once for many calls of `generate()`."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput

from ...runs.log import RunLog
from ..forward.forward_choice import CHECKED_POSITIONS
from ..memory import CacheKind
from ..pools.configs.end_tokens import end_tokens
from ..pools.live_pool import NGRAM, live_pool
from ..pools.loaded_members import LoadedMembers, describe_lookup, loaded_pool
from .calls import answered, read_call, streamer_of
from .honoured_options import SamplingMode, check_autocast, shown
from .live_decode import PolicyLike
from .lookup_and_slims import SkipLayers, read_slims
from .marks import Marks, marks_of

# Positions that are prepared at first, where models have so many; a call that needs more doubles them.
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

    Every call of `generate(custom_generate=paceline.generate)` makes its pool anew. No model is changed here either.

    Args:
        model: the target, whose `generate()` will be called.
        assistant_models: smaller models in any order, or by the names that policies call them (as `load_assistants`
            gives them); none is needed.
        skip_layers: layers of the model that a submodel of it, `slim`, leaves out; or such lists by name.
        assistant_names: of a list of assistants; default `assistant0` ... from the smallest.
        assistant_tokenizers: tokenizers of assistants that do not share the model's, None for the others.
        target_tokenizer: the model's; for stop strings and foreign assistants.
        copy_weights: keep copies of weights on CPUs in the layouts that are quickest there, as much memory again as the
            models take at most; without, only products of the weights as they stand are used.

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
    models = [one for one in (model, *listed) if isinstance(one, PreTrainedModel)]  # `live_pool` refuses others
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
    """What `prepare` gives; called by `generate()`.

    Mutated by calls: where models were changed, or a text is longer than any before, they are prepared anew.

    Args:
        models: the target first.
        make: puts them together for contexts of so many tokens.
        tokenizer: of the target, for stop strings; None for none.

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
        return answered(call, pool.for_texts(eos_token_ids=call.limits.eos, lookup=lookup))

    def _ready(self, context_tokens: int) -> LoadedMembers:
        """The models with room for a context: as they were made ready before, if that holds."""
        unchanged = self._marks == marks_of(self._models)
        if self._pool is not None and unchanged and context_tokens <= self._pool.context_tokens:
            return self._pool
        return self._make_ready(context_tokens)

    def _make_ready(self, context_tokens: int) -> LoadedMembers:
        """Put the models together and choose how they run."""
        try:
            pool = self._make(_room(context_tokens, self._models))
        except ValueError:  # some models have fewer positions than their config names first
            pool = self._make(context_tokens)
        loaded_pool(pool)  # names must differ
        self._pool = None  # whose copies of weights need not lie beside new ones
        for level, member in enumerate(pool.members):
            if member.model is not None:
                pool.forward(level, "auto", share_weights=False)
        self._pool, self._marks = pool, marks_of(self._models)
        return pool


def _room(context_tokens: int, models: Iterable[PreTrainedModel]) -> int:
    """Positions to prepare for a context: a power of two, as far as the models have so many."""
    most = min(getattr(model.config, "max_position_embeddings", None) or math.inf for model in models)
    room = _FIRST_CONTEXT
    while room < context_tokens:
        room *= 2
    return int(max(context_tokens, min(room, most)))
