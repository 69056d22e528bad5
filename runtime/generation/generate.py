"""Batched multi-level decoding inside `model.generate`: `custom_generate=paceline.generate`."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from types import FrameType

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StopStringCriteria,
)
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.streamers import BaseStreamer

from ...decoding.pool import Pool
from ...decoding.request_tokens import Ending
from ...decoding.session import Session
from ...runs.log import RunLog
from ..forward.forward_choice import CHECKED_POSITIONS
from ..memory import CacheKind
from ..pools.live_pool import live_pool
from ..pools.loaded_members import loaded_pool
from .honoured_options import (
    Limits,
    SamplingMode,
    check_config,
    check_inputs,
    check_log,
    check_num_answers,
    read_limits,
    read_memory,
    read_prompts,
    read_sampling,
    shown,
)
from .live_decode import PolicyLike, decode_live
from .lookup_and_slims import SkipLayers, default_chain, read_lookup, read_slims


def generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    *,
    logits_processor: Sequence[object],
    stopping_criteria: Sequence[object],
    generation_config: GenerationConfig,
    assistant_models: Sequence[PreTrainedModel] | None = None,
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
        assistant_models: smaller models in any order; none is needed.
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
    streamer = _streamer_of(inspect.currentframe())
    check_config(generation_config)
    lookup, lookup_tokens = read_lookup(generation_config)
    slims = read_slims(skip_layers)
    check_inputs(inputs)
    check_log(on_log)
    memory = read_memory(kv_cache, kv_limit_bytes)
    chance = read_sampling(logits_processor, do_sample=bool(generation_config.do_sample), mode=sampling)
    limits = read_limits([*stopping_criteria, *_stop_criteria(stop_strings, target_tokenizer)])
    check_num_answers(generation_config, do_sample=chance.mode != "greedy")
    prompts = read_prompts(input_ids, inputs)
    budget = limits.max_length - input_ids.shape[1]
    _check_batch(len(prompts), limits, streamer)
    pool = live_pool(
        model,
        () if assistant_models is None else assistant_models,
        lookup=lookup,
        slims=slims,
        context_tokens=max(CHECKED_POSITIONS, max(map(len, prompts)) + budget),
        eos_token_ids=limits.eos,
        names=assistant_names,
        target_tokenizer=target_tokenizer,
        assistant_tokenizers=assistant_tokenizers,
    )
    sessions = _sessions(loaded_pool(pool), prompts, input_ids.tolist(), budget, limits)
    if policy is None:
        policy = default_chain(sessions[0].pool, lookup_tokens)
    log = decode_live(pool, sessions, policy, sampling=chance, memory=memory, streamer=streamer)
    if on_log is not None:
        on_log(log)
    sequences = _joined(input_ids, [session.emitted for session in sessions], generation_config, limits)
    return GenerateDecoderOnlyOutput(sequences=sequences) if generation_config.return_dict_in_generate else sequences


def _streamer_of(frame: FrameType | None) -> BaseStreamer | None:
    """The `streamer` of the `generate()` call that called the function of `frame`.

    transformers shows the streamer the prompt and then keeps it from a callable (5.24:
    `_extract_generation_mode_kwargs`), so that whoever reads from it would wait for ever. An `assistant_model` is kept
    back too: whoever gave one would get the text without its help.
    """
    caller = None if frame is None else frame.f_back
    if caller is None or caller.f_code is not inspect.unwrap(GenerationMixin.generate).__code__:
        return None
    if caller.f_locals["assistant_model"] is not None:
        raise ValueError("assistant_model must be given as assistant_models=[...], as paceline takes several")
    streamer: BaseStreamer | None = caller.f_locals["streamer"]
    return streamer


def _stop_criteria(stop_strings: str | Sequence[str] | None, tokenizer: object) -> list[StopStringCriteria]:
    """What `generate()` would make of stop strings."""
    if stop_strings is None:
        return []
    if not isinstance(stop_strings, Iterable):
        raise ValueError(f"stop_strings must be a text or a list of texts, got {shown(stop_strings)}")
    texts = [stop_strings] if isinstance(stop_strings, str) else list(stop_strings)
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"stop_strings must be a text or a list of texts, got a list with {shown(text)}")
    if not texts:
        return []
    if not all(texts):
        raise ValueError(f"stop_strings must not be empty, got {texts!r}")
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ValueError(
            "stop_strings need target_tokenizer, a tokenizer of transformers (generate() keeps tokenizer= from "
            f"custom_generate), got {type(tokenizer).__name__}"
        )
    return [StopStringCriteria(tokenizer, texts)]


def _check_batch(num_rows: int, limits: Limits, streamer: BaseStreamer | None) -> None:
    if num_rows > 1 and streamer is not None:
        raise ValueError(f"streamer must be for a batch of 1, got a batch of {num_rows}")
    if num_rows > 1 and limits.stops and not limits.eos:
        raise ValueError(
            "stop_strings for more than one row need eos_token_id (without it generate() goes on after them), "
            f"got a batch of {num_rows}"
        )


def _sessions(
    members: Pool, prompts: Sequence[tuple[int, ...]], padded: Sequence[list[int]], budget: int, limits: Limits
) -> list[Session]:
    return [
        Session(
            pool=members,
            request_id=f"row {row}",
            tag="",
            prompt=prompt,
            budget=budget,
            eos=frozenset(limits.eos),
            ending=_ending(limits, ids),
        )
        for row, (prompt, ids) in enumerate(zip(prompts, padded, strict=True))
    ]


def _ending(limits: Limits, padded: list[int]) -> Ending | None:
    """Ends an answer at stop strings, which may begin in the prompt."""
    if not limits.stops:
        return None
    # The criteria look at no more tokens than that: one for each byte of the longest string.
    most = max((len(text.encode()) for stop in limits.stops for text in stop.stop_strings), default=0)
    before = padded[-most:]

    def ending(emitted: list[int], num_before: int) -> int | None:
        for end in range(num_before + 1, len(emitted) + 1):
            tail = torch.tensor([before + emitted[max(0, end - most) : end]])
            if any(bool(stop(tail, None).any()) for stop in limits.stops):
                return end
        return None

    return ending


def _joined(input_ids: Tensor, answers: Sequence[list[int]], config: GenerationConfig, limits: Limits) -> Tensor:
    """`[B, T + longest answer]`; shorter answers are filled up as `generate()` does, with the first eos by default."""
    longest = max(map(len, answers))
    given = config.pad_token_id
    padding = int(given) if given is not None else limits.eos[0] if limits.eos else 0
    rows = [answer + [padding] * (longest - len(answer)) for answer in answers]
    return torch.cat([input_ids, torch.tensor(rows, dtype=input_ids.dtype, device=input_ids.device)], dim=-1)
