"""What of a `generate()` call is honoured, and a ValueError for everything else that would change its result.

Processors and criteria are read as transformers prepared them: what is in the lists is what `generate()` would apply.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from numbers import Integral, Number
from typing import Any, Literal, cast

import torch
from pydantic import ValidationError
from torch import Tensor
from transformers import (
    Cache,
    EosTokenCriteria,
    GenerationConfig,
    MaxLengthCriteria,
    MaxTimeCriteria,
    PreTrainedModel,
    StopStringCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ...traces.meta import Sampling
from ..forward.module_forward import CACHE_ARGUMENTS
from ..memory import CACHES, CacheKind, Memory
from ..pools.configs.generation_options import OPTIONS

SamplingMode = Literal["rejection", "coupled"]

# The order in which `truncated` applies them.
WARPERS = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)
# What `generate()` itself hands to a model, and what is made of it here: nothing.
UNUSED_INPUTS = ("attention_mask", "position_ids", *CACHE_ARGUMENTS, "use_cache", "logits_to_keep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where answers end.

    Attributes:
        max_length: tokens of padded prompt and answer together.
        eos: tokens that end an answer; none, or those of `generate()`.
        stops: criteria that end an answer at a stop string.
    """

    max_length: int
    eos: tuple[int, ...]
    stops: tuple[StopStringCriteria, ...]


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
        if cache is not None and not _is_made_by_generate(cache):
            rule = "must be left out, as paceline keeps its own caches (kv_cache says which kind)"
            raise ValueError(f"{name} {rule}, got {shown(cache)}")


def _is_made_by_generate(cache: object) -> bool:
    """Whether it is the empty cache that `generate()` prepares, rather than a user's, or a text meant as `kv_cache`."""
    given = getattr(cache, "_is_user_defined", False)
    return isinstance(cache, Cache) and not given and cache.get_seq_length() == 0


def check_log(on_log: object) -> None:
    """Raises ValueError for what cannot be called with the run log."""
    if on_log is not None and not callable(on_log):
        raise ValueError(f"on_log must be a function that takes the run log, got {shown(on_log)}")


def read_memory(kv_cache: CacheKind, limit_bytes: object) -> Memory:
    """How keys and values are kept; raises ValueError for an unknown cache or a limit that is no number of bytes."""
    if kv_cache not in CACHES:
        raise ValueError(f"kv_cache must be one of {', '.join(CACHES)}, got {shown(kv_cache)}")
    if limit_bytes is None:
        return Memory(cache=kv_cache)
    return Memory(cache=kv_cache, limit_bytes=whole("kv_limit_bytes", limit_bytes))


def whole(option: str, value: object) -> int:
    """A count that an option gives; raises ValueError for what is no whole number from 1 on."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise ValueError(f"{option} must be a whole number >= 1, got {shown(value)}")
    return int(value)


def check_num_answers(config: GenerationConfig, *, do_sample: bool) -> None:
    """Raises ValueError for no whole number of answers from 1 on, or for several without `do_sample`.

    `generate()` has repeated the rows by then.
    """
    given: Any = config.num_return_sequences
    count = 1 if given is None else whole("num_return_sequences", given)
    if count > 1 and not do_sample:
        raise ValueError(f"num_return_sequences must be 1 without do_sample=True, as all would be equal, got {count}")


def read_sampling(processors: Sequence[object], *, do_sample: bool, mode: SamplingMode | None) -> Sampling:
    """How tokens are chosen; a seed is drawn from torch's generator where there is chance.

    Raises:
        ValueError: a processor that is not honoured, a mode without `do_sample`, or a temperature or `top_p` too low.
    """
    _check_processors(processors, do_sample=do_sample)
    if mode not in (None, "rejection", "coupled"):
        raise ValueError(f"sampling must be rejection or coupled, got {mode!r}")
    if not do_sample:
        if mode is not None:
            raise ValueError(f"sampling needs do_sample=True, got {mode!r}")
        return Sampling(mode="greedy")
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


def read_limits(criteria: Sequence[object]) -> Limits:
    """Where answers end; raises ValueError for a criterion that is not honoured."""
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
    return Limits(max_length=int(max_length), eos=tuple(dict.fromkeys(eos)), stops=tuple(stops))


def read_prompts(input_ids: Tensor, inputs: Mapping[str, object]) -> list[tuple[int, ...]]:
    """The rows of `input_ids` without their padding.

    Args:
        input_ids: `[B, T]` padded on the left.
        inputs: `attention_mask` `[B, T]`, 0 at padding, if there is any; `position_ids` `[1, T]` or `[B, T]`, which
            must be counted from the end of the padding.

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
        if place <= last or _keeps_more(processor):
            raise ValueError(
                "logits_processor must be none but temperature, top_k and top_p, once and in this order, with "
                f"do_sample=True, got {kind.__name__}"
            )
        last = place


def _keeps_more(warper: object) -> bool:
    """Whether a user's own warper differs from what `generate()` makes of top_k or top_p."""
    return getattr(warper, "filter_value", -inf) != -inf or getattr(warper, "min_tokens_to_keep", 1) != 1


def shown(value: object) -> str:
    """A value in a line: texts and numbers as they are, of others what they are."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return repr(value) if value is None or isinstance(value, str | Number) else type(value).__name__
