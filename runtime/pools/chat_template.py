"""The chat template of a member, from its files: prompts as the model was trained to read them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from ...base.files import read_json
from ..refusals import in_one_line
from .pool_file import PoolFileError
from .published import fetched
from .tokenizer_files import file_beside

TEMPLATE, TOKENIZER_CONFIG = "chat_template.jinja", "tokenizer_config.json"
_SPECIAL = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
# The file of older tokenizers, the table that newer configs have instead, and fields with tokens of a model's own.
_SPECIAL_OF_OLD, _TABLE = "special_tokens_map.json", "added_tokens_decoder"
_FURTHER = ("extra_special_tokens", "model_specific_special_tokens")


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """Renders a question as a dialogue, up to where the answer begins."""

    place: Path  # its file, for messages
    text: str  # Jinja, as transformers renders it
    special: tuple[tuple[str, str], ...]  # texts of special tokens that it may name, as transformers gives them

    def asked(self, question: str) -> str:
        """The dialogue that a user begins with a question; raises PoolFileError for a template that cannot be used."""
        return self.dialogue([{"role": "user", "content": question}])

    def dialogue(self, messages: Sequence[Mapping[str, str]]) -> str:
        """A dialogue of messages with `role` and `content`, up to where the answer begins; raises as `asked`."""
        try:
            (rendered,), _ = render_jinja_template(
                [[dict(message) for message in messages]],
                chat_template=self.text,
                add_generation_prompt=True,
                **dict(self.special),
            )
        except (TemplateError, TypeError, ValueError) as error:
            rule = "must make a dialogue of what is asked"
            raise PoolFileError(self.place, "chat template", rule, in_one_line(error)) from error
        return str(rendered)


def read_chat_template(file: Path, location: str) -> ChatTemplate:
    """The chat template of a pool's tokenizer, at `location`: file relative to the pool file, or a hub id.

    Raises:
        PoolFileError: there is none beside the tokenizer, or it cannot be read.
    """
    local = file.parent / location
    try:
        held = local.parent if local.is_file() else fetched(location) or location
        template, config = (file_beside(held, name) for name in (TEMPLATE, TOKENIZER_CONFIG))
        values = {} if config is None else _object(config)
        if _TABLE not in values and (beside := file_beside(held, _SPECIAL_OF_OLD)) is not None:
            values |= _object(beside)
        text = values.get("chat_template") if template is None else template.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        rule = f"must have a chat template that can be read ({in_one_line(error)})"
        raise PoolFileError(file, "tokenizer", rule, location) from error
    if isinstance(text, list):  # several by name, of which transformers takes this one
        named = {str(one.get("name")): one.get("template") for one in text if isinstance(one, dict)}
        text = named.get("default")
        if text is None:
            rule = f"must have one called default among its named chat templates ({', '.join(named)})"
            raise PoolFileError(file, "tokenizer", rule, location)
    place = template or config
    if place is None or not isinstance(text, str):
        rule = f"must have a chat template ({TEMPLATE}, or {TOKENIZER_CONFIG}) beside it for a chat"
        raise PoolFileError(file, "tokenizer", rule, location)
    special = {name: values.get(name) for name in _SPECIAL}
    for further in map(values.get, _FURTHER):
        special |= further if isinstance(further, dict) else {}
    said = {name: _text_of(token) for name, token in special.items()}
    return ChatTemplate(place, text, tuple((name, token) for name, token in said.items() if token is not None))


def _object(path: Path) -> dict[str, Any]:
    values = read_json(path, constants=True)
    if not isinstance(values, dict):
        raise ValueError(f"{path.name} must be an object")
    return values


def _text_of(token: object) -> str | None:
    """A special token is a text, or an object with one."""
    said = token.get("content") if isinstance(token, dict) else token
    return said if isinstance(said, str) else None
