"""Batched multi-level decoding inside `model.generate`: `custom_generate=paceline.generate`.

`read_call` reads and checks a call, with a ValueError for everything that is not honoured and would change the result.
Processors and criteria are read as transformers prepared them. Then `answered` decodes with a program's own models.
`marks_of` shows whether a model was changed since it was prepared.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from numbers import Integral, Number
from types import FrameType
from typing import Any, Literal, cast

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from transformers import (
    Cache,
    EosTokenCriteria,
    GenerationConfig,
    GenerationMixin,
    MaxLengthCriteria,
    MaxTimeCriteria,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StopStringCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.streamers import BaseStreamer

from ..base.errors import at
from ..decoding.legal_steps import Policy
from ..decoding.pool import Pool
from ..decoding.prompt_lookup import LookupRule
from ..decoding.request_text import Ending
from ..decoding.session import Session
from ..policies.by_name import make_policy
from ..runs.log import RunLog
from ..traces.meta import GREEDY, Sampling
from .decode import OnCommit, Run, check_fit
from .forward import CACHE_ARGUMENTS
from .forward_choice import CHECKED_POSITIONS
from .forward_kinds import CACHES, CacheKind
from .fused import fused_supports
from .pools.configs import OPTIONS, check_call
from .pools.members import LoadedMembers, checked_name, live_pool, loaded_pool
from .refusals import in_one_line
from .threads import Memory
from .world import TorchWorld

PolicyLike = str | Policy | Callable[[Pool], Policy]


def _policy(given: PolicyLike, pool: Pool) -> tuple[str, Policy]:
    """(its name in errors, the policy)."""
    if isinstance(given, str):
        return given, make_policy(given, pool)
    made: object = given
    if inspect.isclass(given) or not hasattr(given, "decide"):
        if not callable(given):
            rule = "must be a text, a policy, or what makes one of a pool"
            raise ValueError(f"policy {rule}, got {type(given).__name__}")
        try:
            made = cast(Callable[[Pool], object], given)(pool)
        except Exception as error:  # it may be foreign code
            name, told = getattr(given, "__name__", type(given).__name__), in_one_line(error)
            raise ValueError(
                f"policy {name}: called with the pool it raised {type(error).__name__}: {told}{at(error)}"
            ) from error
    if not hasattr(made, "decide") or not hasattr(made, "learn"):
        raise ValueError(f"policy must have decide and learn, got {type(made).__name__}")
    return type(made).__name__, cast(Policy, made)


def _streaming(streamer: BaseStreamer) -> OnCommit:
    def on_commit(_: Session, tokens: list[int]) -> None:
        for token in tokens:
            streamer.put(torch.tensor([token]))

    return on_commit


SamplingMode = Literal["rejection", "coupled"]

# The order in which `truncated` applies them.
WARPERS = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)
# Inputs that `generate()` itself passes to a model; they are ignored here.
UNUSED_INPUTS = ("attention_mask", "position_ids", *CACHE_ARGUMENTS, "use_cache", "logits_to_keep")


def check_autocast(model: PreTrainedModel) -> None:
    """Raises ValueError inside `torch.autocast`, which would run some operations in another format than the weights."""
    if torch.is_autocast_enabled(model.device.type):
        raise ValueError("torch.autocast must be off, as models run in the format of their weights, got it on")


def check_inputs(inputs: Mapping[str, object]) -> None:
    """Raises ValueError for inputs of the model other than ids and mask, and for a cache to continue from."""
    for name, value in inputs.items():
        if name not in UNUSED_INPUTS and value is not None and value is not False:
            raise ValueError(f"{name} must be left out, as paceline feeds models input_ids only, got {shown(value)}")
    for name in CACHE_ARGUMENTS:
        cache = inputs.get(name)
        # Not the empty one that `generate()` prepares, but a user's, or a text meant as `kv_cache`.
        given = not isinstance(cache, Cache) or getattr(cache, "_is_user_defined", False)
        if cache is not None and (given or cast(Cache, cache).get_seq_length()):
            rule = "must be left out, as paceline keeps its own caches (kv_cache says which kind)"
            raise ValueError(f"{name} {rule}, got {shown(cache)}")


def read_memory(kv_cache: CacheKind, limit_bytes: object) -> Memory:
    """How keys and values are kept; raises ValueError for an unknown cache or a limit that is no number of bytes."""
    if kv_cache not in CACHES:
        raise ValueError(f"kv_cache must be one of {', '.join(CACHES)}, got {shown(kv_cache)}")
    limit = None if limit_bytes is None else whole("kv_limit_bytes", limit_bytes)
    return Memory(cache=kv_cache, limit_bytes=limit)


def whole(option: str, value: object) -> int:
    """The count of an option; raises ValueError unless it is a whole number >= 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise ValueError(f"{option} must be a whole number >= 1, got {shown(value)}")
    return int(value)


def check_num_answers(config: GenerationConfig, *, do_sample: bool) -> None:
    """Raises ValueError unless the number of answers is whole and >= 1, or for several without `do_sample`.

    `generate()` has repeated the rows by then.
    """
    given: Any = config.num_return_sequences
    count = 1 if given is None else whole("num_return_sequences", given)
    if count > 1 and not do_sample:
        raise ValueError(f"num_return_sequences must be 1 without do_sample=True, as all would be equal, got {count}")


def read_sampling(processors: Sequence[object], *, do_sample: bool, mode: SamplingMode | None) -> Sampling:
    """How tokens are chosen; a seed is drawn from torch's generator for sampling.

    Raises:
        ValueError: a processor that is not honoured, a mode without `do_sample`, or a temperature or `top_p` too low.
    """
    _check_processors(processors, do_sample=do_sample)
    if mode not in (None, "rejection", "coupled"):
        raise ValueError(f"sampling must be rejection or coupled, got {mode!r}")
    if not do_sample:
        if mode is not None:
            raise ValueError(f"sampling needs do_sample=True, got {mode!r}")
        return GREEDY
    given: dict[type, Any] = {type(processor): processor for processor in processors}
    temperature = given[TemperatureLogitsWarper].temperature if TemperatureLogitsWarper in given else 1.0
    try:
        return Sampling(
            mode=mode or "rejection",
            temperature=temperature,
            seed=int(torch.randint(2**62, ()).item()),
            top_p=given[TopPLogitsWarper].top_p if TopPLogitsWarper in given else None,
            top_k=given[TopKLogitsWarper].top_k if TopKLogitsWarper in given else None,
        )
    except ValidationError as error:
        first = error.errors()[0]
        ours = first.get("ctx", {}).get("error")
        raise ours or ValueError(f"{first['loc'][0]}: {first['msg']}, got {shown(first['input'])}") from None


def read_limits(criteria: Sequence[object]) -> tuple[int, tuple[int, ...], tuple[StopStringCriteria, ...]]:
    """Where answers end: most tokens of padded prompt and answer together, `Call.eos` and `Call.stops`.

    Raises ValueError for a criterion that is not honoured.
    """
    max_length, eos, stops = inf, list[int](), list[StopStringCriteria]()
    for criterion in criteria:
        given: Any = criterion
        if type(criterion) is MaxLengthCriteria:
            max_length = min(max_length, given.max_length)
        elif type(criterion) is EosTokenCriteria:
            eos += given.eos_token_id.reshape(-1).tolist()
        elif type(criterion) is StopStringCriteria:
            stops.append(given)
        elif type(criterion) is MaxTimeCriteria:
            raise ValueError(f"max_time must be left out, as paceline does not honour it, got {given.max_time}")
        else:
            raise ValueError(f"stopping_criteria must be stop strings at most, got {type(criterion).__name__}")
    if max_length == inf:
        raise ValueError("max_new_tokens or max_length must be given, got neither")
    return int(max_length), tuple(dict.fromkeys(eos)), tuple(stops)


def read_prompts(input_ids: Tensor, inputs: Mapping[str, object]) -> list[tuple[int, ...]]:
    """The rows of `input_ids` `[B, T]` without their padding, which is on the left.

    `inputs` may hold `attention_mask` `[B, T]`, 0 at padding, and `position_ids` `[1, T]` or `[B, T]`, which must be
    counted from the end of the padding.

    Raises:
        ValueError: ids of another shape, no row, padding elsewhere, an empty prompt, or other positions.
    """
    if input_ids.dim() != 2 or not input_ids.numel():
        raise ValueError(
            f"input_ids must be of shape [B, T], at least one row of at least one token, got {tuple(input_ids.shape)}"
        )
    mask, positions = (cast(Tensor | None, inputs.get(name)) for name in ("attention_mask", "position_ids"))
    if mask is not None and mask.shape != input_ids.shape:
        raise ValueError(f"attention_mask must be of shape {tuple(input_ids.shape)}, got {tuple(mask.shape)}")
    width = input_ids.shape[1]
    prompts = []
    for row, ids in enumerate(input_ids.tolist()):
        seen = [1] * width if mask is None else [int(bit) for bit in mask[row].tolist()]
        length = sum(seen)
        if length < 1:
            raise ValueError(f"row {row} of input_ids must hold at least one token, got only padding")
        if seen != [0] * (width - length) + [1] * length:
            raise ValueError(f"attention_mask must be 0s for padding on the left, then 1s, got row {row}: {seen}")
        if positions is not None and _row_of(positions, row)[width - length :] != list(range(length)):
            raise ValueError(
                f"position_ids must be left out: they count from 0 after the padding, got others, row {row}"
            )
        prompts.append(tuple(ids[width - length :]))
    return prompts


def _row_of(positions: Tensor, row: int) -> list[int]:
    if positions.dim() != 2:
        raise ValueError(f"position_ids must be of shape [B, T], got {tuple(positions.shape)}")
    values: list[int] = positions[row if len(positions) > 1 else 0].tolist()
    return values


def _check_processors(processors: Sequence[object], *, do_sample: bool) -> None:
    """Only stock warpers of sampling, each once and in the order of `generate()`."""
    last = -1
    for processor in processors:
        kind: Any = type(processor)
        option = OPTIONS["option_of"].get(kind.__name__)
        if option is not None:
            raise ValueError(f"{option} must be left out, as paceline does not honour it ({kind.__name__})")
        place = WARPERS.index(kind) if do_sample and kind in WARPERS else -1
        # A user's own top_k or top_p may differ from the one that `generate()` makes.
        filled, least = getattr(processor, "filter_value", -inf), getattr(processor, "min_tokens_to_keep", 1)
        if place <= last or filled != -inf or least != 1:
            raise ValueError(
                "logits_processor must be none but temperature, top_k and top_p, once and in this order, with "
                f"do_sample=True, got {kind.__name__}"
            )
        last = place


def shown(value: object) -> str:
    """A value in a line: texts and numbers as they are, others by their type."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return repr(value) if value is None or isinstance(value, str | Number) else type(value).__name__


SkipLayers = Sequence[int] | Mapping[str, Sequence[int]]

# Tokens at each handover of the default chain.
WINDOW = 4
# The default of transformers, where the config has none.
MAX_MATCH = 2


def read_lookup(config: GenerationConfig) -> tuple[LookupRule | None, int]:
    """The prompt lookup of transformers and its window; None and 0 where `prompt_lookup_num_tokens` is not given.

    Raises:
        ValueError: a window or a longest match that is no whole number from 1 on.
    """
    window, longest = config.prompt_lookup_num_tokens, config.max_matching_ngram_size
    if window is None:
        return None, 0
    return (
        LookupRule(
            max_match=MAX_MATCH if longest is None else whole("max_matching_ngram_size", longest), occurrence="first"
        ),
        whole("prompt_lookup_num_tokens", window),
    )


def read_slims(given: object) -> dict[str, tuple[int, ...]]:
    """Layers to leave out by the name of the submodel; one without a name is `slim`.

    Raises:
        ValueError: neither a list of whole numbers nor a mapping from names to such lists, or a list that is empty.
    """
    if given is None:
        return {}
    named = given if isinstance(given, Mapping) else {"slim": given}
    return {checked_name("names of skip_layers", name): _layers(layers) for name, layers in named.items()}


def _layers(given: object) -> tuple[int, ...]:
    rule = "skip_layers must be a list of layers of the model, or such lists by name"
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(f"{rule}, got {shown(given)}")
    for layer in given:
        if isinstance(layer, bool) or not isinstance(layer, Integral):
            raise ValueError(f"{rule}, got a list with {shown(layer)}")
    if not given:
        raise ValueError(f"{rule}, got an empty list")
    return tuple(map(int, given))


def default_chain(pool: Pool, lookup_tokens: int) -> str:
    """A chain of all members; plain decoding if the target is the only one."""
    windows = {name: lookup_tokens if pool.is_model_free(name) else WINDOW for name in pool.names[:-1]}
    return "/".join([*(f"{name}:{window}" for name, window in windows.items()), pool.target])


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The arguments of one call, checked."""

    input_ids: Tensor  # `[B, T]` padded on the left, as given
    prompts: tuple[tuple[int, ...], ...]  # its rows without padding
    budget: int  # most tokens of an answer
    config: GenerationConfig  # as `generate()` prepared it
    eos: tuple[int, ...]  # tokens that end an answer; none, or those of `generate()`
    stops: tuple[StopStringCriteria, ...]  # criteria that end an answer at a stop string
    sampling: Sampling
    memory: Memory
    lookup: LookupRule | None  # the rule of `ngram`; None for none
    lookup_tokens: int  # its window in the default chain; 0 for none
    policy: PolicyLike | None  # as given; None for the default chain
    streamer: BaseStreamer | None
    on_log: Callable[[RunLog], None] | None  # called with the run log; None: not called

    @property
    def longest_context(self) -> int:
        """Tokens of the longest prompt and its answer."""
        return max(map(len, self.prompts)) + self.budget


def streamer_of(frame: FrameType | None) -> BaseStreamer | None:
    """The `streamer` of the `generate()` call that called the function of `frame`.

    transformers shows the streamer the prompt and then keeps it from a callable (5.24:
    `_extract_generation_mode_kwargs`), so that a reader of the streamer would wait for ever. It withholds an
    `assistant_model` too: the user would get the text without its help.
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
    """Read a call; the arguments are those of `generate`, as prepared by `GenerationMixin.generate`.

    `inputs` are the other inputs that it prepared, `tokenizer` the model's. Raises ValueError for an option that is not
    honoured, or has a wrong value.
    """
    check_call(config)
    lookup, lookup_tokens = read_lookup(config)
    check_inputs(inputs)
    if on_log is not None and not callable(on_log):
        raise ValueError(f"on_log must be a function that takes the run log, got {shown(on_log)}")
    memory = read_memory(kv_cache, kv_limit_bytes)
    chance = read_sampling(processors, do_sample=bool(config.do_sample), mode=sampling)
    max_length, eos, stops = read_limits([*criteria, *_stop_criteria(stop_strings, tokenizer)])
    check_num_answers(config, do_sample=chance.mode != "greedy")
    prompts = read_prompts(input_ids, inputs)
    if len(prompts) > 1 and streamer is not None:
        raise ValueError(f"streamer must be for a batch of 1, got a batch of {len(prompts)}")
    if len(prompts) > 1 and stops and not eos:
        raise ValueError(
            "stop_strings for more than one row need eos_token_id (without it generate() continues after them), "
            f"got a batch of {len(prompts)}"
        )
    return Call(
        input_ids=input_ids,
        prompts=tuple(prompts),
        budget=max_length - input_ids.shape[1],
        config=config,
        eos=eos,
        stops=stops,
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
    members = loaded_pool(pool)
    sessions = [
        Session(
            pool=members,
            request_id=f"row {row}",
            tag="",
            prompt=prompt,
            budget=call.budget,
            eos=frozenset(call.eos),
            ending=_ending(call.stops, ids),
        )
        for row, (prompt, ids) in enumerate(zip(call.prompts, call.input_ids.tolist(), strict=True))
    ]
    check_fit(pool, sessions, call.memory)
    given = default_chain(members, call.lookup_tokens) if call.policy is None else call.policy
    name, policy = _policy(given, members)
    on_commit = None if call.streamer is None else _streaming(call.streamer)
    with TorchWorld(pool=pool, sampling=call.sampling, memory=call.memory, share_weights=False) as world:
        run = Run(world, policy, name=name, on_commit=on_commit)
        for _ in run.driver.run(sessions, len(sessions)):
            pass
    run.driver.raise_failure()
    if call.streamer is not None:
        call.streamer.end()
    if call.on_log is not None:
        meta = run.meta(pool="live", max_new_tokens=call.budget, batch=len(sessions))
        call.on_log(run.ledger.finish(meta, reanchored={}, divergent={}))
    sequences = _joined(call, [session.emitted for session in sessions])
    return GenerateDecoderOnlyOutput(sequences=sequences) if call.config.return_dict_in_generate else sequences


def _stop_criteria(stop_strings: str | Sequence[str] | None, tokenizer: object) -> list[StopStringCriteria]:
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


def _ending(stops: Sequence[StopStringCriteria], padded: list[int]) -> Ending | None:
    """An `Ending` at stop strings, which may begin in the prompt."""
    if not stops:
        return None
    # The criteria read no more tokens than that: one for each byte of the longest string.
    most = max((len(text.encode()) for stop in stops for text in stop.stop_strings), default=0)
    before = padded[-most:]

    def ending(emitted: list[int], num_before: int) -> int | None:
        for end in range(num_before + 1, len(emitted) + 1):
            tail = torch.tensor([before + emitted[max(0, end - most) : end]])
            if any(bool(stop(tail, None).any()) for stop in stops):
                return end
        return None

    return ending


def _joined(call: Call, answers: Sequence[list[int]]) -> Tensor:
    """`[B, T + longest answer]`; shorter answers are padded as in `generate()`, with the first eos by default."""
    longest, eos, input_ids = max(map(len, answers)), call.eos, call.input_ids
    given = call.config.pad_token_id
    padding = int(given) if given is not None else eos[0] if eos else 0
    rows = [answer + [padding] * (longest - len(answer)) for answer in answers]
    return torch.cat([input_ids, torch.tensor(rows, dtype=input_ids.dtype, device=input_ids.device)], dim=-1)


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
        input_ids: `[B, T]`, padded on the left; with `num_return_sequences` each row that many times in a row,
            as `generate()` repeats them. Every row has chance of its own.
        logits_processor: as prepared by `generate()`; temperature, top_k and top_p at most.
        stopping_criteria: as prepared there; length, end-of-sequence tokens and stop strings at most.
        generation_config: as prepared there.
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
        eos_token_ids=call.eos,
        names=assistant_names,
        target_tokenizer=target_tokenizer,
        assistant_tokenizers=assistant_tokenizers,
    )
    return answered(call, pool)


Marks = list[tuple[object, ...]]

# Values of each weight that are compared.
_NUM_VALUES = 8


def marks_of(models: Iterable[PreTrainedModel]) -> Marks:
    """Marks that change when models do: settings, hooks, and of weights the place, the writes, some values.

    Values, as torch does not count writes by fused optimizers or to `.data`. Such a write to a part of a weight may be
    missed.
    """
    marks: Marks = []
    for model in models:
        marks.append((fused_supports(model), _settings(vars(model.config))))
        marks += [(name, type(module), _settings(vars(module))) for name, module in model.named_modules()]
        tensors = [tensor.detach() for tensor in (*model.parameters(), *model.buffers()) if tensor.numel()]
        marks += [(tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors]
        # Not for buffers: some rotary embeddings write the same values in every forward.
        marks.append(tuple(0 if weight.is_inference() else weight._version for weight in model.parameters()))
        some = torch.cat([_some(tensor.reshape(1, *tensor.shape)) for tensor in tensors])
        marks.append(tuple(some.view(torch.int64).tolist()))  # by their bits, as NaN differs from itself
    return marks


def _settings(attributes: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    def is_plain(value: object) -> bool:
        return isinstance(value, int | float | str | torch.dtype) or (
            callable(value) and not isinstance(value, nn.Module)
        )

    return tuple((name, value) for name, value in attributes.items() if is_plain(value))


def _some(tensor: Tensor) -> Tensor:
    """A few values from all over a tensor, in float64, which holds every float and small integer exactly."""
    places = torch.linspace(0, tensor.numel() - 1, _NUM_VALUES).long()
    return tensor[torch.unravel_index(places.to(tensor.device), tensor.shape)].double().cpu()
