"""The config of a pool's member, read and checked before its weights: what the pool then loads is supported.

Checks: the values of fields that decoders share (an absent one takes the default of its type); whether recorder and
runtime support the model, which is fed chosen tokens of many contexts at once, each with its own mask, over keys and
values of which some are dropped again; which tokens end a text; and which options of GenerationConfig are honoured,
change nothing or are rejected. A pool must write what `generate()` of its target writes, so options that change scores
are rejected by name unless the pool file ignores them. Last come the rules between members, for loading and `check`.

`generate()` reads `eos_token_id` from generation_config.json alone where the model has one, whether or not it names an
end, else from config.json (transformers 5.23, `GenerationMixin.adjust_generation_fn`, `_prepare_generation_config`).
"""

import inspect
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from importlib.resources import files
from math import isfinite
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from ...base.files import checked_config
from ...traces.quantisation import QUANTISED_FILES, QUANTISED_KEYS
from ..forward import EAGER, FULL, SLIDING, attention_of, find_cache_argument, layer_windows
from ..refusals import BrokenRuleError, ConfigError, in_one_line
from ..tokenizers import Alignment, num_token_ids
from .heads import SubsetHead, read_head_tokens, share_embeddings
from .hub import check_hub
from .pool_file import HUB_ID, ForcedPoolFile, MemberEntry, PoolContent, PoolFile, PoolFileError
from .published import fetched
from .submodels import make_submodel, read_low_rank, restore
from .tokenizer_files import file_beside, quiet_loading

RULES = tomllib.loads(files(__package__).joinpath("config_rules.toml").read_text(encoding="utf-8"))


@contextmanager
def named_in(file: Path, field: str = "", value: object = None) -> Iterator[None]:
    """Raise PoolFileError for a rule that is broken in the block: of this field, or of a config's own if it is ""."""
    try:
        yield
    except ConfigError as error:
        if field:
            raise
        raise PoolFileError(file, error.field, error.rule, error.value) from error
    except BrokenRuleError as error:
        if not field:
            raise
        raise PoolFileError(file, field, error.rule, value) from error


def check_values(values: Mapping[str, Any]) -> None:
    """Raises ConfigError for the first field of a config.json, or of its text part, whose value breaks a rule."""
    text = values.get("text_config")
    if isinstance(text, Mapping):
        try:
            check_values(text)
        except ConfigError as error:
            raise ConfigError(f"text_config.{error.field}", error.rule, error.value) from None
    for field in values:
        if _is_of_its_type(values, field):
            continue
        if field in RULES["most"]:
            _check_count(field, values[field])
        elif field in RULES["positive"] or field in RULES["positive_or_null"]:
            _check_positive(field, values[field])
        elif field in RULES["flags"] and not isinstance(values[field], bool):
            raise ConfigError(field, "must be true or false", values[field])
    _check_heads(values)
    _check_layer_types(values)


def _is_of_its_type(values: Mapping[str, Any], field: str) -> bool:
    """Whether the config class of its model type takes null, or a list, where most others take a number."""
    value, model_type = values[field], values.get("model_type")
    if not isinstance(value, list | None) or not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        return False
    declared: Any = getattr(CONFIG_MAPPING[model_type], "__dataclass_fields__", {}).get(field)
    kinds = () if declared is None else get_args(declared.type)
    return (NoneType if value is None else list) in [get_origin(kind) or kind for kind in kinds]


def _check_count(field: str, value: object) -> None:
    # In configs of Qwen a window of 0 means none.
    least = 0 if field == "sliding_window" else 1
    if value is None and field in RULES["count_or_null"]:
        return
    most = RULES["most"][field]
    if type(value) is not int or not least <= value <= most:
        raise ConfigError(field, f"must be a whole number from {least} to {most:,}", value)


def _check_positive(field: str, value: object) -> None:
    if value is None and field in RULES["positive_or_null"]:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
        raise ConfigError(field, "must be a number above 0", value)


def _check_heads(values: Mapping[str, Any]) -> None:
    """Heads share the width among them, and groups of them share keys and values."""
    width, heads = values.get("hidden_size"), values.get("num_attention_heads")
    groups = values.get("num_key_value_heads")
    if heads is None:
        return
    if width is not None and values.get("head_dim") is None and width % heads:
        raise ConfigError("hidden_size", f"must be a multiple of num_attention_heads ({heads})", width)
    if groups is not None and heads % groups:
        raise ConfigError("num_key_value_heads", f"must divide num_attention_heads ({heads})", groups)


def _check_layer_types(values: Mapping[str, Any]) -> None:
    kinds, layers = values.get("layer_types"), values.get("num_hidden_layers")
    if kinds is None:
        return
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise ConfigError("layer_types", "must be a list of texts", kinds)
    if layers is not None and len(kinds) != layers:
        raise ConfigError("layer_types", f"must name the kind of each of {layers} layers", kinds)


EOS_FIELD = "eos_token_id"


def end_tokens(model: PreTrainedModel) -> tuple[int, ...]:
    """Tokens that end a text of a loaded model, in the order its generation config names them; none if it names none.

    Raises:
        ConfigError: what it names are not ids of the model's vocabulary.
    """
    return checked_end_tokens(getattr(model.generation_config, EOS_FIELD, None), int(model.config.vocab_size))


def checked_end_tokens(given: object, vocab_size: int) -> tuple[int, ...]:
    """The ids that an `eos_token_id` names: one, a list of them, or none; each once.

    Raises:
        ConfigError: anything but ids from 0 to `vocab_size` - 1.
    """
    listed: list[object] = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    ids = [token for token in listed if type(token) is int and 0 <= token < vocab_size]
    if len(ids) < len(listed):
        raise ConfigError(EOS_FIELD, f"must be ids from 0 to {vocab_size - 1}", given)
    return tuple(dict.fromkeys(ids))


def check_supported(config: PreTrainedConfig, model_class: type[PreTrainedModel], *, context_tokens: int) -> None:
    """Raises ConfigError with the first reason against a model of this config.

    `model_class` is, or would be, built from it; `context_tokens` is the longest text it is used with.
    """
    values: Any = config
    if values.is_encoder_decoder:
        raise ConfigError("is_encoder_decoder", "must be false: only decoders of text are supported", value=True)
    if values.model_type in RULES["other_models"]:
        raise ConfigError("model_type", RULES["other_models"][values.model_type], values.model_type)
    # Its only state must be keys and values by token, as in a hybrid of kinds of attention.
    kinds = getattr(config, "layer_types", None) or ["unknown"]
    if getattr(model_class, "_is_stateful", False) and not set(kinds) <= {FULL, SLIDING}:
        rule = "must keep keys and values of every token, not a running state that cannot be rolled back"
        raise ConfigError("model_type", rule, values.model_type)
    # Only feed-forward widths may differ between layers: caches and masks are common to all.
    own = sorted((getattr(config, "per_layer_attributes", None) or set()) - set(RULES["may_differ_by_layer"]))
    if own:
        rule = "must not give layers heads, windows or widths of their own"
        raise ConfigError("per_layer_config", rule, ", ".join(own))
    for field in RULES["needed_fields"]:
        if type(getattr(values, field, None)) is not int:
            rule = "must be a decoder of text alone, whose config says " + ", ".join(RULES["needed_fields"])
            raise ConfigError("model_type", f"{rule} ({field} is missing)", values.model_type)
    layer_windows(config)
    _check_attention(config, model_class)
    _check_rope(config, context_tokens)


def _check_attention(config: PreTrainedConfig, model_class: type[PreTrainedModel]) -> None:
    for field, rule in RULES["other_attention"].items():
        if getattr(config, field, None):
            raise ConfigError(field, rule, getattr(config, field))
    if attention_of(config) == "sdpa" and not getattr(model_class, "_supports_sdpa", False):
        rule = f"must be one whose attention is PyTorch's (sdpa), or one of {', '.join(sorted(EAGER))}"
        raise ConfigError("model_type", rule, config.model_type)
    if attention_of(config) == "sdpa" and getattr(config, "attn_logit_softcapping", None):
        rule = f"must be null for model_type {config.model_type}: sdpa caps no scores"
        raise ConfigError("attn_logit_softcapping", rule, config.attn_logit_softcapping)
    arguments = inspect.signature(model_class.forward).parameters
    missing = [name for name in RULES["needed_arguments"] if name not in arguments]
    if find_cache_argument(model_class) is None:
        missing.append("cache")
    if missing:
        needed = ", ".join(RULES["needed_arguments"])
        rule = f"must be one whose forward takes {needed} and cache ({missing[0]} is missing)"
        raise ConfigError("model_type", rule, config.model_type)


def _check_rope(config: PreTrainedConfig, context_tokens: int) -> None:
    """Rotations that change once the text is longer would invalidate cached keys."""
    rope: Any = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict):
        return
    # One for all layers, or one for each kind of layer.
    for one in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        original = one.get("original_max_position_embeddings")
        if one.get("rope_type") == "longrope" and original and context_tokens > original:
            rule = f"must not be longrope for contexts beyond {original} tokens (context_tokens is {context_tokens})"
            raise ConfigError("rope_parameters.rope_type", rule, "longrope")


OPTIONS = tomllib.loads(files(__package__).joinpath("generation_options.toml").read_text(encoding="utf-8"))
OFF_IN_CALLS = OPTIONS["off"] | OPTIONS["off_in_calls"]
OFF_IN_FILES = OPTIONS["off"] | OPTIONS["off_in_files"]
IGNORE_KEY = "ignore_generation_options"


def changed_options(said: Mapping[str, Any]) -> dict[str, Any]:
    """The options in a generation config's file that are rejected, with their values.

    `said` is the content of generation_config.json, or of config.json where a model has no such file.
    """
    return dict(_set(said, OFF_IN_FILES))


def check_call(config: object) -> None:
    """Raises ValueError for an option of a `generate()` call that is not honoured, except processors and criteria."""
    said = {option: getattr(config, option, None) for option in OFF_IN_CALLS}
    for option, value in _set(said, OFF_IN_CALLS):
        off = (None, *OFF_IN_CALLS[option])[-1]
        raise ValueError(f"{option} must be left at {off}, as paceline does not honour it, got {value!r}")


def check_left_off(changed: Mapping[str, Any], ignored: Collection[str]) -> None:
    """Raises ConfigError for the first of the target's `changed_options` that a pool file does not ignore."""
    for option, value in changed.items():
        if option not in ignored:
            off = (None, *OFF_IN_FILES[option])[-1]
            names = ", ".join(f'"{name}"' for name in changed)
            rule = (
                f"must be left at {off}, as paceline does not honour it ({IGNORE_KEY} = [{names}] in the pool file "
                f"ignores it: texts are then those of generate({option}={off}))"
            )
            raise ConfigError(option, rule, value)


def _set(said: Mapping[str, Any], offs: Mapping[str, list[Any]]) -> Iterator[tuple[str, Any]]:
    for option, others in offs.items():
        value = said.get(option)
        if value is not None and value not in others:
            yield option, value


CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
# For a size that is not known yet, or where ids beyond it do no harm.
ANY_VOCABULARY = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """What is known of a model before its weights are loaded."""

    location: Path | str  # folder or hub id, for transformers
    config: PreTrainedConfig  # as transformers reads it
    model_class: type[PreTrainedModel]  # built from it
    eos_token_ids: tuple[int, ...]  # tokens that end a text (`end_tokens`); may be none
    generation_file: Path  # where they are named, or would be, and other options of generation
    # options in it that `generate()` honours and a pool does not, with their values
    changed_options: Mapping[str, Any] = dataclass_field(default_factory=dict)
    is_text_part: bool = False  # of a model that also sees or hears


def read_member_config(file: Path, field: str, location: str, *, context_tokens: int) -> MemberConfig:
    """Read and check the config of the model at `location`.

    `field` of the pool file names it by a folder relative to the file, or a hub id; `context_tokens` is the longest
    text the pool is used with.

    Raises:
        PoolFileError: no such model, or a config that is broken or of a model that is not supported; it names the
            config's own file and field.
    """
    resolved = _resolve(file, field, location)
    try:
        path, generation_path = (file_beside(resolved, name) for name in (CONFIG, GENERATION_CONFIG))
    except (OSError, ValueError) as error:
        raise PoolFileError(file, field, f"cannot be loaded ({in_one_line(error)})", location) from error
    if path is None:
        raise PoolFileError(file, field, f"must hold {CONFIG}", location)
    values = checked_config(path, PoolFileError)
    generation_file = path if generation_path is None else generation_path
    text = values.get("text_config")
    said = {**values, **text} if isinstance(text, Mapping) else values
    if generation_path is not None:
        said = checked_config(generation_path, PoolFileError)
    with named_in(path):
        check_values(values)
        # transformers rejects other types in config.json, though generate() may look elsewhere.
        most = ANY_VOCABULARY if generation_path else said.get("vocab_size", ANY_VOCABULARY)
        checked_end_tokens(values.get(EOS_FIELD), most)
        config, model_class = _supported(path, values, context_tokens)
    _check_generation(generation_file, said)
    with named_in(generation_file):
        ends = checked_end_tokens(said.get(EOS_FIELD), int(config.vocab_size))
    return MemberConfig(
        location=resolved,
        config=config,
        model_class=model_class,
        eos_token_ids=ends,
        generation_file=generation_file,
        changed_options=changed_options(said),
        is_text_part=config.model_type != values.get("model_type"),
    )


def read_member_configs(file: Path, content: PoolFile) -> dict[str, MemberConfig]:
    """By name, of the members with a path; raises PoolFileError as `read_member_config`."""
    return {
        entry.name: read_member_config(file, f"members[{row}].path", entry.path, context_tokens=content.context_tokens)
        for row, entry in enumerate(content.members)
        if entry.path is not None
    }


def read_config(path: Path, *, context_tokens: int) -> tuple[PreTrainedConfig, type[PreTrainedModel]]:
    """A config.json alone, checked, and the class of its model, for weights that come from nowhere.

    `context_tokens` is the longest text the model is used with.

    Raises:
        PoolFileError: it cannot be read, is broken, or is of a model that is not supported.
    """
    values = checked_config(path, PoolFileError)
    with named_in(path):
        check_values(values)
        return _supported(path, values, context_tokens)


def _resolve(file: Path, field: str, location: str) -> Path | str:
    """A folder with a config and weights: beside the pool file, or fetched for a hub id; else a hub id."""
    folder = file.parent / location
    if folder.is_dir():
        for needed in (CONFIG, "model.safetensors"):
            sharded = folder / f"{needed}.index.json"
            if not (folder / needed).is_file() and not sharded.is_file():
                raise PoolFileError(file, field, f"must be a folder that holds {needed}", location)
        return folder
    if not HUB_ID.fullmatch(location):
        raise PoolFileError(file, field, "must be an existing folder or a hub id (owner/name)", location)
    here = fetched(location)
    if here is None:
        check_hub(file, field, location)
    return here or location


def _check_generation(path: Path, values: Mapping[str, Any]) -> None:
    """Raises PoolFileError for options of generation that transformers itself rejects."""
    try:
        with quiet_loading():
            GenerationConfig.from_dict(dict(values))
    # Reading options may raise anything.
    except Exception as error:
        rule = "must be options of generation that transformers reads"
        raise PoolFileError(path, "content", rule, in_one_line(error)) from error


def _supported(path: Path, values: Mapping[str, Any], context_tokens: int) -> tuple[PreTrainedConfig, type[Any]]:
    """A config as transformers reads it, and its model's class; raises as `check_supported`."""
    config, model_class = _built(path, values)
    check_supported(config, model_class, context_tokens=context_tokens)
    return config, model_class


def _built(path: Path, values: Mapping[str, Any]) -> tuple[PreTrainedConfig, type[Any]]:
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise ConfigError("model_type", "must be one that transformers knows", model_type)
    for key in QUANTISED_KEYS:
        if values.get(key) is not None:  # reading some needs further packages
            raise ConfigError(key, "must be absent: quantised weights are not supported", values[key])
    beside = next((name for name in QUANTISED_FILES if path.with_name(name).is_file()), None)
    if beside is not None:
        raise ConfigError(beside, "must not lie beside it: quantised weights are not supported", "one")
    try:
        with quiet_loading():
            config = AutoConfig.from_pretrained(str(path), trust_remote_code=False)
    # Reading a config may raise anything.
    except Exception as error:
        raise PoolFileError(path, "content", "must be a config that transformers reads", in_one_line(error)) from error
    text = config.get_text_config(decoder=True) if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING else config
    if text is not config and getattr(config, "tie_word_embeddings", False):
        text.tie_word_embeddings = True
    # Of a multimodal wrapper the text part decodes.
    for part in (config,) if text is config else (text, config):
        if type(part) in MODEL_FOR_CAUSAL_LM_MAPPING:
            return part, MODEL_FOR_CAUSAL_LM_MAPPING[type(part)]
    raise ConfigError("model_type", "must be a causal language model", model_type)


def check_configs(
    file: Path, content: PoolContent, configs: Mapping[str, MemberConfig], tokenizer: Tokenizer | None
) -> None:
    """Check vocabularies and positions; raises PoolFileError.

    `configs` are by name, of members with a path or a config; the target's at least. Without `tokenizer`, the pool's,
    its checks are left out.
    """
    target: Any = configs[content.members[-1].name].config
    vocab_size = int(target.vocab_size)
    if tokenizer is not None and (ids := num_token_ids(tokenizer)) > vocab_size:
        rule = f"must not have more tokens than the target ({vocab_size})"
        raise PoolFileError(file, "tokenizer", rule, ids)
    for row, entry in enumerate(content.members):
        if entry.name not in configs:
            continue
        config: Any = configs[entry.name].config
        if entry.tokenizer is None and config.vocab_size != vocab_size:
            if isinstance(content, ForcedPoolFile):
                rule = f"must have the target's vocabulary size ({vocab_size}); `vocab_size` gives all members one"
                raise PoolFileError(file, f"members[{row}]", rule, int(config.vocab_size))
            # A table of another size must hold all tokens and padding rows.
            if tokenizer is not None and config.vocab_size < (needed := num_token_ids(tokenizer)):
                rule = (
                    f"must have a row for each of the {needed} tokens of the pool's tokenizer, or a `tokenizer` of its "
                    "own, with which it can draft"
                )
                raise PoolFileError(file, f"members[{row}]", rule, int(config.vocab_size))
        if content.context_tokens > config.max_position_embeddings:
            rule = f"must be <= {config.max_position_embeddings}, the positions of {entry.name}"
            raise PoolFileError(file, "context_tokens", rule, content.context_tokens)


def check_order(file: Path, names: Sequence[str], num_parameters: Sequence[int]) -> None:
    """Members must be in order of parameters; raises PoolFileError."""
    largest = 0
    for row, (name, count) in enumerate(zip(names, num_parameters, strict=True)):
        if count < largest:
            rule = f"must stand in order of parameters ({largest} before {count})"
            raise PoolFileError(file, f"members[{row}]", rule, name)
        largest = count


def end_tokens_of_target(content: PoolContent, configs: Mapping[str, MemberConfig]) -> tuple[int, ...]:
    """Tokens that end a text of the pool, one at least; raises PoolFileError."""
    target = configs[content.members[-1].name]
    if not target.eos_token_ids:
        rule = "must name the tokens that end a text of the target, where generate() looks for them"
        raise PoolFileError(target.generation_file, EOS_FIELD, rule, None)
    return target.eos_token_ids


def left_off_of_target(file: Path, content: PoolFile, configs: Mapping[str, MemberConfig]) -> dict[str, Any]:
    """Options of the target's generation config that the pool ignores, with their values.

    Raises:
        PoolFileError: an option that changes texts and is not ignored, or one to ignore that changes none.
    """
    target, ignored = configs[content.members[-1].name], content.ignore_generation_options
    for option in ignored:
        if option not in target.changed_options:
            there = ", ".join(target.changed_options) or "none"
            rule = f"must be options of {target.generation_file.name} of the target that are refused ({there})"
            raise PoolFileError(file, IGNORE_KEY, rule, option)
    with named_in(target.generation_file):
        check_left_off(target.changed_options, ignored)
    return {option: target.changed_options[option] for option in ignored}


def submodel_of(file: Path, row: int, entry: MemberEntry, model: PreTrainedModel) -> PreTrainedModel:
    """The submodel of an entry: its model without the skipped layers, with added weights; raises PoolFileError."""
    with named_in(file, f"members[{row}].skip_layers", entry.skip_layers):
        submodel = make_submodel(model, entry.skip_layers)
    if entry.low_rank is not None:
        with named_in(file, f"members[{row}].low_rank", entry.low_rank):
            restore(submodel, entry.skip_layers, read_low_rank(file.parent / entry.low_rank))
    return submodel


def give_head(file: Path, row: int, entry: MemberEntry, model: PreTrainedModel, owner: PreTrainedModel | None) -> None:
    """Give a model the embeddings of another member and the vocabulary that its entry names; raises PoolFileError.

    `model`, of the member at `row`, is changed; `owner` has the embeddings, None where the model has its own.
    """
    field = f"members[{row}]"
    if owner is not None:
        assert entry.shares is not None
        key, name = entry.shares
        with named_in(file, f"{field}.{key}", name):
            # The states that a drafter reads are of the target's format, and so is it.
            share_embeddings(model, owner, may_round=key == "embeddings_of")
    if entry.vocabulary is None:
        return
    place, head = file.parent / entry.vocabulary, model.get_output_embeddings()
    if type(head) is not nn.Linear:
        rule = f"needs a model whose output head is linear, {type(model).__name__} has another"
        raise PoolFileError(file, f"{field}.vocabulary", rule, entry.vocabulary)
    try:
        tokens = read_head_tokens(place, head.out_features)
    except OSError as error:
        rule = f"must be a file that can be read ({error.strerror})"
        raise PoolFileError(file, f"{field}.vocabulary", rule, entry.vocabulary) from error
    except ValueError as error:
        raise PoolFileError(file, f"{field}.vocabulary", str(error), entry.vocabulary) from error
    at = torch.tensor(tokens, device=head.weight.device)
    model.set_output_embeddings(SubsetHead(head, at, is_of_another=owner is not None))


def check_own_tokenizer(
    file: Path,
    row: int,
    entry: MemberEntry,
    own: Tokenizer,
    configs: Mapping[str, MemberConfig],
    *,
    target: str,
    tokenizer: Tokenizer | None,
) -> None:
    """A member's own tokenizer must fit its model, and be alignable with the pool's; raises PoolFileError.

    `configs` are by name, the member's at least. Without the config of `target`, its end tokens, or `tokenizer` (the
    pool's) nothing is aligned.
    """
    field, config, largest = f"members[{row}].tokenizer", configs[entry.name], configs.get(target)
    vocab_size = int(config.config.vocab_size)
    if (ids := num_token_ids(own)) > vocab_size:
        rule = f"must not have more tokens than {entry.name} ({vocab_size})"
        raise PoolFileError(file, field, rule, ids)
    if tokenizer is None or largest is None or not largest.eos_token_ids:
        return
    try:
        Alignment(tokenizer, own, largest.eos_token_ids[0], frozenset(config.eos_token_ids))
    except ValueError as error:
        raise PoolFileError(file, field, f"cannot be aligned ({error})", entry.tokenizer) from error
