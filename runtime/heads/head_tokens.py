"""The file that names the tokens a drafter can say: a JSON list of ids."""

from pathlib import Path

from ...strict_json import kind_of_json, read_json

# A head of one token would have nothing to choose, and no second-best token for the gap that policies look at.
FEWEST = 2


def read_head_tokens(path: Path, vocab_size: int) -> list[int]:
    """The ids in a file, in its order.

    Args:
        path: of the file.
        vocab_size: ids are below it.

    Raises:
        ValueError: the rule that the file breaks, with the value; it names no file.
        OSError: it cannot be read.
    """
    found = read_json(path)
    if not isinstance(found, list):
        raise ValueError(f"must be a list of token ids, got {kind_of_json(found)}")
    last = -1
    for place, token in enumerate(found):
        if type(token) is not int or not last < token < vocab_size:
            rule = f"must be token ids below {vocab_size} in ascending order, each once"
            raise ValueError(f"{rule}, got {token!r} at place {place}")
        last = token
    if not FEWEST <= len(found) < vocab_size:
        raise ValueError(f"must hold {FEWEST} to {vocab_size - 1} of {vocab_size} tokens, got {len(found)}")
    return found
