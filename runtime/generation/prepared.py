"""Models that are checked and laid out once for many calls of `generate()`."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput

from ...runs.log import RunLog
from ..forward.forward_choice import CHECKED_POSITIONS
from ..forward.fused_support import fused_supports
from ..memory import CacheKind
from ..pools.configs.end_tokens import end_tokens
from ..pools.live_pool import NGRAM, live_pool
from ..pools.loaded_members import LoadedMembers, describe_lookup
from .calls import answered, read_call, streamer_of
from .honoured_options import SamplingMode, shown
from .live_decode import PolicyLike
from .lookup_and_slims import SkipLayers, read_slims

# Positions that are prepared at first, where models have so many; a call that needs more doubles them.
_FIRST_CONTEXT = 2048

# Values of each weight by which changes are noticed.
_MARKED = 8

Marks = list[tuple[object, ...]]


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
    if isinstance(assistant_models, Mapping):
        if assistant_names is not None:
            raise ValueError(f"assistant_names must be left out where assistants have names, got {assistant_names!r}")
        assistant_names, assistant_models = list(assistant_models), list(assistant_models.values())
    listed = assistant_models if isinstance(assistant_models, Sequence) else ()
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
        self._pool, self._marks = self._made(CHECKED_POSITIONS)

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        *,
        logits_processor: Sequence[object],
        stopping_criteria: Sequence[object],
        generation_config: GenerationConfig,
        policy: PolicyLike | None = None,
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
        call = read_call(
            input_ids,
            generation_config,
            inputs,
            streamer=streamer_of(inspect.currentframe()),
            processors=logits_processor,
            criteria=stopping_criteria,
            stop_strings=stop_strings,
            tokenizer=self._tokenizer,
            policy=policy,
            sampling=sampling,
            kv_cache=kv_cache,
            kv_limit_bytes=kv_limit_bytes,
            on_log=on_log,
        )
        if call.longest_context > self._pool.context_tokens or self._marks != _marks(self._models):
            self._pool = self._pool.without_forwards()  # whose copies need not lie beside the new ones
            self._pool, self._marks = self._made(call.longest_context)
        lookup = None if call.lookup is None else describe_lookup(NGRAM, call.lookup)
        return answered(call, self._pool.for_texts(eos_token_ids=call.limits.eos, lookup=lookup))

    def _made(self, context_tokens: int) -> tuple[LoadedMembers, Marks]:
        try:
            pool = self._make(_room(context_tokens, self._models))
        except ValueError:  # some models have fewer positions than their config names first
            pool = self._make(context_tokens)
        for level, member in enumerate(pool.members):
            if member.model is not None:
                pool.forward(level, "auto", share_weights=False)
        return pool, _marks(self._models)


def _marks(models: Iterable[PreTrainedModel]) -> Marks:
    """What tells whether models were changed: how they run, where weights lie, and some of their values.

    Values, as fused optimizers and writers to `.data` do not tell torch of what they write.
    """
    marks: Marks = []
    for model in models:
        marks.append((model.training, model.config._attn_implementation, fused_supports(model)))
        weights = [tensor.detach() for tensor in model.state_dict(keep_vars=True).values()]
        marks += [(weight.data_ptr(), weight.shape, weight.stride()) for weight in weights]
        some = torch.cat([_some(weight.reshape(1, *weight.shape)) for weight in weights if weight.numel()])
        marks.append(tuple(some.view(torch.int64).tolist()))  # by their bits, as NaN is not itself
    return marks


def _some(weight: Tensor) -> Tensor:
    """A few values from all over a weight, in float64, in which every float and small integer keeps its value."""
    places = torch.linspace(0, weight.numel() - 1, _MARKED).long()
    return weight[torch.unravel_index(places.to(weight.device), weight.shape)].double().cpu()


def _room(context_tokens: int, models: Iterable[PreTrainedModel]) -> int:
    """Positions to prepare for a context: a power of two, as far as the models have so many."""
    most = min(getattr(model.config, "max_position_embeddings", None) or math.inf for model in models)
    room = _FIRST_CONTEXT
    while room < context_tokens:
        room *= 2
    return int(max(context_tokens, min(room, most)))
