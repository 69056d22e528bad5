"""Which model a server is asked for: the one it names, or the one that was named, if it has it."""

from ..arguments import ArgumentError
from ..foreign_text import one_line_of
from ..strict_json import decode_json
from .endpoint import Endpoint, RefusedError, ServerError

_LONGEST = 500  # characters of a name
_SHOWN = 20  # models, in an error


def model_of(endpoint: Endpoint, asked: str | None) -> str:
    """The model's name as requests give it.

    Args:
        endpoint: of the server.
        asked: by the user; None: the only one that the server lists.

    Raises:
        ServerError: a server that cannot be reached, or lists no models though none was named, by its address.
        ArgumentError: a model that it does not list, or none where it lists several, or a name that is no name.
    """
    try:
        listed = _listed(endpoint)
    except RefusedError:
        if asked is None:
            raise
        listed = []
    shown = ", ".join(listed[:_SHOWN]) or "none"
    shown += f" and {len(listed) - _SHOWN:,} more" if len(listed) > _SHOWN else ""
    if asked is None:
        if len(listed) != 1:
            raise ArgumentError(f"`model` must be given where a server lists several models or none, got {shown}")
        return _checked(listed[0])
    if listed and asked not in listed:
        raise ArgumentError(f"`model` must be one that {endpoint.url} lists ({shown}), got {asked!r}")
    return _checked(asked)


def _checked(name: str) -> str:
    """A name that the run's file can hold; raises ArgumentError."""
    if not (0 < len(name) <= _LONGEST and name.isprintable()):
        raise ArgumentError(
            f"`model` must be a name of 1 to {_LONGEST} printable characters, got {one_line_of(repr(name), 100)}"
        )
    return name


def _listed(endpoint: Endpoint) -> list[str]:
    text = endpoint.page("/v1/models")
    try:
        content = decode_json(text.encode("utf-8"))
    except ValueError:
        content = None
    data = content.get("data") if isinstance(content, dict) else None
    if not isinstance(data, list):
        raise ServerError(f"{endpoint.url}/v1/models: must be a list of models, got {one_line_of(text, 60)!r}")
    return [one["id"] for one in data if isinstance(one, dict) and isinstance(one.get("id"), str)]
