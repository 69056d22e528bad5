"""What a user says of the shapes of models: a list of them in a file, a preset, or a config."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from ...arguments import ArgumentError, known_are, repeated
from ...strict_json import checked_json
from ..errors import TraceFormatError
from ..meta import MOST, DraftBlock, ModelInfo
from .decoder import SHAPES_PAGE, Decoder, presets
from .heads import head_of
from .hub_config import read_hub_config, read_hub_decoder
from .named import head_called, model_called, preset_names
from .quantised_modules import quantised_weights
from .weights import FORMATS, KV_WIDTHS

_Shapes = Annotated[list[ModelInfo], Field(min_length=1)]


def given_shapes(texts: Sequence[str], target: str) -> tuple[ModelInfo, ...]:
    """Shapes by member, as `models` gives them.

    Args:
        texts: each `FILE.json`, a list of shapes; `NAME=PRESET`; `NAME=PATH` of a config.json or of the folder that
            holds it; or a preset alone, which is the target's. A head without a model's name is one of the target's.
            After `@`, how it is served: `fp8`, `kv=fp8`, `block=15`, with commas between them.
        target: the member that verifies.

    Raises:
        TraceFormatError: a file that breaks its format.
        ValueError: a text of another form, an unknown preset, or a member named twice; one line.
    """
    given = list(_given_by(texts, target))
    texts_of = [each for each in given if isinstance(each, _Given)]
    listed = [each.config() if isinstance(each, _Given) else each for each in given if _is_read(each)]
    named = [each for each in texts_of if not each.is_file]
    names = [*(each.name for each in named), *(shape.name for shape in listed)]
    for name in repeated(names):
        raise ArgumentError(f"`models` must give each member one shape, got {name!r} twice")
    base = next((each.decoder() for each in texts_of if each.name == target), None)
    if base is None and target not in names:
        base = presets().get(model_called(target) or "")
    return (*listed, *(each.preset(base) for each in named))


def given_decoders(texts: Sequence[str], target: str) -> dict[str, Decoder]:
    """What given models are made of, by member; without heads and shapes of a list. Arguments as `given_shapes`."""
    given = [each for each in _given_by(texts, target) if isinstance(each, _Given)]
    return {each.name: decoder for each in given if (decoder := each.decoder()) is not None}


def _given_by(texts: Sequence[str], target: str) -> Iterator["ModelInfo | _Given"]:
    """Shapes of lists, and what is said of one member each, in their order."""
    for text in texts:
        if "=" not in text and _is_file(text):
            yield from _shapes(text)
            continue
        name, _, source = text.partition("=") if _names(text) else (target, "", text)
        if not name or not source:
            raise ArgumentError(f"`models` must be FILE.json, NAME=PRESET or NAME=CONFIG, got {text!r}")
        yield _given(text, name, source)


def _is_read(given: "ModelInfo | _Given") -> bool:
    """Whether it is of a file."""
    return isinstance(given, ModelInfo) or given.is_file


def _names(text: str) -> bool:
    """Whether a text begins with `NAME=`, rather than with a shape that is served in some way."""
    return "=" in text.partition("@")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What is said of one member.

    Attributes:
        name: of the member.
        source: preset, head or path.
        weights: format of its weights, of `FORMATS`; "" is the source's own.
        kv_dtype: of its keys and values, of `KV_WIDTHS`; "" is the source's own.
        block: most tokens that a forward drafts of a draft model that writes all at once; None: as the source says.
    """

    name: str
    source: str
    weights: str = ""
    kv_dtype: str = ""
    block: int | None = None

    @property
    def is_file(self) -> bool:
        """Whether its source is a config."""
        return _is_file(self.source)

    def config(self) -> ModelInfo:
        """The shape of a config."""
        decoder = self.decoder()
        if decoder is not None:
            return self._info(decoder)
        if self.weights or self.kv_dtype or self.block is not None:
            raise ArgumentError(
                f"`models` {self.name}={self.source} must be without @: it is a drafter of its own kind"
            )
        return read_hub_config(Path(self.source), self.name)

    def decoder(self) -> Decoder | None:
        """What it is made of; None of a head, and of what nobody knows."""
        if self.is_file:
            found = read_hub_decoder(Path(self.source), in_parallel=self.block is not None)
        else:
            found = None if head_called(self.source) else presets().get(model_called(self.source) or "")
        return None if found is None else self._served(found)

    def preset(self, target: Decoder | None) -> ModelInfo:
        """The shape that its source names; of a head without a model's name it is the target's."""
        decoder, kind, model = self.decoder(), head_called(self.source), model_called(self.source)
        if decoder is not None:
            return self._info(decoder)
        called = f"`models` {self.name}={self.source}"
        if kind is None:
            known = known_are(self.source, preset_names(), where=SHAPES_PAGE)
            raise ArgumentError(f"`models` must be a config.json or a preset ({known}), got {self.source!r}")
        if self.weights or self.block is not None:
            raise ArgumentError(f"{called} must be without @, but for its kv: what a head weighs is in FILE.json")
        whose = target if model is None else presets()[model]
        if whose is None:
            raise ArgumentError(f"{called} must name the model it is a head of, as in {kind}-llama-3.1-8b")
        head = head_of(kind, self._served(whose), self.name)
        if head is None:
            rule = "must be a config.json or FILE.json: what heads of a mixture of experts are made of differs"
            raise ArgumentError(f"{called} {rule}")
        return head

    def _info(self, decoder: Decoder) -> ModelInfo:
        block = None if self.block is None else DraftBlock(tokens=self.block)
        return decoder.info(self.name).model_copy(update={"draft_block": block})

    def _served(self, decoder: Decoder) -> Decoder:
        """The same model with the weights and the cache that are asked for."""
        if self.weights and decoder.quantised is not None:
            raise ArgumentError(
                f"`models` {self.name}={self.source} has {decoder.quantised.format.name} weights, got {self.weights}"
            )
        if self.weights:
            decoder = replace(decoder, quantised=quantised_weights(decoder, FORMATS[self.weights]))
        return replace(decoder, kv_dtype=self.kv_dtype) if self.kv_dtype else decoder


def _given(text: str, name: str, source: str) -> _Given:
    """What a text says: a source, and after `@` how it is served."""
    if "@" not in source or _is_file(source):
        return _Given(name=name, source=source)
    source, _, ways = source.rpartition("@")
    said: dict[str, str] = {}
    for way in ways.split(","):
        key, _, value = way.partition("=") if "=" in way else ("weights", "", way)
        known = {"weights": tuple(FORMATS), "kv": tuple(KV_WIDTHS)}
        right = value in known[key] if key in known else key == "block" and _is_count(value)
        if key in said or not source or not right:
            rule = f"{', '.join(FORMATS)}, kv= one of {', '.join(KV_WIDTHS)} or block=TOKENS (1 to {MOST}), each once"
            raise ArgumentError(f"`models` must say after @ one of {rule}, got {text!r}")
        said[key] = value
    block = said.get("block")
    return _Given(
        name=name,
        source=source,
        weights=said.get("weights", ""),
        kv_dtype=said.get("kv", ""),
        block=None if block is None else int(block),
    )


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(MOST)) and 1 <= int(text) <= MOST


def _is_file(text: str) -> bool:
    return text.endswith(".json") or Path(text).is_dir()


def _shapes(text: str) -> list[ModelInfo]:
    """Shapes from a file that lists them, at least one."""
    path = Path(text)
    decoded = checked_json(path, TraceFormatError)
    if isinstance(decoded, dict) and "model_type" in decoded:
        raise TraceFormatError(
            path, "content", "must be a list of shapes; of a config say whose, NAME=FILE", "a config"
        )
    try:
        return list(TypeAdapter(_Shapes).validate_json(json.dumps(decoded), strict=True))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "content"
    raise TraceFormatError(path, field, first["msg"][:1].lower() + first["msg"][1:], first["input"])
