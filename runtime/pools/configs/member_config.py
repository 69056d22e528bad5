"""The config of a pool's member, read and checked before its weights: what the pool then loads is supported."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import AutoConfig, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
from transformers.utils.hub import cached_file

from ....strict_json import checked_config
from ....traces.shapes.quantisation import QUANTISED_FILES, QUANTISED_KEYS
from ...broken_rule import ConfigError
from ..fetching.fetched import fetched
from ..loading.quiet_loading import quiet_loading
from ..pool_file import HUB_ID, PoolFile, PoolFileError
from .config_values import check_values
from .end_tokens import EOS_FIELD, checked_end_tokens
from .generation_options import changed_options
from .supported_models import check_supported

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
# Where the size is not known yet, or ids beyond it do no harm.
ANY_VOCABULARY = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """What is known of a model before its weights are loaded.

    Attributes:
        location: folder or hub id, for transformers.
        config: as transformers reads it.
        model_class: that is built from it.
        eos_token_ids: tokens that end a text (`end_tokens`); may be none.
        generation_file: where they are named, or would be, and other options of generation.
        changed_options: options in it that `generate()` honours and a pool does not, with their values.
        is_text_part: whether it is the text part of a model that also sees or hears.
    """

    location: Path | str
    config: PreTrainedConfig
    model_class: type[PreTrainedModel]
    eos_token_ids: tuple[int, ...]
    generation_file: Path
    changed_options: Mapping[str, Any] = field(default_factory=dict)
    is_text_part: bool = False


def read_member_config(file: Path, field: str, location: str, *, context_tokens: int) -> MemberConfig:
    """Read and check the config of the model at `location`.

    Args:
        file: the pool file.
        field: what of the pool file names the model.
        location: folder relative to the pool file, or a hub id.
        context_tokens: longest text the pool is used with.

    Raises:
        PoolFileError: no such model, or a config that is broken or of a model that is not supported; it names the
            config's own file and field.
    """
    resolved = _resolve(file, field, location)
    try:
        path, generation_path = (_file_of(resolved, name) for name in (CONFIG, GENERATION_CONFIG))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise PoolFileError(file, field, f"cannot be loaded ({reason})", location) from error
    if path is None:
        raise PoolFileError(file, field, f"must hold {CONFIG}", location)
    values = checked_config(path, PoolFileError)
    generation_file = path if generation_path is None else generation_path
    said = _text_part(values) if generation_path is None else checked_config(generation_path, PoolFileError)
    try:
        check_values(values)
        # transformers refuses other types in config.json, though generate() may look elsewhere.
        most = ANY_VOCABULARY if generation_path else said.get("vocab_size", ANY_VOCABULARY)
        checked_end_tokens(values.get(EOS_FIELD), most)
        config, model_class = _built(path, values)
        check_supported(config, model_class, context_tokens=context_tokens)
    except ConfigError as error:
        raise PoolFileError(path, error.field, error.rule, error.value) from error
    _check_generation(generation_file, said)
    try:
        ends = checked_end_tokens(said.get(EOS_FIELD), int(config.vocab_size))
    except ConfigError as error:
        raise PoolFileError(generation_file, error.field, error.rule, error.value) from error
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
    """A config alone, checked, and the class of its model, for weights that come from nowhere.

    Args:
        path: of a config.json.
        context_tokens: longest text the model is used with.

    Raises:
        PoolFileError: it cannot be read, is broken, or is of a model that is not supported.
    """
    values = checked_config(path, PoolFileError)
    try:
        check_values(values)
        config, model_class = _built(path, values)
        check_supported(config, model_class, context_tokens=context_tokens)
    except ConfigError as error:
        raise PoolFileError(path, error.field, error.rule, error.value) from error
    return config, model_class


def _resolve(file: Path, field: str, location: str) -> Path | str:
    """A folder with a config and weights: beside the pool file, or of a hub id that was fetched; or else a hub id."""
    folder = file.parent / location
    if folder.is_dir():
        for needed in (CONFIG, "model.safetensors"):
            sharded = folder / f"{needed}.index.json"
            if not (folder / needed).is_file() and not sharded.is_file():
                raise PoolFileError(file, field, f"must be a folder that holds {needed}", location)
        return folder
    if not HUB_ID.fullmatch(location):
        raise PoolFileError(file, field, "must be an existing folder or a hub id (owner/name)", location)
    return fetched(location) or location


def _file_of(location: Path | str, name: str) -> Path | None:
    """A small file of the model, fetched from the hub if it is there; None if the model has none."""
    if isinstance(location, Path):
        return location / name if (location / name).is_file() else None
    found = cached_file(location, name, _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found)


def _check_generation(path: Path, values: Mapping[str, Any]) -> None:
    """Raises PoolFileError for options of generation that transformers itself refuses."""
    try:
        with quiet_loading():
            GenerationConfig.from_dict(dict(values))
    # What reading options runs into, each option in its own way.
    except Exception as error:
        reason = " ".join(str(error).split())
        raise PoolFileError(path, "content", "must be options of generation that transformers reads", reason) from error


def _text_part(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config says of text, beside images or sounds."""
    text = values.get("text_config")
    return {**values, **text} if isinstance(text, Mapping) else values


def _built(path: Path, values: Mapping[str, Any]) -> tuple[PreTrainedConfig, type[Any]]:
    """The config as transformers reads it, and the class of its model."""
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise ConfigError("model_type", "must be one that transformers knows", model_type)
    for key in QUANTISED_KEYS:
        if values.get(key) is not None:  # some need packages of their own to be read at all
            raise ConfigError(key, "must be absent: quantised weights are not supported", values[key])
    beside = next((name for name in QUANTISED_FILES if path.with_name(name).is_file()), None)
    if beside is not None:
        raise ConfigError(beside, "must not lie beside it: quantised weights are not supported", "one")
    try:
        with quiet_loading():
            config = AutoConfig.from_pretrained(str(path), trust_remote_code=False)
    # What reading a config runs into, each model type in its own way.
    except Exception as error:
        reason = " ".join(str(error).split())
        raise PoolFileError(path, "content", "must be a config that transformers reads", reason) from error
    text = config.get_text_config(decoder=True) if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING else config
    if text is not config and getattr(config, "tie_word_embeddings", False):
        text.tie_word_embeddings = True
    # Of a wrapper that also sees or hears the text part is what decodes.
    for part in (config,) if text is config else (text, config):
        if type(part) in MODEL_FOR_CAUSAL_LM_MAPPING:
            return part, MODEL_FOR_CAUSAL_LM_MAPPING[type(part)]
    raise ConfigError("model_type", "must be a causal language model", model_type)
