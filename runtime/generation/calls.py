"""One call of transformers' `generate()`: what it asks for, read and checked, and its answer by a pool of models."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, PreTrainedTokenizerBase, StopStringCriteria
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.streamers import BaseStreamer

from ...decoding.pool import Pool
from ...decoding.prompt_lookup import LookupRule
from ...decoding.request_tokens import Ending
from ...decoding.session import Session
from ...runs.log import RunLog
from ...traces.meta import Sampling
from ..memory import CacheKind, Memory
from ..pools.configs.generation_options import check_call
from ..pools.loaded_members import LoadedMembers, loaded_pool
from .honoured_options import (
    Limits,
    SamplingMode,
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
from .lookup_and_slims import default_chain, read_lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What one call asks for.

    Attributes:
        input_ids: `[B, T]` padded on the left, as given.
        prompts: its rows without padding.
        budget: most tokens of an answer.
        config: as `generate()` prepared it.
        limits, sampling, memory: read from the options.
        lookup: the rule of `ngram`; None for none.
        lookup_tokens: its window in the default chain; 0 for none.
        policy: as given; None for the default chain.
        streamer: of `generate()`; None for none.
        on_log: called with the run log; None for nobody.
    """

    input_ids: Tensor
    prompts: tuple[tuple[int, ...], ...]
    budget: int
    config: GenerationConfig
    limits: Limits
    sampling: Sampling
    memory: Memory
    lookup: LookupRule | None
    lookup_tokens: int
    policy: PolicyLike | None
    streamer: BaseStreamer | None
    on_log: Callable[[RunLog], None] | None

    @property
    def longest_context(self) -> int:
        """Tokens of the longest prompt and its answer."""
        return max(map(len, self.prompts)) + self.budget


def streamer_of(frame: FrameType | None) -> BaseStreamer | None:
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


def read_call(
    input_ids: Tensor,
    config: GenerationConfig,
    inputs: Mapping[str, object],
    *,
    streamer: BaseStreamer | None,
    processors: Sequence[object],
    criteria: Sequence[object],
    stop_strings: str | Sequence[str] | None,
    tokenizer: object,
    policy: PolicyLike | None,
    sampling: SamplingMode | None,
    kv_cache: CacheKind,
    kv_limit_bytes: int | None,
    on_log: Callable[[RunLog], None] | None,
) -> Call:
    """Read a call as `generate()` prepared it.

    Args:
        input_ids: `[B, T]`.
        config: of `generate()`.
        inputs: what else it prepared for the model.
        streamer: of `generate()`; None for none.
        processors: of logits, prepared by `generate()`.
        criteria: of stopping, likewise.
        stop_strings: texts that end an answer; None for none.
        tokenizer: of the model, for stop strings.
        policy: what drives the chain; None for the default one.
        sampling: `rejection` or `coupled`; None for the default.
        kv_cache: `slots` or `mask`.
        kv_limit_bytes: of keys and values; None for whatever the devices have.
        on_log: called with the run log; None for nobody.

    Raises:
        ValueError: an option that is not honoured, or has a wrong value.
    """
    check_call(config)
    lookup, lookup_tokens = read_lookup(config)
    check_inputs(inputs)
    check_log(on_log)
    memory = read_memory(kv_cache, kv_limit_bytes)
    chance = read_sampling(processors, do_sample=bool(config.do_sample), mode=sampling)
    limits = read_limits([*criteria, *_stop_criteria(stop_strings, tokenizer)])
    check_num_answers(config, do_sample=chance.mode != "greedy")
    prompts = read_prompts(input_ids, inputs)
    _check_batch(len(prompts), limits, streamer)
    return Call(
        input_ids=input_ids,
        prompts=tuple(prompts),
        budget=limits.max_length - input_ids.shape[1],
        config=config,
        limits=limits,
        sampling=chance,
        memory=memory,
        lookup=lookup,
        lookup_tokens=lookup_tokens,
        policy=policy,
        streamer=streamer,
        on_log=on_log,
    )


def answered(call: Call, pool: LoadedMembers) -> Tensor | GenerateDecoderOnlyOutput:
    """Answer a call; returns `[B, T + longest answer]` ids, or an output with them as `sequences`.

    Raises:
        ValueError: a policy that cannot be made, caches that cannot fit, or a request that fails.
        PolicyError: the policy broke the contract.
    """
    sessions = _sessions(loaded_pool(pool), call)
    policy = default_chain(sessions[0].pool, call.lookup_tokens) if call.policy is None else call.policy
    log = decode_live(pool, sessions, policy, sampling=call.sampling, memory=call.memory, streamer=call.streamer)
    if call.on_log is not None:
        call.on_log(log)
    sequences = _joined(call, [session.emitted for session in sessions])
    return GenerateDecoderOnlyOutput(sequences=sequences) if call.config.return_dict_in_generate else sequences


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


def _sessions(members: Pool, call: Call) -> list[Session]:
    return [
        Session(
            pool=members,
            request_id=f"row {row}",
            tag="",
            prompt=prompt,
            budget=call.budget,
            eos=frozenset(call.limits.eos),
            ending=_ending(call.limits, ids),
        )
        for row, (prompt, ids) in enumerate(zip(call.prompts, call.input_ids.tolist(), strict=True))
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


def _joined(call: Call, answers: Sequence[list[int]]) -> Tensor:
    """`[B, T + longest answer]`; shorter answers are filled up as `generate()` does, with the first eos by default."""
    longest, eos, input_ids = max(map(len, answers)), call.limits.eos, call.input_ids
    given = call.config.pad_token_id
    padding = int(given) if given is not None else eos[0] if eos else 0
    rows = [answer + [padding] * (longest - len(answer)) for answer in answers]
    return torch.cat([input_ids, torch.tensor(rows, dtype=input_ids.dtype, device=input_ids.device)], dim=-1)
