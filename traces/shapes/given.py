"""What a user says of the shapes of models: a list of them in a file, a preset, or a config."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from ...arguments import ArgumentError, repeated
from ...strict_json import decode_json, read_bounded
from ..errors import TraceFormatError
from ..meta import ModelInfo
from .decoder import Decoder, presets
from .hub_config import read_hub_config, read_hub_decoder
from .named import head_called, model_called, preset_names, shape_called

_Shapes = Annotated[list[ModelInfo], Field(min_length=1)]


def given_shapes(texts: Sequence[str], target: str) -> tuple[ModelInfo, ...]:
    """Shapes by member, as `models` gives them.

    Args:
        texts: each `FILE.json`, a list of shapes; `NAME=PRESET`; `NAME=PATH` of a config.json or of the folder that
            holds it; or a preset alone, which is the target's. A head without a model's name is one of the target's.
        target: the member that verifies.

    Raises:
        TraceFormatError: a file that breaks its format.
        ValueError: a text of another form, an unknown preset, or a member named twice; one line.
    """
    listed: list[ModelInfo] = []
    called: dict[str, str] = {}
    for text in texts:
        if "=" not in text and _is_file(text):
            listed += _shapes(text)
            continue
        name, _, source = text.partition("=") if "=" in text else (target, "", text)
        if not name or not source:
            raise ArgumentError(f"`models` must be FILE.json, NAME=PRESET or NAME=CONFIG, got {text!r}")
        if name in called:
            raise _twice(name)
        if _is_file(source):
            listed.append(read_hub_config(Path(source), name))
        else:
            called[name] = source
    for name in repeated([*called, *(shape.name for shape in listed)]):
        raise _twice(name)
    base = model_called(called.get(target, target))
    return (*listed, *(_preset(name, text, base) for name, text in called.items()))


def given_decoders(texts: Sequence[str], target: str) -> dict[str, Decoder]:
    """What given models are made of, by member; without heads and shapes of a list. Arguments as `given_shapes`."""
    found: dict[str, Decoder] = {}
    for text in texts:
        if "=" not in text and _is_file(text):
            continue
        name, _, source = text.partition("=") if "=" in text else (target, "", text)
        called = None if _is_file(source) or head_called(source) is not None else model_called(source)
        decoder = read_hub_decoder(Path(source)) if _is_file(source) else presets().get(called or "")
        if decoder is not None:
            found[name] = decoder
    return found


def _is_file(text: str) -> bool:
    return text.endswith(".json") or Path(text).is_dir()


def _twice(name: str) -> ArgumentError:
    return ArgumentError(f"`models` must give each member one shape, got {name!r} twice")


def _preset(name: str, text: str, target: str | None) -> ModelInfo:
    shape, kind = shape_called(text, name, target), head_called(text)
    if shape is not None:
        return shape
    if kind is not None and (target is not None or model_called(text) is not None):
        rule = "must be a config.json or FILE.json: what heads of a mixture of experts are made of differs"
        raise ArgumentError(f"`models` {name}={text} {rule}")
    if kind is not None:
        raise ArgumentError(f"`models` {name}={text} must name the model it is a head of, as in {kind}-llama-3.1-8b")
    raise ArgumentError(f"`models` must be a config.json or a preset ({', '.join(preset_names())}), got {text!r}")


def _shapes(text: str) -> list[ModelInfo]:
    """Shapes from a file that lists them, at least one."""
    path = Path(text)
    try:
        content = read_bounded(path)
        decoded = decode_json(content)
    except OSError as error:
        raise TraceFormatError(path, "file", "must be a readable file", error.strerror) from None
    except ValueError as error:
        raise TraceFormatError(path, "content", "must be JSON", str(error)) from None
    if isinstance(decoded, dict) and "model_type" in decoded:
        raise TraceFormatError(
            path, "content", "must be a list of shapes; of a config say whose, NAME=FILE", "a config"
        )
    try:
        return list(TypeAdapter(_Shapes).validate_json(content, strict=True))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "content"
    raise TraceFormatError(path, field, first["msg"][:1].lower() + first["msg"][1:], first["input"])
