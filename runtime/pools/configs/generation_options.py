"""Which options of transformers' GenerationConfig are honoured, change nothing, or are refused: one list for all.

What a pool writes must be what `generate()` of its target writes. Published instruct models name options in
generation_config.json that change the scores of tokens, such as a repetition penalty: those are refused by name, unless
the pool file says that they are to be ignored. Options of sampling act only where `generate()` samples, and a run takes
them from whoever asks for it.
"""

import tomllib
from collections.abc import Collection, Iterator, Mapping
from importlib.resources import files
from typing import Any

from ...broken_rule import ConfigError

OPTIONS = tomllib.loads(files(__package__).joinpath("generation_options.toml").read_text(encoding="utf-8"))
OFF_IN_CALLS = OPTIONS["off"] | OPTIONS["off_in_calls"]
OFF_IN_FILES = OPTIONS["off"] | OPTIONS["off_in_files"]
IGNORE_KEY = "ignore_generation_options"


def changed_options(said: Mapping[str, Any]) -> dict[str, Any]:
    """The options in a generation config's file that are refused, with their values.

    Args:
        said: content of generation_config.json, or of config.json where a model has no such file.
    """
    return dict(_set(said, OFF_IN_FILES))


def check_call(config: object) -> None:
    """Raises ValueError for an option of a `generate()` call that is not honoured, but for processors and criteria."""
    said = {option: getattr(config, option, None) for option in OFF_IN_CALLS}
    for option, value in _set(said, OFF_IN_CALLS):
        off = (None, *OFF_IN_CALLS[option])[-1]
        raise ValueError(f"{option} must be left at {off}, as paceline does not honour it, got {value!r}")


def check_left_off(changed: Mapping[str, Any], ignored: Collection[str]) -> None:
    """Raises ConfigError for the first refused option that a pool file does not ignore.

    Args:
        changed: of the target (`changed_options`).
        ignored: by the pool file.
    """
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
