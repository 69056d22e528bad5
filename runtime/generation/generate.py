"""Batched multi-level decoding inside `model.generate`: `custom_generate=paceline.generate`."""

import inspect
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput

from ...runs.log import RunLog
from ..forward.forward_choice import CHECKED_POSITIONS
from ..memory import CacheKind
from ..pools.live_pool import live_pool
from .calls import answered, read_call, streamer_of
from .honoured_options import SamplingMode, check_autocast
from .live_decode import PolicyLike
from .lookup_and_slims import SkipLayers, read_slims


def generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    *,
    logits_processor: Sequence[object],
    stopping_criteria: Sequence[object],
    generation_config: GenerationConfig,
    assistant_models: Sequence[PreTrainedModel] | Mapping[str, PreTrainedModel] | None = None,
    skip_layers: SkipLayers | None = None,
    policy: PolicyLike | None = None,
    assistant_names: Sequence[str] | None = None,
    assistant_tokenizers: Sequence[object] | None = None,
    target_tokenizer: object = None,
    stop_strings: str | Sequence[str] | None = None,
    sampling: SamplingMode | None = None,
    kv_cache: CacheKind = "slots",
    kv_limit_bytes: int | None = None,
    on_log: Callable[[RunLog], None] | None = None,
    **inputs: object,
) -> Tensor | GenerateDecoderOnlyOutput:
    """Answer a batch of prompts with a chain of models; `generate()` calls this, users call `generate()`.

    The result is that of `generate()` without `custom_generate`: token for token where it is greedy, in distribution
    where it samples. No model is changed. See docs/transformers.md.

    Args:
        model: the target.
        input_ids: `[B, T]`, padded on the left; with `num_return_sequences` each row so many times, one after another,
            as `generate()` repeats them. Every row has chance of its own.
        logits_processor: as prepared by `generate()`; temperature, top_k and top_p at most.
        stopping_criteria: likewise; length, end-of-sequence tokens and stop strings at most.
        generation_config: likewise.
        assistant_models: smaller models in any order, or by the names that policies call them (as `load_assistants`
            gives them); none is needed.
        skip_layers: layers of the model that a submodel of it, `slim`, leaves out; or such lists by name.
        policy: text, policy object, or class or function that makes one of the pool; default a chain of all there is,
            4 tokens at each handover (of prompt lookup `prompt_lookup_num_tokens`), plain decoding where that is
            nothing.
        assistant_names: of the assistants, as policies call them; default `assistant0` ... from the smallest.
        assistant_tokenizers: tokenizers of assistants that do not share the model's, None for the others.
        target_tokenizer: the model's; for stop strings and foreign assistants (transformers keeps `tokenizer` back).
        stop_strings: texts that end an answer.
        sampling: `rejection` (default) or `coupled`, with `do_sample=True`.
        kv_cache: `slots` or `mask`.
        kv_limit_bytes: of all models' keys and values on a device together; None for whatever the devices have.
        on_log: called with the run log.
        inputs: what else `generate()` prepares for the model.

    Returns:
        `[B, T + longest answer]` ids, or an output with them as `sequences`.

    Raises:
        ValueError: models, options or inputs that are not honoured; a request that fails.
        PolicyError: the policy broke the contract.
    """
    check_autocast(model)
    call = read_call(
        input_ids,
        generation_config,
        inputs,
        streamer=streamer_of(inspect.currentframe()),
        processors=logits_processor,
        criteria=stopping_criteria,
        stop_strings=stop_strings,
        tokenizer=target_tokenizer,
        policy=policy,
        sampling=sampling,
        kv_cache=kv_cache,
        kv_limit_bytes=kv_limit_bytes,
        on_log=on_log,
    )
    pool = live_pool(
        model,
        () if assistant_models is None else assistant_models,
        lookup=call.lookup,
        slims=read_slims(skip_layers),
        context_tokens=max(CHECKED_POSITIONS, call.longest_context),
        eos_token_ids=call.limits.eos,
        names=assistant_names,
        target_tokenizer=target_tokenizer,
        assistant_tokenizers=assistant_tokenizers,
    )
    return answered(call, pool)
